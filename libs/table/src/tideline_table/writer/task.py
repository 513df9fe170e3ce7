"""Operations, the tasks that write one file group for them, and their results: the values sent to workers and returned by them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.config import INSERT_DUP_POLICY, Options
from tideline_table.errors import InvalidOption
from tideline_table.file_group.slice import FileSlice, SliceVersion
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.scope import MAX_CARRIED_HASHES, KeyScope, key_hashes
from tideline_table.merge import Merging, deleted_mask
from tideline_table.reader.read_plan import LogRule
from tideline_table.schema.meta_fields import META_FIELDS, MetaField, with_meta_fields
from tideline_table.storage import Storage, open_storage


class Operation(enum.StrEnum):
    """What a write does with its rows. Values are Hudi's operation names in lower case."""

    UPSERT = "upsert"
    """Update the rows whose key exists, insert the others."""
    INSERT = "insert"
    """Add rows without looking up keys (unless the duplicate policy needs it); fills small files."""
    BULK_INSERT = "bulk_insert"
    """Add rows to new file groups, sorted; for first loads."""
    DELETE = "delete"
    """Remove rows by key."""
    INSERT_OVERWRITE = "insert_overwrite"
    """Replace everything in the partitions of the rows."""
    INSERT_OVERWRITE_TABLE = "insert_overwrite_table"
    """Replace everything in the table."""
    DELETE_PARTITION = "delete_partition"
    """Remove whole partitions; takes no rows."""

    @classmethod
    def _missing_(cls, value: object) -> Operation:
        """Take Hudi's own spelling, too. Raises `InvalidOption` for what is no operation."""
        if isinstance(value, str) and value != value.lower():
            return cls(value.lower())
        raise InvalidOption(f"operation {str(value)!r}", expected=f"one of {', '.join(cls)}")

    @property
    def hudi_name(self) -> str:
        """The name in commit metadata."""
        return self.value.upper()

    @property
    def looks_up_keys(self) -> bool:
        """Whether each key must be looked up before rows can be routed."""
        return self in (Operation.UPSERT, Operation.DELETE)

    @property
    def overwrites(self) -> bool:
        """Whether existing file groups are replaced as a whole, by a replace commit."""
        return self in (Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION)

    @property
    def opens_groups_only(self) -> bool:
        """Whether rows are written to new file groups only, never to existing small ones."""
        return self is Operation.BULK_INSERT or self.overwrites


ROW_OPERATIONS = tuple(operation for operation in Operation if operation is not Operation.DELETE_PARTITION)
"""Operations that take rows."""


def minds_known_keys(operation: Operation, options: Options) -> bool:
    """Return whether the write looks for rows whose key the table holds, to update, drop or refuse them."""
    return operation.looks_up_keys or (options[INSERT_DUP_POLICY] != "none" and not operation.overwrites)


promises_unique_keys = minds_known_keys
"""Whether the keys that a write adds must not be added by another writer meanwhile: an overwrite also replaces what others add to
its partitions."""


@dataclass(frozen=True, slots=True)
class WriteContext:
    """The values that all tasks of one write share; sent to workers."""

    base_path: str
    instant: str
    operation: Operation
    schema: pa.Schema
    avro_schema: str
    """The schema with meta fields, for the footers of files."""
    merging: Merging
    format: TableFormat
    """The names of files by the table's version."""
    options: Mapping[str, str] = field(default_factory=dict)
    has_logs: bool = False
    has_meta_fields: bool = True
    """False: the meta fields of all rows are null."""
    buckets: BucketIndex | None = None
    """The bucket index of the table, if it has one."""
    log_rule: LogRule = field(default_factory=LogRule)
    """The rule by which readers merge the log files that a write appends to."""
    changes: str = ""
    """As `TableDefinition.changes`."""
    parts: frozenset[str] = frozenset()
    """The columns of rows that are marked as partial records; empty: all rows are written whole."""
    keeps_keys: bool = False
    """Whether results hold the keys of base files (`WriteStat.keys`): only where they stay in the process that commits."""

    def open_storage(self) -> Storage:
        """Return the table's storage, opened where the task runs."""
        return open_storage(self.base_path)


@dataclass(frozen=True, slots=True)
class FileGroupTask:
    """One file group of one write. `base` is the slice to replace or append to, None for a new file group.

    `adds`: some rows are new to the group. On merge-on-read tables, they are then written with the updates to a new base file;
    updates and deletions alone are appended to the log.
    """

    number: int
    partition_path: str
    file_id: str
    base: FileSlice | None
    attempt: int = 0
    adds: bool = False
    log_inserts: int = 0
    """How many of the rows, the last ones, are new to the group and still appended to its log (a new group's if `base` is None)."""


@dataclass(frozen=True, slots=True)
class FileGroupResult:
    """What a task wrote, with hashes of the keys that it added (for the uniqueness check at the commit)."""

    stat: WriteStat | None
    inserted_hashes: bytes | None
    """Ascending `key_hashes` as little-endian uint64s. None if no check needs them; see `result_of`."""
    read: SliceVersion | None = None
    """The version of the slice that was replaced or appended to, None for a new file group."""
    table_hashes: bytes = b""
    """Hashes of the same keys without partition, if the write promises that keys are unique in the table."""


def result_of(context: WriteContext, task: FileGroupTask, stat: WriteStat, inserted: pa.ChunkedArray) -> FileGroupResult:
    """Return the result of a task that added the keys `inserted`.

    It has no hashes if the keys are more than a commit carries and the write does not compare its keys with those of other writers.
    """
    options, read = Options(context.options), task.base.version if task.base else None
    unique = promises_unique_keys(context.operation, options)
    if len(inserted) > MAX_CARRIED_HASHES and not unique:
        return FileGroupResult(stat, None, read)
    hashes = _sorted_hashes(task.partition_path, inserted)
    of_table = unique and KeyScope.of(options) is KeyScope.TABLE
    return FileGroupResult(stat, hashes, read, _sorted_hashes(None, inserted) if of_table else b"")


def _sorted_hashes(partition_path: str | None, keys: pa.ChunkedArray) -> bytes:
    return np.sort(key_hashes(partition_path, keys)).astype("<u8").tobytes()


def live_rows(incoming: pa.Table) -> pa.Table:
    """Return the incoming rows that are not deletions."""
    deleted = deleted_mask(incoming)
    return incoming.filter(pa.array(~deleted)) if deleted.any() else incoming


def stored_rows(context: WriteContext, task: FileGroupTask, rows: pa.Table, file_name: str, *, nulls: bool = False) -> pa.Table:
    """Return incoming `rows` in the schema of the table with meta fields; `nulls` leaves these null."""
    schema, count = with_meta_fields(context.schema), rows.num_rows
    constants = {
        MetaField.COMMIT_TIME: context.instant,
        MetaField.PARTITION_PATH: task.partition_path,
        MetaField.FILE_NAME: file_name,
    }
    numbers = pa.array(np.arange(count)).cast(pa.string())
    meta = {name: pa.repeat(pa.scalar(text, pa.string()), count) for name, text in constants.items()}
    meta[MetaField.COMMIT_SEQNO] = pc.binary_join_element_wise(f"{context.instant}_{task.number}_", numbers, "")
    meta[MetaField.RECORD_KEY] = rows.column(MetaField.RECORD_KEY)
    if nulls:
        meta = dict.fromkeys(meta, pa.nulls(count, pa.string()))
    columns = [meta[MetaField(f.name)] if f.name in META_FIELDS else rows.column(f.name) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)
