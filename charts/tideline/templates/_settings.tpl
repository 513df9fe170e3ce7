{{/* A setting's value as text of an environment variable: lists and mappings as JSON, whole numbers without exponent. */}}
{{- define "tideline.settingText" -}}
{{- if kindIs "string" . -}}{{ . }}{{- else -}}{{ toJson . }}{{- end -}}
{{- end -}}

{{/* Variables of one component from the values `settings`: `root`, `section`, `own` (its settings). */}}
{{- define "tideline.settingVariables" -}}
{{- range $name, $value := .root.Values.settings }}
TIDELINE_{{ upper $name }}: {{ include "tideline.settingText" $value | quote }}
{{- end }}
{{- $section := .section }}
{{- range $name, $value := .own }}
TIDELINE_{{ $section }}__{{ upper $name }}: {{ include "tideline.settingText" $value | quote }}
{{- end }}
{{- end -}}

{{/* Variables of the settings that only the cleaner has. */}}
{{- define "tideline.cleaner.variables" -}}
{{- range $name, $value := pick .Values.cleaner.settings "options" "clean_min_commits" "clean_interval_s" }}
TIDELINE_CLEANER__{{ upper $name }}: {{ include "tideline.settingText" $value | quote }}
{{- end }}
{{- end -}}

{{/* Variables of the console: where it listens, and the settings by which it judges as planner and cleaner do. */}}
{{- define "tideline.console.variables" -}}
TIDELINE_CONSOLE__LISTEN_HOST: {{ .Values.http.host | quote }}
TIDELINE_CONSOLE__LISTEN_PORT: {{ .Values.console.port | quote }}
{{- if .Values.console.podLogs }}
TIDELINE_CONSOLE__POD_LOGS__NAMESPACE: {{ include "tideline.applications.namespace" . | quote }}
{{- end }}
{{- range $name, $value := .Values.planner.settings }}
TIDELINE_PLANNER__{{ upper $name }}: {{ include "tideline.settingText" $value | quote }}
{{- end }}
{{- range $name, $value := .Values.cleaner.settings }}
TIDELINE_CLEANER__{{ upper $name }}: {{ include "tideline.settingText" $value | quote }}
{{- end }}
{{- end -}}

{{/* Secrets of the console: tokens of people, its secret at the provider of OpenID Connect. */}}
{{- define "tideline.console.env" -}}
{{- with .Values.console.signIn.operatorTokenSecret }}{{ if .name }}
{{ include "tideline.secretVariable" (dict "variable" "TIDELINE_CONSOLE__SIGN_IN__OPERATOR_TOKEN" "name" .name "key" .key) }}
{{- end }}{{ end }}
{{- with .Values.console.signIn.viewerTokenSecret }}{{ if .name }}
{{ include "tideline.secretVariable" (dict "variable" "TIDELINE_CONSOLE__SIGN_IN__VIEWER_TOKEN" "name" .name "key" .key) }}
{{- end }}{{ end }}
{{- with .Values.console.signIn.clientSecret }}{{ if .name }}
{{ include "tideline.secretVariable" (dict "variable" "TIDELINE_CONSOLE__SIGN_IN__CLIENT_SECRET" "name" .name "key" .key) }}
{{- end }}{{ end }}
{{- end -}}

{{/* Where the file of subscriptions is in a pod of the webhooks. */}}
{{- define "tideline.webhooks.file" -}}
/etc/tideline/webhooks/subscriptions.yaml
{{- end -}}

{{- define "tideline.webhooks.mounts" -}}
- {name: subscriptions, mountPath: {{ dir (include "tideline.webhooks.file" .) }}, readOnly: true}
{{- if .Values.webhooks.subscriptions.signingSecret }}
- {name: signing, mountPath: /etc/tideline/webhooks-secrets, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tideline.webhooks.volumes" -}}
{{- $subscriptions := .Values.webhooks.subscriptions -}}
- name: subscriptions
  {{- if $subscriptions.content }}
  configMap:
    name: {{ include "tideline.fullname" . }}-subscriptions
  {{- else }}
  secret:
    secretName: {{ $subscriptions.contentSecret.name }}
    defaultMode: 0440
    items:
      - {key: {{ $subscriptions.contentSecret.key }}, path: subscriptions.yaml}
  {{- end }}
{{- with $subscriptions.signingSecret }}
- name: signing
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* The data of a component's ConfigMap: `root`, `section`, `own`, `tables`, `shards`, `instances`. Everything but secrets and the shard's index. */}}
{{- define "tideline.configuration" -}}
TIDELINE_STATE_FOLDER: /var/lib/tideline
TIDELINE_HTTP_HOST: {{ .root.Values.http.host | quote }}
TIDELINE_HTTP_PORT: {{ .root.Values.http.port | quote }}
{{- if .tables }}
TIDELINE_TABLES: {{ toJson .root.Values.tables | quote }}
{{- if .root.Values.tableResources.enabled }}
TIDELINE_TABLE_RESOURCES__ENABLED: "true"
TIDELINE_TABLE_RESOURCES__NAMESPACE: {{ include "tideline.tableResources.namespace" .root | quote }}
{{- end }}
{{- end }}
{{- if .shards }}
TIDELINE_SHARD_COUNT: {{ .shards | quote }}
{{- if .instances }}
TIDELINE_SHARD_LEASES__ENABLED: "true"
TIDELINE_SHARD_LEASES__GROUP: {{ printf "%s.%s" (include "tideline.fullname" .root) .root.Release.Namespace | trunc 63 | quote }}
{{- with .root.Values.shardLeases.store }}
TIDELINE_SHARD_LEASES__STORE: {{ . | quote }}
{{- end }}
{{- end }}
TIDELINE_EVENT_LOG: {{ printf "kafka://%s" (include "tideline.kafka.brokers" .root) | quote }}
{{- end }}
{{- with .more }}
{{ . }}
{{- end }}
{{- if include "tideline.policy.configMap" .root }}
TIDELINE_POLICY_FILE: /etc/tideline/policy/policies.yaml
{{- end }}
{{- include "tideline.settingVariables" . }}
{{- include "tideline.objectStore.variables" .root }}
{{- if .root.Values.trust.configMap.name }}
SSL_CERT_FILE: /etc/tideline/trust/ca.crt
{{- end }}
{{- end -}}

{{/* The ConfigMap with the policy file, empty without one. */}}
{{- define "tideline.policy.configMap" -}}
{{- if .Values.policy.content -}}{{ include "tideline.fullname" . }}-policy{{- else -}}{{ .Values.policy.configMap.name }}{{- end -}}
{{- end -}}

{{- define "tideline.tableResources.namespace" -}}
{{- default .Release.Namespace .Values.tableResources.namespace -}}
{{- end -}}

{{/* "true" for a component that calls the API server: `root`, `component`. */}}
{{- define "tideline.callsApiServer" -}}
{{- if or (eq .component "launcher") (and (eq .component "console") .root.Values.console.podLogs) (and .root.Values.tableResources.enabled (not (has .component (list "catalog" "ingest" "webhooks")))) -}}true{{- end -}}
{{- end -}}

{{/* How long a component may take to stop, in whole seconds, with 15 s for what surrounds it. */}}
{{- define "tideline.gracePeriod" -}}
{{- $stop := default 25 (default .root.Values.settings.stop_grace_s .own.stop_grace_s) -}}
{{- add 15 (int (ceil $stop)) -}}
{{- end -}}

{{/* Variables of one shard that are no part of the ConfigMap: `root`, `component`, `index`, `instances`, `name` of its Deployment. */}}
{{- define "tideline.service.env" -}}
{{- if not .instances }}
- name: TIDELINE_SHARD_INDEX
  value: {{ .index | quote }}
{{- end }}
{{ include "tideline.locks.env" .root }}
{{ include "tideline.kafka.env" (dict "root" .root "variable" "TIDELINE_EVENT_LOG_OPTIONS") }}
{{- if include "tideline.asksForToken" . }}
{{ include "tideline.secretVariable" (dict "variable" "TIDELINE_HTTP_TOKEN" "name" .root.Values.http.tokenSecret.name "key" .root.Values.http.tokenSecret.key) }}
{{- end }}
{{- if eq .component "console" }}
{{ include "tideline.console.env" .root }}
{{- end }}
{{- if and (eq .component "launcher") (eq (include "tideline.applications.namespace" .root) .root.Release.Namespace) }}
- name: TIDELINE_LAUNCHER__KUBERNETES__OWNER
  value: Deployment/{{ .name }}
{{- end }}
{{- end -}}

{{/* "true" for a component whose routes need the bearer token. */}}
{{- define "tideline.asksForToken" -}}
{{- if or (has .component (list "lock-service" "planner")) (and .root.Values.http.tokenForAll .root.Values.http.tokenSecret.name) -}}true{{- end -}}
{{- end -}}

{{/* Variables of an ingest application that are no part of its ConfigMap: `root`, `application`. */}}
{{- define "tideline.ingest.env" -}}
{{ include "tideline.locks.env" .root }}
{{ include "tideline.kafka.env" (dict "root" .root "variable" "TIDELINE_INGEST__KAFKA_OPTIONS") }}
{{- with .application.registryOptionsSecret }}
{{ include "tideline.secretVariable" (dict "variable" "TIDELINE_INGEST__SCHEMA_REGISTRY_OPTIONS" "name" .name "key" .key) }}
{{- end }}
{{- if include "tideline.asksForToken" (dict "root" .root "component" "ingest") }}
{{ include "tideline.secretVariable" (dict "variable" "TIDELINE_HTTP_TOKEN" "name" .root.Values.http.tokenSecret.name "key" .root.Values.http.tokenSecret.key) }}
{{- end }}
{{- end -}}
