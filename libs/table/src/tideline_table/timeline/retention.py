"""How long entries of the table log are kept, and how they go (design: "Checkpoints come before deletion of entries").

A freed name could be taken again by a writer that slept, so trimming announces itself first: a marker object says up to where, before the
first entry goes. Whoever wins a place looks for a marker afterwards: one at or above the place tells that the place was no longer the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from tideline_table.storage import Folder, Storage
from tideline_table.timeline.entry import BODY_FOLDER, entry_path

TRIM_FOLDER = ".hoodie/.tideline/checkpoint"
"""Markers stand beside the checkpoints: one listing tells an opener of both."""
_MARKER = "trimmed-"
MOST_TRIMMED = 1000
"""Entries that one call deletes at most: it runs behind somebody's commit."""
_DELETES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Mark:
    """Entries up to `sequence` (in) were in the log at `recorded` (ISO 8601, UTC): one for each checkpoint."""

    sequence: int
    recorded: str


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept at least: the newest `entries`, and what is younger than `age_s` seconds."""

    entries: int
    age_s: float


def trim_floor(marks: Sequence[Mark], retention: Retention, head: int, needed: int, now: datetime) -> int:
    """Up to which sequence (in) entries may go, 0 for none. `needed` is the oldest entry that somebody still has to read."""
    limit = min(head - retention.entries, needed - 1)
    old = now - timedelta(seconds=retention.age_s)
    return max((m.sequence for m in marks if m.sequence <= limit and datetime.fromisoformat(m.recorded) <= old), default=0)


def trimmed_to(storage: Storage) -> int:
    """The last sequence that may have been deleted, 0 when the log is whole. One request."""
    return max(markers_among(storage.list_folder(TRIM_FOLDER)), default=0)


def markers_among(listing: Folder) -> list[int]:
    """What the markers in a listing of `TRIM_FOLDER` say, in order."""
    names = [found.path.rpartition("/")[2] for found in listing.objects]
    numbers = [name.removeprefix(_MARKER) for name in names if name.startswith(_MARKER)]
    return sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())


def trim(storage: Storage, floor: int) -> int:
    """Delete entries up to `floor` (in), at most `MOST_TRIMMED`, and their bodies; returns up to where.

    Any number of callers may race, and whoever dies inside is continued by the next: the lowest marker tells where to start.
    """
    markers = markers_among(storage.list_folder(TRIM_FOLDER))
    start = min(markers, default=0)
    end = max([min(floor, start + MOST_TRIMMED), *markers])
    if markers == [end] or not end:
        return end
    if not markers:
        storage.put(_marker_path(0), b"")
        markers = [0]
    storage.put(_marker_path(end), b"")
    bodies = [found.path for found in storage.list_folder(BODY_FOLDER).objects if _body_sequence(found.path) <= end]
    with ThreadPoolExecutor(_DELETES_AT_ONCE, thread_name_prefix="trim") as pool:
        list(pool.map(storage.delete, (entry_path(n) for n in range(start + 1, end + 1))))
        list(pool.map(storage.delete, bodies))
    for marker in markers:
        if marker < end:
            storage.delete(_marker_path(marker))
    return end


def _marker_path(sequence: int) -> str:
    return f"{TRIM_FOLDER}/{_MARKER}{sequence:020d}"


def _body_sequence(path: str) -> int:
    number = path.rpartition("/")[2].partition("-")[0]
    # A name of another make is never old enough.
    return int(number) if len(number) == 20 and number.isascii() and number.isdecimal() else 2**63
