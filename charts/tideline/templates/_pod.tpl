{{- define "tideline.podSecurityContext" -}}
runAsNonRoot: true
{{- with .Values.podSecurity.runAsUser }}
runAsUser: {{ . }}
{{- end }}
{{- with .Values.podSecurity.runAsGroup }}
runAsGroup: {{ . }}
{{- end }}
{{- with .Values.podSecurity.fsGroup }}
fsGroup: {{ . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tideline.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "tideline.trustVolume" -}}
name: trust
configMap:
  name: {{ .Values.trust.configMap.name }}
  items:
    - key: {{ .Values.trust.configMap.key }}
      path: ca.crt
{{- end -}}

{{- define "tideline.topologySpread" -}}
{{- if .root.Values.topologySpread.enabled }}
topologySpreadConstraints:
  {{- range .root.Values.topologySpread.topologyKeys }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ $.root.Values.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "tideline.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/*
A Deployment: one shard of a service, the instances that divide its shards by leases, or one ingest application.
`root`, `component`, `values` (resources, placement, service account), `name`, `replicas` (default 1), `instance` (label that tells the pods of a component
apart), `module` (of Python), `own` (its settings), `configMap`, `configuration` (that ConfigMap's data), `env`, `mounts`, `volumes`,
`pagesPort` (the console's).
*/}}
{{- define "tideline.deployment" -}}
{{- $root := .root -}}
{{- $values := .values -}}
{{- $selector := dict "root" $root "component" .component -}}
{{- $hasClientCertificate := and .usesKafka $root.Values.kafka.security.clientCertificateSecret.name (not $root.Values.trial.kafka.enabled) -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "tideline.labels" $selector | nindent 4 }}
    tideline.dev/instance: {{ .instance | quote }}
spec:
  replicas: {{ default 1 .replicas }}
  strategy:
    type: {{ $values.strategy }}
    {{- if eq $values.strategy "RollingUpdate" }}
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
    {{- end }}
  selector:
    matchLabels:
      {{- include "tideline.selector" $selector | nindent 6 }}
      tideline.dev/instance: {{ .instance | quote }}
  template:
    metadata:
      labels:
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- include "tideline.labels" $selector | nindent 8 }}
        tideline.dev/instance: {{ .instance | quote }}
      annotations:
        checksum/settings: {{ .configuration | sha256sum }}
        {{- if .extraChecksum }}
        checksum/pod-template: {{ .extraChecksum | sha256sum }}
        {{- end }}
        {{- if $root.Values.monitoring.annotations }}
        prometheus.io/scrape: "true"
        prometheus.io/path: /metrics
        prometheus.io/port: {{ $root.Values.http.port | quote }}
        {{- end }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "tideline.serviceAccountName" . }}
      automountServiceAccountToken: {{ eq (include "tideline.callsApiServer" .) "true" }}
      # A Service named tideline-… would put TIDELINE_…_PORT into the environment: no setting, so that every service would refuse to start.
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ include "tideline.gracePeriod" . }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- include "tideline.topologySpread" $selector | nindent 6 }}
      securityContext:
        {{- include "tideline.podSecurityContext" $root | nindent 8 }}
      containers:
        - name: {{ .component }}
          image: {{ include "tideline.image" (merge (dict "appVersion" $root.Chart.AppVersion) $root.Values.image) }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command: [python, -m, {{ .module }}]
          securityContext:
            {{- include "tideline.containerSecurityContext" $root | nindent 12 }}
          envFrom:
            - configMapRef:
                name: {{ .configMap }}
            {{- with $root.Values.objectStore.credentialsSecret }}
            - secretRef:
                name: {{ . }}
            {{- end }}
          env:
            {{- .env | trim | nindent 12 }}
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - name: http
              containerPort: {{ $root.Values.http.port }}
            {{- with .pagesPort }}
            - name: pages
              containerPort: {{ . }}
            {{- end }}
          startupProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 2
            timeoutSeconds: 5
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 20
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 3
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            - {name: state, mountPath: /var/lib/tideline}
            {{- if $root.Values.trust.configMap.name }}
            - {name: trust, mountPath: /etc/tideline/trust, readOnly: true}
            {{- end }}
            {{- if include "tideline.policy.configMap" $root }}
            - {name: policy, mountPath: /etc/tideline/policy, readOnly: true}
            {{- end }}
            {{- if $hasClientCertificate }}
            - {name: kafka-certificate, mountPath: /etc/tideline/kafka, readOnly: true}
            {{- end }}
            {{- with .mounts }}
            {{- . | trim | nindent 12 }}
            {{- end }}
            {{- with $values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
        {{- with $values.sidecars }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumes:
        - name: tmp
          emptyDir: {sizeLimit: {{ $root.Values.scratch.tmpSize }}}
        - name: state
          emptyDir: {sizeLimit: {{ $root.Values.scratch.stateSize }}}
        {{- if $root.Values.trust.configMap.name }}
        - {{- include "tideline.trustVolume" $root | nindent 10 }}
        {{- end }}
        {{- with include "tideline.policy.configMap" $root }}
        # Without subPath, so that the file in the pod follows the ConfigMap.
        - name: policy
          configMap:
            name: {{ . }}
            items:
              - {key: {{ ternary "policies.yaml" $root.Values.policy.configMap.key (ne $root.Values.policy.content "") }}, path: policies.yaml}
        {{- end }}
        {{- if $hasClientCertificate }}
        {{- with $root.Values.kafka.security.clientCertificateSecret }}
        - name: kafka-certificate
          secret:
            secretName: {{ .name }}
            defaultMode: 0440
            items:
              - {key: {{ .certificateKey }}, path: tls.crt}
              - {key: {{ .privateKeyKey }}, path: tls.key}
        {{- end }}
        {{- end }}
        {{- with .volumes }}
        {{- . | trim | nindent 8 }}
        {{- end }}
        {{- with $values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}
