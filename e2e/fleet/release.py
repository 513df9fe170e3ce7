"""The release: its namespace and Secrets, `helm install`, `helm test`, `helm uninstall`, and what is left afterwards."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from e2e.cluster.commands import run, wait_until
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.cluster.kubectl import apply, environment, kubectl
from e2e.fleet.servers import Servers
from e2e.images.image import REPOSITORY_ROOT, SERVICE, SPARK

NAMESPACE, RELEASE = "tideline-e2e", "tideline"
CHART = REPOSITORY_ROOT / "charts" / "tideline"
VALUES = Path(__file__).with_name("values.yaml")
UPGRADE = Path(__file__).with_name("upgrade.yaml")
ADDRESSES = "addresses.json"
CREDENTIALS, TOKEN = "object-store", "tideline-http"
REGION = "us-east-1"
INSTALL_TIMEOUT_S = 300
TEST_TIMEOUT_S = 180
UNINSTALL_TIMEOUT_S = 180
POLL_S = 2.0
KINDS = (
    "pods,configmaps,services,endpointslices,deployments,replicasets,serviceaccounts,secrets,persistentvolumeclaims,"
    "roles,rolebindings,networkpolicies,poddisruptionbudgets"
)
OWN_OF_NAMESPACE = {"configmap/kube-root-ca.crt", "serviceaccount/default", f"secret/{CREDENTIALS}", f"secret/{TOKEN}"}
"""What a namespace has by itself, and the Secrets that this run made."""


def prepare(folders: Folders, servers: Servers) -> None:
    """Create the namespace, which enforces restricted Pod Security, and the Secrets that the values name."""
    # A run that failed on a cluster that was kept may have left it.
    delete_namespace(folders)
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    apply(folders, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}])
    settings = servers.store.settings
    credentials = {name: settings[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    apply(folders, [_secret(CREDENTIALS, credentials), _secret(TOKEN, {"token": secrets.token_hex(24)})])


def addresses(servers: Servers) -> dict[str, Any]:
    """Return the values that are known only now: addresses and images."""
    repository, _, tag = SERVICE.reference.rpartition(":")
    return {
        "image": {"repository": repository, "tag": tag},
        "applications": {"image": {"repository": SPARK.reference.rpartition(":")[0], "tag": tag}},
        "kafka": {"brokers": servers.kafka.bootstrap_servers},
        "redis": {"address": servers.redis_address},
        "objectStore": {"endpoint": servers.store.endpoint},
    }


def install(folders: Folders, servers: Servers, work: Path) -> None:
    """Install the chart and return when every Deployment is ready."""
    known_now = work / ADDRESSES
    known_now.write_text(json.dumps(addresses(servers)))
    files = [f"--values={VALUES}", f"--values={known_now}"]
    _helm(folders, "install", RELEASE, str(CHART), *files, "--wait", f"--timeout={INSTALL_TIMEOUT_S}s", timeout_s=INSTALL_TIMEOUT_S)


def upgrade(folders: Folders, work: Path) -> None:
    """Upgrade to other values while everything works; return when every Deployment has its new pods."""
    files = [f"--values={path}" for path in (VALUES, work / ADDRESSES, UPGRADE)]
    command = ("upgrade", RELEASE, str(CHART), *files, "--wait", f"--timeout={INSTALL_TIMEOUT_S}s")
    _helm(folders, *command, timeout_s=INSTALL_TIMEOUT_S)


def test(folders: Folders) -> None:
    """Run the chart's own test."""
    _helm(folders, "test", RELEASE, f"--timeout={TEST_TIMEOUT_S}s", timeout_s=TEST_TIMEOUT_S)


def uninstall(folders: Folders) -> None:
    """Uninstall the release. Raises ClusterError if something is left in the namespace after a while."""
    _helm(folders, "uninstall", RELEASE, "--wait", f"--timeout={UNINSTALL_TIMEOUT_S}s", timeout_s=UNINSTALL_TIMEOUT_S)
    try:
        wait_until("nothing is left", lambda: not left_over(folders), timeout_s=UNINSTALL_TIMEOUT_S, poll_s=POLL_S)
    except ClusterError as error:
        raise ClusterError(f"found {', '.join(left_over(folders))} after helm uninstall; expected nothing") from error


def left_over(folders: Folders) -> list[str]:
    """Return what is in the namespace and is not its own."""
    return foreign(kubectl(folders, "get", KINDS, f"--namespace={NAMESPACE}", "--output=name", "--ignore-not-found").split())


def foreign(names: Iterable[str]) -> list[str]:
    """Return the names, as `kubectl --output=name` prints them, that are not the namespace's own."""
    found = (name.partition("/") for name in names)
    return sorted(name for kind, _, rest in found if (name := f"{kind.partition('.')[0]}/{rest}") not in OWN_OF_NAMESPACE)


def delete_namespace(folders: Folders) -> None:
    """Delete the namespace with all that is in it."""
    kubectl(folders, "delete", "namespace", NAMESPACE, "--wait=true", "--ignore-not-found", timeout_s=UNINSTALL_TIMEOUT_S)


def _secret(name: str, content: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": content}


def _helm(folders: Folders, *arguments: str, timeout_s: float) -> None:
    # helm reports its own time-out better than an interrupted command would.
    command = [str(folders.bin / "helm"), *arguments, f"--namespace={NAMESPACE}"]
    run(command, environment=environment(folders), timeout_s=timeout_s + 60)
