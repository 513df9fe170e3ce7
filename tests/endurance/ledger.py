"""What a process remembers over its death: one JSON document a line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Ledger:
    """A file of one member of the cluster; only the living process of that name writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, **document: Any) -> None:
        """Durable when this returns. A line that a kill tore is ended first."""
        with self._path.open("ab") as lines:
            if lines.tell() and not self._path.read_bytes().endswith(b"\n"):
                lines.write(b"\n")
            lines.write(json.dumps({"at_s": round(time.monotonic(), 2), **document}).encode() + b"\n")
            lines.flush()
            os.fsync(lines.fileno())

    def read(self) -> list[dict[str, Any]]:
        """Everything noted, without torn lines."""
        if not self._path.exists():
            return []
        found = []
        for line in self._path.read_bytes().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found
