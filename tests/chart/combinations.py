"""The combinations of values that matter, by name. Each is complete: it needs no other values."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "tables": ["s3://lake/warehouse/**"],
    "kafka": {"brokers": "kafka-0.kafka:9092,kafka-1.kafka:9093"},
    "http": {"tokenSecret": {"name": "tideline-http"}},
    "lockService": {"enabled": True},
}
ORDERS = {
    "name": "orders",
    "settings": {"application_id": "orders-eu", "table": "s3://lake/warehouse/orders", "topics": ["orders", "returns"]},
}
PLACEMENT: dict[str, Any] = {
    "nodeSelector": {"pool": "services"},
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "tideline", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}}
    },
    "priorityClassName": "high",
    "podAnnotations": {"example.com/owner": "data"},
    "podLabels": {"team": "data"},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
    "extraVolumes": [{"name": "spool", "emptyDir": {"sizeLimit": "64Mi"}}],
    "extraVolumeMounts": [{"name": "spool", "mountPath": "/var/spool/audit"}],
    "sidecars": [
        {
            "name": "forwarder",
            "image": "registry.example/forwarder:1",
            "command": ["/forwarder"],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "32Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "spool", "mountPath": "/var/spool/audit"}],
        }
    ],
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/tideline"}},
}
SERVICES = ("mirror", "planner", "launcher", "cleaner", "lockService")
SUBSCRIPTIONS = """\
# Of the reports.
version: 1
subscriptions:
  - name: reports
    url: https://reports.example/hooks/tideline
    paths: [s3://lake/sales/**]
    secret_file: /etc/tideline/webhooks-secrets/reports
"""
CHANGES_AND_WEBHOOKS: dict[str, Any] = {
    "changes": {"enabled": True, "settings": {"batch_rows": 500}},
    "webhooks": {"enabled": True, "subscriptions": {"content": SUBSCRIPTIONS, "signingSecret": "signing"}},
}
EVERY_CONNECTION: dict[str, Any] = {
    "kafka": {
        "brokers": "kafka:9094",
        "security": {
            "protocol": "SASL_SSL",
            "credentialsSecret": {"name": "kafka-user"},
            "clientCertificateSecret": {"name": "kafka-certificate"},
        },
        "options": {"socket.keepalive.enable": True, "message.max.bytes": 4_000_000},
    },
    "redis": {"urlSecret": {"name": "redis-url"}},
    "objectStore": {
        "region": "eu-central-1",
        "endpoint": "https://objects.example:9000",
        "credentialsSecret": "object-store",
        "environment": {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false"},
    },
    "trust": {"configMap": {"name": "authorities"}},
}


POLICY = """\
# Of the platform team.
version: 1
rules:
  - name: sales
    match: {paths: ["s3://lake/sales/*"]}
    windows: [{from: "22:00", to: "05:00", time_zone: Europe/Berlin}]
"""


def _with(*more: dict[str, Any]) -> dict[str, Any]:
    """`BASE` and what each of `more` says, the later one wins."""
    made = dict(BASE)
    for one in more:
        for name, value in one.items():
            own = made.get(name)
            made[name] = {**own, **value} if isinstance(own, dict) and isinstance(value, dict) else value
    return made


COMBINATIONS: dict[str, dict[str, Any]] = {
    "least": {name: value for name, value in BASE.items() if name != "lockService"},
    "tls-sasl-acl": _with(EVERY_CONNECTION),
    "mutual-tls": _with({"kafka": {"security": {"protocol": "SSL", "clientCertificateSecret": {"name": "kafka-certificate"}}}}),
    "kafka-options-secret": _with({"kafka": {"optionsSecret": {"name": "kafka-options"}}}),
    "redis-address": _with({"redis": {"address": "redis:6380", "database": 3, "tls": True}}),
    "http-store": _with({"objectStore": {"endpoint": "http://minio:9000", "credentialsSecret": "object-store"}}),
    "trial": {
        "tables": ["s3://lake/*"],
        "http": BASE["http"],
        "trial": {"kafka": {"enabled": True}, "redis": {"enabled": True}},
        "applications": {"namespace": "jobs"},
    },
    "shards": _with(
        {name: {"shards": 3} for name in SERVICES},
        {"redis": {"address": "redis:6379"}, "launcher": {"shards": 2, "strategy": "RollingUpdate"}},
    ),
    "shard leases": _with(
        {name: {"shards": 8, "instances": 2, "strategy": "RollingUpdate"} for name in ("mirror", "planner", "cleaner")},
        {"redis": {"address": "redis:6379"}},
    ),
    "shard leases without redis": _with(
        {"mirror": {"shards": 8, "instances": 2}, "shardLeases": {"store": "storage:s3://lake/tideline-leases"}},
    ),
    "settings": _with(
        {
            "settings": {"stop_grace_s": 240.5, "poll_interval_s": 2, "log_level": "debug", "tables_unready_after_s": 60},
            "mirror": {"settings": {"batch_entries": 5000, "stop_grace_s": 30}},
            "planner": {
                "settings": {"options": {"hoodie.parquet.max.file.size": "125829120"}, "clustering_sort_columns": {"orders": "a,b"}}
            },
            "launcher": {
                "settings": {
                    "max_applications": 20,
                    "kubernetes": {"spark": {"spark.sql.shuffle.partitions": "8"}, "finished_ttl_s": 600},
                    "resources": {"max_executors": 64, "bytes_per_core": 1073741824},
                }
            },
            "lockService": {"settings": {"max_wait_s": 5}},
        }
    ),
    "ingest": _with(
        EVERY_CONNECTION,
        {
            "ingest": {
                "applications": [
                    ORDERS,
                    {
                        "name": "clicks",
                        "settings": {
                            "application_id": "clicks",
                            "table": "s3://lake/warehouse/clicks",
                            "topics": ["clicks"],
                            "partitions": [0, 2],
                            "format": "avro",
                            "schema_files": ["/etc/tideline/schemas/clicks.avsc"],
                            "batch_bytes": 268435456,
                        },
                        "schemaConfigMap": "click-schemas",
                        "registryOptionsSecret": {"name": "registry", "key": "options.json"},
                    },
                ]
            }
        },
    ),
    "changes-and-webhooks": _with(
        EVERY_CONNECTION,
        CHANGES_AND_WEBHOOKS,
        {"networkPolicy": {"webhookPeers": [{"ipBlock": {"cidr": "10.7.0.0/16"}}], "webhookPorts": [443, 8443]}},
        {"changes": {**PLACEMENT, "shards": 2}, "webhooks": {"shards": 2}},
    ),
    "console": _with(
        EVERY_CONNECTION,
        {
            "planner": {"settings": {"options": {"hoodie.parquet.max.file.size": "125829120"}}},
            "cleaner": {"settings": {"clean_min_commits": 7}},
            "console": {
                **PLACEMENT,
                "enabled": True,
                "settings": {"host_names": ["console.example"], "path_prefix": "/tideline", "actions": True},
                "signIn": {"operatorTokenSecret": {"name": "console"}, "viewerTokenSecret": {"name": "console"}},
                "ingress": {
                    "enabled": True,
                    "className": "nginx",
                    "tlsSecret": "console-certificate",
                    "annotations": {"cert-manager.io/cluster-issuer": "house"},
                },
            },
            "networkPolicy": {"browserPeers": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]},
        },
    ),
    "console-openid": _with(
        {
            "console": {
                "enabled": True,
                "settings": {
                    "host_names": ["console.example"],
                    "sign_in": {
                        "issuer": "https://id.example:8443",
                        "client_id": "tideline",
                        "viewers": ["*"],
                        "operators": ["ops"],
                    },
                },
                "signIn": {"clientSecret": {"name": "console", "key": "secret"}},
            },
            "networkPolicy": {"identityPeers": [{"ipBlock": {"cidr": "10.8.0.0/16"}}], "identityPorts": [8443]},
        }
    ),
    "catalog": _with(
        EVERY_CONNECTION,
        {"catalog": {**PLACEMENT, "enabled": True, "shards": 2, "settings": {"url": "hms://metastore:9083", "database": "lake"}}},
        {"networkPolicy": {"catalogPeers": [{"ipBlock": {"cidr": "10.8.0.0/16"}}], "catalogPorts": [9083]}},
    ),
    "catalog-alone": _with(
        {"catalog": {"enabled": True, "settings": {"url": "hms://metastore:9083"}}, "tables": []},
        {name: {"enabled": False} for name in SERVICES},
    ),
    "webhooks-alone": _with(
        {"webhooks": {"enabled": True, "subscriptions": {"contentSecret": {"name": "subscriptions", "key": "file"}}}, "tables": []},
        {name: {"enabled": False} for name in SERVICES},
    ),
    "ingest-alone": _with({"ingest": {"applications": [ORDERS]}, "tables": []}, {name: {"enabled": False} for name in SERVICES}),
    "placement": _with(
        dict.fromkeys(SERVICES, PLACEMENT),
        {
            "ingest": {**PLACEMENT, "applications": [ORDERS]},
            "imagePullSecrets": ["registry"],
            "image": {"digest": f"sha256:{'0a' * 32}"},
        },
        {
            "applications": {
                "namespace": "jobs",
                "image": {"repository": "registry.example.com/tideline-spark", "tag": "1.0"},
                "driver": {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/jobs"}}},
                "executor": {"serviceAccount": {"name": "existing-executor"}},
                "nodeSelector": {"pool": "spark"},
                "tolerations": [{"key": "spot", "operator": "Exists"}],
                "priorityClassName": "low",
                "podTemplate": {"metadata": {"labels": {"team": "data"}}, "spec": {"containers": [{"name": "spark"}]}},
            }
        },
    ),
    "pod-template-and-trust": _with(
        {"trust": {"configMap": {"name": "authorities", "key": "bundle.pem"}}},
        {
            "applications": {
                "podTemplate": {
                    "spec": {
                        "volumes": [{"name": "disk", "emptyDir": {}}],
                        "containers": [{"name": "main", "volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}],
                    }
                }
            }
        },
    ),
    "policy": _with({"policy": {"content": POLICY}, "ingest": {"applications": [ORDERS]}}),
    "own-policy": _with({"policy": {"configMap": {"name": "policies", "key": "fleet.yaml"}}}),
    "monitoring": _with(
        {
            "http": {"tokenForAll": True, "tokenSecret": {"name": "tideline-http"}},
            "ingest": {"applications": [ORDERS]},
            "monitoring": {
                "annotations": False,
                "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
                "dashboard": {"enabled": True, "annotations": {"folder": "Data"}},
                "alerts": {
                    "enabled": True,
                    "runbookUrl": "https://runbooks.example/kubernetes-operations.md",
                    "disabled": ["TidelineTicksSlow"],
                },
            },
        }
    ),
    "no-policies": _with(
        {
            "networkPolicy": {"enabled": False},
            "disruptionBudget": {"enabled": False},
            "topologySpread": {"enabled": False},
            "podSecurity": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        }
    ),
    "policy-peers": _with(
        {
            "redis": {"address": "redis:6379"},
            "networkPolicy": {
                "kafkaPeers": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kafka"}}}],
                "redisPeers": [{"podSelector": {"matchLabels": {"app": "redis"}}}],
                "objectStorePeers": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
                "apiServerPeers": [{"ipBlock": {"cidr": "10.96.0.1/32"}}],
                "metricsPeers": [],
                "lockClientPeers": [],
                "extraEgress": [{"to": [{"ipBlock": {"cidr": "169.254.170.23/32"}}], "ports": [{"port": 80, "protocol": "TCP"}]}],
            },
        }
    ),
    "no-lock-service": _with({"lockService": {"enabled": False}}),
    "no-token": _with({"lockService": {"enabled": False}, "planner": {"enabled": False}, "http": {"tokenSecret": {"name": ""}}}),
    "table-resources": _with(
        {
            "tables": [],
            "tableResources": {"enabled": True, "namespace": "jobs"},
            "settings": {"table_resources": {"status_interval_s": 5}},
            "ingest": {"applications": [ORDERS]},
        },
        CHANGES_AND_WEBHOOKS,
        {"catalog": {"enabled": True}},
    ),
    "no-launcher": _with({"launcher": {"enabled": False}}),
    "other-names": _with({"nameOverride": "tables", "mirror": {"serviceAccount": {"name": "existing-mirror"}}}),
}
"""helm merges each with values.yaml."""
