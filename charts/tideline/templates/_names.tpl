{{- define "tideline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of the release; of one component with `component`. */}}
{{- define "tideline.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "tideline.labels" -}}
{{ include "tideline.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tideline
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "tideline.image" -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default .appVersion .tag }}
{{- end -}}
{{- end -}}

{{/* The services that are switched on, with what the templates need of each: component name → {key, section, module}. */}}
{{- define "tideline.services" -}}
{{- if .Values.mirror.enabled }}
mirror: {key: mirror, section: MIRROR, module: tideline_mirror}
{{- end }}
{{- if .Values.planner.enabled }}
planner: {key: planner, section: PLANNER, module: tideline_planner}
{{- end }}
{{- if .Values.launcher.enabled }}
launcher: {key: launcher, section: LAUNCHER, module: tideline_launcher}
{{- end }}
{{- if .Values.cleaner.enabled }}
cleaner: {key: cleaner, section: CLEANER, module: tideline_cleaner}
{{- end }}
{{- if .Values.lockService.enabled }}
lock-service: {key: lockService, section: LOCK_SERVICE, module: tideline_lock_service}
{{- end }}
{{- if .Values.changes.enabled }}
changes: {key: changes, section: CHANGES, module: tideline_changes}
{{- end }}
{{- if .Values.webhooks.enabled }}
webhooks: {key: webhooks, section: WEBHOOKS, module: tideline_webhooks}
{{- end }}
{{- if .Values.console.enabled }}
console: {key: console, section: CONSOLE, module: tideline_console}
{{- end }}
{{- if .Values.catalog.enabled }}
catalog: {key: catalog, section: CATALOG, module: tideline_catalog}
{{- end }}
{{- end -}}

{{- define "tideline.serviceAccountName" -}}
{{- default (printf "%s-%s" (include "tideline.fullname" .root) .component) .values.serviceAccount.name -}}
{{- end -}}
