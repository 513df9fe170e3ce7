"""Appending to a file group of a merge-on-read table: one new log file with the changed rows and the deletions (format reference 9).

The base file is not read: where the keys are was looked up before, and which version of a row wins is decided when the slice is read.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.config import LOG_BLOCK_BYTES, LOG_BLOCK_FORMAT, Options
from tideline_table.file_group.names import log_file_name, log_write_token, parse_log_file_name
from tideline_table.file_group.slice import FileSlice, join_path
from tideline_table.log_format import avro_block, delete_block, parquet_block
from tideline_table.merge import MergeMode, deleted_mask, purged_mask
from tideline_table.schema.meta_fields import META_FIELDS, MetaField, with_meta_fields
from tideline_table.storage import Storage
from tideline_table.timeline.write_stats import WriteStat
from tideline_table.writer.file_group import FileGroupResult, FileGroupTask, WriteContext, constant
from tideline_table.writer.marker import MarkerType, create_marker
from tideline_table.writer.operation import Operation


def append_log_file(context: WriteContext, task: FileGroupTask, incoming: pa.Table, storage: Storage) -> FileGroupResult:
    """Write the next log file of `task.base`. `incoming` are rows whose keys the group holds, each key once.

    Deletions of a delete come without an ordering value: they win whatever the row says. Rows marked as deleted keep theirs,
    unless they are purged.
    """
    assert task.base is not None
    deleted = _deletions(context, incoming)
    rows = incoming.filter(pc.invert(deleted)) if deleted is not None else incoming
    gone = incoming.filter(deleted) if deleted is not None else incoming.slice(0, 0)
    blocks = _data_blocks(context, task, rows) if rows.num_rows else []
    for part in _by_kind(gone):
        keys = part.column(MetaField.RECORD_KEY)
        blocks.append(delete_block(keys, task.partition_path, _ordering(context, part), context.avro_schema, context.instant))
    if not blocks:
        return FileGroupResult(None, b"")
    version = next_log_version(task.base)
    name = log_file_name(task.file_id, task.base.base_instant, version, log_write_token(task.number, task.attempt, context.instant))
    path = join_path(task.partition_path, name)
    create_marker(storage, context.instant, path, MarkerType.APPEND)
    with storage.open_output(path) as sink:
        for block in blocks:
            sink.write(block)
    size = sum(len(block) for block in blocks)
    stat = WriteStat(
        file_id=task.file_id,
        partition_path=task.partition_path,
        path=path,
        prev_commit=task.base.base_instant,
        num_writes=rows.num_rows,
        file_size_bytes=size,
        num_updates=rows.num_rows,
        num_deletes=gone.num_rows,
        base_file=task.base.base_file,
        log_files=(*(log.name for log in task.base.log_files), name),
        log_version=version,
    )
    return FileGroupResult(stat, b"", task.base.version)


def move_behind(result: FileGroupResult, latest: FileSlice, instant: str, storage: Storage) -> FileGroupResult:
    """The log file of `result` once more, as the next one of `latest`: others appended to the slice meanwhile. No row is read.

    The old file stays for the transaction to delete: it has a marker and no write stat.
    """
    stat = result.stat
    assert stat is not None
    assert stat.is_log
    old = parse_log_file_name(stat.path.rsplit("/", 1)[-1])
    assert old is not None
    version = next_log_version(latest)
    name = log_file_name(stat.file_id, latest.base_instant, version, old.write_token)
    path = join_path(stat.partition_path, name)
    create_marker(storage, instant, path, MarkerType.APPEND)
    with storage.open_input(stat.path) as source, storage.open_output(path) as sink:
        shutil.copyfileobj(source, sink)
    moved = replace(stat, path=path, log_version=version, log_files=(*(log.name for log in latest.log_files), name))
    return replace(result, stat=moved, read=latest.version)


def next_log_version(file_slice: FileSlice) -> int:
    """One above the newest log file that is named after the slice's base instant."""
    mine = (parse_log_file_name(log.name) for log in file_slice.log_files)
    return 1 + max((log.version for log in mine if log is not None and log.base_instant == file_slice.base_instant), default=0)


def _deletions(context: WriteContext, incoming: pa.Table) -> pa.ChunkedArray | None:
    if context.operation is Operation.DELETE:
        return pa.chunked_array([pa.repeat(pa.scalar(value=True), incoming.num_rows)])
    return deleted_mask(incoming)


def _by_kind(gone: pa.Table) -> list[pa.Table]:
    """Deletions with ordering values and those that win without one: a block of each, since a block is all of one kind."""
    purged = purged_mask(gone)
    parts = [gone] if purged is None else [gone.filter(pc.invert(purged)), gone.filter(purged)]
    return [part for part in parts if part.num_rows]


def _ordering(context: WriteContext, gone: pa.Table) -> pa.ChunkedArray | None:
    if context.operation is Operation.DELETE or context.merge_mode is not MergeMode.EVENT_TIME:
        return None
    purged = purged_mask(gone)
    if purged is not None and pc.any(purged).as_py():
        return None
    ordering = gone.column(context.ordering_field)
    # One kind of ordering value per block is all that every reader takes; a deletion without one wins at once.
    return None if ordering.null_count else ordering


def _data_blocks(context: WriteContext, task: FileGroupTask, rows: pa.Table) -> list[bytes]:
    schema = with_meta_fields(context.schema)
    counter = pc.cast(pa.array(np.arange(rows.num_rows)), pa.string())
    meta = {
        MetaField.COMMIT_TIME: constant(context.instant, rows.num_rows),
        MetaField.COMMIT_SEQNO: pc.binary_join_element_wise(f"{context.instant}_{task.number}_", counter, ""),
        MetaField.RECORD_KEY: rows.column(MetaField.RECORD_KEY),
        MetaField.PARTITION_PATH: constant(task.partition_path, rows.num_rows),
        MetaField.FILE_NAME: constant(task.file_id, rows.num_rows),
    }
    columns = [meta[MetaField(f.name)] if f.name in META_FIELDS else rows.column(f.name) for f in schema]
    written = pa.Table.from_arrays(columns, schema=schema)
    options = Options(context.options)
    encode = avro_block if options[LOG_BLOCK_FORMAT] == "avro" else parquet_block
    per_block = max(1, int(written.num_rows * options[LOG_BLOCK_BYTES] / max(1, written.nbytes)))
    return [
        encode(written.slice(start, per_block), context.avro_schema, context.instant)
        for start in range(0, written.num_rows, per_block)
    ]
