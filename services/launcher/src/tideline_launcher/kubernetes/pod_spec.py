"""The pods of an application: pure functions of the application and the settings.

All pods satisfy the restricted Pod Security standard: not root, no capabilities, RuntimeDefault seccomp, no privilege
escalation; their root file system is read-only besides. Executors get no token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tideline_launcher.application import Application, ApplicationSpec
from tideline_launcher.command import arguments_of, shared_name_of
from tideline_launcher.kubernetes.pod_state import APPLICATION, CONTAINER, DOMAIN, identity_text
from tideline_launcher.resources import Resources
from tideline_launcher.settings import MIB, KubernetesSettings
from tideline_locks.table_lock import LOCKS_VARIABLE
from tideline_spark.invocation import MODULE

FLEET, TABLE, INSTANT, ATTEMPT, SERVICE = (f"{DOMAIN}/{name}" for name in ("fleet", "table", "instant", "attempt", "service"))
COMPONENT = "app.kubernetes.io/component"
DRIVER, EXECUTOR = "spark-driver", "spark-executor"
EXECUTOR_CONTAINER = "spark-executor"
SHARED = "shared"
"""Value of the label `INSTANT` of a driver of several plans, and of its labels for table, attempt and service if the plans differ
there."""
TERMINATION_MESSAGE = Path("/dev/termination-log")
"""The kubelet makes this file writable even if the root file system is read-only, and shows its content in the pod's status."""
SPARK_DEFAULTS = f"{DOMAIN}/spark-defaults.conf"
EXECUTOR_TEMPLATE = f"{DOMAIN}/executor.yaml"
CONF_FOLDER = "/opt/spark/conf"
DRIVER_PORT, BLOCK_PORT = 7078, 7079
_MASTER = "spark.master"
API_SERVER = "k8s://https://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"
"""The kubelet expands the variables. With a host name, a driver would find the API server only while the cluster's DNS answers."""
_LISTS_JOINED = ("env", "envFrom", "volumes", "volumeMounts", "tolerations", "imagePullSecrets")

Json = dict[str, Any]
_NEVER = datetime.fromtimestamp(0, UTC)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    """Return `base` with the values of `over`, merged level by level.

    Lists of environment, volumes, tolerations and pull secrets are joined, the first containers are merged, other values of
    `base` are replaced.
    """
    result: Json = dict(base)
    for key, value in over.items():
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[key] = merged(before, value)
        elif key in _LISTS_JOINED and isinstance(before, list):
            result[key] = [*before, *value]
        elif key == "containers" and isinstance(before, list) and before:
            result[key] = [merged(before[0], value[0]), *before[1:]]
        else:
            result[key] = value
    return result


def driver_pod(spec: ApplicationSpec, settings: KubernetesSettings, template: Mapping[str, Any], owner: Json | None) -> Json:
    """Return the driver pod of an application. `template` is a pod (or its template) to add to, `owner` an owner reference."""
    resources, has_executors = spec.resources, spec.resources.executors > 0
    metadata: Json = {
        "name": spec.name,
        "labels": {
            **_labels(settings, DRIVER),
            TABLE: _common_value({plan.key.table_uid for plan in spec.plans}),
            INSTANT: spec.plans[0].key.instant if len(spec.plans) == 1 else SHARED,
            ATTEMPT: _common_value({str(plan.attempt) for plan in spec.plans}),
            SERVICE: _common_value({plan.service.value for plan in spec.plans}),
        },
        "annotations": {APPLICATION: identity_text(applications_from(spec))},
    }
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    container: Json = {
        "name": CONTAINER,
        "args": _arguments(spec, settings),
        "env": [*_environment(settings), *_driver_environment(spec, settings)],
        "resources": {
            "requests": {"cpu": _cpu(settings, 1 if has_executors else resources.cores), "memory": _mebibytes(resources)},
            "limits": {"memory": _mebibytes(resources)},
        },
        # A driver of one plan writes no message, one of several plans writes their outcomes.
        "terminationMessagePath": str(TERMINATION_MESSAGE),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - a path in the pod
    }
    pod_spec: Json = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(spec.timeout_s),
        "terminationGracePeriodSeconds": settings.grace_s,
        "serviceAccountName": settings.driver_service_account,
        # Only a driver that starts executors talks to the API server.
        "automountServiceAccountToken": has_executors,
        "containers": [container],
        "volumes": [_scratch(settings)],
    }
    if has_executors:
        metadata["annotations"][SPARK_DEFAULTS] = spark_defaults(spec, settings)
        metadata["annotations"][EXECUTOR_TEMPLATE] = json.dumps(executor_template(settings, template))
        container["volumeMounts"].append({"name": "spark-conf", "mountPath": CONF_FOLDER, "readOnly": True})
        files = (("spark-defaults.conf", SPARK_DEFAULTS), ("executor.yaml", EXECUTOR_TEMPLATE))
        items = [{"path": p, "fieldRef": {"fieldPath": f"metadata.annotations['{a}']"}} for p, a in files]
        pod_spec["volumes"].append({"name": "spark-conf", "downwardAPI": {"items": items}})
    ours = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}
    return merged(merged(template, _common(settings)), ours)


def executor_template(settings: KubernetesSettings, template: Mapping[str, Any]) -> Json:
    """Return the pod template that Spark starts executors from. Spark adds image, resources, environment and scratch folders."""
    ours: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": _labels(settings, EXECUTOR)},
        "spec": {
            "serviceAccountName": settings.executor_service_account,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": EXECUTOR_CONTAINER,
                    "env": _environment(settings),
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - a path in the pod
                }
            ],
            "volumes": [_scratch(settings)],
        },
    }
    return merged(merged(template, _common(settings)), ours)


def spark_defaults(spec: ApplicationSpec, settings: KubernetesSettings) -> str:
    """Return the Spark settings of an application with executors, as the text of `spark-defaults.conf`."""
    resources = spec.resources
    chosen = {
        "spark.submit.deployMode": "client",
        "spark.app.id": spec.name,
        "spark.kubernetes.namespace": "${env:POD_NAMESPACE}",
        "spark.kubernetes.container.image": settings.image,
        "spark.kubernetes.container.image.pullPolicy": settings.image_pull_policy,
        # With the pod's name executors are owned by the driver pod: they end with it.
        "spark.kubernetes.driver.pod.name": spec.name,
        "spark.kubernetes.executor.podNamePrefix": spec.name,
        "spark.kubernetes.executor.podTemplateFile": f"{CONF_FOLDER}/executor.yaml",
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_CONTAINER,
        "spark.kubernetes.executor.disableConfigMap": "true",
        # A watch that an API server restart ended is not opened again: then only polling finds executors.
        "spark.kubernetes.executor.apiPollingInterval": "10s",
        # The default of 10 s is too short for a JVM that starts on a busy node.
        "spark.kubernetes.driver.connectionTimeout": "60000",
        "spark.kubernetes.driver.requestTimeout": "60000",
        "spark.kubernetes.executor.request.cores": _cpu(settings, resources.cores),
        "spark.executor.instances": str(resources.executors),
        "spark.executor.cores": str(resources.cores),
        "spark.executor.memory": f"{resources.heap_bytes // MIB}m",
        "spark.executor.memoryOverhead": f"{math.ceil(resources.executor_overhead_bytes / MIB)}m",
        "spark.driver.memory": f"{resources.heap_bytes // MIB}m",
        # Executors get the bind address as the driver's, so both are the address of the pod.
        "spark.driver.bindAddress": "${env:POD_IP}",
        "spark.driver.host": "${env:POD_IP}",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_PORT),
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    return "".join(f"{key} {value}\n" for key, value in sorted({**chosen, **settings.spark}.items()))


def applications_from(spec: ApplicationSpec) -> tuple[Application, ...]:
    """Return the attempts that a spec describes, before they exist. `created` has no meaning."""
    resources, shared = spec.resources, shared_name_of(spec)
    return tuple(
        Application(
            plan.name,
            plan.key,
            plan.attempt,
            plan.service,
            plan.base_path,
            resources.executors,
            resources.memory_step,
            created=_NEVER,
            shared=shared,
            place=spec.place,
        )
        for plan in spec.plans
    )


def _arguments(spec: ApplicationSpec, settings: KubernetesSettings) -> list[str]:
    if spec.resources.executors:
        master = settings.spark.get(_MASTER, API_SERVER)
        return ["spark-submit", "--master", master, settings.application_file, *arguments_of(spec, 0, TERMINATION_MESSAGE)]
    return ["python", "-m", MODULE, *arguments_of(spec, spec.resources.cores, TERMINATION_MESSAGE)]


def _common_value(values: set[str]) -> str:
    return values.pop() if len(values) == 1 else SHARED


def _common(settings: KubernetesSettings) -> Json:
    """Return the parts that the pods of drivers and executors share, as a pod."""
    spec: Json = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.run_as_user,
            "runAsGroup": settings.run_as_user,
            "fsGroup": settings.run_as_user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "image": settings.image,
                "imagePullPolicy": settings.image_pull_policy,
                "envFrom": [
                    *({"secretRef": {"name": name}} for name in settings.environment_secrets),
                    *({"configMapRef": {"name": name}} for name in settings.environment_config_maps),
                ],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if settings.node_selector:
        spec["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in settings.tolerations]
    return {"spec": spec}


def _environment(settings: KubernetesSettings) -> list[Json]:
    return [{"name": "HOME", "value": "/tmp"}, *({"name": k, "value": v} for k, v in sorted(settings.environment.items()))]  # noqa: S108


def _driver_environment(spec: ApplicationSpec, settings: KubernetesSettings) -> list[Json]:
    locks: Json = {"name": LOCKS_VARIABLE, "value": spec.locks}
    if settings.locks_secret:
        name, _, key = settings.locks_secret.partition("/")
        locks = {"name": LOCKS_VARIABLE, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}
    own = (("POD_IP", "status.podIP"), ("POD_NAMESPACE", "metadata.namespace"))
    found = [locks, *({"name": n, "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in own)]
    return [*found, {"name": "SPARK_CONF_DIR", "value": CONF_FOLDER}] if spec.resources.executors else found


def _labels(settings: KubernetesSettings, component: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "tideline",
        "app.kubernetes.io/managed-by": "tideline-launcher",
        COMPONENT: component,
        FLEET: settings.fleet,
    }


def _scratch(settings: KubernetesSettings) -> Json:
    return {"name": "tmp", "emptyDir": {"sizeLimit": str(settings.scratch_bytes)}}


def _mebibytes(resources: Resources) -> str:
    return f"{math.ceil(resources.driver_memory_bytes / MIB)}Mi"


def _cpu(settings: KubernetesSettings, cores: int) -> str:
    request = settings.cpu_request_per_core
    return f"{int(request.removesuffix('m')) * cores}{'m' if request.endswith('m') else ''}"
