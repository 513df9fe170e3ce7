"""The content of the page of `tideline show --html`: sizes of file slices, ranges of columns, and instants.

Reads footers, no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tideline_table.file_group import FileSlice
from tideline_table.reader import read_column_ranges
from tideline_table.schema import with_meta_fields
from tideline_table.table import Table

MOST_FILES = 400
"""Most file slices that the page draws: the largest ones. The counts in the page's texts include all slices."""
MOST_COLUMNS = 6


@dataclass(frozen=True, slots=True)
class ColumnRanges:
    """The ranges of one column in the base files. A bound is drawn at a position between 0 and 1: its rank among all bounds."""

    column: str
    ranges: tuple[tuple[str, str, float, float], ...]
    """Partition path, text of the range, and the positions of its least and its greatest value."""
    overlap: float
    """Mean number of other files of the same partition whose range overlaps that of a file."""


@dataclass(frozen=True, slots=True)
class PictureFacts:
    """The content of the page."""

    name: str
    base_path: str
    slices: tuple[FileSlice, ...]
    """The drawn slices, largest first."""
    file_groups: int
    base_bytes: int
    log_bytes: int
    ranges: tuple[ColumnRanges, ...]
    instants: tuple[tuple[str, str, str, str], ...]
    """Instant, action, state and operation, oldest first."""


def picture_facts(table: Table, columns: Sequence[str] = (), on_files: Callable[[int], None] = lambda _: None) -> PictureFacts:
    """Return the facts of a table; `columns` are those whose ranges are drawn (default: key, ordering and further columns).

    Before their footers are read, `on_files` is called with the number of files.
    """
    slices = table.slices()
    drawn = sorted(slices, key=lambda s: (-s.total_bytes, s.group))[:MOST_FILES]
    on_files(sum(1 for s in drawn if s.base_file))
    names = list(columns) or _default_columns(table)
    known = [(s, _bounds(table, s, names)) for s in drawn if s.base_file]
    ranges = [_ranges(name, [(s, bounds[name]) for s, bounds in known if name in bounds]) for name in names]
    actions = sorted(table.state.actions.values(), key=lambda a: a.instant)
    return PictureFacts(
        name=table.definition.name,
        base_path=table.storage.root,
        slices=tuple(drawn),
        file_groups=len(slices),
        base_bytes=sum(s.size_bytes for s in slices),
        log_bytes=sum(s.total_bytes - s.size_bytes for s in slices),
        ranges=tuple(found for found in ranges if found is not None)[:MOST_COLUMNS],
        instants=tuple((a.instant, a.action.value, a.state.value, a.operation) for a in actions),
    )


def _default_columns(table: Table) -> list[str]:
    keygen, ordering = table.definition.keygen, table.definition.ordering_field
    plain = [f.name for f in table.schema if not pa.types.is_nested(f.type) and f.name not in keygen.partition_fields]
    return list(dict.fromkeys([*(n for n in (*keygen.key_fields, ordering) if n in plain), *plain]))[: 2 * MOST_COLUMNS]


def _bounds(table: Table, file_slice: FileSlice, names: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    schema = with_meta_fields(table.schema)
    found: dict[str, tuple[Any, Any]] = {}
    for name, stored in read_column_ranges(table.storage, file_slice.path, names).items():
        held = stored.comparable(schema.field(name).type) if name in schema.names else None
        if held is not None:
            found[name] = held.minimum, held.maximum
    return found


def _ranges(column: str, known: Sequence[tuple[FileSlice, tuple[Any, Any]]]) -> ColumnRanges | None:
    bounds = sorted({bound for _, pair in known for bound in pair})
    if len(known) < 2 or len(bounds) < 2:  # one file or one value shows nothing
        return None
    place = {bound: number / (len(bounds) - 1) for number, bound in enumerate(bounds)}
    rows = sorted((s.group.partition_path, f"{low} to {high}", place[low], place[high]) for s, (low, high) in known)
    rows.sort(key=lambda row: (row[0], row[2], row[3]))
    return ColumnRanges(column, tuple(rows), _mean_overlap(rows))


def _mean_overlap(rows: Sequence[tuple[str, str, float, float]]) -> float:
    by_partition: dict[str, list[tuple[float, float]]] = {}
    for partition, _, low, high in rows:
        by_partition.setdefault(partition, []).append((low, high))
    pairs = sum(
        sum(1 for other_low, other_high in found if other_low <= high and low <= other_high) - 1
        for found in by_partition.values()
        for low, high in found
    )
    return pairs / len(rows)
