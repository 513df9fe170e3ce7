"""The format `tideline`: batch reads, changes and a stream of commits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.tables import Tables, rows

from tideline_spark.data_source import NAME, TidelineDataSource, register
from tideline_table.action import run_compaction, schedule_compaction, write_rows
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


def test_filters_are_evaluated_and_pushed_down(source: SparkSession, table: Table) -> None:
    pushed = (
        "ts = 6",
        "ts > 5 and id < 'k000002'",
        "id in ('k000001', 'k000007')",
        "ts in (6, 7, 8) and id not in ('k000001', 'k000002')",
        f"ts in ({', '.join(map(str, range(6, 3000)))})",
        "region is null",
        "region is not null and ts <= 5",
        "_hoodie_record_key = 'k000001'",
        "_hoodie_record_key in ('k000002', 'k000008', 'none') and ts = 6",
        "_hoodie_record_key = 'k000001' and _hoodie_record_key = 'k000002'",
        "_hoodie_record_key = 'k000001' or ts = 5",
    )
    for condition in (*pushed, "amount > 4", "not ts = 6", "ts = 6 or id like '%7'"):
        expected = source.createDataFrame(table.read()).where(condition)
        assert sorted(load(source, table).where(condition).collect()) == sorted(expected.collect())


def test_filters_by_record_key_choose_files(source: SparkSession, table: Table) -> None:
    named = [ds.EqualTo((RECORD_KEY,), "k000001"), ds.In((RECORD_KEY,), ("k000001", "k000003"))]
    reads = []
    for filters in ([], named, [*named, ds.EqualTo((RECORD_KEY,), "k000002")]):
        schema = load(source, table).schema
        reader = TidelineDataSource({"path": table.storage.root}).reader(schema)
        assert list(reader.pushFilters(list(filters))) == filters
        found = [batch for part in reader.partitions() for batch in reader.read(part)]
        reads.append(sorted(key for batch in found for key in batch.column(RECORD_KEY).to_pylist()))
    assert reads == [[f"k{n:06}" for n in range(9)], ["k000001"], []]
    since = TidelineDataSource({"path": table.storage.root, "since": "0"}).reader(schema)
    since.pushFilters(list(named))
    assert since.partitions()


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
        if table.definition.type is TableType.MOR:
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
