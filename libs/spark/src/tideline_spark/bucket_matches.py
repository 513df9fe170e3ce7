"""The join of one bucket of two tables, in a worker: Arrow's hash join of the keys, and rows picked by their numbers.

The smaller side is held in memory (the held side). The other one is read in portions. The hash join sees the keys and row
numbers only, so that columns of all types can be in the result.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import acero

from tideline_spark.bucket_rows import BucketRows
from tideline_table.table import Snapshot

_READ, _HELD = "read", "held"
"""Columns of row numbers: of the side that is read in portions, and of the held one."""


class JoinKind(enum.StrEnum):
    """The kinds of joins, by PySpark's names."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"

    @property
    def is_filter(self) -> bool:
        """Whether the result has columns and rows of the left table only."""
        return self in (JoinKind.SEMI, JoinKind.ANTI)

    def keeps(self, *, left: bool) -> bool:
        """Return whether rows of the left (or right) table without a match are in the result, with nulls for the other one."""
        return self is JoinKind.FULL or self is (JoinKind.LEFT if left else JoinKind.RIGHT)


@dataclass(frozen=True, slots=True)
class BucketJoin:
    """A join of two tables, bucket by bucket. A plain value that is sent to workers and called there."""

    kind: JoinKind
    left: BucketRows
    right: BucketRows
    schema: pa.Schema
    """The result: a column for each pair of keys, those of the left table, those of the right table unless `kind.is_filter`."""

    def __call__(self, pair: tuple[Snapshot, Snapshot]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the join of a bucket of the left table and one of the right table.

        Raises `BucketTooLarge` if the smaller one exceeds the memory, and what `BucketRows.portions` raises.
        """
        sizes = [sum(max(1, s.total_bytes) for s in part.slices) for part in pair]
        holds_left = sizes[0] < sizes[1]
        if self._is_empty(pair):
            return
        held_rows, read_rows = (self.left, self.right) if holds_left else (self.right, self.left)
        held_part, read_part = pair if holds_left else (pair[1], pair[0])
        held = held_rows.whole(held_part).combine_chunks()
        keys = self._numbered(held, held_rows, _HELD)
        matched = np.zeros(held.num_rows, dtype=bool)
        for portion in read_rows.portions(read_part):
            numbered = self._numbered(portion, read_rows, _READ)
            for found in self._matches(numbered, keys, holds_left=holds_left):
                if _HELD in found.schema.names:
                    matched[np.asarray(found.column(_HELD).drop_null())] = True
                yield from self._joined(portion, held, found, holds_left=holds_left)
        yield from self._unmatched(held, matched, holds_left=holds_left)

    def _is_empty(self, pair: tuple[Snapshot, Snapshot]) -> bool:
        """Return whether the result is empty because one of the buckets has no file."""
        if not pair[0].slices:
            return not self.kind.keeps(left=False)
        return not pair[1].slices and self.kind in (JoinKind.INNER, JoinKind.RIGHT, JoinKind.SEMI)

    def _numbered(self, rows: pa.Table, side: BucketRows, name: str) -> pa.Table:
        """Return the keys in the types of the result, and the number of each row."""
        columns = {f"k{at}": rows.column(key).cast(self.schema.field(at).type) for at, key in enumerate(side.keys)}
        return pa.table({**columns, name: np.arange(rows.num_rows)})

    def _matches(self, read: pa.Table, held: pa.Table, *, holds_left: bool) -> Iterator[pa.RecordBatch]:
        """Yield numbers of rows: pairs, or only those of the side that decides about the result. Null keys match nothing."""
        outputs: tuple[list[str], list[str]] = ([_READ], [_HELD])
        if self.kind.is_filter and holds_left:
            kind, outputs = "right semi", ([], [_HELD])
        elif self.kind.is_filter:
            kind, outputs = f"left {self.kind}", ([_READ], [])
        else:
            kind = "left outer" if self.kind.keeps(left=not holds_left) else "inner"
        names = [name for name in read.column_names if name != _READ]
        tables = [acero.Declaration("table_source", acero.TableSourceNodeOptions(rows)) for rows in (read, held)]
        options = acero.HashJoinNodeOptions(kind, names, names, *outputs)
        # Spark counts one core for a task.
        yield from acero.Declaration("hashjoin", options, inputs=tables).to_reader(use_threads=False)

    def _joined(self, portion: pa.Table, held: pa.Table, found: pa.RecordBatch, *, holds_left: bool) -> Iterator[pa.RecordBatch]:
        if _READ not in found.schema.names:
            return
        read = portion.take(found.column(_READ))
        if self.kind.is_filter:
            yield from self._rows(read, None, read, self.left)
        elif holds_left:
            yield from self._rows(held.take(found.column(_HELD)), read, read, self.right)
        else:
            yield from self._rows(read, held.take(found.column(_HELD)), read, self.left)

    def _unmatched(self, held: pa.Table, matched: np.ndarray, *, holds_left: bool) -> Iterator[pa.RecordBatch]:
        """Yield what the held rows add after all rows of the other side were seen."""
        if self.kind.is_filter:
            if holds_left:
                chosen = held.filter(pa.array(matched if self.kind is JoinKind.SEMI else ~matched))
                yield from self._rows(chosen, None, chosen, self.left)
        elif self.kind.keeps(left=holds_left):
            chosen = held.filter(pa.array(~matched))
            left, right = (chosen, None) if holds_left else (None, chosen)
            yield from self._rows(left, right, chosen, self.left if holds_left else self.right)

    def _rows(
        self, left: pa.Table | None, right: pa.Table | None, keyed: pa.Table, keyed_by: BucketRows
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of both sides as rows of the result. Values of the keys are those of `keyed`; None: nulls."""
        columns = [keyed.column(name) for name in keyed_by.keys]
        for rows, side in ((left, self.left), (right, self.right)):
            if self.kind.is_filter and side is self.right:
                continue
            columns += [pa.nulls(keyed.num_rows) if rows is None else rows.column(name) for name in side.columns]
        fitted = [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)]
        yield from pa.Table.from_arrays(fitted, schema=self.schema).to_batches()


def wider(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of two join columns of one kind."""
    if left == right or not pa.types.is_integer(left):
        return left
    return left if left.bit_width >= right.bit_width else right
