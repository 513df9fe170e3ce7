"""Writing one file group: read its base file, merge, write the next base file; or append to its log.

Runs anywhere, in the caller's process or on a Spark executor: everything it needs is in its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.config import Options
from tideline_table.file_group.names import base_file_name, write_token
from tideline_table.file_group.slice import FileSlice, SliceVersion, join_path
from tideline_table.index.key_hash import MAX_CARRIED_HASHES, key_hashes
from tideline_table.index.scope import KeyScope
from tideline_table.merge import MergeMode, deleted_mask, incoming_wins, purged_mask
from tideline_table.reader.base_file import read_base_file
from tideline_table.schema.evolution import conform
from tideline_table.schema.meta_fields import META_FIELDS, MetaField, with_meta_fields
from tideline_table.storage import Storage, open_storage
from tideline_table.timeline.write_stats import NO_PREVIOUS_COMMIT, WriteStat
from tideline_table.writer.base_file import write_base_file
from tideline_table.writer.marker import MarkerType, create_marker
from tideline_table.writer.operation import Operation, promises_unique_keys


@dataclass(frozen=True, slots=True)
class WriteContext:
    """What all tasks of one write share; ships to workers."""

    base_path: str
    instant: str
    operation: Operation
    schema: pa.Schema
    avro_schema: str
    """With meta fields, for the files' footers."""
    merge_mode: MergeMode
    ordering_field: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    is_merge_on_read: bool = False
    has_meta_fields: bool = True
    """False: the meta fields of all rows are null."""

    def open_storage(self) -> Storage:
        """The table's storage, opened where the task runs."""
        return open_storage(self.base_path)


@dataclass(frozen=True, slots=True)
class FileGroupTask:
    """One file group of one write. `base` is the slice written over, None for a new file group.

    `adds` says that some of the rows are new to the group: on merge-on-read tables they go, with the updates, to a new base file; updates
    and deletions alone go to the log.
    """

    number: int
    partition_path: str
    file_id: str
    base: FileSlice | None
    attempt: int = 0
    adds: bool = False
    log_inserts: int = 0
    """So many of the rows, the last ones, are new to the group and go to its log all the same; without a `base` to a new group's."""


@dataclass(frozen=True, slots=True)
class FileGroupResult:
    """What a task wrote, and hashes of the keys that it added (for the uniqueness check at the commit)."""

    stat: WriteStat | None
    inserted_hashes: bytes | None
    """Little-endian uint64s, ascending; `key_hashes` says of what. None where nobody asks for them; see `result_of`."""
    read: SliceVersion | None = None
    """The version of the slice that was written over, None for a new file group."""
    table_hashes: bytes = b""
    """The same keys as what is unique in the table, where the write promises that."""


def write_file_group(
    context: WriteContext, task: FileGroupTask, incoming: pa.Table, storage: Storage | None = None
) -> FileGroupResult:
    """Write the next base file of a group, or its next log file. `incoming` is as `PreparedInput.rows`: keys unique unless the operation adds blindly.

    Returns no stat when nothing changes (all incoming rows lost against newer ones, or a delete found nothing).
    """
    storage = storage or context.open_storage()
    if context.is_merge_on_read and (task.log_inserts or (task.base is not None and not task.adds)):
        from tideline_table.writer.log_file import append_log_file  # noqa: PLC0415 - the two modules share the task types

        return append_log_file(context, task, incoming, storage)
    name = base_file_name(task.file_id, write_token(task.number, task.attempt), context.instant)
    if task.base is None:
        added = live_rows(incoming)
        merged: _Merged | None = _Merged(
            kept=None, written=added, updates=0, deletes=0, inserted=added.column(MetaField.RECORD_KEY)
        )
    else:
        assert not task.base.log_files, "rows are added only to groups without log files"
        merged = _merge(context, read_base_file(storage, task.base.path), incoming)
    if merged is None or (merged.kept is None and merged.written is None) or (task.base is None and not merged.rows):
        return FileGroupResult(None, b"")
    output = _output(context, task, merged, name)
    path = join_path(task.partition_path, name)
    create_marker(storage, context.instant, path, MarkerType.MERGE if task.base else MarkerType.CREATE)
    size = write_base_file(storage, path, output, context.avro_schema, Options(context.options))
    stat = WriteStat(
        file_id=task.file_id,
        partition_path=task.partition_path,
        path=path,
        prev_commit=task.base.base_instant if task.base else NO_PREVIOUS_COMMIT,
        num_writes=output.num_rows,
        file_size_bytes=size,
        num_inserts=len(merged.inserted),
        num_updates=merged.updates,
        num_deletes=merged.deletes,
    )
    return result_of(context, task, stat, merged.inserted)


def result_of(context: WriteContext, task: FileGroupTask, stat: WriteStat, inserted: pa.ChunkedArray) -> FileGroupResult:
    """The result of a task that added the keys `inserted`.

    It has no hashes of them where they are more than a commit carries and the write itself does not compare them with those of others.
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


@dataclass(frozen=True, slots=True)
class _Merged:
    kept: pa.Table | None
    """Base rows that stay, with their meta fields."""
    written: pa.Table | None
    """Incoming rows that become visible."""
    updates: int
    deletes: int
    inserted: pa.ChunkedArray

    @property
    def rows(self) -> int:
        return (self.kept.num_rows if self.kept is not None else 0) + (self.written.num_rows if self.written is not None else 0)


def _merge(context: WriteContext, base: pa.Table, incoming: pa.Table) -> _Merged | None:
    keys = incoming.column(MetaField.RECORD_KEY)
    if not context.operation.looks_up_keys:
        added = live_rows(incoming)
        return _Merged(base, added, 0, 0, added.column(MetaField.RECORD_KEY)) if added.num_rows else None
    found = pc.index_in(base.column(MetaField.RECORD_KEY), value_set=keys.combine_chunks())
    matched = np.asarray(pc.is_valid(found))
    targets = np.asarray(found.drop_null())
    if context.operation is Operation.DELETE:
        if not len(targets):
            return None
        return _Merged(base.filter(pa.array(~matched)), None, 0, int(matched.sum()), keys.slice(0, 0))
    wins = np.ones(len(targets), dtype=bool)
    if context.merge_mode is MergeMode.EVENT_TIME and len(targets):
        mine = incoming.column(context.ordering_field).take(pa.array(targets))
        wins = incoming_wins(base.column(context.ordering_field).filter(pa.array(matched)), mine)
        purged = purged_mask(incoming)
        if purged is not None:
            wins |= np.asarray(purged)[targets]
    lost = np.zeros(incoming.num_rows, dtype=bool)
    lost[targets[~wins]] = True
    existing = np.zeros(incoming.num_rows, dtype=bool)
    existing[targets] = True
    deleted_column = deleted_mask(incoming)
    deleted = np.zeros(incoming.num_rows, dtype=bool) if deleted_column is None else np.asarray(deleted_column)
    superseded = np.zeros(base.num_rows, dtype=bool)
    superseded[np.flatnonzero(matched)[wins]] = True
    visible = ~lost & ~deleted
    if not superseded.any() and not visible.any():
        return None
    return _Merged(
        kept=base.filter(pa.array(~superseded)),
        written=incoming.filter(pa.array(visible)),
        updates=int((visible & existing).sum()),
        deletes=int((deleted & existing & ~lost).sum()),
        inserted=keys.filter(pa.array(visible & ~existing)),
    )


def live_rows(incoming: pa.Table) -> pa.Table:
    """Incoming rows that are no deletions."""
    deleted = deleted_mask(incoming)
    return incoming if deleted is None else incoming.filter(pc.invert(deleted))


def _output(context: WriteContext, task: FileGroupTask, merged: _Merged, name: str) -> pa.Table:
    schema = with_meta_fields(context.schema)
    pieces: list[pa.Table] = []
    if merged.kept is not None:
        pieces.append(_conformed(merged.kept, schema, name if context.has_meta_fields else None))
    if merged.written is not None and merged.written.num_rows:
        rows = merged.written
        counter = pc.cast(pa.array(np.arange(rows.num_rows)), pa.string())
        meta = {
            MetaField.COMMIT_TIME: constant(context.instant, rows.num_rows),
            MetaField.COMMIT_SEQNO: pc.binary_join_element_wise(f"{context.instant}_{task.number}_", counter, ""),
            MetaField.RECORD_KEY: rows.column(MetaField.RECORD_KEY),
            MetaField.PARTITION_PATH: constant(task.partition_path, rows.num_rows),
            MetaField.FILE_NAME: constant(name, rows.num_rows),
        }
        if not context.has_meta_fields:
            meta = {name: pa.nulls(rows.num_rows, pa.string()) for name in meta}
        columns = [meta[MetaField(f.name)] if f.name in META_FIELDS else rows.column(f.name) for f in schema]
        pieces.append(pa.Table.from_arrays(columns, schema=schema))
    return pa.concat_tables(pieces)


def _conformed(base: pa.Table, schema: pa.Schema, name: str | None) -> pa.Table:
    """Base rows in today's schema, with the new file's name."""
    rows = conform(base, schema)
    position = schema.get_field_index(MetaField.FILE_NAME)
    named = pa.nulls(rows.num_rows, pa.string()) if name is None else constant(name, rows.num_rows)
    return rows.set_column(position, schema.field(position), named)


def constant(text: str, rows: int) -> pa.Array:
    """A column with the same text in every row."""
    return pa.repeat(pa.scalar(text, pa.string()), rows)
