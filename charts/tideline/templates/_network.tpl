{{/* One rule of egress: `peers` (a list; empty: everything), `ports` (text). */}}
{{- define "tideline.egressRule" -}}
- ports:
    {{- .ports | trim | nindent 4 }}
  {{- with .peers }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "tideline.dnsRule" -}}
{{ include "tideline.egressRule" (dict "peers" .Values.networkPolicy.dnsPeers "ports" "- {port: 53, protocol: UDP}\n- {port: 53, protocol: TCP}") }}
{{- end -}}

{{/* The service's address and the endpoints behind it: a policy sees one or the other, depending on the network plug-in. */}}
{{- define "tideline.apiServerRule" -}}
{{- $ports := "" -}}
{{- range .Values.networkPolicy.apiServerPorts -}}
{{- $ports = printf "%s\n- {port: %v, protocol: TCP}" $ports . -}}
{{- end -}}
{{ include "tideline.egressRule" (dict "peers" .Values.networkPolicy.apiServerPeers "ports" $ports) }}
{{- end -}}

{{/* Object store and Redis. */}}
{{- define "tideline.storageRules" -}}
{{- $endpoint := .Values.objectStore.endpoint -}}
{{ include "tideline.egressRule" (dict "peers" .Values.networkPolicy.objectStorePeers "ports" (include "tideline.ports" (dict "addresses" $endpoint "standard" (ternary 80 443 (hasPrefix "http:" $endpoint))))) }}
{{- if include "tideline.redis.isUsed" . }}
{{ include "tideline.egressRule" (dict "peers" (include "tideline.redis.peers" . | fromYamlArray) "ports" (include "tideline.ports" (dict "addresses" (include "tideline.redis.address" .) "standard" .Values.networkPolicy.redisPort))) }}
{{- end }}
{{- end -}}

{{- define "tideline.kafka.peers" -}}
{{- if .Values.trial.kafka.enabled -}}
- podSelector:
    matchLabels:
      {{- include "tideline.selector" (dict "root" . "component" "kafka") | nindent 6 }}
{{- else -}}
{{- toYaml .Values.networkPolicy.kafkaPeers -}}
{{- end -}}
{{- end -}}

{{- define "tideline.redis.peers" -}}
{{- if .Values.trial.redis.enabled -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {{ .Release.Namespace }}
  podSelector:
    matchLabels:
      {{- include "tideline.selector" (dict "root" . "component" "redis") | nindent 6 }}
{{- else -}}
{{- toYaml .Values.networkPolicy.redisPeers -}}
{{- end -}}
{{- end -}}
