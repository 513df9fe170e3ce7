{{- define "tideline.applications.namespace" -}}
{{- default .Release.Namespace .Values.applications.namespace -}}
{{- end -}}

{{/* `root`, `component`: driver or executor. */}}
{{- define "tideline.applications.serviceAccountName" -}}
{{- $own := (index .root.Values.applications .component).serviceAccount.name -}}
{{- default (printf "%s-%s" (include "tideline.fullname" .root) .component) $own -}}
{{- end -}}

{{/* Pod template of drivers and executors: what the values give, and the certificate authorities. */}}
{{- define "tideline.applications.podTemplate" -}}
{{- $template := deepCopy (default dict .Values.applications.podTemplate) -}}
{{- $spec := merge (dict "enableServiceLinks" false) (default dict $template.spec) -}}
{{- if .Values.trust.configMap.name -}}
{{- $containers := default (list (dict "name" "spark")) $spec.containers -}}
{{- $first := first $containers -}}
{{- $mounts := append (default list $first.volumeMounts) (dict "name" "trust" "mountPath" "/etc/tideline/trust" "readOnly" true) -}}
{{- $first = merge (dict "volumeMounts" $mounts) $first -}}
{{- $volumes := append (default list $spec.volumes) (include "tideline.trustVolume" . | fromYaml) -}}
{{- $spec = merge (dict "containers" (prepend (rest $containers) $first) "volumes" $volumes) $spec -}}
{{- end -}}
{{- toYaml (merge (dict "apiVersion" "v1" "kind" "Pod" "spec" $spec) $template) -}}
{{- end -}}

{{/* The launcher's settings that follow from the values `applications`. */}}
{{- define "tideline.launcher.variables" -}}
{{- $applications := .Values.applications -}}
{{- $image := merge (dict "appVersion" .Chart.AppVersion) $applications.image -}}
TIDELINE_LAUNCHER__RUNNER: kubernetes
TIDELINE_LAUNCHER__KUBERNETES__NAMESPACE: {{ include "tideline.applications.namespace" . | quote }}
TIDELINE_LAUNCHER__KUBERNETES__FLEET: {{ include "tideline.fullname" . | quote }}
TIDELINE_LAUNCHER__KUBERNETES__IMAGE: {{ include "tideline.image" $image | quote }}
TIDELINE_LAUNCHER__KUBERNETES__IMAGE_PULL_POLICY: {{ $applications.image.pullPolicy | quote }}
TIDELINE_LAUNCHER__KUBERNETES__DRIVER_SERVICE_ACCOUNT: {{ include "tideline.applications.serviceAccountName" (dict "root" . "component" "driver") | quote }}
TIDELINE_LAUNCHER__KUBERNETES__EXECUTOR_SERVICE_ACCOUNT: {{ include "tideline.applications.serviceAccountName" (dict "root" . "component" "executor") | quote }}
TIDELINE_LAUNCHER__KUBERNETES__ENVIRONMENT_CONFIG_MAPS: {{ list (printf "%s-applications" (include "tideline.fullname" .)) | toJson | quote }}
{{- with .Values.imagePullSecrets }}
TIDELINE_LAUNCHER__KUBERNETES__IMAGE_PULL_SECRETS: {{ toJson . | quote }}
{{- end }}
{{- with .Values.objectStore.credentialsSecret }}
TIDELINE_LAUNCHER__KUBERNETES__ENVIRONMENT_SECRETS: {{ list . | toJson | quote }}
{{- end }}
{{- if and .Values.redis.urlSecret.name (not .Values.trial.redis.enabled) }}
TIDELINE_LAUNCHER__KUBERNETES__LOCKS_SECRET: {{ printf "%s/%s" .Values.redis.urlSecret.name .Values.redis.urlSecret.key | quote }}
{{- end }}
{{- with $applications.priorityClassName }}
TIDELINE_LAUNCHER__KUBERNETES__PRIORITY_CLASS: {{ . | quote }}
{{- end }}
{{- with $applications.nodeSelector }}
TIDELINE_LAUNCHER__KUBERNETES__NODE_SELECTOR: {{ toJson . | quote }}
{{- end }}
{{- with $applications.tolerations }}
TIDELINE_LAUNCHER__KUBERNETES__TOLERATIONS: {{ toJson . | quote }}
{{- end }}
{{- with .Values.podSecurity.runAsUser }}
TIDELINE_LAUNCHER__KUBERNETES__RUN_AS_USER: {{ . | quote }}
{{- end }}
TIDELINE_LAUNCHER__KUBERNETES__POD_TEMPLATE: /etc/tideline/pod-template/pod.yaml
{{- end -}}

{{/* Labels that the launcher puts on the driver and executor pods of its fleet. */}}
{{- define "tideline.applications.podLabels" -}}
tideline.dev/fleet: {{ include "tideline.fullname" . }}
{{- end -}}

{{- define "tideline.applications.driverLabels" -}}
app.kubernetes.io/component: spark-driver
{{- end -}}
