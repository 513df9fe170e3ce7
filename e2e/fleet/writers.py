"""Writers: pods of the service image that write files of rows into the tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.commands import wait_until
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.cluster.kubectl import apply, kubectl
from e2e.fleet.release import CREDENTIALS, NAMESPACE, REGION
from e2e.fleet.servers import INCOMING, Servers
from e2e.fleet.source import TABLES, Batch
from e2e.fleet.tables import base_path
from e2e.images.image import SERVICE
from e2e.smoke.objects import CONTAINER_SECURITY, POD_SECURITY

PROGRAM = Path(__file__).with_name("writer_program.py")
PROGRAM_FOLDER = "/etc/writer"
CONFIG_MAP = "writer"
COMPONENT = "writer"
END_TIMEOUT_S = 300.0
POLL_S = 2.0
SHOWN_CHARACTERS = 2000


@dataclass(frozen=True)
class Acknowledged:
    """A commit that the engine acknowledged to a writer."""

    table: str
    file: str
    instant: str
    sequence: int
    attempts: int
    errors: int = 0
    """Errors after which the writer tried again, for instance of a lock or of the store."""


@dataclass(frozen=True)
class Writer:
    """A writer of one table and the files that it writes, in this order."""

    name: str
    table: str
    files: tuple[str, ...]


def writers_of(name: str, batches: Sequence[Batch]) -> list[Writer]:
    """Return the writers of a round: one for each table and number of a writer."""
    shared: dict[tuple[str, int], list[str]] = {}
    for batch in batches:
        shared.setdefault((batch.table, batch.writer), []).append(batch.file)
    return [Writer(f"writer-{name}-{table}-{writer}", table, tuple(files)) for (table, writer), files in shared.items()]


def start(folders: Folders, servers: Servers, writers: Sequence[Writer]) -> None:
    """Create the pods."""
    program = {"writer_program.py": PROGRAM.read_text()}
    named = {"name": CONFIG_MAP, "namespace": NAMESPACE}
    apply(folders, [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": program}])
    apply(folders, [pod_of(writer, servers.store.endpoint, servers.redis.url) for writer in writers])


def await_end(folders: Folders, writers: Sequence[Writer]) -> list[Acknowledged]:
    """Wait until the writers have ended, delete their pods and return what was acknowledged. Raises ClusterError if one failed."""
    names = [writer.name for writer in writers]

    def phases() -> list[str]:
        found = json.loads(kubectl(folders, "get", "pods", *names, *_place(), "--output=json"))
        return [pod["status"].get("phase", "") for pod in (found["items"] if len(names) > 1 else [found])]

    wait_until("writers end", lambda: set(phases()) <= {"Succeeded", "Failed"}, timeout_s=END_TIMEOUT_S, poll_s=POLL_S)
    said = {writer: kubectl(folders, "logs", writer.name, *_place()) for writer in writers}
    for writer, phase in zip(writers, phases(), strict=True):
        if phase != "Succeeded":
            raise ClusterError(f"{writer.name} failed: {said[writer][-SHOWN_CHARACTERS:]}")
    kubectl(folders, "delete", "pod", *names, *_place(), "--wait=true")
    return [commit for writer, text in said.items() for commit in acknowledged(writer, text)]


def acknowledged(writer: Writer, said: str) -> list[Acknowledged]:
    """Return the commits in a writer's output. Raises ClusterError unless every file is there once."""
    found = [json.loads(line) for line in said.splitlines() if line.startswith('{"file"')]
    commits = [Acknowledged(writer.table, f["file"], f["instant"], f["sequence"], f["attempts"], f["errors"]) for f in found]
    if [commit.file for commit in commits] != list(writer.files):
        raise ClusterError(f"{writer.name} printed {said[-SHOWN_CHARACTERS:]!r}; expected a commit for each of {writer.files}")
    return commits


def delete_program(folders: Folders) -> None:
    """Delete what `start` left beside the pods."""
    kubectl(folders, "delete", "configmap", CONFIG_MAP, *_place(), "--ignore-not-found")


def pod_of(writer: Writer, endpoint: str, locks: str) -> dict[str, Any]:
    """Return the pod of a writer."""
    container = {
        "name": COMPONENT,
        "image": SERVICE.reference,
        "imagePullPolicy": "Never",
        "command": ["python", f"{PROGRAM_FOLDER}/{PROGRAM.name}"],
        "args": [base_path(writer.table), json.dumps(TABLES[writer.table].options), f"s3://{INCOMING}", *writer.files],
        "env": [
            {"name": "AWS_REGION", "value": REGION},
            {"name": "AWS_ENDPOINT_URL", "value": endpoint},
            {"name": "TIDELINE_LOCKS", "value": locks},
        ],
        "envFrom": [{"secretRef": {"name": CREDENTIALS}}],
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "program", "mountPath": PROGRAM_FOLDER, "readOnly": True},
        ],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "program", "configMap": {"name": CONFIG_MAP}}],
    }
    labels = {"app.kubernetes.io/component": COMPONENT}
    metadata = {"name": writer.name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _place() -> tuple[str, ...]:
    return (f"--namespace={NAMESPACE}",)
