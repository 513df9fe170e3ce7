"""The changed rows of a snapshot or of one write, in an order that is the same each time, from any place on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tideline_changes.envelope import CREATE, DELETE, READ, UPDATE, Row
from tideline_changes.positions import SNAPSHOT, Unit
from tideline_table.errors import UnsupportedTable
from tideline_table.table import Images, Table

_OPS = {"i": CREATE, "u": UPDATE, "d": DELETE}
_AT_A_TIME = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """One changed row; `part` and `rows` say how far its unit is published with it."""

    part: int
    rows: int
    op: str
    before: Row | None
    after: Row | None


def changes_of(table: Table, unit: Unit, columns: tuple[str, ...], keys: tuple[str, ...]) -> Iterator[Change]:
    """Yield the changes of a unit that are not published.

    A part is a file group where a write can be compared group by group, else a partition (`Images.by_group`). If the keys of
    records, of the columns `keys`, do not name the partition, all deletions of a write come first, because a row that moves to
    another partition is deleted in one part and created in another. Only the unit and the columns of keys and partitions decide
    about the order, because the next process goes on inside a unit. Raises `HistoryUnavailable` and `HistoryRewritten` if the
    table no longer has the unit.
    """
    is_snapshot = unit.kind == SNAPSHOT
    images = table.changes("" if is_snapshot else unit.sequence - 1, unit.sequence)
    parts = images.by_group() if _is_of_one_write(table, images, unit) else images.by_partition()
    moves = not is_snapshot and not set(table.definition.keygen.partition_fields) <= set(keys)
    passes: list[tuple[str, ...]] = [("d",), ("i", "u")] if moves else [("i", "u", "d")]
    steps = [(part, ops) for ops in passes for part in parts]
    for number in range(unit.part, len(steps)):
        part, ops = steps[number]
        skipped = unit.rows if number == unit.part else 0
        yield from _changes_in(part, ops, columns, number, skipped, READ if is_snapshot else None)


def _is_of_one_write(table: Table, images: Images, unit: Unit) -> bool:
    """Return whether no record can be in two file groups at the ends of the range, other than by a group that ended."""
    return images.written is None or sum(a.sequence == unit.sequence for a in table.state.completed_writes()) == 1


def _changes_in(
    part: Images, ops: tuple[str, ...], columns: tuple[str, ...], number: int, skipped: int, only_op: str | None
) -> Iterator[Change]:
    seen = 0
    for batch in part.scan(columns):
        chosen = batch if len(ops) == len(_OPS) else batch.filter(pc.is_in(batch.column("op"), value_set=pa.array(ops)))
        start, seen = seen, seen + chosen.num_rows
        if seen <= skipped:
            continue
        # Rows as Python's values take many times the memory of Arrow's: few at a time.
        for first in range(max(0, skipped - start), chosen.num_rows, _AT_A_TIME):
            rows = chosen.slice(first, _AT_A_TIME)
            befores, afters = _values(rows.column("before")), _values(rows.column("after"))
            for index, op in enumerate(rows.column("op").to_pylist()):
                yield Change(number, start + first + index + 1, only_op or _OPS[op], befores[index], afters[index])


def _values(column: pa.Array) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise UnsupportedTable(
            f"a value that cannot be published: {error}",
            expected="dates and times of the years 1 to 9999, and texts in UTF-8",
            remedy="correct the rows, then raise `snapshot` in the settings of the table",
        ) from error
    return found
