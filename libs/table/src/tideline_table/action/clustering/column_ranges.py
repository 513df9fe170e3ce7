"""Ranges of column values in base files, by the statistics of their footers.

What groups by overlap and plan metrics are made of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.reader.base_file import FooterRange, read_column_ranges
from tideline_table.storage import Storage

_READERS = 16
_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """The values of a column in the base file of a slice. `nulls` is -1 if unknown. The rows of log files are not included."""

    minimum: Any
    maximum: Any
    nulls: int

    def overlaps(self, other: ColumnRange) -> bool:
        """Return whether the ranges share more than one end: files of a sorted table may both hold the value between them."""
        if self.minimum == self.maximum == other.minimum == other.maximum:
            return True
        return bool(self.minimum < other.maximum and other.minimum < self.maximum)


Ranges = Mapping[FileGroupId, Mapping[str, ColumnRange]]
"""The ranges of columns in file slices; a column whose range is unknown is missing."""
ReadRanges = Callable[[Sequence[FileSlice], Sequence[str]], Ranges]
"""Returns the ranges of these columns in these slices."""


def no_ranges(_slices: Sequence[FileSlice], _columns: Sequence[str]) -> Ranges:
    """Return no range: for a first decision without I/O."""
    return {}


class FooterRanges:
    """Reads ranges from the footers of base files, in several threads, and keeps them: base files never change."""

    def __init__(self, storage: Storage, schema: pa.Schema) -> None:
        self._storage = storage
        self._schema = schema
        self._known: dict[tuple[str, str], ColumnRange | None] = {}
        self._lock = threading.Lock()

    def __call__(self, slices: Sequence[FileSlice], columns: Sequence[str]) -> Ranges:
        """Return the ranges of `columns`; a column is left out where the file lacks statistics or has it in another type.

        Raises `CorruptMetadata` for a base file that cannot be read.
        """
        paths = [s.path for s in slices if s.base_file]
        missing = [p for p in paths if any((p, c) not in self._known for c in columns)]
        if missing and columns:
            with ThreadPoolExecutor(min(_READERS, len(missing)), thread_name_prefix="footers") as pool:
                found = list(pool.map(lambda path: read_column_ranges(self._storage, path, columns), missing))
            with self._lock:
                if len(self._known) > _KEPT:
                    asked = frozenset(paths)
                    self._known = {key: held for key, held in self._known.items() if key[0] in asked}
                for path, ranges in zip(missing, found, strict=True):
                    self._known |= {(path, column): self._range(column, ranges.get(column)) for column in columns}
        known = self._known
        return {s.group: _known_ones((c, known.get((s.path, c))) for c in columns) for s in slices if s.base_file}

    def _range(self, column: str, found: FooterRange | None) -> ColumnRange | None:
        known = found.of_type(self._schema.field(column).type) if found is not None else None
        return ColumnRange(known.minimum, known.maximum, known.nulls) if known is not None else None


def _known_ones(found: Iterable[tuple[str, ColumnRange | None]]) -> dict[str, ColumnRange]:
    return {column: known for column, known in found if known is not None}


def union(ranges: Iterable[ColumnRange]) -> ColumnRange | None:
    """Return the range of all of them, None without any."""
    found = list(ranges)
    if not found:
        return None
    nulls = -1 if any(r.nulls < 0 for r in found) else sum(r.nulls for r in found)
    return ColumnRange(min(r.minimum for r in found), max(r.maximum for r in found), nulls)
