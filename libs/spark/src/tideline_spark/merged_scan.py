"""Snapshots of slices with log files: base rows by Spark's own Parquet scan, only log rows from Python workers.

A first job reads the record keys and ordering values of base files and logs, merges them by the engine's rules, and returns the positions
of superseded rows. Spark broadcasts them, and an anti-join drops these rows from the scan of the base files and from the rows of
the logs. A position is one number: the CRC-32 of the name of the slice's base file, a bit for rows of the log, and the position of
the row in the base file or in `scan_log_part`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructType

from tideline_spark.arrow_rows import map_snapshots, spark_batches, spread
from tideline_spark.planning import known_files, planning_settings
from tideline_spark.tagging import scan_files
from tideline_table.file_group import FileSlice
from tideline_table.table import Snapshot

_POSITION = "_tideline_position"
_METADATA = "_metadata"
_OF_LOG = 1 << 31
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
_ARROW_POSITION = pa.schema([(_POSITION, pa.int64())])


def divided(snapshot: Snapshot, schema: StructType, most_log_bytes: int) -> set[FileSlice]:
    """Return the slices (all have a base file and logs) to read by `scan_merged`, those with the smallest logs first.

    Slices are left out whose logs exceed `most_log_bytes` together, and those whose file names have equal checksums or are quoted in
    paths. None is read so if the table merges cells of base rows, for an incremental query, or for columns with reserved names.
    """
    reserved = {_POSITION, _METADATA} & {name.lower() for name in schema.names}
    if snapshot.commit_times is not None or snapshot.rule.merging.partial is not None or reserved:
        return set()
    chosen: dict[int, FileSlice] = {}
    left = most_log_bytes
    for file_slice in sorted(snapshot.slices, key=_log_bytes):
        left -= _log_bytes(file_slice)
        if left < 0:
            break
        if _PLAIN_NAME.fullmatch(file_slice.base_file):
            chosen.setdefault(_checksum(file_slice), file_slice)
    return set(chosen.values())


def _log_bytes(file_slice: FileSlice) -> int:
    # A log file of unknown size counts as one byte.
    return sum(max(1, log.size_bytes) for log in file_slice.log_files)


def _checksum(file_slice: FileSlice) -> int:
    return zlib.crc32(file_slice.base_file.encode())


def scan_merged(spark: SparkSession, snapshot: Snapshot, schema: StructType) -> DataFrame:
    """Return the rows of slices that `divided` has chosen, with the columns of `schema`, in no particular order."""
    parts = spread(snapshot, 2 * spark.sparkContext.defaultParallelism)
    superseded = f.broadcast(map_snapshots(spark, parts, _superseded, f"{_POSITION} bigint"))
    columns = [f.col(f"`{name}`") for name in schema.names]
    root, paths = snapshot.storage.root, [s.path for s in snapshot.slices]
    with planning_settings(spark, known_files(root)):
        base = scan_files(spark, root, paths, schema)
    file = f.shiftleft(f.crc32(f.col(f"{_METADATA}.file_name")), 32)
    base = base.select(*columns, file.bitwiseOR(f.col(f"{_METADATA}.row_index")).alias(_POSITION))
    numbered = StructType(list(schema)).add(_POSITION, LongType())
    log = map_snapshots(spark, parts, partial(_log_rows, schema=schema), numbered)
    kept = [rows.join(superseded, _POSITION, "left_anti").select(*columns) for rows in (base, log)]
    return kept[0].unionAll(kept[1])


def _superseded(part: Snapshot) -> Iterator[pa.RecordBatch]:
    for file_slice in part.slices:
        found = part.superseded(file_slice)
        positions = [_positions(file_slice, found.base), _positions(file_slice, found.log + _OF_LOG)]
        yield pa.record_batch([pa.array(np.concatenate(positions))], schema=_ARROW_POSITION)


def _log_rows(part: Snapshot, schema: StructType) -> Iterator[pa.RecordBatch]:
    for file_slice in part.slices:
        start = 0
        for batch in spark_batches(part.scan_log_part(file_slice, schema.names), schema):
            numbers = np.arange(start, start + batch.num_rows) + _OF_LOG
            start += batch.num_rows
            yield batch.append_column(_ARROW_POSITION.field(0), pa.array(_positions(file_slice, numbers)))


def _positions(file_slice: FileSlice, numbers: np.ndarray) -> np.ndarray:
    file = np.uint64(_checksum(file_slice)) << np.uint64(32)
    return (file | numbers.astype(np.uint64)).view(np.int64)
