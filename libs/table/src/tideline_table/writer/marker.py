"""Markers: which files an instant may have written, known without listing the table (format reference 13.1; ours are direct ones)."""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from tideline_table.errors import TidelineError
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)

MARKER_FOLDER = ".hoodie/.temp"
_SERVER_FILE = re.compile(r"MARKERS\d+", re.ASCII)


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
        name = found.path[len(start) :]
        # Hudi's timeline server keeps them as lines of a few files.
        lines = storage.read(found.path).decode(errors="replace").split("\n") if _SERVER_FILE.fullmatch(name) else [name]
        for line in lines:
            # A partition may begin with a space.
            path, dot, _ = line.rpartition(".marker.")
            if dot:
                yield path


def last_announced(storage: Storage, instant: str) -> datetime | None:
    """When `instant` announced a file for the last time; None if it never did."""
    return max((found.modified for found in storage.list_objects(f"{MARKER_FOLDER}/{instant}")), default=None)


def forget_markers(storage: Storage, instant: str) -> None:
    """Remove what `instant` announced, once it has ended. Failing to is a warning: the log says already how it ended."""
    try:
        storage.delete_below(f"{MARKER_FOLDER}/{instant}")
    except TidelineError as error:
        _LOGGER.warning("markers of %s stay behind: %s", instant, error)


def forget_marked(storage: Storage, instant: str, paths: Iterable[str]) -> None:
    """Remove the announcements of these files alone: what a task announces later tells the sweep where to look. A failure is a warning."""
    start, named = f"{MARKER_FOLDER}/{instant}/", set(paths)
    try:
        for found in list(storage.list_objects(start.rstrip("/"))):
            if found.path[len(start) :].rpartition(".marker.")[0] in named:
                storage.delete(found.path)
    except TidelineError as error:
        _LOGGER.warning("markers of %s stay behind: %s", instant, error)
