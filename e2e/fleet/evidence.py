"""What is kept of a run that failed: logs of all pods, descriptions and the events of the namespace."""

from __future__ import annotations

import shutil
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.cluster.kubectl import kubectl
from e2e.fleet.release import NAMESPACE


def folder_of(folders: Folders) -> Path:
    """Return where the evidence of the last failed run is."""
    return folders.cache / "e2e" / "evidence"


def keep(folders: Folders) -> Path:
    """Write the evidence and return its folder. What cannot be read is left out."""
    target = folder_of(folders)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    place = f"--namespace={NAMESPACE}"
    _write(folders, target / "objects.txt", "get", "all,configmaps", place, "--output=wide")
    _write(folders, target / "events.txt", "get", "events", place, "--sort-by=.lastTimestamp")
    _write(folders, target / "pods.txt", "describe", "pods", place)
    try:
        names = kubectl(folders, "get", "pods", place, "--output=name").split()
    except ClusterError:
        names = []
    for name in names:
        _write(folders, target / f"{name.rpartition('/')[2]}.log", "logs", name, place, "--all-containers")
    return target


def _write(folders: Folders, target: Path, *arguments: str) -> None:
    try:
        target.write_text(kubectl(folders, *arguments))
    except ClusterError as error:
        target.write_text(f"{error}\n")
