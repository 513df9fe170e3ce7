"""The cluster's DNS: CoreDNS as a deployment, with an address of its own. It answers names of the cluster only."""

from __future__ import annotations

from typing import Any

from e2e.cluster.addresses import CLUSTER_DOMAIN, DNS_ADDRESS
from e2e.cluster.folders import Folders
from e2e.cluster.kubectl import apply, kubectl
from e2e.cluster.system_images import COREDNS_IMAGE

NAME = "coredns"
NAMESPACE = "kube-system"
ROLES = "rbac.authorization.k8s.io"
READY_TIMEOUT_S = 180
COREFILE = f"""\
.:53 {{
    errors
    health
    ready
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        ttl 5
    }}
    cache 5
}}
"""


def objects() -> list[dict[str, Any]]:
    """Return the objects of the cluster's DNS."""
    named = {"name": NAME, "namespace": NAMESPACE}
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {"apiVersion": f"{ROLES}/v1", "kind": "ClusterRole", "metadata": {"name": NAME}, "rules": rules},
        {
            "apiVersion": f"{ROLES}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {"apiGroup": ROLES, "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", **named}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": {"Corefile": COREFILE}},
        _deployment(named),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": NAMESPACE, "labels": {"k8s-app": "kube-dns"}},
            "spec": {
                "clusterIP": DNS_ADDRESS,
                "selector": {"k8s-app": "kube-dns"},
                "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}],
            },
        },
    ]


def start_dns(folders: Folders) -> None:
    """Apply the DNS and return when it answers."""
    apply(folders, objects())
    wait = ("rollout", "status", f"deployment/{NAME}", f"--namespace={NAMESPACE}", f"--timeout={READY_TIMEOUT_S}s")
    kubectl(folders, *wait, timeout_s=READY_TIMEOUT_S + 10)


def _deployment(named: dict[str, str]) -> dict[str, Any]:
    container = {
        "name": NAME,
        "image": COREDNS_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "170Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsUser": 0,
            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "configuration", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    pod = {
        "serviceAccountName": NAME,
        "dnsPolicy": "Default",
        "priorityClassName": "system-cluster-critical",
        "containers": [container],
        "volumes": [{"name": "configuration", "configMap": {"name": NAME}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": named,
        "spec": {
            "selector": {"matchLabels": {"k8s-app": "kube-dns"}},
            "template": {"metadata": {"labels": {"k8s-app": "kube-dns"}}, "spec": pod},
        },
    }
