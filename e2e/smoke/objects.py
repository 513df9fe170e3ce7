"""The objects of the smoke test. Everything is in one namespace that enforces restricted Pod Security."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.images.image import SERVICE, SPARK

NAMESPACE = "tideline-smoke"
SERVICE_POD = "service-version"
DRIVER_POD = "spark-driver"
DRIVER_ACCOUNT, EXECUTOR_ACCOUNT = "spark-driver", "spark-executor"
API_HOST = "kubernetes.default.svc"
ROLES = "rbac.authorization.k8s.io"
JOB = Path(__file__).parent / "job.py"
CONFIGURATION_FOLDER, TEMPLATE_FOLDER, JOB_FOLDER = "/opt/spark/conf", "/opt/spark/template", "/opt/spark/job"

# What restricted Pod Security asks of a pod and of each container.
POD_SECURITY = {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
# A driver deletes by label when it ends: without the rights on objects that it never made it logs two refusals.
DRIVER_RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete", "deletecollection"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "deletecollection"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["deletecollection"]},
    {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["list", "deletecollection"]},
]


def namespace() -> dict[str, Any]:
    """Return the namespace."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def accounts() -> list[dict[str, Any]]:
    """Return the service accounts of driver and executors; only the driver has rights."""
    named = _named(DRIVER_ACCOUNT)
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named, "automountServiceAccountToken": False},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": _named(EXECUTOR_ACCOUNT),
            "automountServiceAccountToken": False,
        },
        {"apiVersion": f"{ROLES}/v1", "kind": "Role", "metadata": named, "rules": DRIVER_RULES},
        {
            "apiVersion": f"{ROLES}/v1",
            "kind": "RoleBinding",
            "metadata": named,
            "roleRef": {"apiGroup": ROLES, "kind": "Role", "name": DRIVER_ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", **named}],
        },
    ]


def service_pod() -> dict[str, Any]:
    """Return a pod of the service image that prints its version."""
    container = _container("service", SERVICE.reference, ["tideline_mirror", "--version"], {})
    return _pod(SERVICE_POD, {"containers": [container], "volumes": [_scratch()], "automountServiceAccountToken": False})


def spark_settings() -> dict[str, str]:
    """Return Spark's settings for a driver in client mode with one executor."""
    return {
        "spark.master": f"k8s://https://{API_HOST}",
        "spark.submit.deployMode": "client",
        "spark.kubernetes.namespace": NAMESPACE,
        "spark.kubernetes.container.image": SPARK.reference,
        "spark.kubernetes.container.image.pullPolicy": "Never",
        "spark.kubernetes.driver.pod.name": DRIVER_POD,
        "spark.kubernetes.executor.podNamePrefix": DRIVER_POD,
        "spark.kubernetes.executor.podTemplateFile": f"{TEMPLATE_FOLDER}/executor.json",
        "spark.kubernetes.executor.request.cores": "200m",
        "spark.executor.instances": "1",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.driver.host": "${env:POD_IP}",
        "spark.driver.bindAddress": "${env:POD_IP}",
        "spark.driver.port": "7078",
        "spark.driver.blockManager.port": "7079",
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
    }


def spark_configuration() -> list[dict[str, Any]]:
    """Return the config maps that a driver mounts."""
    defaults = "".join(f"{key} {value}\n" for key, value in spark_settings().items())
    template = json.dumps(_executor_template(), indent=2)
    contents = {
        "spark-conf": {"spark-defaults.conf": defaults},
        "spark-template": {"executor.json": template},
        "spark-job": {"job.py": JOB.read_text()},
    }
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": _named(name), "data": data} for name, data in contents.items()]


def driver_pod() -> dict[str, Any]:
    """Return the driver's pod."""
    mounts = {"spark-conf": CONFIGURATION_FOLDER, "spark-template": TEMPLATE_FOLDER, "spark-job": JOB_FOLDER}
    container = _container("driver", SPARK.reference, ["driver", f"{JOB_FOLDER}/job.py"], mounts)
    container["env"] = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    container["resources"] = {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    volumes = [_scratch(), *({"name": name, "configMap": {"name": name}} for name in mounts)]
    return _pod(
        DRIVER_POD,
        {
            "serviceAccountName": DRIVER_ACCOUNT,
            "automountServiceAccountToken": True,
            "containers": [container],
            "volumes": volumes,
        },
    )


def _executor_template() -> dict[str, Any]:
    container = {
        "name": "executor",
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    spec = {
        "serviceAccountName": EXECUTOR_ACCOUNT,
        "automountServiceAccountToken": False,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": [_scratch()],
    }
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def _pod(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    common = {"restartPolicy": "Never", "securityContext": POD_SECURITY, "enableServiceLinks": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _named(name), "spec": {**common, **spec}}


def _container(name: str, image: str, arguments: list[str], mounts: dict[str, str]) -> dict[str, Any]:
    mounted = [{"name": volume, "mountPath": path, "readOnly": True} for volume, path in mounts.items()]
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "args": arguments,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}, *mounted],
    }


def _scratch() -> dict[str, Any]:
    return {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}


def _named(name: str) -> dict[str, str]:
    return {"name": name, "namespace": NAMESPACE}
