"""What a machine must have before a cluster can be built and run on it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping

from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.cluster.host import missing_for_a_node
from e2e.cluster.packages import NODE_PROGRAMS, missing_packages
from e2e.cluster.programs import MODULES, missing_programs

GO = (1, 24)
"""The oldest Go that the modules of the programs accept."""


def missing_for_a_cluster(folders: Folders, programs: Mapping[str, str] = NODE_PROGRAMS) -> list[str]:
    """Return what this machine lacks to build and run a cluster, each as a few words; empty if it can.

    `programs` are those that Debian packages bring. What is in the cache already is not asked for.
    """
    missing = missing_for_a_node()
    packages = missing_packages(programs)
    if packages and shutil.which("apt-get") is None:
        missing.append(f"apt-get, which would install {', '.join(packages)}")
    if any(missing_programs(folders, module) for module in MODULES) and not _has_go():
        missing.append(f"Go {GO[0]}.{GO[1]} or newer")
    return missing


def go_release(text: str) -> tuple[int, int] | None:
    """Return major and minor number in the output of `go version`; None if it holds none."""
    found = re.search(r"\bgo(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))


def _has_go() -> bool:
    try:
        release = go_release(run(["go", "version"]))
    except ClusterError:
        return False
    return release is not None and release >= GO
