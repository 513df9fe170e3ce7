"""The format `tideline`: batch reads, changes and a stream of commits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from tests.plans import schedule_compaction
from tests.spark.tables import Tables, rows

from tideline_spark.data_source import TidelineDataSource, register
from tideline_spark.frames import NAME
from tideline_table.action import run_compaction, write_rows
from tideline_table.hudi import time_from_instant
from tideline_table.schema import MetaField
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

RECORD_KEY = MetaField.RECORD_KEY.value


@pytest.fixture
def source(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture(params=list(TableType))
def table(request: pytest.FixtureRequest, tables: Tables) -> Table:
    options = {"hoodie.parquet.small.file.limit": 0, "hoodie.compact.inline.max.delta.commits": 1}
    made = tables.create("t", type=request.param, options=options)
    write_rows(made, rows(0, 9, 5), Operation.UPSERT)
    write_rows(made, rows(0, 3, 6), Operation.UPSERT)
    return made


def plain(found: pa.Table) -> list[Mapping[str, object]]:
    return sorted(found.to_pylist(), key=str)


def load(spark: SparkSession, table: Table, schema: str = "", **options: object) -> DataFrame:
    reader = spark.read.format(NAME).options(**{k: str(v) for k, v in options.items()})
    return (reader.schema(schema) if schema else reader).load(table.storage.root)


def test_batch_reads(source: SparkSession, table: Table) -> None:
    assert plain(load(source, table).toArrow()) == plain(table.read())
    assert plain(load(source, table, "ts bigint, id string").toArrow()) == plain(table.read(["ts", "id"]))
    first = table.state.completed_writes()[0].instant
    assert plain(load(source, table, as_of=first).toArrow()) == plain(table.read(as_of=first))
    optimized = load(source, table, read_optimized=True).toArrow()
    assert plain(optimized) == plain(table.read(read_optimized=True))
    since = table.state.actions[first].sequence
    assert {r["id"] for r in load(source, table, since=since).collect()} == {"k000000", "k000001", "k000002"}
    changed = load(source, table, since=since, changes=True).select("op", "before.ts", f.col("after.ts").alias("now"))
    assert [tuple(r) for r in changed.collect()] == [("u", 5, 6)] * 3


CONDITIONS = ("ts = 6", "id > 'k000002'", "region is null", f"{RECORD_KEY} = 'k000001'", "amount > 4", "ts = 6 or id like '%7'")


def test_no_scan_of_a_loaded_frame_changes_the_next_one(source: SparkSession, table: Table) -> None:
    loaded, plainly = load(source, table), source.createDataFrame(table.read())
    loaded.createOrReplaceTempView("loaded")
    everything = sorted(plainly.select("id").collect())
    for condition in CONDITIONS:
        expected = sorted(plainly.where(condition).collect())
        assert sorted(loaded.where(condition).collect()) == expected
        assert sorted(loaded.select("id").collect()) == everything
        assert loaded.count() == source.sql("select count(*) from loaded").collect()[0][0] == 9
    chosen = loaded.where("ts = 6").select("id")
    assert chosen.union(loaded.where("ts = 5").select("id")).count() == 9
    assert loaded.join(chosen, "id", "left_anti").count() == 6
    source.catalog.dropTempView("loaded")


def test_a_condition_of_the_load_chooses_rows_and_files(source: SparkSession, table: Table) -> None:
    assert {r["id"] for r in load(source, table, where="ts = 6 and id <> 'k000001'").collect()} == {"k000000", "k000002"}
    assert [r["id"] for r in load(source, table, "id string", where=f"{RECORD_KEY} = 'k000007'").collect()] == ["k000007"]
    chosen = TidelineDataSource({"path": table.storage.root, "where": "region = 'r 1'"})
    parts = chosen.reader(chosen.schema()).partitions()
    assert {s.group.partition_path for part in parts for s in part.value.slices} == {"r 1"}


def test_a_loaded_frame_reads_the_snapshot_of_its_load(source: SparkSession, table: Table) -> None:
    loaded, changed = load(source, table), load(source, table, changes=True)
    write_rows(table, rows(0, 12, 9), Operation.UPSERT)
    for _ in range(2):
        assert loaded.count() == 9
        assert loaded.where("ts = 9").count() == 0
        assert changed.count() == 9
    assert load(source, table).count() == 12


@pytest.mark.parametrize("option", ["as_of", "since", "until"])
def test_points_in_time_are_those_of_every_entrance(source: SparkSession, table: Table, option: str) -> None:
    moment = time_from_instant(table.state.last_instant)
    for text in (moment.isoformat(), f"{moment:%Y-%m-%d %H:%M:%S.%f}"):
        exact = load(source, table, **{option: table.state.last_instant}) if option == "as_of" else None
        found = load(source, table, **{option: text}).count()
        assert exact is None or found == exact.count()
    with pytest.raises(PySparkException, match="point in time 'banana'"):
        load(source, table, **{option: "banana"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"asof": "x"}, "asof"),
        ({"read_optimized": "maybe"}, "maybe"),
        ({"since": "1", "as_of": "20260101000000000"}, "as_of"),
        ({"since": "77"}, "77"),
    ],
)
def test_refusals(source: SparkSession, table: Table, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        load(source, table, **options).collect()


def test_a_table_of_the_catalog_is_refused_with_the_view_that_works(source: SparkSession, table: Table) -> None:
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        source.sql(f"CREATE TABLE refused USING tideline LOCATION '{table.storage.root}'")
    source.sql(f"CREATE TABLE late (id STRING) USING tideline LOCATION '{table.storage.root}'")
    try:
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
            source.sql("SELECT * FROM late").collect()
    finally:
        source.sql("DROP TABLE late")
    source.sql(f"CREATE TEMPORARY VIEW instead USING tideline OPTIONS (path '{table.storage.root}')")
    try:
        assert source.sql("SELECT count(*) FROM instead").first()[0] == len(load(source, table).collect())  # type: ignore[index]
    finally:
        source.catalog.dropTempView("instead")


def test_columns_that_are_none(source: SparkSession, table: Table) -> None:
    with pytest.raises(PySparkException, match="absent"):
        load(source, table, "absent string").collect()


class Stream:
    """A stream of a table whose batches are kept."""

    def __init__(self, spark: SparkSession, table: Table, folder: Path, **options: object) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        found = spark.readStream.format(NAME).options(**{k: str(v) for k, v in options.items()}).load(table.storage.root)
        writer = found.writeStream.foreachBatch(self._take).option("checkpointLocation", str(folder / "checkpoint"))
        self.query: StreamingQuery = writer.start()

    def _take(self, frame: DataFrame, _number: int) -> None:
        self.batches.append(frame.toArrow().to_pylist())

    def drained(self) -> list[list[dict[str, Any]]]:
        self.query.processAllAvailable()
        found, self.batches = self.batches, []
        return [batch for batch in found if batch]

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()


def keys(batches: list[list[dict[str, Any]]]) -> list[list[tuple[str, int]]]:
    return [sorted((r["id"], r["ts"]) for r in batch) for batch in batches]


def test_a_stream_has_each_commit_once(source: SparkSession, table: Table, tmp_path: Path) -> None:
    with Stream(source, table, tmp_path) as stream:
        assert keys(stream.drained()) == [[(f"k{n:06d}", 6 if n < 3 else 5) for n in range(9)]]
        write_rows(table, rows(20, 22, 1), Operation.UPSERT)
        assert keys(stream.drained()) == [[("k000020", 1), ("k000021", 1)]]
        if table.definition.has_logs:
            assert schedule_compaction(table)
            run_compaction(table)
            assert stream.drained() == []
        write_rows(table, rows(0, 1, 9), Operation.UPSERT)
        assert keys(stream.drained()) == [[("k000000", 9)]]
    write_rows(table, rows(5, 6, 9), Operation.UPSERT)
    with Stream(source, table, tmp_path) as again:
        assert keys(again.drained()) == [[("k000005", 9)]], "a new start goes on where the checkpoint is"


def test_a_stream_of_changes_since_a_point(source: SparkSession, table: Table, tmp_path: Path) -> None:
    with Stream(source, table, tmp_path, since=table.state.last_instant, changes=True) as stream:
        assert stream.drained() == []
        write_rows(table, rows(0, 1, 0).select(["id", "region"]), Operation.DELETE)
        write_rows(table, rows(1, 2, 7), Operation.UPSERT)
        found = [(r["op"], r["before"]["id"], r["after"] and r["after"]["ts"]) for batch in stream.drained() for r in batch]
        assert sorted(found) == [("d", "k000000", None), ("u", "k000001", 7)]
