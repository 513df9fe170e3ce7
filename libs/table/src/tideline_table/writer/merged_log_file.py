"""The log file of a log compaction.

One version of each key, in blocks that name the writes which they merge (format reference 9.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tideline_table.config import Options
from tideline_table.errors import UnsupportedTable
from tideline_table.log_format import BlockType, delete_block
from tideline_table.reader.file_slice import MergedLog
from tideline_table.statistics import FileStatistics
from tideline_table.storage import Storage
from tideline_table.writer.base_file import statistics_of
from tideline_table.writer.log_file import FramedBlock, blocks_record, data_blocks, part_blocks, put_index, write_blocks


@dataclass(frozen=True, slots=True)
class MergedLogFile:
    """A written file: its size, its record, and the statistics of the rows in its data blocks if the options ask for them."""

    size_bytes: int
    statistics: FileStatistics | None
    record: str
    """The record of its bytes for the commit."""


def write_merged_log(
    storage: Storage,
    path: str,
    log: MergedLog,
    partition_path: str,
    avro_schema: str,
    instant: str,
    options: Options,
    shown: Sequence[pa.Table] = (),
) -> MergedLogFile:
    """Write the log file at `path`, and its key index, which begins a window. Rows keep the instants of their writes.

    `shown` has the rows of the slice that partial records change, for the statistics. Raises `UnsupportedTable`, before it writes,
    for a deletion by a null ordering value: the format has none.
    """
    blocks = []
    for purged in (False, True):
        part = log.deleted.filter(pa.array(log.purged == purged))
        if not part.num_rows:
            continue
        ordering = None if purged else part.column("ordering")
        if ordering is not None and ordering.null_count:
            raise UnsupportedTable(
                f"a deletion of {part.column('key')[0].as_py()!r} by a null ordering value",
                expected="a value",
                remedy="compact the table: tideline run compaction PATH",
            )
        keys = part.column("key")
        content = delete_block(keys, partition_path, ordering, avro_schema, instant, log.instants)
        blocks.append(FramedBlock(BlockType.DELETE, content, keys))
    if log.rows.num_rows:
        blocks += data_blocks(log.rows, avro_schema, instant, options, log.instants)
    for part in log.parts:
        blocks += part_blocks(part, avro_schema, instant, options, log.instants)
    written = write_blocks(storage, path, blocks, instant, log.instants)
    put_index(storage, path, written, None, options)
    statistics = statistics_of([log.rows, *shown], log.rows.schema, options)
    return MergedLogFile(sum(block.size_bytes for block in written), statistics, blocks_record(written))
