"""Which processes are there."""

from __future__ import annotations

from pathlib import Path


def processes_that_name(text: str) -> list[str]:
    """Command lines that contain `text`, pytest's own left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # ended while we looked
        if text in command and "pytest" not in command:
            found.append(command)
    return found
