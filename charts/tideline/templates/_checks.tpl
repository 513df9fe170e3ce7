{{/* What values.schema.json cannot say: what has to be set together, with the remedy. */}}
{{- define "tideline.check" -}}
{{- $services := include "tideline.services" . | fromYaml -}}
{{- $names := list -}}
{{- range .Values.ingest.applications -}}
{{- if has .name $names -}}
{{- fail (printf "ingest.applications: two applications have the name %q; give each its own" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- if and (omit $services "webhooks" "catalog") (not .Values.tables) (not .Values.tableResources.enabled) -}}
{{- fail "tables is empty; expected base paths or patterns, such as --set 'tables={s3://bucket/warehouse/**}', or tableResources.enabled=true" -}}
{{- end -}}
{{- if and (or $services .Values.ingest.applications) (not (include "tideline.kafka.brokers" .)) -}}
{{- fail "kafka.brokers is empty; expected host:port,host:port, or trial.kafka.enabled=true" -}}
{{- end -}}
{{- if and .Values.kafka.brokers .Values.trial.kafka.enabled -}}
{{- fail "kafka.brokers is set and trial.kafka.enabled is true; choose one of them" -}}
{{- end -}}
{{- if and (or .Values.redis.address .Values.redis.urlSecret.name) .Values.trial.redis.enabled -}}
{{- fail "redis.address or redis.urlSecret is set and trial.redis.enabled is true; choose one of them" -}}
{{- end -}}
{{- if and .Values.redis.address .Values.redis.urlSecret.name -}}
{{- fail "redis.address and redis.urlSecret are both set; choose one of them" -}}
{{- end -}}
{{- if and .Values.policy.content .Values.policy.configMap.name -}}
{{- fail "policy.content and policy.configMap.name are both set; choose one of them" -}}
{{- end -}}
{{- if and .Values.settings.policy_file (include "tideline.policy.configMap" .) -}}
{{- fail "settings.policy_file is set beside policy.content or policy.configMap.name, which mount a policy file; choose one of them" -}}
{{- end -}}
{{- $subscriptions := .Values.webhooks.subscriptions -}}
{{- if and (hasKey $services "webhooks") (not $subscriptions.content) (not $subscriptions.contentSecret.name) -}}
{{- fail "webhooks.subscriptions is empty; expected a file of subscriptions: --set-file webhooks.subscriptions.content=subscriptions.yaml, or webhooks.subscriptions.contentSecret.name" -}}
{{- end -}}
{{- if and $subscriptions.content $subscriptions.contentSecret.name -}}
{{- fail "webhooks.subscriptions.content and webhooks.subscriptions.contentSecret.name are both set; choose one of them" -}}
{{- end -}}
{{- if hasKey $services "console" -}}
{{- $own := .Values.console -}}
{{- $signIn := default dict $own.settings.sign_in -}}
{{- if not (or $own.signIn.operatorTokenSecret.name $own.signIn.viewerTokenSecret.name $signIn.issuer) -}}
{{- fail "console.signIn is empty; expected a token: kubectl create secret generic tideline-console --from-literal=operator=$(openssl rand -hex 24) and console.signIn.operatorTokenSecret.name=tideline-console, or OpenID Connect: console.settings.sign_in.issuer" -}}
{{- end -}}
{{- if and $own.ingress.enabled (not $own.settings.host_names) -}}
{{- fail "console.ingress.enabled is true and console.settings.host_names is empty; set the names under which browsers reach the console" -}}
{{- end -}}
{{- if and $own.ingress.enabled (not $own.ingress.tlsSecret) (not $own.ingress.tlsElsewhere) -}}
{{- fail "console.ingress.tlsSecret is empty; browsers send the session over HTTPS only. Name the Secret with the certificate, or set console.ingress.tlsElsewhere=true if the ingress controller has one" -}}
{{- end -}}
{{- end -}}
{{- $security := .Values.kafka.security -}}
{{- if and (hasPrefix "SASL" $security.protocol) (not $security.credentialsSecret.name) (not .Values.kafka.optionsSecret.name) -}}
{{- fail (printf "kafka.security.protocol is %s without kafka.security.credentialsSecret.name; create a Secret with user name and password and name it" $security.protocol) -}}
{{- end -}}
{{- range $name, $switch := dict "lock-service" "lockService.enabled" "planner" "planner.enabled" -}}
{{- if and (hasKey $services $name) (not $.Values.http.tokenSecret.name) -}}
{{- fail (printf "http.tokenSecret.name is empty; the %s takes requests from other pods only with a token. Create it with: kubectl create secret generic tideline-http --from-literal=token=$(openssl rand -hex 24), or set %s=false" (replace "-" " " $name) $switch) -}}
{{- end -}}
{{- end -}}
{{- range $component, $service := $services -}}
{{- $instances := int (index $.Values $service.key).instances -}}
{{- if and (gt $instances 0) (not (include "tideline.redis.isUsed" $)) (not $.Values.shardLeases.store) -}}
{{- fail (printf "%s.instances is %d and there is no Redis, where instances divide shards by leases; set redis.address or shardLeases.store=storage:s3://bucket/folder, or remove %s.instances" $service.key $instances $service.key) -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey $services "lock-service") (gt (int .Values.lockService.shards) 1) (not (include "tideline.redis.isUsed" .)) -}}
{{- fail (printf "lockService.shards is %d and locks are in the tables' folders, where a shard knows the locks of its own tables only; set redis.address or lockService.shards=1" (int .Values.lockService.shards)) -}}
{{- end -}}
{{- end -}}
