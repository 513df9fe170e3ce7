"""buildah and its local store of images, in the cache."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.commands import run, succeeds
from e2e.cluster.folders import Folders
from e2e.cluster.host import mounts_below

BUILD_TIMEOUT_S = 3600.0


class Store:
    """Commands of buildah on one store."""

    def __init__(self, folders: Folders) -> None:
        self._root = folders.images / "store"
        self._run_root = folders.images / "store-run"

    def buildah(self, *arguments: str | Path, timeout_s: float = BUILD_TIMEOUT_S) -> str:
        """Run buildah and return its output. Raises ClusterError."""
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        return run([*self._command(), *arguments], environment=environment, timeout_s=timeout_s, nice=True).strip()

    def has(self, reference: str) -> bool:
        """Return whether the store holds an image of this name."""
        return succeeds([*self._command(), "inspect", "--type", "image", reference])

    def clean(self) -> None:
        """Delete containers that builds left when they were interrupted, and the store's mounts. No build runs meanwhile."""
        self.buildah("rm", "--all")
        for place in mounts_below(self._root):
            run(["umount", place])

    @contextmanager
    def mounted(self, reference: str) -> Iterator[Path]:
        """Hold an image's files at a path, read only by agreement."""
        container = self.buildah("from", "--pull-never", reference)
        try:
            yield Path(self.buildah("mount", container))
        finally:
            self.buildah("rm", container)

    def size_bytes(self, reference: str) -> int:
        """Return the size of an image's files, unpacked."""
        listed = json.loads(self.buildah("images", "--json", reference))
        return sum(_bytes(entry["size"]) for entry in listed)

    def _command(self) -> Sequence[str]:
        return ("buildah", "--root", str(self._root), "--runroot", str(self._run_root), "--storage-driver", "overlay")


def _bytes(text: str) -> int:
    """Return the number in buildah's text, such as `77.1 MB`."""
    number, unit = text.split()
    return int(float(number) * {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}[unit.upper()])
