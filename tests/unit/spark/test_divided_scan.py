"""Which slices with logs a query on Spark divides: as much as Spark can broadcast in time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql.types import LongType, StructType
from tests.unit.table.tables import new_table

from tideline_spark.merged_scan import MOST_LOG_BYTES, BroadcastLimits, divided
from tideline_table.config import Options
from tideline_table.file_group import FileGroupId, FileSlice, LogFile
from tideline_table.table import Snapshot, TableType

MB = 1024 * 1024
AT = "20260101000000000"
SCHEMA = StructType().add("ts", LongType())


def a_slice(name: str, base_mb: float, log_mb: float) -> FileSlice:
    log = LogFile(f".{name}_{AT}.log.1_0-0-0", int(log_mb * MB), AT, 1)
    return FileSlice(FileGroupId("p", name), AT, f"{name}_0-0-0_{AT}.parquet", int(base_mb * MB), 100, (log,))


def snapshot(*slices: FileSlice) -> Snapshot:
    table, _, _ = new_table(type=TableType.MOR)
    return replace(table.snapshot(), slices=slices)


def names(chosen: set[FileSlice]) -> list[str]:
    return sorted(found.group.file_id for found in chosen)


@pytest.mark.parametrize(
    ("log_mb", "base_mb", "chosen"),
    [(10, 1000, ["a", "b", "c"]), (3, 1000, ["a", "b"]), (10, 300, ["a", "b"]), (10, 299, ["a"]), (0, 1000, []), (10, 0, [])],
)
def test_slices_with_small_logs_go_first_up_to_both_limits(log_mb: int, base_mb: int, chosen: list[str]) -> None:
    found = snapshot(a_slice("c", 100, 3), a_slice("a", 100, 1), a_slice("b", 200, 2))
    assert names(divided(found, SCHEMA, BroadcastLimits(log_mb * MB, base_mb * MB))) == chosen


def test_the_limits_follow_cores_and_time_out() -> None:
    options = Options({"tideline.spark.scan.keys.bytes": 100, "tideline.spark.scan.log.bytes": 70})
    assert BroadcastLimits.of(options, 4, 300.0) == BroadcastLimits(70, 400)
    assert BroadcastLimits.of(options, 4, 30.0) == BroadcastLimits(70, 40)
    assert BroadcastLimits.of(Options(), 2, 300.0) == BroadcastLimits(128 * MB, 4096 * MB)


def test_no_option_lets_spark_broadcast_more_than_it_can() -> None:
    assert BroadcastLimits.of(Options({"tideline.spark.scan.log.bytes": 10 * MOST_LOG_BYTES}), 4, 300.0).log_bytes == MOST_LOG_BYTES
