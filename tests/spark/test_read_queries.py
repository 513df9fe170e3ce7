"""Every kind of query on Spark gives what the engine gives; only slices with logs pass through Python."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.spark.tables import Tables, rows

from tideline_spark.arrow_rows import spread
from tideline_spark.read import read
from tideline_table.action import write_rows
from tideline_table.errors import InvalidOption, SchemaMismatch
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation


@pytest.fixture
def written(tables: Tables) -> tuple[Table, list[int]]:
    """Three writes to three partitions, of which one has a log; and a deletion. With their sequences."""
    table = tables.create("t", type=TableType.MOR, options={"hoodie.parquet.small.file.limit": 0})
    ends = []
    for content, operation in [
        (rows(0, 30, 5), Operation.UPSERT),
        (rows(0, 30, 6).filter(pa.array([n % 3 == 0 for n in range(30)])), Operation.UPSERT),
        (rows(30, 40, 1), Operation.INSERT),
        (rows(3, 4, 0).select(["id", "region"]), Operation.DELETE),
    ]:
        write_rows(table, content, operation)
        ends.append(table.state.sequence)
    return table, ends


def plain(found: pa.Table) -> list[Mapping[str, object]]:
    return sorted(found.to_pylist(), key=str)


def test_base_files_and_logs_together(spark: SparkSession, written: tuple[Table, list[int]]) -> None:
    table, _ = written
    assert sorted({len(s.log_files) for s in table.slices()}) == [0, 2]
    frame = read(spark, table)
    assert plain(frame.toArrow()) == plain(table.read())
    assert frame.where(f.col("ts") == 6).count() == 9
    narrow = read(spark, table.storage.root, columns=["amount", "id"])
    assert narrow.columns == ["amount", "id"]
    assert plain(narrow.toArrow()) == plain(table.read(["amount", "id"]))
    with pytest.raises(SchemaMismatch):
        read(spark, table, columns=["absent"])


def test_only_merged_slices_leave_the_jvm(spark: SparkSession, written: tuple[Table, list[int]]) -> None:
    table, _ = written

    def plan(**query: object) -> str:
        return str(read(spark, table, **query)._jdf.queryExecution().executedPlan().toString())  # type: ignore[arg-type]

    merged = plan()
    assert merged.count("MapInArrow") == 1
    assert "FileScan parquet" in merged
    assert "MapInArrow" not in plan(read_optimized=True)
    assert "Exchange" not in merged


def test_read_optimized_and_time_travel(spark: SparkSession, written: tuple[Table, list[int]]) -> None:
    table, _ = written
    assert plain(read(spark, table, read_optimized=True).toArrow()) == plain(table.read(read_optimized=True))
    for action in table.state.completed_writes():
        assert plain(read(spark, table, as_of=action.instant).toArrow()) == plain(table.read(as_of=action.instant))


def test_look_ups_by_record_key(spark: SparkSession, written: tuple[Table, list[int]]) -> None:
    table, _ = written
    # One in a log, one deleted by a log, one in a base file alone, one nowhere.
    keys = ["k000000", "k000003", "k000035", "nowhere"]
    for columns in (None, ["ts", "id"]):
        assert plain(read(spark, table, keys=keys, columns=columns).toArrow()) == plain(table.look_up(keys, columns))
    assert read(spark, table, keys=["k000001"]).count() == 1
    assert read(spark, table, keys=[]).count() == 0
    with pytest.raises(InvalidOption):
        read(spark, table, keys=keys, since=1)


@pytest.mark.parametrize("kind", TableType)
def test_look_ups_in_tables_without_meta_fields(spark: SparkSession, tables: Tables, kind: TableType) -> None:
    table = tables.create("bare", type=kind, ordering_field="", meta_fields=False)
    write_rows(table, rows(0, 6, 1), Operation.INSERT)
    found = read(spark, table, keys=["k000001", "k000004", "nowhere"], columns=["ts", "id"]).toArrow()
    assert sorted(found["id"].to_pylist()) == ["k000001", "k000004"]
    assert read(spark, table, keys=["nowhere"]).count() == 0


def test_incremental(spark: SparkSession, written: tuple[Table, list[int]]) -> None:
    table, ends = written
    for since, until, count in [("", ends[0], 30), (ends[0], "", 19), (ends[0], ends[1], 10), (ends[2], "", 0)]:
        found = read(spark, table, since=since, until=until, columns=["id", "ts"])
        assert found.columns == ["id", "ts"]
        assert plain(found.toArrow()) == plain(table.incremental(since, until).read(["id", "ts"]))
        assert found.count() == count
    with pytest.raises(InvalidOption):
        read(spark, table, since=1, as_of="20260101000000000")


def test_slices_are_spread_by_size(written: tuple[Table, list[int]]) -> None:
    snapshot = written[0].snapshot()
    for least in (1, 2, 100):
        tasks = spread(snapshot, least)
        assert len(tasks) == min(least, len(snapshot.slices))
        assert sorted(s.path for t in tasks for s in t.slices) == sorted(s.path for s in snapshot.slices)
    assert spread(snapshot, 1)[0].slices == snapshot.slices


def test_columns_that_changed_their_type(spark: SparkSession, tables: Tables) -> None:
    narrow = pa.schema([("id", pa.string()), ("n", pa.int64()), ("x", pa.float32()), ("ts", pa.int64())])
    options = {"hoodie.parquet.small.file.limit": 0, "tideline.write.schema.evolution": "evolve"}
    table = tables.create("evolved", schema=narrow, partition_fields=(), options=options)
    old = {"id": ["a"], "n": [7], "x": pa.array([1.1], pa.float32()), "ts": [1]}
    write_rows(table, pa.table(old), Operation.INSERT)
    write_rows(table, pa.table({**old, "id": ["b"], "n": ["seven"], "x": [1.1]}), Operation.INSERT)
    assert [table.schema.field(name).type for name in "nx"] == [pa.string(), pa.float64()]
    found = read(spark, table, columns=["id", "n", "x"])
    assert plain(found.toArrow()) == plain(table.read(["id", "n", "x"]))
    assert [tuple(r) for r in found.orderBy("id").collect()] == [("a", "7", 1.1), ("b", "seven", 1.1)]
    assert "MapInArrow" not in str(read(spark, table, columns=["id"])._jdf.queryExecution().executedPlan().toString())
