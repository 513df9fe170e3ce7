"""kubectl with the administrator's access."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.cluster.packages import SYSTEM_PATH

FIELD_MANAGER = "tideline-e2e"


def environment(folders: Folders) -> dict[str, str]:
    """Return the whole environment of the cluster's processes and clients: no proxy and no setting of the caller reaches them."""
    return {
        "PATH": f"{folders.bin}:{SYSTEM_PATH}",
        "HOME": str(folders.cluster),
        "KUBECONFIG": str(folders.kubeconfig),
        "TZ": "UTC",
    }


def kubectl(folders: Folders, *arguments: str, given: str | None = None, timeout_s: float = 120.0) -> str:
    """Run kubectl and return its output. Raises ClusterError."""
    return run([folders.bin / "kubectl", *arguments], given=given, environment=environment(folders), timeout_s=timeout_s)


def apply(folders: Folders, objects: Sequence[dict[str, Any]]) -> None:
    """Apply objects on the server's side."""
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    kubectl(folders, "apply", "--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}", "-f", "-", given=content)


def answers(folders: Folders, *arguments: str) -> bool:
    """Return whether kubectl succeeds."""
    try:
        kubectl(folders, *arguments, timeout_s=20)
    except ClusterError:
        return False
    return True
