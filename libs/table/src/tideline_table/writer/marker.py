"""Markers list the files that an instant may have written, so that no listing of the table is needed (format reference 13.1)."""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from tideline_table.errors import TidelineError
from tideline_table.hudi.format import TableFormat
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)

MARKER_FOLDER = ".hoodie/.temp"
_SERVER_FILE = re.compile(r"MARKERS\d+", re.ASCII)


class MarkerType(enum.StrEnum):
    """How a marked file is written."""

    CREATE = "CREATE"
    MERGE = "MERGE"
    APPEND = "APPEND"


def log_marker(form: TableFormat) -> MarkerType:
    """Return the kind for a new log file: where files are named after their writes, Apache Hudi's rollbacks refuse APPEND."""
    return MarkerType.CREATE if form.has_completion_times else MarkerType.APPEND


def create_marker(storage: Storage, instant: str, path: str, kind: MarkerType) -> None:
    """Write a direct marker of the file at `path`, before the file itself. Safe to repeat."""
    storage.put(f"{MARKER_FOLDER}/{instant}/{path}.marker.{kind}", b"")


def marked_files(storage: Storage, instant: str) -> Iterator[str]:
    """Yield the paths (below the base path) that the markers of `instant` list."""
    start = f"{MARKER_FOLDER}/{instant}/"
    for found in storage.list_objects(start.rstrip("/")):
        name = found.path[len(start) :]
        # Hudi's timeline server stores markers as lines of a few files.
        lines = storage.read(found.path).decode(errors="replace").split("\n") if _SERVER_FILE.fullmatch(name) else [name]
        for line in lines:
            # A partition may begin with a space.
            path, dot, _ = line.rpartition(".marker.")
            if dot:
                yield path


def last_marked(storage: Storage, instant: str) -> datetime | None:
    """Return when `instant` wrote its last marker; None if it has none."""
    return max((found.modified for found in storage.list_objects(f"{MARKER_FOLDER}/{instant}")), default=None)


def forget_markers(storage: Storage, instant: str, only: Iterable[str] | None = None) -> None:
    """Delete the markers of `instant`, which has ended, or those of the files `only`.

    The rest show orphan-file cleanup where to look.

    A failure is a warning, because the log records how the instant ended.
    """
    folder = f"{MARKER_FOLDER}/{instant}"
    try:
        if only is None:
            storage.delete_below(folder)
            return
        paths = set(only)
        for found in list(storage.list_objects(folder)):
            if found.path[len(folder) + 1 :].rpartition(".marker.")[0] in paths:
                storage.delete(found.path)
    except TidelineError as error:
        _LOGGER.warning("markers of instant %s could not be deleted: %s", instant, error)
