"""Another number of buckets for a table with a bucket index: each file group is split in place, in one replace commit.

The commit that splits the groups also says the new number (`BUCKET_NUMBER_KEY`), so both change at one moment. A write that began
with the old number conflicts with it and is repeated. `hoodie.properties` follows the log: from before the commit until after it,
it names no bucket index, because Apache Hudi's readers would leave out buckets by the wrong number.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tideline_table.action.write.attempt import in_transaction, write_with_retries
from tideline_table.action.write.contention import Contention
from tideline_table.action.write.moved_rows import write_moved
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.committed import Committed
from tideline_table.errors import InvalidOption, UnsupportedTable, VerificationFailed, WriteConflict
from tideline_table.file_group.names import MAX_BUCKETS, new_bucket_file_id
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.properties import change_properties, read_properties
from tideline_table.index.bucket import RESIZING, BucketIndex, resizing_properties
from tideline_table.log.state import BUCKET_NUMBER_KEY
from tideline_table.reader.file_slice import read_slice
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.table.facade import Table
from tideline_table.writer import FileGroupResult, Operation


def resize_buckets(table: Table, number: int, *, options: Mapping[str, object] | None = None) -> Committed | None:
    """Split the buckets of an exclusive table so that it has `number` of them, a multiple of what it has; None if it has them already.

    Reads and writes every row once, one file group at a time in memory. Other writers go on; each commit of one of them lets the
    resize begin again, up to `tideline.write.conflict.retries` times. Raises `WriteConflict` then, `InvalidOption` for another number,
    `UnsupportedTable` for a table that is shared, has no bucket index, or whose rows are not where the index puts them.
    """
    chosen = table.options.merged(options or {})
    table.check_writable()
    table.refresh()
    if not table.is_exclusive:
        raise UnsupportedTable(
            f"table {table.definition.name!r}, which Apache Hudi's writers write, too",
            expected="an exclusive table: Hudi's writers would go on with the number that they know",
            remedy="write the rows into a new table",
        )
    if checked_number(table, number).number == number:
        settle_properties(table)
        return None
    contention = Contention(table, chosen)

    def attempt() -> Committed:
        table.refresh()
        if checked_number(table, number).number == number:
            return Committed("", table.state.sequence, ())  # another process did it
        return in_transaction(table, Operation.INSERT_OVERWRITE_TABLE, chosen, lambda begun: _split(table, begun, number))

    properties = read_properties(table.storage)
    if RESIZING not in properties:
        change_properties(table.storage, resizing_properties(properties))
    try:
        done = write_with_retries(contention, attempt, None)
    finally:
        settle_properties(table)
    return done if done.instant else None


def settle_properties(table: Table) -> None:
    """Let `hoodie.properties` say the number of buckets that the log says, after a resize or one that died."""
    table.refresh()
    properties, index = read_properties(table.storage), table.definition.buckets
    if index is not None and RESIZING in properties:
        change_properties(table.storage, {**{k: v for k, v in properties.items() if k != RESIZING}, **index.properties})


def checked_number(table: Table, number: int) -> BucketIndex:
    """Return the present index. Raises if the table cannot be resized to `number`."""
    index = table.definition.buckets
    if index is None:
        raise UnsupportedTable(f"table {table.definition.name!r} without a bucket index", expected="a table with one")
    if index.is_consistent:
        raise UnsupportedTable(
            f"table {table.definition.name!r} with {index.text}",
            expected="no number of buckets: the sizes of its buckets decide which are split and merged",
            remedy="tideline resize-buckets PATH --option hoodie.bucket.index.max.num.buckets=N",
        )
    if index.has_several:
        raise UnsupportedTable(
            f"table {table.definition.name!r} with {index.text}",
            expected="one file group in each bucket: a bucket with several grows by file groups",
            remedy="for another number, write the rows into a new table",
        )
    if index.rules:
        raise UnsupportedTable(
            f"table {table.definition.name!r} with {index.text}",
            expected="one number of buckets for all partitions: rules of partitions cannot be changed yet",
            remedy="write the rows into a new table",
        )
    if not index.number <= number <= MAX_BUCKETS or number % index.number:
        raise InvalidOption(
            f"{number} buckets for a table with {index.text}",
            expected=f"a multiple of {index.number} up to {MAX_BUCKETS}: each bucket is split in place",
            remedy="for another number, write the rows into a new table",
        )
    return index


def _split(table: Table, begun: WriteTransaction, number: int) -> Committed:
    index = checked_number(table, number)
    if index.number == number:
        raise WriteConflict(f"another process gave the table {number} buckets", with_instant=max(table.state.bucket_numbers))
    slices = table.state.latest_slices()
    larger = BucketIndex(number, index.fields, index.key_fields)
    results: list[FileGroupResult] = []
    for at, file_slice in enumerate(slices):
        begun.check_early({file_slice.group: file_slice.version}, frozenset())
        results += _split_slice(table, begun, index, larger, at, file_slice)
    extra = {BUCKET_NUMBER_KEY: str(number)}
    return begun.commit(results, table.schema_json, extra, None, splits={s.group: s.version for s in slices})


def _split_slice(
    table: Table, begun: WriteTransaction, index: BucketIndex, larger: BucketIndex, at: int, file_slice: FileSlice
) -> list[FileGroupResult]:
    """Write the rows of a file group into the file groups of their new buckets, with their meta fields."""
    schema = with_meta_fields(table.schema)
    rows = read_slice(table.storage, file_slice, schema, table.log_rule())
    keys = rows.column(MetaField.RECORD_KEY)
    index.check_members(file_slice.group.file_id, keys)
    buckets = larger.buckets(keys)
    partition, found = file_slice.group.partition_path, []
    for bucket in np.unique(buckets).tolist():
        file_id = new_bucket_file_id(begun.instant, partition, bucket)
        found.append(write_moved(table, begun, at, partition, rows, buckets == bucket, file_id))
    if sum(r.stat.num_writes for r in found if r.stat is not None) != rows.num_rows:
        raise VerificationFailed(
            f"the split of file group {file_slice.group.file_id} changed rows", expected=f"{rows.num_rows} rows"
        )
    return found
