"""One log file that carries the rows and deletions of one write over into an output file group of a clustering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.action.clustering.task import ClusteringTask
from tideline_table.action.receipt import proven_columns
from tideline_table.config import Options
from tideline_table.errors import VerificationFailed
from tideline_table.file_group.slice import FileSlice, join_path
from tideline_table.hudi.file_names import log_write_token
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.log_format import (
    BlockType,
    LogBlock,
    avro_block,
    delete_block,
    parquet_block,
    read_deletes,
    read_rows,
    scan_log,
)
from tideline_table.row_digest import RowDigest, digest_rows, seed_of
from tideline_table.schema.arrow import one_chunk
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.statistics import FileStatistics
from tideline_table.storage import Storage
from tideline_table.writer.base_file import statistics_of
from tideline_table.writer.log_file import FramedBlock, blocks_record, put_index, write_blocks
from tideline_table.writer.marker import create_marker, log_marker

_ROWS = (BlockType.AVRO, BlockType.PARQUET, BlockType.HFILE)


class NotCarried(Exception):
    """Why a clustering cannot carry a write over."""


@dataclass(frozen=True, slots=True)
class CarriedEvents:
    """The content of one block: rows in the block's own schema, or deletions as `read_deletes` returns them."""

    block: LogBlock
    rows: pa.Table

    @property
    def keys(self) -> pa.Array:
        """The record keys."""
        return one_chunk(self.rows.column(MetaField.RECORD_KEY)).cast(pa.string())

    @property
    def deletes(self) -> bool:
        """Whether these are deletions."""
        return self.block.type is BlockType.DELETE

    def of(self, keys: pa.Array) -> CarriedEvents:
        """Return the part with these keys."""
        return CarriedEvents(self.block, self.rows.filter(pc.is_in(self.keys, value_set=keys)))


def events_of(storage: Storage, path: str, instant: str) -> list[CarriedEvents]:
    """Return the blocks of a log file of the write `instant`, in order.

    Raises `NotCarried` for a file with damage, or with blocks of other writes or kinds; errors as `scan_log` and `read_rows`.
    """
    scanned = scan_log(storage, path)
    if scanned.gaps:
        raise NotCarried(f"{path} is damaged")
    found = []
    for block in scanned.blocks:
        if block.type not in (*_ROWS, BlockType.DELETE) or block.is_partial or block.instant != instant:
            raise NotCarried(f"{path} has a {block.type.name} block of {block.instant}")
        rows = read_deletes(storage, block) if block.type is BlockType.DELETE else read_rows(storage, block)
        found.append(CarriedEvents(block, rows))
    return found


def write_carried(
    storage: Storage,
    form: TableFormat,
    task: ClusteringTask,
    made: FileSlice,
    instant: str,
    events: Sequence[CarriedEvents],
    keys: pa.Array,
    added: pa.Array,
    verify: str,
) -> WriteStat:
    """Write the log file of `made` that holds what `events`, of the write `instant`, say of `keys`; read it back and compare.

    `added`: the keys among them that the base file lacks. Raises `VerificationFailed` if the file does not say the same.
    """
    group, options = made.group, Options(task.options)
    version = made.next_log_version
    # The instant of the token is the clustering's: if it is rolled back, cleanup finds late files by it.
    token = log_write_token(task.number, task.attempt, task.instant)
    name = form.log_file_name(group.file_id, made.base_instant, task.instant, version, token)
    path = join_path(group.partition_path, name)
    chosen = _joined([part for part in (each.of(keys) for each in events) if part.rows.num_rows])
    blocks = [block for part in chosen for block in _framed(part, group.partition_path, group.file_id, task.avro_schema, instant)]
    create_marker(storage, task.instant, path, log_marker(form))
    written = write_blocks(storage, path, blocks, instant)
    put_index(storage, path, written, made, options)
    _check(storage, task, path, instant, chosen, verify)
    rows = [part for part in chosen if not part.deletes]
    inserts = sum(pc.sum(pc.is_in(part.keys, value_set=added)).as_py() for part in rows)
    count = sum(part.rows.num_rows for part in rows)
    return WriteStat(
        file_id=group.file_id,
        partition_path=group.partition_path,
        path=path,
        prev_commit=made.base_instant,
        num_writes=count,
        file_size_bytes=sum(block.size_bytes for block in written),
        num_inserts=inserts,
        num_updates=count - inserts,
        num_deletes=sum(part.rows.num_rows for part in chosen if part.deletes),
        base_file=made.base_file,
        log_files=(*(log.name for log in made.log_files), name),
        log_version=version,
        record=blocks_record(written),
        statistics=_statistics(task, rows, options),
    )


def _joined(parts: list[CarriedEvents]) -> list[CarriedEvents]:
    """Return the same events in as few blocks as possible.

    In the same ones if a key is in several, because then their order counts.
    """
    keys = pa.chunked_array([part.keys for part in parts], pa.string())
    if len(parts) < 2 or len(pc.unique(keys)) < len(keys):
        return parts
    alike: list[list[CarriedEvents]] = []
    for part in parts:
        block = part.block
        for found in alike:
            other = found[0]
            same = (block.type, block.schema_json) == (other.block.type, other.block.schema_json)
            if same and part.rows.schema.equals(other.rows.schema):
                found.append(part)
                break
        else:
            alike.append([part])
    return [CarriedEvents(found[0].block, pa.concat_tables([part.rows for part in found])) for found in alike]


def _framed(part: CarriedEvents, partition: str, file_id: str, avro_schema: str, instant: str) -> list[FramedBlock]:
    if not part.deletes:
        at = part.rows.schema.get_field_index(MetaField.FILE_NAME)
        rows = part.rows
        if at >= 0:
            # As in log files of writers, the file name of a row is the id of its file group.
            rows = rows.set_column(at, rows.schema.field(at), pa.repeat(pa.scalar(file_id), rows.num_rows))
        kind = BlockType.PARQUET if part.block.type is BlockType.PARQUET else BlockType.AVRO
        encode = parquet_block if kind is BlockType.PARQUET else avro_block
        return [FramedBlock(kind, encode(rows, part.block.schema_json, instant), rows.column(MetaField.RECORD_KEY))]
    found = []
    always = part.rows.column("commit_time_delete")
    for wins in (False, True):
        rows = part.rows.filter(always if wins else pc.invert(always))
        if rows.num_rows:
            keys = rows.column(MetaField.RECORD_KEY)
            ordering = None if wins else rows.column("ordering")
            content = delete_block(keys, partition, ordering, avro_schema, instant)
            found.append(FramedBlock(BlockType.DELETE, content, keys))
    return found


def _check(storage: Storage, task: ClusteringTask, path: str, instant: str, chosen: Sequence[CarriedEvents], verify: str) -> None:
    again = events_of(storage, path, instant)
    before, after = _digest(task, chosen, verify), _digest(task, again, verify)
    if before != after:
        raise VerificationFailed(
            f"clustering {task.instant}: {before[0].rows} rows and {before[1].rows} deletions of write {instant} were carried over "
            f"and {after[0].rows} and {after[1].rows} are in {path}, or their values differ",
            expected="a log file that says exactly what the write says of its keys",
            remedy="nothing was committed and the table is as before; check memory and disks of the machine, and report it",
        )


def _digest(task: ClusteringTask, events: Sequence[CarriedEvents], verify: str) -> tuple[RowDigest, RowDigest]:
    """Return the digests of the rows and of the deletions."""
    seed, ordering = seed_of(task.instant), task.rule.merging.ordering_field
    rows, deletions = RowDigest(), RowDigest()
    for part in events:
        if not part.deletes:
            rows += digest_rows(part.rows, proven_columns(part.rows.schema, ordering, verify), seed)
            continue
        always = part.rows.column("commit_time_delete")
        for wins in (False, True):
            chosen = part.rows.filter(always if wins else pc.invert(always))
            if chosen.num_rows:
                names = [MetaField.RECORD_KEY.value, *([] if wins else ["ordering"])]
                deletions += digest_rows(chosen, names, seed + wins)
    return rows, deletions


def _statistics(task: ClusteringTask, rows: Sequence[CarriedEvents], options: Options) -> FileStatistics | None:
    schema = with_meta_fields(task.schema)
    if any(part.rows.schema.names != schema.names for part in rows):
        return None  # Rows in an older or newer schema: the file counts as one without statistics.
    return statistics_of([part.rows for part in rows], schema, options)
