"""Retention and trimming of table log entries. A checkpoint comes before the deletion of entries.

A suspended writer could create an entry again under a deleted name. Therefore trimming first writes a marker with the last sequence
to delete. After each append the writer looks for a marker at or above its sequence: if there is one, its sequence was not the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from tideline_table.log.entry import BODY_FOLDER, entry_path, sequence_in
from tideline_table.storage import Folder, Storage

TRIM_FOLDER = ".hoodie/.tideline/checkpoint"
"""Markers are stored beside checkpoints, so that a process that opens the table finds both in one listing."""
_MARKER = "trimmed-"
MOST_TRIMMED = 1000
"""Maximum number of entries that one call deletes, because a writer has to wait for it after its commit."""
_DELETES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Mark:
    """Proof that entries up to `sequence` (inclusive) were in the log at `recorded` (ISO 8601, UTC). One per checkpoint."""

    sequence: int
    recorded: str


@dataclass(frozen=True, slots=True)
class Retention:
    """The minimum to keep: the newest `entries` entries, and all entries younger than `age_s` seconds."""

    entries: int
    age_s: float


def trim_floor(marks: Sequence[Mark], retention: Retention, head: int, needed: int, now: datetime) -> int:
    """Return the last sequence that may be deleted, 0 for none. `needed` is the oldest entry that a process may still read."""
    limit = min(head - retention.entries, needed - 1)
    old = now - timedelta(seconds=retention.age_s)
    return max((m.sequence for m in marks if m.sequence <= limit and datetime.fromisoformat(m.recorded) <= old), default=0)


def trimmed_to(storage: Storage) -> int:
    """Return the last sequence that may have been deleted, 0 if the log is complete. Costs one request."""
    return max(markers_among(storage.list_folder(TRIM_FOLDER)), default=0)


def markers_among(listing: Folder) -> list[int]:
    """Return the sequences of the markers in a listing of `TRIM_FOLDER`, sorted."""
    names = [found.path.rpartition("/")[2] for found in listing.objects]
    found = (sequence_in(name.removeprefix(_MARKER)) for name in names if name.startswith(_MARKER))
    return sorted(sequence for sequence in found if sequence is not None)


def trim(storage: Storage, floor: int) -> int:
    """Delete entries up to `floor` (inclusive), at most `MOST_TRIMMED`, and their bodies. Return the last deleted sequence.

    Concurrent calls are safe. The next call continues after a crash, because the lowest marker gives the start.
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
    paths = [found.path for found in storage.list_folder(BODY_FOLDER).objects]
    sequences = [sequence_in(path.rpartition("/")[2].partition("-")[0]) for path in paths]
    bodies = [path for path, sequence in zip(paths, sequences, strict=True) if sequence is not None and sequence <= end]
    with ThreadPoolExecutor(_DELETES_AT_ONCE, thread_name_prefix="trim") as pool:
        list(pool.map(storage.delete, (entry_path(n) for n in range(start + 1, end + 1))))
        list(pool.map(storage.delete, bodies))
    for marker in markers:
        if marker < end:
            storage.delete(_marker_path(marker))
    return end


def _marker_path(sequence: int) -> str:
    return f"{TRIM_FOLDER}/{_MARKER}{sequence:020d}"
