"""Markers: which files an instant may have written, known without listing the table (format reference 13.1, direct markers)."""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator

from tideline_table.errors import TidelineError
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)

MARKER_FOLDER = ".hoodie/.temp"


class MarkerType(enum.StrEnum):
    """What a marked file is."""

    CREATE = "CREATE"
    MERGE = "MERGE"
    APPEND = "APPEND"


def create_marker(storage: Storage, instant: str, path: str, kind: MarkerType) -> None:
    """Announce the file at `path`; comes before the file itself. Safe to repeat."""
    storage.put(f"{MARKER_FOLDER}/{instant}/{path}.marker.{kind}", b"")


def marked_files(storage: Storage, instant: str) -> Iterator[str]:
    """Paths (below the base path) that `instant` announced."""
    start = f"{MARKER_FOLDER}/{instant}/"
    for found in storage.list_objects(start.rstrip("/")):
        path, dot, _ = found.path[len(start) :].rpartition(".marker.")
        if dot:
            yield path


def forget_markers(storage: Storage, instant: str) -> None:
    """Remove what `instant` announced, once it has ended. Failing to is a warning: the log says already how it ended."""
    try:
        storage.delete_below(f"{MARKER_FOLDER}/{instant}")
    except TidelineError as error:
        _LOGGER.warning("markers of %s stay behind: %s", instant, error)
