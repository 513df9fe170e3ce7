"""Appends to file groups of merge-on-read tables: a log file of changed rows and deletions (format reference 9), and its index.

The base file is not read: the look-up located the keys before, and the reader decides which version of a row wins.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.config import LOG_BLOCK_BYTES, LOG_BLOCK_FORMAT, LOG_INDEX_WINDOW_FILES, Options
from tideline_table.errors import TidelineError
from tideline_table.file_group.slice import FileGroupId, FileSlice, join_path
from tideline_table.hudi.file_names import log_write_token, parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.log_format import BlockType, avro_block, block_header, delete_block, has_nulls, parquet_block, reads_as_none
from tideline_table.log_format.key_index import LogIndex, index_path, read_index
from tideline_table.log_format.key_index_file import WrittenBlock, index_bytes, read_blocks
from tideline_table.merge import MergeMode, deleted_mask, lies_on_top, purged_mask
from tideline_table.reader.file_slice import read_slice
from tideline_table.schema.arrow import one_chunk, top_columns, with_column
from tideline_table.schema.avro import avro_part
from tideline_table.schema.evolution import PARTIAL, PURGED
from tideline_table.schema.meta_fields import META_FIELDS, MetaField, with_meta_fields
from tideline_table.storage import ByteRange, Storage, digest_of, record_text
from tideline_table.writer.base_file import statistics_of
from tideline_table.writer.marker import create_marker, log_marker
from tideline_table.writer.task import FileGroupResult, FileGroupTask, Operation, WriteContext, live_rows, result_of, stored_rows

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FramedBlock:
    """One encoded block, the record keys that it holds, and whether its rows have changed columns only."""

    type: BlockType
    content: bytes
    keys: pa.ChunkedArray
    partial: bool = False


def append_log_file(context: WriteContext, task: FileGroupTask, incoming: pa.Table, storage: Storage) -> FileGroupResult:
    """Write the next log file of `task.base`, or the first one of a new group, and its key index.

    `incoming` holds rows whose keys are in the group, each key once, then `task.log_inserts` rows whose keys are not. A delete
    operation writes deletions without an ordering value, which always win. A row marked as deleted keeps its ordering value,
    unless it is purged or has a value that a delete block cannot express: then it is compared with the stored row here
    (`settled_deletions`).
    """
    known = incoming.slice(0, incoming.num_rows - task.log_inserts)
    added = live_rows(incoming.slice(known.num_rows))
    deleted = np.ones(known.num_rows, dtype=bool) if context.operation is Operation.DELETE else deleted_mask(known)
    updated = _chosen(known, ~deleted)
    rows = pa.concat_tables([updated, added]) if task.log_inserts else updated
    gone = settled_deletions(context, task.base, _chosen(known, deleted), storage)
    stored = stored_rows(context, task, rows, task.file_id) if rows.num_rows else None
    blocks = _row_blocks(context, task.base, rows, stored, storage) if stored is not None else []
    for part in _by_kind(gone):
        keys = part.column(MetaField.RECORD_KEY)
        content = delete_block(keys, task.partition_path, _ordering(context, part), context.avro_schema, context.instant)
        blocks.append(FramedBlock(BlockType.DELETE, content, keys))
    if not blocks:
        return FileGroupResult(None, b"")
    # The first log file of a group without a base file begins a slice at its own instant.
    base = task.base or FileSlice(FileGroupId(task.partition_path, task.file_id), context.instant, "", 0, -1)
    version = base.next_log_version
    token = log_write_token(task.number, task.attempt, context.instant)
    name = context.format.log_file_name(task.file_id, base.base_instant, context.instant, version, token)
    path = join_path(task.partition_path, name)
    create_marker(storage, context.instant, path, log_marker(context.format))
    written = write_blocks(storage, path, blocks, context.instant)
    put_index(storage, path, written, base, Options(context.options))
    stat = WriteStat(
        file_id=task.file_id,
        partition_path=task.partition_path,
        path=path,
        prev_commit=base.base_instant,
        num_writes=rows.num_rows,
        file_size_bytes=sum(block.size_bytes for block in written),
        num_inserts=added.num_rows,
        num_updates=updated.num_rows,
        num_deletes=gone.num_rows,
        base_file=base.base_file,
        log_files=(*(log.name for log in base.log_files), name),
        log_version=version,
        changes={} if context.changes else None,
        record=blocks_record(written),
        # Deletions have no values. Those of a partial record are its row's: readers see the row, and compare files with conditions.
        statistics=statistics_of([] if stored is None else [stored], with_meta_fields(context.schema), Options(context.options)),
    )
    return result_of(context, task, stat, added.column(MetaField.RECORD_KEY))


def settled_deletions(context: WriteContext, base: FileSlice | None, gone: pa.Table, storage: Storage) -> pa.Table:
    """Return marked deletions so that each of them may be written with its ordering value, or is purged.

    A deletion by a value that readers take for none would always win. It is compared with the row that `base` shows: it is
    purged if it wins, and left out if it loses or if there is no row.
    """
    merging = context.merging
    if context.operation is Operation.DELETE or merging.mode is not MergeMode.EVENT_TIME or merging.deletions_always_win:
        return gone
    unordered = reads_as_none(merging.ordering_values(gone)) & ~purged_mask(gone)
    if not unordered.any() or base is None:
        return gone
    asked = gone.filter(pa.array(unordered))
    keys = one_chunk(asked.column(MetaField.RECORD_KEY))
    schema = with_meta_fields(context.schema)
    columns = [MetaField.RECORD_KEY.value, *top_columns(schema, merging.ordering_fields)]
    shown = read_slice(storage, base, schema, context.log_rule, columns, keys=keys)
    targets = np.asarray(pc.index_in(shown.column(MetaField.RECORD_KEY), value_set=keys))
    wins = np.zeros(asked.num_rows, dtype=bool)
    wins[targets[lies_on_top(shown, np.arange(shown.num_rows), asked, targets, merging)]] = True
    stays = ~unordered
    stays[np.flatnonzero(unordered)[wins]] = True
    purges = with_column(gone, PURGED, pa.array(purged_mask(gone) | unordered))
    return purges.filter(pa.array(stays))


def write_blocks(
    storage: Storage, path: str, blocks: Sequence[FramedBlock], instant: str, merged: Sequence[str] = ()
) -> list[WrittenBlock]:
    """Write a log file of these blocks, all by `instant` and with `merged` in their headers.

    Return them as its key index lists them.
    """
    written: list[WrittenBlock] = []
    offset = 0
    with storage.open_output(path) as sink:
        for block in blocks:
            sink.write(block.content)
            header = {int(key): text for key, text in block_header(instant, merged, partial=block.partial).items()}
            written.append(
                WrittenBlock(block.type, offset, len(block.content), header, one_chunk(block.keys), digest_of(block.content))
            )
            offset += len(block.content)
    return written


def blocks_record(blocks: Sequence[WrittenBlock]) -> str:
    """Return the record of a log file of these blocks for its commit."""
    return record_text([ByteRange(block.offset, block.size_bytes, block.digest) for block in blocks])


def put_index(storage: Storage, path: str, blocks: Sequence[WrittenBlock], base: FileSlice | None, options: Options) -> None:
    """Store the key index of the log file at `path`, in the index window of the slice `base` (None: in a window of its own)."""
    window_files = options[LOG_INDEX_WINDOW_FILES]
    if not window_files:
        return
    previous = _previous_index(base, storage) if base is not None and window_files > 1 else None
    try:
        storage.put(index_path(path), index_bytes(storage, path, blocks, previous, window_files))
    except TidelineError as error:
        # The index only saves reads: without it, the log file is scanned.
        _LOGGER.warning("log file %s has no key index: %s", path, error)


def _previous_index(base: FileSlice, storage: Storage) -> LogIndex | None:
    """Return the index of the last log file, None if the new file begins another slice: a compaction takes a slice as a whole."""
    if len(base.log_files) == base.earlier_logs:
        return None
    last, path = base.log_files[-1], base.log_paths[-1]
    index = read_index(storage, path)
    return index if index is not None and index.logs[-1].size_bytes == last.size_bytes else None


def move_behind(
    result: FileGroupResult, latest: FileSlice, instant: str, storage: Storage, options: Options, form: TableFormat
) -> FileGroupResult:
    """Copy the log file of `result` as the next one of `latest`, to which other writers appended meanwhile. Decodes no row.

    The transaction deletes the old file, which has a marker and no write stat.
    """
    stat = result.stat
    assert stat is not None
    assert stat.is_log
    old = parse_log_file_name(stat.path.rsplit("/", 1)[-1])
    assert old is not None
    version = latest.next_log_version
    name = form.log_file_name(stat.file_id, latest.base_instant, instant, version, old.write_token)
    path = join_path(stat.partition_path, name)
    create_marker(storage, instant, path, log_marker(form))
    with storage.open_input(stat.path) as source, storage.open_output(path) as sink:
        shutil.copyfileobj(source, sink)
    index = read_index(storage, stat.path)
    blocks = read_blocks(storage, index) if index is not None else None
    if blocks is not None:
        put_index(storage, path, blocks, latest, options)
    moved = replace(stat, path=path, log_version=version, log_files=(*(log.name for log in latest.log_files), name))
    return replace(result, stat=moved, read=latest.version)


def _by_kind(gone: pa.Table) -> list[pa.Table]:
    """Return deletions with ordering values and those that win without one as separate parts: a block holds one kind."""
    purged = purged_mask(gone)
    return [part for part in (_chosen(gone, ~purged), _chosen(gone, purged)) if part.num_rows]


def _chosen(rows: pa.Table, mask: np.ndarray) -> pa.Table:
    return rows if mask.all() else rows.filter(pa.array(mask))


def _ordering(context: WriteContext, gone: pa.Table) -> pa.ChunkedArray | None:
    if context.operation is Operation.DELETE or context.merging.mode is not MergeMode.EVENT_TIME:
        return None
    if purged_mask(gone).any():
        return None
    ordering = context.merging.ordering_values(gone)
    # Some readers accept one kind of ordering value per block only. Where deletions always win, none is needed.
    return None if has_nulls(ordering) else ordering


def _row_blocks(
    context: WriteContext, base: FileSlice | None, rows: pa.Table, stored: pa.Table, storage: Storage
) -> list[FramedBlock]:
    """Return the blocks of the incoming `rows`, which are `stored` with the meta fields: of whole ones, and of partial records.

    A row whose key the base file holds twice is whole: it may be the second one, and readers would merge its record with the first.
    """
    schema, options, names = context.avro_schema, Options(context.options), [*META_FIELDS, *context.parts]
    if not context.parts or avro_part(schema, names) is None:
        return data_blocks(stored, schema, context.instant, options)
    partial = np.array(pc.fill_null(rows.column(PARTIAL), fill_value=False))
    if base is not None and base.base_file and partial.any():
        key, below = MetaField.RECORD_KEY.value, replace(base, log_files=())
        keys = one_chunk(rows.column(key).filter(pa.array(partial)))
        found = read_slice(storage, below, with_meta_fields(context.schema), context.log_rule, [key], keys=keys)
        held = np.asarray(pc.index_in(found.column(0), value_set=keys))
        partial[partial] = np.bincount(held, minlength=len(keys)) < 2
    whole, parts = stored.filter(pa.array(~partial)), stored.filter(pa.array(partial))
    blocks = data_blocks(whole, schema, context.instant, options) if whole.num_rows else []
    kept = [name for name in stored.column_names if name in names]
    return blocks + (part_blocks(parts.select(kept), schema, context.instant, options) if parts.num_rows else [])


def part_blocks(rows: pa.Table, avro_schema: str, instant: str, options: Options, merged: Sequence[str] = ()) -> list[FramedBlock]:
    """Return the blocks of partial records, `rows` with some columns of `avro_schema` and all meta fields; `merged` as there."""
    part = avro_part(avro_schema, rows.column_names)
    assert part is not None, "the log has rows with these columns"
    return data_blocks(rows, part, instant, options, merged, partial=True)


def data_blocks(
    written: pa.Table,
    avro_schema: str,
    instant: str,
    options: Options,
    merged: Sequence[str] = (),
    *,
    partial: bool = False,
) -> list[FramedBlock]:
    """Return the data blocks of rows in the schema of the table with meta fields; `merged` and `partial` as for `avro_block`."""
    kind = BlockType.AVRO if options[LOG_BLOCK_FORMAT] == "avro" else BlockType.PARQUET
    encode = avro_block if kind is BlockType.AVRO else parquet_block
    per_block = max(1, int(written.num_rows * options[LOG_BLOCK_BYTES] / max(1, written.nbytes)))
    parts = [written.slice(start, per_block) for start in range(0, written.num_rows, per_block)]
    return [
        FramedBlock(kind, encode(p, avro_schema, instant, merged=merged, partial=partial), p.column(MetaField.RECORD_KEY), partial)
        for p in parts
    ]
