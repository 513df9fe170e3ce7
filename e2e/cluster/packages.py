"""Debian's packages that a node needs, installed where that is possible."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.files import locked

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CNI_FOLDER = Path("/usr/lib/cni")
# A program of each package, by which it is found whatever installed it.
NODE_PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    str(CNI_FOLDER / "bridge"): "containernetworking-plugins",
    str(CNI_FOLDER / "host-local"): "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
}
IMAGE_PROGRAMS = {"buildah": "buildah", "debootstrap": "debootstrap"}
APT_TIMEOUT_S = 600.0
APT_LOCK = Path("/run/lock/tideline-packages")
"""Held while packages are installed: `apt-get update` does not wait for another one, for instance that of a build of images."""
WAIT_FOR_OTHERS = ("-o", "DPkg::Lock::Timeout=300")


def missing_packages(programs: Mapping[str, str]) -> list[str]:
    """Return the packages of those programs that are not found, each once, in order."""
    return list(dict.fromkeys(package for program, package in programs.items() if not shutil.which(program, path=SYSTEM_PATH)))


def ensure_packages(programs: Mapping[str, str]) -> None:
    """Install what is missing with apt-get. Raises ClusterError, in one line, where that is not possible."""
    missing = missing_packages(programs)
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClusterError(f"found no {', '.join(missing)}; expected them: run as root where apt-get is, or install them")
    install_packages(missing)
    if missing := missing_packages(programs):
        raise ClusterError(f"installed them, and yet found no program of {', '.join(missing)}")


def install_packages(packages: Sequence[str]) -> None:
    """Install packages with apt-get, as root, one process at a time; those that are there are left as they are.

    Raises ClusterError.
    """
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    with locked(APT_LOCK):
        run(["apt-get", "update", "-qq"], environment=quiet, timeout_s=APT_TIMEOUT_S)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *WAIT_FOR_OTHERS, *packages]
        run(command, environment=quiet, timeout_s=APT_TIMEOUT_S)
