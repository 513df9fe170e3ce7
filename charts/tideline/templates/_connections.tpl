{{- define "tideline.kafka.brokers" -}}
{{- if .Values.trial.kafka.enabled -}}
{{ include "tideline.fullname" . }}-kafka.{{ .Release.Namespace }}.svc:9092
{{- else -}}
{{ .Values.kafka.brokers }}
{{- end -}}
{{- end -}}

{{- define "tideline.redis.address" -}}
{{- if .Values.trial.redis.enabled -}}
{{ include "tideline.fullname" . }}-redis.{{ .Release.Namespace }}.svc:6379
{{- else -}}
{{ .Values.redis.address }}
{{- end -}}
{{- end -}}

{{/* "true" where locks are in Redis. */}}
{{- define "tideline.redis.isUsed" -}}
{{- if or .Values.redis.urlSecret.name (include "tideline.redis.address" .) -}}true{{- end -}}
{{- end -}}

{{/* Options of librdkafka as JSON; $(NAME) is replaced by Kubernetes with the variables of "tideline.kafka.secrets". */}}
{{- define "tideline.kafka.options" -}}
{{- $security := .Values.kafka.security -}}
{{- $options := dict "security.protocol" $security.protocol -}}
{{- if hasPrefix "SASL" $security.protocol -}}
{{- $_ := set $options "sasl.mechanism" $security.mechanism -}}
{{- $_ := set $options "sasl.username" "$(KAFKA_USERNAME)" -}}
{{- $_ := set $options "sasl.password" "$(KAFKA_PASSWORD)" -}}
{{- end -}}
{{- if hasSuffix "SSL" $security.protocol -}}
{{- if .Values.trust.configMap.name -}}
{{- $_ := set $options "ssl.ca.location" "/etc/tideline/trust/ca.crt" -}}
{{- end -}}
{{- if $security.clientCertificateSecret.name -}}
{{- $_ := set $options "ssl.certificate.location" "/etc/tideline/kafka/tls.crt" -}}
{{- $_ := set $options "ssl.key.location" "/etc/tideline/kafka/tls.key" -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := .Values.kafka.options -}}
{{- $_ := set $options $name (include "tideline.settingText" $value) -}}
{{- end -}}
{{- toJson $options -}}
{{- end -}}

{{- define "tideline.secretVariable" -}}
- name: {{ .variable }}
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ .key }}
{{- end -}}

{{/* `root`, `variable` (that takes the options of librdkafka). */}}
{{- define "tideline.kafka.env" -}}
{{- $kafka := .root.Values.kafka -}}
{{- if .root.Values.trial.kafka.enabled -}}
{{- else if $kafka.optionsSecret.name -}}
{{ include "tideline.secretVariable" (dict "variable" .variable "name" $kafka.optionsSecret.name "key" $kafka.optionsSecret.key) }}
{{- else -}}
{{- if hasPrefix "SASL" $kafka.security.protocol }}
{{- $secret := $kafka.security.credentialsSecret }}
{{ include "tideline.secretVariable" (dict "variable" "KAFKA_USERNAME" "name" $secret.name "key" $secret.usernameKey) }}
{{ include "tideline.secretVariable" (dict "variable" "KAFKA_PASSWORD" "name" $secret.name "key" $secret.passwordKey) }}
{{- end }}
- name: {{ .variable }}
  value: {{ include "tideline.kafka.options" .root | quote }}
{{- end -}}
{{- end -}}

{{/* Variable with the URL of locks and reservations. */}}
{{- define "tideline.locks.env" -}}
{{- $redis := .Values.redis -}}
{{- if .Values.trial.redis.enabled -}}
- name: TIDELINE_LOCKS
  value: {{ printf "redis://%s/0" (include "tideline.redis.address" .) | quote }}
{{- else if $redis.urlSecret.name -}}
{{ include "tideline.secretVariable" (dict "variable" "TIDELINE_LOCKS" "name" $redis.urlSecret.name "key" $redis.urlSecret.key) }}
{{- else if $redis.address -}}
- name: TIDELINE_LOCKS
  value: {{ printf "%s://%s/%d" (ternary "rediss" "redis" $redis.tls) $redis.address (int $redis.database) | quote }}
{{- else -}}
- name: TIDELINE_LOCKS
  value: ""
{{- end -}}
{{- end -}}

{{- define "tideline.objectStore.variables" -}}
{{- with .Values.objectStore.region }}
AWS_REGION: {{ . | quote }}
{{- end }}
{{- with .Values.objectStore.endpoint }}
AWS_ENDPOINT_URL: {{ . | quote }}
{{- end }}
{{- range $name, $value := .Values.objectStore.environment }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* The ports in a list of addresses host:port or a URL, as rules of a NetworkPolicy; `standard` where none is named. */}}
{{- define "tideline.ports" -}}
{{- $seen := dict -}}
{{- range splitList "," .addresses -}}
{{- $address := . | trim | trimSuffix "/" -}}
{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" $address) -}}
{{- $_ := set $seen (default (toString $.standard) $port) true -}}
{{- end -}}
{{- range $port := keys $seen | sortAlpha }}
- port: {{ $port }}
  protocol: TCP
{{- end }}
{{- end -}}
