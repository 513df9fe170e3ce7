"""Progress messages from writer processes to the demo: one JSON object per line on standard output."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Progress:
    """One commit of a writer. `conflicts` is the number of retries before it succeeded, `batches` the total work."""

    writer: str
    table: str
    instant: str
    batch: int
    batches: int
    rows: int
    conflicts: int
    kind: ClassVar[str] = "tideline-demo-progress"


def send(progress: Progress) -> None:
    """Write one line and flush it."""
    sys.stdout.write(json.dumps({"kind": Progress.kind, **asdict(progress)}) + "\n")
    sys.stdout.flush()


def receive(line: str) -> Progress | None:
    """Return the progress in a line, or None for other output."""
    try:
        document = json.loads(line)
        if document.pop("kind") != Progress.kind:
            return None
        return Progress(**document)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
