"""Files that are written only where their content differs, and locks between processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

OWNER_ONLY = 0o600


def write_if_different(path: Path, content: str, *, mode: int = OWNER_ONLY) -> bool:
    """Write `content` unless the file already holds it; return whether it was written.

    kube-proxy ends itself when its configuration file is written, even with the same bytes.
    """
    try:
        if path.read_text() == content:
            return False
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.touch(mode)
    new.write_text(content)
    os.replace(new, path)
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, one process at a time; the kernel frees it when its holder ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
