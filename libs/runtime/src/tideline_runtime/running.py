"""The file that describes a running service: process id, HTTP address, start time. The service removes it when it stops."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from tideline_runtime.state_folder import PRIVATE_FILE
from tideline_table.storage import writing


@dataclass(frozen=True, slots=True)
class Running:
    """A running service. `started` is ISO 8601 in UTC; `host` is an address to which the same machine can connect."""

    service: str
    pid: int
    host: str
    port: int
    started: str

    @property
    def url(self) -> str:
        """Root URL of the service's HTTP server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def running_file(state_folder: Path, name: str) -> Path:
    """Return the path `<state_folder>/<name>.json`. `name` is that of the service or, with several shards, of the instance."""
    return state_folder / f"{name}.json"


def announce(path: Path, running: Running) -> None:
    """Write the file atomically: a reader sees the old file or the whole new one. Raises `StorageError`."""
    staged = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with writing(repr(str(path))):
            staged.touch(PRIVATE_FILE)
            staged.write_text(json.dumps(asdict(running), indent=2) + "\n")
            os.replace(staged, path)
    finally:
        staged.unlink(missing_ok=True)


def read_running(path: Path) -> Running | None:
    """Return the content of the file; None if it is missing or invalid.

    A killed service leaves its file, so callers check the address.
    """
    try:
        return Running(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def withdraw(path: Path) -> None:
    """Remove the file if this process wrote it; the file of a successor stays."""
    running = read_running(path)
    if running is not None and running.pid == os.getpid():
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
