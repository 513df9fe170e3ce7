"""Writing through the format `tideline`: batches, streams, SQL tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import Accumulator
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.spark.tables import Tables, rows

import tideline
from tideline_spark.data_source import register
from tideline_spark.frames import NAME
from tideline_spark.session import use_this_python
from tideline_table.action import write_rows
from tideline_table.errors import (
    InvalidOption,
    SchemaMismatch,
    SourceFailed,
    TableExists,
    TableNotFound,
    TidelineError,
    UnsupportedTable,
)
from tideline_table.schema import META_FIELDS
from tideline_table.storage import STAGING
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

JOB = {
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "region",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.upsert.shuffle.parallelism": "2",
}


@pytest.fixture
def source(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture
def table(tables: Tables) -> Table:
    made = tables.create("t", type=TableType.MOR)
    write_rows(made, rows(0, 6, 5), Operation.UPSERT)
    return made


def content(table: Table) -> list[dict[str, object]]:
    table.refresh()
    found = table.read(list(table.schema.names))
    return sorted(found.to_pylist(), key=str)


def staged(table: Table) -> list[str]:
    return [found.path for found in table.storage.list_folder(STAGING).objects]


def commits(table: Table) -> int:
    return len(table.refresh().completed_writes())


def counted(df: DataFrame) -> tuple[DataFrame, Accumulator[int]]:
    """`df`, and how many tasks have read it."""
    ran = df.sparkSession.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ran.add(1)
        yield from batches

    return df.mapInArrow(count, df.schema), ran


def test_an_append_is_one_upsert_and_an_overwrite_replaces_everything(source: SparkSession, table: Table, tables: Tables) -> None:
    other = tables.create("other", type=TableType.MOR)
    write_rows(other, rows(0, 6, 5), Operation.UPSERT)
    more = rows(3, 9, 6)
    df = source.createDataFrame(more).repartition(3)
    before = commits(table)
    df.write.format(NAME).mode("append").save(table.storage.root)
    write_rows(other, more, Operation.UPSERT)
    assert content(table) == content(other)
    assert commits(table) == before + 1
    df.limit(2).write.format(NAME).mode("overwrite").save(table.storage.root)
    assert len(content(table)) == 2
    keys = [row["_hoodie_record_key"] for row in table.read(["_hoodie_record_key"]).to_pylist()]
    df.where(df.id == keys[0]).write.format(NAME).mode("append").option("operation", "delete").save(table.storage.root)
    assert len(content(table)) == 1
    assert staged(table) == []


@pytest.mark.parametrize("collect", ["16777216", "0"], ids=["driver", "executors"])
def test_a_job_without_a_record_key_adds_rows_whose_keys_are_made_up(source: SparkSession, tmp_path: Path, collect: str) -> None:
    path, given = str(tmp_path / "t"), {name: value for name, value in JOB.items() if "key" not in name and "combine" not in name}
    job = {**given, "hoodie.datasource.write.table.type": "MERGE_ON_READ", "tideline.spark.collect.bytes": collect}
    twice = pa.concat_tables([rows(0, 9, 1), rows(0, 9, 1)])
    df = source.createDataFrame(twice.append_column("tags", pa.array([[("a", 1)]] * 18, pa.map_(pa.string(), pa.int64()))))
    for _ in range(2):
        df.write.format(NAME).options(**job).mode("append").save(path)
    table = Table.open(path)
    keys = table.read(["_hoodie_record_key"]).column(0).to_pylist()
    assert len(set(keys)) == len(keys) == 36
    assert [a.operation for a in table.state.completed_writes()] == ["BULK_INSERT"] * 2
    assert sorted(row["id"] for row in content(table)) == sorted(twice.column("id").to_pylist() * 2)
    with pytest.raises(UnsupportedTable, match="no record key columns"):
        df.write.format(NAME).options(**job, operation="upsert").mode("append").save(path)
    stream = source.readStream.format(NAME).load(path).drop(*META_FIELDS)
    options = {**job, "hoodie.table.name": "copy", "query_id": "q", "checkpointLocation": str(tmp_path / "at")}
    stream.writeStream.format(NAME).options(**options).trigger(availableNow=True).start(f"{path}-copy").awaitTermination()
    assert content(Table.open(f"{path}-copy")) == content(table)
    df.limit(3).write.format(NAME).options(**job).mode("overwrite").save(path)
    assert len(content(table)) == 3


@pytest.mark.parametrize(
    ("mode", "options", "told"),
    [
        ("append", {"operation": "insert_overwrite"}, "operation 'insert_overwrite' in mode append"),
        ("overwrite", {"operation": "upsert"}, "operation 'upsert' in mode overwrite"),
        ("append", {"colour": "red"}, "option 'colour' of a write"),
        ("append", {"hoodie.nothing": "1"}, "unknown option 'hoodie.nothing'"),
        ("append", {"query_id": "q"}, "query_id of a batch write"),
        ("errorifexists", {}, "a table at .*errorifexists is Spark's default mode"),
        ("overwrite", {"operation": "delete"}, "operation 'delete' in mode overwrite"),
        ("append", {"operation": "upsert", "hoodie.datasource.write.operation": "insert"}, "expected one of them"),
        ("append", {"operation": "upsert", "hoodie.datasource.write.insert.drop.duplicates": "true"}, "or operation=insert"),
        ("append", {"hoodie.table.name": "other"}, "hoodie.table.name=other for table 't'"),
        (
            "append",
            {"hoodie.datasource.write.payload.class": "com.example.Mine"},
            "merge rule .com.example.Mine.",
        ),
        ("append", {"hoodie.table.cdc.enabled": "true"}, "expected none, as the table was created"),
        ("append", {"hoodie.index.type": "BUCKET"}, "table without a bucket index"),
    ],
)
def test_what_is_refused_writes_nothing(source: SparkSession, table: Table, mode: str, options: dict[str, str], told: str) -> None:
    before = content(table)
    with pytest.raises(TidelineError, match=told):
        source.createDataFrame(rows(3, 9, 6)).write.format(NAME).mode(mode).options(**options).save(table.storage.root)
    assert content(table) == before
    assert staged(table) == []


@pytest.mark.parametrize(
    ("place", "mode", "options", "error", "told"),
    [
        ("missing", "append", {}, TableNotFound, r"hoodie\.datasource\.write\.recordkey\.field"),
        ("missing", "append", {**JOB, "hoodie.datasource.write.operation": "delete"}, TableNotFound, "a table for delete"),
        (
            "missing",
            "append",
            {"hoodie.table.name": "m", "hoodie.datasource.write.operation": "upsert"},
            InvalidOption,
            "no record key columns",
        ),
        ("missing", "append", {**JOB, "hoodie.datasource.write.recordkey.field": "nothing"}, SchemaMismatch, "'nothing'"),
        ("missing", "append", {**JOB, "hoodie.datasource.write.precombine.field": "nothing"}, SchemaMismatch, "'nothing'"),
        ("t", "append", {}, SchemaMismatch, "'more'"),
        ("t", "errorifexists", JOB, TableExists, "errorifexists"),
    ],
)
def test_what_is_wrong_is_found_before_the_job(
    source: SparkSession,
    table: Table,
    place: str,
    mode: str,
    options: dict[str, str],
    error: type[TidelineError],
    told: str,
) -> None:
    before = content(table)
    base = Path(table.storage.root.removeprefix("file://")).parent / place
    df, ran = counted(source.createDataFrame(rows(0, 3, 1)).withColumn("more", f.lit(1)))
    with pytest.raises(error, match=told):
        df.write.format(NAME).mode(mode).options(**options).save(str(base))
    assert ran.value == 0
    assert content(table) == before
    assert not (base.parent / "missing").exists()


@pytest.mark.parametrize("is_small", [True, False])
def test_one_write_of_any_size_creates_the_table_and_writes_it(source: SparkSession, tmp_path: Path, is_small: bool) -> None:
    base = str(tmp_path / "made")
    frame = source.createDataFrame(rows(0, 40, 1)).repartition(3)
    frame = frame.withColumn("filler", f.expr("repeat(id, 3)"))
    size = {} if is_small else {"tideline.spark.collect.bytes": "8"}
    frame.write.format(NAME).options(**JOB, **size).save(base)
    made = Table.open(base)
    assert (made.definition.name, made.definition.ordering_field) == ("trips", "ts")
    assert len(content(made)) == 40
    changed = frame.where("amount < 10").withColumn("ts", f.lit(5).cast("bigint")).withColumn("note", f.lit("late"))
    changed.write.format(NAME).mode("append").options(**JOB, **size).save(base)
    found = content(made)
    assert len(found) == 40
    assert sum(row["note"] == "late" for row in found) == changed.count()
    frame.write.format(NAME).mode("ignore").options(**JOB, **size).save(base)
    assert content(made) == found
    assert (commits(made), staged(made)) == (2, [])


def test_partition_by_names_the_partitions_of_a_new_table(source: SparkSession, tmp_path: Path) -> None:
    base = str(tmp_path / "made")
    frame = source.createDataFrame(rows(0, 6, 1))
    bare = {key: value for key, value in JOB.items() if "partitionpath" not in key}
    frame.write.format(NAME).options(**bare).partitionBy("region").save(base)
    assert Table.open(base).definition.keygen.partition_fields == ("region",)
    with pytest.raises(InvalidOption, match="partitionBy=ts for table 'trips'"):
        frame.write.format(NAME).options(**bare).partitionBy("ts").mode("append").save(base)
    frame.write.save(path=str(tmp_path / "other"), format="parquet", mode="overwrite", partitionBy=["region"])
    assert source.read.parquet(str(tmp_path / "other")).count() == 6, "other formats are written by Spark"


def test_a_stream_takes_partition_by_and_its_writer_begins_several_queries(source: SparkSession, tmp_path: Path) -> None:
    frame, folder = source.createDataFrame(rows(0, 6, 1)), tmp_path / "source"
    frame.coalesce(1).write.parquet(str(folder))
    bare = {key: value for key, value in JOB.items() if "partitionpath" not in key}
    writer = source.readStream.schema(frame.schema).parquet(str(folder)).writeStream.format("Tideline").options(**bare)
    writer = writer.option("query_id", "q").trigger(availableNow=True)
    for name, how in (("a", {"partitionBy": "region"}), ("b", {})):
        base = str(tmp_path / name)
        writer.option("checkpointLocation", str(tmp_path / f"c{name}")).start(base, **how).awaitTermination()
        made = Table.open(base)
        assert len(content(made)) == 6
        assert made.definition.keygen.partition_fields == ("region",), "the writer keeps what it was told"


def test_what_the_definition_decides_is_refused(source: SparkSession, table: Table) -> None:
    before = content(table)
    writer = source.createDataFrame(rows(3, 9, 6)).write.mode("append")
    with pytest.raises(AnalysisException, match=r"(?i)bucketBy"):
        writer.format("TIDELINE").bucketBy(2, "id").save(table.storage.root)
    with pytest.raises(InvalidOption, match="the option path="):
        source.createDataFrame(rows(3, 9, 6)).write.mode("append").format(NAME).option("path", "/other").save(table.storage.root)
    assert content(table) == before


def test_a_reader_takes_the_queries_of_hudi(source: SparkSession, tmp_path: Path) -> None:
    base = str(tmp_path / "made")
    for ts in (1, 2):
        source.createDataFrame(rows(2 * ts, 6, ts)).write.format(NAME).mode("append").options(**JOB).save(base)
    instants = [write.instant for write in Table.open(base).state.completed_writes()]

    def read(**options: str) -> int:
        return source.read.format(NAME).options(**options).load(base).count()

    kind, begin = "hoodie.datasource.query.type", "hoodie.datasource.read.begin.instanttime"
    assert read(**{"as.of.instant": instants[0]}) == 4
    assert read(**{kind: "incremental", begin: instants[0]}) == 2
    assert read(**{kind: "incremental", begin: "000"}) == 4
    assert read(**{kind: "read_optimized"}) == 4
    with pytest.raises(PySparkException, match=r"begin\.instanttime"):
        read(**{kind: "incremental"})
    with pytest.raises(PySparkException, match="together with Hudi's"):
        read(**{"as.of.instant": instants[0], "as_of": instants[1]})
    with pytest.raises(PySparkException, match=r"incr\.filters"):
        read(**{"hoodie.datasource.read.incr.filters": "ts > 1"})


def test_a_failed_job_of_the_source_is_no_fault_of_the_rows(spark: SparkSession, table: Table) -> None:
    before = commits(table)
    df = spark.createDataFrame(rows(0, 3, 1)).withColumn("amount", f.raise_error(f.lit("no such fare")).cast("double"))
    with pytest.raises(SourceFailed, match="the source of the rows failed"):
        tideline.open(table.storage.root).upsert(df)
    assert commits(table) == before


def test_a_stream_writes_each_batch_once(source: SparkSession, table: Table, tmp_path: Path) -> None:
    first, folder = commits(table), tmp_path / "source"
    frame = source.createDataFrame(rows(3, 9, 6))

    def run(checkpoint: str) -> None:
        stream = source.readStream.schema(frame.schema).parquet(str(folder)).writeStream.format(NAME)
        options = {"query_id": "q", "checkpointLocation": str(tmp_path / checkpoint)}
        stream.options(**options).trigger(availableNow=True).start(table.storage.root).awaitTermination()

    frame.coalesce(1).write.parquet(str(folder))
    run("a")
    assert commits(table) == first + 1
    assert len(content(table)) == 9
    run("a")
    assert commits(table) == first + 1, "nothing new"
    with pytest.raises(PySparkException, match="StreamReplaced"):
        run("b")
    assert commits(table) == first + 1, "batch 0 of the query is in the table"
    with pytest.raises(InvalidOption, match="query_id"):
        source.readStream.schema(frame.schema).parquet(str(folder)).writeStream.format(NAME).option(
            "checkpointLocation", str(tmp_path / "c")
        ).start(table.storage.root).awaitTermination()


def test_a_stream_creates_its_table_and_its_batches_may_be_large(source: SparkSession, tmp_path: Path) -> None:
    base, folder = str(tmp_path / "made"), tmp_path / "source"
    frame = source.createDataFrame(rows(0, 30, 1))
    frame.repartition(3).write.parquet(str(folder))
    stream = source.readStream.schema(frame.schema).parquet(str(folder)).writeStream.format(NAME)
    options = {**JOB, "query_id": "q", "checkpointLocation": str(tmp_path / "c"), "tideline.spark.collect.bytes": "8"}
    with pytest.raises(InvalidOption, match="output mode Complete"):
        stream.options(**options).outputMode("complete").start(base)
    stream.options(**options).outputMode("append").trigger(availableNow=True).queryName("loads").start(base).awaitTermination()
    made = Table.open(base)
    assert len(content(made)) == 30
    assert (commits(made), staged(made)) == (1, [])


BY_DAY = {
    **JOB,
    "hoodie.datasource.write.partitionpath.field": "ts",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
    "hoodie.keygen.timebased.timestamp.type": "SCALAR",
    "hoodie.keygen.timebased.timestamp.scalar.time.unit": "DAYS",
    "hoodie.keygen.timebased.output.dateformat": "yyyy-MM-dd",
    "tideline.spark.collect.bytes": "8",
}


def test_folders_by_time_are_written_by_the_driver(source: SparkSession, tmp_path: Path) -> None:
    base, folder = str(tmp_path / "made"), tmp_path / "source"
    source.createDataFrame(rows(0, 20, 1)).write.format(NAME).options(**BY_DAY).save(base)
    frame = source.createDataFrame(rows(10, 30, 2))
    frame.write.parquet(str(folder))
    stream = source.readStream.schema(frame.schema).parquet(str(folder)).writeStream.format(NAME)
    options = {**BY_DAY, "query_id": "q", "checkpointLocation": str(tmp_path / "c")}
    stream.options(**options).trigger(availableNow=True).start(base).awaitTermination()
    made = Table.open(base)
    assert {s.group.partition_path for s in made.slices()} == {"1970-01-02", "1970-01-03"}
    assert len(content(made)) == 40
    lacking, ran = counted(frame.drop("amount"))
    with pytest.raises(SchemaMismatch, match="amount"):
        lacking.write.format(NAME).mode("append").options(**BY_DAY).save(base)
    assert ran.value == 0
    deletion = {"hoodie.datasource.write.operation": "delete_partition"}
    frame.limit(1).write.format(NAME).mode("append").options(**{**BY_DAY, **deletion}).save(base)
    assert {row["ts"] for row in content(made)} == {1}


def test_an_overwrite_with_a_record_index_has_no_limit(source: SparkSession, tmp_path: Path) -> None:
    base, indexed = str(tmp_path / "made"), {**JOB, "hoodie.index.type": "RECORD_INDEX", "tideline.spark.collect.bytes": "8"}
    source.createDataFrame(rows(0, 9, 1)).write.format(NAME).options(**indexed).save(base)
    made = Table.open(base)
    assert made.has_record_index
    source.createDataFrame(rows(4, 7, 2)).write.format(NAME).mode("overwrite").options(**indexed).save(base)
    assert sorted(str(row["id"]) for row in content(made)) == [f"k{n:06d}" for n in range(4, 7)]


def test_a_table_that_another_job_creates_meanwhile_is_written(
    source: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = str(tmp_path / "made")

    def later(path: str, request: TableRequest) -> None:
        create_table(path, request)
        create_table(path, request)

    monkeypatch.setattr("tideline_spark.job.create_table", later)
    frame = source.createDataFrame(rows(0, 3, 1))
    with pytest.raises(TableExists):
        frame.write.format(NAME).options(**JOB).save(str(tmp_path / "other"))
    frame.write.format(NAME).mode("ignore").options(**JOB).save(base)
    assert content(Table.open(base)) == [], "it exists"
    frame.write.format(NAME).mode("append").options(**JOB).save(str(tmp_path / "third"))
    assert len(content(Table.open(str(tmp_path / "third")))) == 3


def test_workers_run_the_python_of_the_driver(source: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    context = source.sparkContext
    monkeypatch.setattr(context, "pythonExec", "/nowhere/python3")
    monkeypatch.setenv("PYSPARK_PYTHON", "/chosen/python3")
    use_this_python(source)
    assert context.pythonExec == "/nowhere/python3", "a choice of the user stands"
    monkeypatch.delenv("PYSPARK_PYTHON")
    use_this_python(source)
    assert context.pythonExec == sys.executable
    monkeypatch.setenv("PATH", "/nowhere" + os.pathsep + "/usr/bin")
    assert source.createDataFrame([(1,)], "n int").rdd.map(lambda row: sys.executable).collect() == [sys.executable]
