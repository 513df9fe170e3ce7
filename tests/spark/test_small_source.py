"""Small sources go through the driver: every key of theirs is found wherever it stands, and they are evaluated once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.plans import schedule_compaction
from tests.spark.tables import Tables, content, rows

from tideline_spark import small_source
from tideline_spark.report import WriteReport
from tideline_spark.small_source import DriverLimits, goes_through_driver
from tideline_spark.write import explain_write, write_dataframe
from tideline_table.action import run_compaction, write_rows
from tideline_table.config import Options
from tideline_table.errors import WriteConflict
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

EVERYTHING_BY_TASKS = DriverLimits(files=0, keys=0, merged_bytes=0)
SMALL = Options()


def keyed(start: int, end: int, ts: int) -> pa.Table:
    """Rows with a key of two columns; every fourth has no region, and the same key stands in several regions."""
    numbers = range(start, end)
    regions = [None if n % 4 == 3 else f"r {n % 4}" for n in numbers]
    texts = [f"k{n % 40:03d}" for n in numbers]
    return rows(start, end, ts).set_column(0, "id", pa.array(texts)).set_column(1, "region", pa.array(regions, pa.string()))


@pytest.fixture(params=["driver", "tasks"])
def by_tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether keys are looked up and files written by Spark jobs, as for large tables, or by the driver."""
    if request.param == "tasks":
        monkeypatch.setattr(small_source, "LIMITS", EVERYTHING_BY_TASKS)
    return bool(request.param == "tasks")


@pytest.mark.parametrize("index_files", [0, 8])
def test_keys_are_found_wherever_they_stand(spark: SparkSession, tables: Tables, by_tasks: bool, index_files: int) -> None:
    """Of base files, of logs with and without a key index, deleted by logs, in several file groups, without a partition.

    Twice in the source.
    """
    options = {
        "tideline.insert.to.log": True,
        "tideline.log.index.clique.files": index_files,
        "hoodie.compact.inline.max.delta.commits": 1,
    }
    model = tables.create("model", key_fields=("id", "ts"), ordering_field="amount")
    table = tables.create("t", key_fields=("id", "ts"), ordering_field="amount", type=TableType.MOR, options=options)
    reports: list[WriteReport] = []

    def engine(written: pa.Table, operation: Operation, **chosen: object) -> None:
        write_rows(model, written, operation, options=chosen)
        write_rows(table, written, operation, options=chosen)

    def spark_writes(written: pa.Table, operation: Operation) -> None:
        write_rows(model, written, operation)
        write_dataframe(table, spark.createDataFrame(written), operation, on_report=reports.append)
        again = Table.open(table.storage.root).read()
        assert content(again) == content(model.read())
        identities = list(
            zip(*(again.column(n).to_pylist() for n in ("_hoodie_partition_path", "_hoodie_record_key")), strict=True)
        )
        assert len(set(identities)) == len(identities)

    engine(keyed(0, 40, 1), Operation.UPSERT)
    schedule_compaction(table)
    run_compaction(table)
    assert all(s.base_file and not s.log_files for s in table.slices())
    # The logs get keys that the base files lack, and take some away; one of those comes again in a group of its own.
    engine(keyed(30, 60, 2), Operation.UPSERT)
    engine(keyed(4, 12, 1).select(["id", "region", "ts"]), Operation.DELETE)
    engine(keyed(50, 56, 2).select(["id", "region", "ts"]), Operation.DELETE)
    engine(keyed(4, 6, 1), Operation.INSERT, **{"hoodie.parquet.small.file.limit": 0})
    assert len(table.slices()) > len({s.group.partition_path for s in table.slices()})

    newer = pa.concat_tables([keyed(0, 40, 1), keyed(30, 70, 2)])
    higher = newer.set_column(3, "amount", pa.array([float(n) for n in range(100, 100 + newer.num_rows)]))
    lower = keyed(10, 20, 1).set_column(3, "amount", pa.array([-1.0] * 10))
    spark_writes(pa.concat_tables([higher, lower, higher.slice(0, 7)]), Operation.UPSERT)
    assert table.read().num_rows == newer.num_rows
    assert reports[-1].jobs == (3 if by_tasks else 1)
    spark_writes(newer.slice(5, 50).select(["id", "region", "ts"]), Operation.DELETE)
    spark_writes(keyed(200, 210, 3), Operation.INSERT)
    assert [(r.source_evaluations, r.broadcasts, r.python_maps) for r in reports] == [(1, 0, 0)] * 3


def test_base_files_are_written_over(spark: SparkSession, tables: Tables, by_tasks: bool) -> None:
    model, table = tables.create("model"), tables.create("t")
    for written, operation in (
        (rows(0, 60, 1), Operation.UPSERT),
        (pa.concat_tables([rows(50, 90, 2), rows(40, 55, 0)]), Operation.UPSERT),
        (rows(10, 200, 0).select(["id", "region"]), Operation.DELETE),
    ):
        expected = write_rows(model, written, operation)
        found = write_dataframe(table, spark.createDataFrame(written), operation)
        assert (found.rows_inserted, found.rows_updated, found.rows_deleted) == (
            expected.rows_inserted,
            expected.rows_updated,
            expected.rows_deleted,
        )
        assert content(table.read()) == content(model.read())


def test_keys_that_another_writer_adds_meanwhile_stay_unique(spark: SparkSession, tables: Tables, by_tasks: bool) -> None:
    """The source is not evaluated again for the second attempt."""
    table = tables.create("t")
    other = Table.open(table.storage.root)
    evaluated = spark.sparkContext.accumulator(0)
    interfered = threading.Event()
    heard: list[WriteConflict] = []

    def counted(ts: int) -> int:
        evaluated.add(1)
        return ts

    source = spark.createDataFrame(rows(0, 30, 5)).withColumn("ts", f.udf(counted, "bigint", useArrow=False)("ts"))

    def between(_report: WriteReport) -> None:
        if not interfered.is_set():
            interfered.set()
            write_rows(other, rows(20, 40, 9), Operation.UPSERT)

    committed = write_dataframe(
        table, source, Operation.UPSERT, on_conflict=lambda error, _attempt: heard.append(error), on_report=between
    )
    assert (committed.attempts, len(heard), committed.rows_inserted) == (2, 1, 20)
    assert evaluated.value == 30
    assert sorted(table.read().column("id").to_pylist()) == [f"k{n:06d}" for n in range(40)]


def test_more_than_a_message_may_hold_is_written_by_the_driver(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_source, "LIMITS", DriverLimits(files=0, keys=10**6, merged_bytes=0, message_bytes=10))
    table = tables.create("t")
    reports: list[WriteReport] = []
    write_dataframe(table, spark.createDataFrame(rows(0, 30, 5)), Operation.UPSERT, on_report=reports.append)
    assert table.read().num_rows == 30
    assert reports[0].jobs == 1, "the source alone"


SOURCES: dict[str, tuple[Callable[[DataFrame], DataFrame], bool]] = {
    "rows": (lambda df: df, True),
    "filtered": (lambda df: df.where("ts > 0").distinct(), True),
    "exploded": (lambda df: df.withColumn("ts", f.explode(f.array("ts", "ts"))), False),
    "mapped in Python": (lambda df: df.mapInArrow(lambda batches: batches, df.schema), False),
    "of unknown size": (lambda df: df.sparkSession.createDataFrame(df.rdd, df.schema), False),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_only_sources_that_are_small_for_sure_are_small(spark: SparkSession, tables: Tables, kind: str) -> None:
    derive, is_small = SOURCES[kind]
    report = explain_write(tables.create("t"), derive(spark.createDataFrame(rows(0, 30, 1))), Operation.UPSERT)
    assert ("UnitWriter" not in report.plan) is is_small


def test_small_sources_may_be_ruled_out(spark: SparkSession) -> None:
    df = spark.createDataFrame([], "id string")
    assert goes_through_driver(df, 100, Operation.UPSERT, SMALL)
    assert not goes_through_driver(df, 100, Operation.UPSERT, Options({"tideline.spark.collect.bytes": 99}))
    assert not goes_through_driver(df, 0, Operation.UPSERT, Options({"tideline.spark.collect.bytes": 0}))
    assert not goes_through_driver(df, None, Operation.UPSERT, SMALL)
    assert not goes_through_driver(df, 100, Operation.BULK_INSERT, SMALL)
    assert not goes_through_driver(df, 100, Operation.INSERT, Options({"hoodie.datasource.insert.dup.policy": "drop"}))
    assert not goes_through_driver(df, 100, Operation.UPSERT, Options({"tideline.spark.insert.parallelism": 2}))
