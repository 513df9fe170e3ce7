"""A real file system that is full when a test wants it to be."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PAGE_BYTES = 4096


class SmallDisk:
    """A tmpfs of its own at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        self._names = folder / "names"

    def mount(self, options: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)], check=True)

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.folder)], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self, free_bytes: int = 0) -> None:
        """Use up all space but `free_bytes`, a multiple of `PAGE_BYTES`."""
        self.free()
        with self._filler.open("xb", buffering=0) as filler:
            left = self.free_bytes - free_bytes
            os.posix_fallocate(filler.fileno(), 0, left)
        assert self.free_bytes == free_bytes

    def fill_names(self) -> None:
        """Use up all inodes."""
        self.free()
        self._names.mkdir()
        for number in range(os.statvfs(self.folder).f_ffree):
            (self._names / str(number)).touch()
        assert os.statvfs(self.folder).f_ffree == 0

    def free(self) -> None:
        """Give all space and inodes back."""
        self._filler.unlink(missing_ok=True)
        for name in self._names.iterdir() if self._names.exists() else ():
            name.unlink()
        if self._names.exists():
            self._names.rmdir()

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize
