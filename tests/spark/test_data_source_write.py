"""Writing through the format `tideline`: batches, streams, SQL tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.spark.tables import Tables, rows

import tideline
from tideline_spark.data_source import NAME, register
from tideline_spark.session import use_this_python
from tideline_table.action import write_rows
from tideline_table.errors import SourceFailed
from tideline_table.storage import STAGING
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation


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


@pytest.mark.parametrize(
    ("mode", "options", "told"),
    [
        ("append", {"operation": "insert_overwrite"}, "operation 'insert_overwrite' in mode append"),
        ("overwrite", {"operation": "upsert"}, "operation 'upsert' in mode overwrite"),
        ("append", {"colour": "red"}, "option 'colour' of a write"),
        ("append", {"hoodie.nothing": "1"}, "unknown option 'hoodie.nothing'"),
        ("append", {"query_id": "q"}, "query_id of a batch write"),
        ("append", {"tideline.spark.collect.bytes": "8"}, "use tideline_spark.write.write_dataframe"),
        ("ignore", {}, "IGNORE"),
    ],
)
def test_what_is_refused_writes_nothing(source: SparkSession, table: Table, mode: str, options: dict[str, str], told: str) -> None:
    before = content(table)
    with pytest.raises(PySparkException, match=f"(?i){told}"):
        source.createDataFrame(rows(3, 9, 6)).write.format(NAME).mode(mode).options(**options).save(table.storage.root)
    assert content(table) == before
    assert staged(table) == []


def test_a_missing_table_is_refused_before_the_job(source: SparkSession, tmp_path: Path) -> None:
    ran = source.sparkContext.accumulator(0)

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ran.add(1)
        yield from batches

    missing = tmp_path / "missing"
    df = source.createDataFrame(rows(0, 3, 1))
    with pytest.raises(PySparkException, match="TableNotFound"):
        df.mapInArrow(counted, df.schema).write.format(NAME).mode("append").save(str(missing))
    assert ran.value == 0
    assert not missing.exists()


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
    run("b")
    assert commits(table) == first + 1, "batch 0 of the query is in the table"
    with pytest.raises(PySparkException, match="query_id"):
        source.readStream.schema(frame.schema).parquet(str(folder)).writeStream.format(NAME).option(
            "checkpointLocation", str(tmp_path / "c")
        ).start(table.storage.root).awaitTermination()


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
