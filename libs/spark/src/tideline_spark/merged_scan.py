"""Snapshots of slices with log files: base rows by Spark's own Parquet scan, only log rows from Python workers.

A first job reads the record keys and ordering values of base files and logs, merges them by the engine's rules, and returns the
positions of superseded rows. Spark broadcasts them, and an anti-join drops these rows from the scan of the base files and from
the rows of the logs. A position is one number: the CRC-32 of the name of the slice's base file, a bit for rows of the log, and
the position of the row in the base file or in `scan_log_part`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructType

from tideline_spark.arrow_rows import map_snapshots, spark_batches, spread
from tideline_spark.options import SPARK_SCAN_KEYS_BYTES, SPARK_SCAN_LOG_BYTES
from tideline_spark.planning import known_files, planning_settings
from tideline_spark.tagging import scan_files
from tideline_spark.unpushed import scanned_columns
from tideline_table.config import Options
from tideline_table.file_group import FileSlice
from tideline_table.table import Snapshot

_POSITION = "_tideline_position"
_METADATA = "_metadata"
_OF_LOG = 1 << 31
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
MOST_LOG_BYTES = 512 * 1024 * 1024
"""Log files of a divided scan have at most this size, whatever the options say: Spark broadcasts no more than 8 GiB and 357
million rows."""
_USUAL_TIMEOUT_S = 300.0
"""The default of `spark.sql.broadcastTimeout`."""
_ARROW_POSITION = pa.schema([(_POSITION, pa.int64())])


@dataclass(frozen=True, slots=True)
class BroadcastLimits:
    """How much the slices of one divided scan may hold, so that Spark can broadcast the positions of superseded rows."""

    log_bytes: int
    """Size of their log files: each log row supersedes at most one base row, or is superseded itself."""
    base_bytes: float
    """Size of their base files, of which the broadcast waits for the record keys."""

    @classmethod
    def of(cls, options: Options, cores: int, timeout_s: float) -> BroadcastLimits:
        """`timeout_s` is that of broadcasts."""
        base_bytes = options[SPARK_SCAN_KEYS_BYTES] * cores * timeout_s / _USUAL_TIMEOUT_S
        return cls(min(options[SPARK_SCAN_LOG_BYTES], MOST_LOG_BYTES), base_bytes)

    @classmethod
    def in_session(cls, options: Options, spark: SparkSession) -> BroadcastLimits:
        """Return the limits with the cores and the time-out of a session."""
        # Spark parses the setting in any unit, and says the largest number of seconds if there is no time-out.
        timeout_s = int(spark._jsparkSession.sessionState().conf().broadcastTimeout())  # noqa: SLF001 - the parsed setting has no other access
        return cls.of(options, spark.sparkContext.defaultParallelism, timeout_s)


def divided(snapshot: Snapshot, schema: StructType, limits: BroadcastLimits) -> set[FileSlice]:
    """Return the slices (all have a base file and logs) to read by `scan_merged`, those with the smallest logs first.

    Slices are left out that together with smaller ones exceed `limits`, and those whose file names have equal checksums or are
    quoted in paths. None is read so if the table merges cells of base rows, for an incremental query, or for columns with
    reserved names.
    """
    reserved = {_POSITION, _METADATA} & {name.lower() for name in schema.names}
    if snapshot.commit_times is not None or snapshot.rule.merging.needs_older_rows or reserved:
        return set()
    chosen: dict[int, FileSlice] = {}
    log_bytes = base_bytes = 0
    for file_slice in sorted(snapshot.slices, key=_log_bytes):
        log_bytes += _log_bytes(file_slice)
        base_bytes += max(1, file_slice.size_bytes)
        if log_bytes > limits.log_bytes or base_bytes > limits.base_bytes:
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
    base = base.select(*scanned_columns(schema), file.bitwiseOR(f.col(f"{_METADATA}.row_index")).alias(_POSITION))
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
