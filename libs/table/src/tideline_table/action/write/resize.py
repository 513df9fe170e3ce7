"""Other numbers of buckets for a table with a bucket index: the rows of each file group move in place, in one replace commit.

The commit that moves the rows also says the new numbers (`BucketResize`), so both change at one moment. A write that began with the
old numbers conflicts with it and is repeated. `hoodie.properties` and the files of partition rules follow the log
(`table.bucket_numbers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tideline_table.action.write.attempt import Contention, in_transaction, write_with_retries
from tideline_table.action.write.moved_rows import write_moved
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.config import CLUSTERING_MAX_GROUP_BYTES
from tideline_table.coordination.committed import Committed
from tideline_table.errors import InvalidOption, UnsupportedTable, VerificationFailed, WriteConflict
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import new_bucket_file_id
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.bucket_resize import BucketChange, resized_index
from tideline_table.log.resizes import BucketResize
from tideline_table.reader.file_slice import read_slice
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.table.bucket_numbers import RESIZE_OPERATION, complete_resize, hide_index
from tideline_table.table.facade import Table
from tideline_table.writer import FileGroupResult


def resize_buckets(
    table: Table,
    number: int | None = None,
    *,
    partition_buckets: str | None = None,
    overwrite: bool = False,
    options: Mapping[str, object] | None = None,
) -> Committed | None:
    """Give the partitions of an exclusive table other numbers of buckets; None if they have them already.

    `partition_buckets` are rules (`PartitionRules`) in place of those of the table, `number` is that of partitions without a
    rule; None keeps what the table has. Only partitions whose number changes are read and written: each of their buckets is
    split in place, which takes a multiple of the present number, one file group at a time in memory. With `overwrite`, any
    number can follow: the rows of buckets that exchange rows are in memory together (`BucketChange.exchanges`), up to
    `hoodie.clustering.plan.strategy.max.bytes.per.group` of input. Larger ones are read several times.

    Other writers go on; each commit of one of them into such a partition lets the resize begin again, up to
    `tideline.write.conflict.retries` times. Raises `WriteConflict` then, `InvalidOption` for numbers and rules that cannot be,
    `UnsupportedTable` for a table that is shared, has no bucket index, or whose rows are not where the index puts them.
    """
    chosen = table.options.merged(options or {})
    table.check_writable()
    table.refresh()
    if not table.capabilities.changes_buckets:
        raise UnsupportedTable(
            f"table {table.definition.name!r}, which Apache Hudi's writers write, too",
            expected="an exclusive table: Hudi's writers would go on with the number that they know",
            remedy="write the rows into a new table",
        )
    if number is None and partition_buckets is None:
        raise InvalidOption("a resize of buckets without numbers", expected="a number of buckets, rules of partitions, or both")

    def change() -> BucketChange:
        index = resizable_index(table)
        is_partitioned = bool(table.definition.keygen.partition_fields)
        found = BucketChange(index, resized_index(index, number, partition_buckets, is_partitioned=is_partitioned))
        if not overwrite:
            found.check_multiples(found.affected(table.state.latest_slices()))
        return found

    if (first := change()).before == first.after:
        settle(table)
        return None
    contention, limit_bytes = Contention(table, chosen), chosen[CLUSTERING_MAX_GROUP_BYTES]

    def attempt() -> Committed:
        table.refresh()
        if (planned := change()).before == planned.after:
            return Committed("", table.state.sequence, ())  # another process did it
        return in_transaction(table, RESIZE_OPERATION, chosen, lambda begun: _Resize(table, begun, change(), limit_bytes).run())

    try:
        done = write_with_retries(contention, attempt, None)
    finally:
        settle(table)
    return done if done.instant else None


def settle(table: Table) -> None:
    """Let `hoodie.properties` follow the log after a resize.

    If another resize or an overwrite of the table is pending, a later writer does it.
    """
    assert table.identity is not None
    complete_resize(table.timeline, table.identity)


def resizable_index(table: Table) -> BucketIndex:
    """Return the present index. Raises `UnsupportedTable` if the table cannot be resized to a named number."""
    index = table.definition.buckets
    if index is None:
        raise UnsupportedTable(f"table {table.definition.name!r} without a bucket index", expected="a table with one")
    index.check_resizable(table.definition.name)
    return index


class _Resize:
    """The resize in one transaction."""

    def __init__(self, table: Table, begun: WriteTransaction, change: BucketChange, limit_bytes: int) -> None:
        self.table, self.begun, self.change, self.limit_bytes = table, begun, change, limit_bytes

    def run(self) -> Committed:
        """Move the rows of all partitions whose number changes, and commit."""
        table, begun, change = self.table, self.begun, self.change
        if change.before == change.after:
            raise WriteConflict(
                f"another process resized the table meanwhile: it has {change.after.text} already",
                with_instant=max(table.state.bucket_numbers, default=""),
            )
        hide_index(table.timeline)
        affected = change.affected(table.state.latest_slices())
        results: list[FileGroupResult] = []
        for partition, slices in affected.items():
            for exchanged in change.exchanges(partition, slices):
                begun.check_early({s.group: s.version for s in exchanged}, frozenset())
                results += self._move(partition, exchanged, len(results))
        extra = BucketResize(begun.instant, change.after.number, change.after.rules.text).metadata
        splits = {s.group: s.version for slices in affected.values() for s in slices}
        hide_index(table.timeline)
        return begun.commit(
            results, table.schema_json, extra, None, splits=splits, splits_in=lambda group: change.changes(group.partition_path)
        )

    def _move(self, partition: str, slices: Sequence[FileSlice], at: int) -> list[FileGroupResult]:
        """Write the rows of these file groups into the file groups of their new buckets, with their meta fields.

        Rows of more than `limit_bytes` of input are not in memory together: each turn reads the file groups again, one after the
        other, and keeps the rows of some of the new buckets.
        """
        turns = self.change.turns(partition, slices, self.limit_bytes)
        read, found = 0, list[FileGroupResult]()
        for turn in range(turns):
            rows, buckets, of_turn = self._read(partition, slices, turn, turns)
            read = of_turn if turn == 0 else read
            for bucket in np.unique(buckets).tolist():
                file_id = new_bucket_file_id(self.begun.instant, partition, bucket)
                found.append(write_moved(self.table, self.begun, at, partition, rows, buckets == bucket, file_id))
        written = sum(r.stat.num_writes for r in found if r.stat is not None)
        if written != read:
            raise VerificationFailed(
                f"a resize of {', '.join(s.group.file_id for s in slices)} in {partition!r} wrote {written} rows",
                expected=f"the {read} rows that it read",
                remedy="nothing was committed and the table is as before; check memory and disks of the machine, and report it",
            )
        return found

    def _read(self, partition: str, slices: Sequence[FileSlice], turn: int, turns: int) -> tuple[pa.Table, np.ndarray, int]:
        """Return the rows of the new buckets of one of several turns, their new buckets, and how many rows the file groups hold."""
        common = self.change.common_number(partition)
        before, after = (index.in_partition(partition) for index in (self.change.before, self.change.after))
        parts, numbers, held = [], [], 0
        for file_slice in slices:
            rows = read_slice(self.table.storage, file_slice, with_meta_fields(self.table.schema), self.table.log_rule())
            keys = rows.column(MetaField.RECORD_KEY)
            before.check_members(file_slice.group.file_id, keys)
            buckets = after.buckets(keys)
            chosen = (buckets // common) % turns == turn
            parts.append(rows if chosen.all() else rows.filter(pa.array(chosen)))
            numbers.append(buckets[chosen])
            held += rows.num_rows
        return pa.concat_tables(parts), np.concatenate(numbers), held
