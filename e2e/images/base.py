"""The base of all images where no registry can be asked: Debian bookworm from Debian's packages, without documentation."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.files import write_if_different
from e2e.cluster.folders import Folders
from e2e.images.store import Store

SUITE = "bookworm"
REFERENCE = f"localhost/tideline-base:{SUITE}"
UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "var/lib/apt/lists", "var/cache/apt", "var/log")
EXCLUDED = "".join(f"path-exclude /usr/share/{name}/*\n" for name in ("doc", "info", "locale", "man"))
READABLE = 0o644
TIMEOUT_S = 1200.0


def ensure_base(folders: Folders, store: Store) -> None:
    """Make the base image unless the store holds it. Raises ClusterError."""
    if store.has(REFERENCE):
        return
    if os.geteuid() != 0:
        raise ClusterError("found another user than root; expected root to make the base image: run as root")
    root = folders.images / "base"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    run(["debootstrap", "--variant=minbase", SUITE, root], timeout_s=TIMEOUT_S, nice=True)
    slim(root)
    container = store.buildah("from", "scratch")
    store.buildah("copy", "--quiet", container, root, "/")
    store.buildah("config", "--cmd", "/bin/bash", container)
    store.buildah("commit", "--quiet", "--rm", container, REFERENCE)
    shutil.rmtree(root)


def slim(root: Path) -> None:
    """Empty the folders that no program reads, and keep packages that are installed later from filling them."""
    for name in UNUSED:
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    write_if_different(root / "etc/dpkg/dpkg.cfg.d/slim", EXCLUDED, mode=READABLE)
