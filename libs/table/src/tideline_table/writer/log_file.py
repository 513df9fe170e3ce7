"""Appending to a file group of a merge-on-read table: one new log file with the changed rows and the deletions (format reference 9).

Beside it goes the index of its keys. The base file is not read: where the keys are was looked up before, and which version of a row wins is
decided when the slice is read.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.config import LOG_BLOCK_BYTES, LOG_BLOCK_FORMAT, LOG_INDEX_CLIQUE_FILES, Options
from tideline_table.errors import TidelineError
from tideline_table.file_group.names import log_file_name, log_write_token, parse_log_file_name
from tideline_table.file_group.slice import FileGroupId, FileSlice, join_path
from tideline_table.index.simple import one_chunk
from tideline_table.log_format import BlockType, HeaderKey, avro_block, delete_block, parquet_block
from tideline_table.log_format.key_index import LogIndex, index_path, read_index
from tideline_table.log_format.key_index_file import WrittenBlock, index_bytes, read_blocks
from tideline_table.merge import MergeMode, deleted_mask, purged_mask
from tideline_table.schema.meta_fields import META_FIELDS, MetaField, with_meta_fields
from tideline_table.storage import Storage
from tideline_table.timeline.write_stats import WriteStat
from tideline_table.writer.file_group import FileGroupResult, FileGroupTask, WriteContext, constant, live_rows, result_of
from tideline_table.writer.marker import MarkerType, create_marker
from tideline_table.writer.operation import Operation

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Framed:
    """One block, ready to be written, and the record keys that it holds."""

    type: BlockType
    content: bytes
    keys: pa.ChunkedArray


def append_log_file(context: WriteContext, task: FileGroupTask, incoming: pa.Table, storage: Storage) -> FileGroupResult:
    """Write the next log file of `task.base`, or the first one of a new group, and its key index.

    `incoming` are rows whose keys the group holds, each key once, and behind them `task.log_inserts` whose keys it does not. Deletions of a
    delete come without an ordering value: they win whatever the row says. Rows marked as deleted keep theirs, unless they are purged.
    """
    known = incoming.slice(0, incoming.num_rows - task.log_inserts)
    added = live_rows(incoming.slice(known.num_rows))
    deleted = _deletions(context, known)
    updated = known.filter(pc.invert(deleted)) if deleted is not None else known
    rows = pa.concat_tables([updated, added]) if task.log_inserts else updated
    gone = known.filter(deleted) if deleted is not None else known.slice(0, 0)
    blocks = _data_blocks(context, task, rows) if rows.num_rows else []
    for part in _by_kind(gone):
        keys = part.column(MetaField.RECORD_KEY)
        content = delete_block(keys, task.partition_path, _ordering(context, part), context.avro_schema, context.instant)
        blocks.append(_Framed(BlockType.DELETE, content, keys))
    if not blocks:
        return FileGroupResult(None, b"")
    # The first log file of a group without a base file opens a slice of its own instant.
    base = task.base or FileSlice(FileGroupId(task.partition_path, task.file_id), context.instant, "", 0, -1)
    version = next_log_version(base)
    name = log_file_name(task.file_id, base.base_instant, version, log_write_token(task.number, task.attempt, context.instant))
    path = join_path(task.partition_path, name)
    create_marker(storage, context.instant, path, MarkerType.APPEND)
    with storage.open_output(path) as sink:
        for block in blocks:
            sink.write(block.content)
    _write_index(context, base, path, blocks, storage)
    stat = WriteStat(
        file_id=task.file_id,
        partition_path=task.partition_path,
        path=path,
        prev_commit=base.base_instant,
        num_writes=rows.num_rows,
        file_size_bytes=sum(len(block.content) for block in blocks),
        num_inserts=added.num_rows,
        num_updates=updated.num_rows,
        num_deletes=gone.num_rows,
        base_file=base.base_file,
        log_files=(*(log.name for log in base.log_files), name),
        log_version=version,
    )
    return result_of(context, task, stat, added.column(MetaField.RECORD_KEY))


def _write_index(context: WriteContext, base: FileSlice, path: str, blocks: Sequence[_Framed], storage: Storage) -> None:
    offsets = np.cumsum([0, *(len(block.content) for block in blocks)]).tolist()
    header = {int(HeaderKey.INSTANT_TIME): context.instant}
    written = [
        WrittenBlock(block.type, offset, len(block.content), header, one_chunk(block.keys))
        for block, offset in zip(blocks, offsets, strict=False)
    ]
    _put_index(storage, base, path, written, Options(context.options))


def _put_index(storage: Storage, base: FileSlice, path: str, blocks: Sequence[WrittenBlock], options: Options) -> None:
    clique_files = options[LOG_INDEX_CLIQUE_FILES]
    if not clique_files:
        return
    previous = _previous_index(base, storage) if clique_files > 1 else None
    try:
        storage.put(index_path(path), index_bytes(storage, path, blocks, previous, clique_files))
    except TidelineError as error:
        # It only spares reading: the log file is scanned instead.
        _LOGGER.warning("log file %s has no key index: %s", path, error)


def _previous_index(base: FileSlice, storage: Storage) -> LogIndex | None:
    """The index of the last log file, None where the new one begins another slice: a compaction takes all of the one before."""
    if not base.log_files:
        return None
    last, path = base.log_files[-1], base.log_paths[-1]
    parsed = parse_log_file_name(last.name)
    if parsed is None or parsed.base_instant != base.base_instant:
        return None
    index = read_index(storage, path)
    return index if index is not None and index.logs[-1].size_bytes == last.size_bytes else None


def move_behind(result: FileGroupResult, latest: FileSlice, instant: str, storage: Storage, options: Options) -> FileGroupResult:
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
    index = read_index(storage, stat.path)
    blocks = read_blocks(storage, index) if index is not None else None
    if blocks is not None:
        _put_index(storage, latest, path, blocks, options)
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


def _data_blocks(context: WriteContext, task: FileGroupTask, rows: pa.Table) -> list[_Framed]:
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
    kind, encode = (BlockType.AVRO, avro_block) if options[LOG_BLOCK_FORMAT] == "avro" else (BlockType.PARQUET, parquet_block)
    per_block = max(1, int(written.num_rows * options[LOG_BLOCK_BYTES] / max(1, written.nbytes)))
    parts = [written.slice(start, per_block) for start in range(0, written.num_rows, per_block)]
    return [_Framed(kind, encode(part, context.avro_schema, context.instant), part.column(MetaField.RECORD_KEY)) for part in parts]
