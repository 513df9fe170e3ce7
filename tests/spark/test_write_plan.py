"""The source is evaluated once, rows cross to Python once, a commit takes at most three jobs: from the plan, accumulators and
the tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkConf
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.spark.tables import ROUTED, Tables, counted_source, rows

from tideline_spark.report import WriteReport, report_of
from tideline_spark.write import explain_write, refuse_speculation, write_dataframe
from tideline_table.action import check_table, create_metadata, write_rows
from tideline_table.errors import InvalidOption
from tideline_table.table import Table
from tideline_table.writer import Operation


@pytest.mark.parametrize(
    ("operation", "options", "exchanges", "broadcasts", "most_jobs"),
    [
        (Operation.UPSERT, {}, 1, 1, 3),
        # One more exchange of the source and one of the keys, run as one job.
        (Operation.UPSERT, {"tideline.spark.broadcast.keys": 0}, 3, 0, 1),
        (Operation.DELETE, {}, 1, 1, 3),
        (Operation.INSERT, {}, 1, 0, 2),
        (Operation.BULK_INSERT, {"hoodie.bulkinsert.user.defined.partitioner.sort.columns": "amount"}, 1, 0, 2),
    ],
)
def test_one_evaluation_one_crossing_few_jobs(
    spark: SparkSession,
    tables: Tables,
    tmp_path: Path,
    operation: Operation,
    options: dict[str, object],
    exchanges: int,
    broadcasts: int,
    most_jobs: int,
) -> None:
    # One small and one full file in a partition: the look-up reads those that inserts fill apart from the others.
    table = tables.create("native", options={"tideline.spark.insert.parallelism": 2, **options})
    write_rows(table, rows(0, 30, 1), Operation.UPSERT)
    write_rows(table, rows(30, 60, 1), Operation.UPSERT, options={"hoodie.parquet.small.file.limit": 0})
    source, seen = counted_source(spark, rows(10, 90, 2), tmp_path)

    reports: list[WriteReport] = []
    planned = explain_write(table, source, operation)
    assert seen.value == 0
    write_dataframe(table, source, operation, on_report=reports.append)
    (report,) = reports
    assert seen.value == 80, "every row of the source is computed once"
    assert report.source_evaluations == planned.source_evaluations == 1
    assert (report.exchanges, report.broadcasts, report.python_maps) == (exchanges, broadcasts, 1)
    assert (planned.exchanges, planned.broadcasts, planned.python_maps, planned.jobs) == (exchanges, broadcasts, 1, 0)
    assert 1 <= report.jobs <= most_jobs
    assert "_hoodie_record_key" in report.plan or not operation.looks_up_keys
    key_scans = [line for line in report.plan.splitlines() if "FileScan" in line and "_hoodie_record_key" in line]
    assert len(key_scans) == {Operation.UPSERT: 2, Operation.DELETE: 1}.get(operation, 0)
    assert not any("amount" in line for line in key_scans), "only keys are read of the table"


def test_the_plan_of_a_table_with_a_record_index_is_the_one_that_runs(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("native", options=ROUTED)
    write_rows(table, rows(0, 30, 1), Operation.UPSERT)
    create_metadata(table, ("record_index",))
    reports: list[WriteReport] = []
    source = spark.createDataFrame(rows(20, 40, 2))
    planned = explain_write(table, source, Operation.INSERT)
    write_dataframe(table, source, Operation.INSERT, on_report=reports.append)
    (ran,) = reports
    assert (planned.exchanges, planned.broadcasts, planned.python_maps) == (ran.exchanges, ran.broadcasts, ran.python_maps)
    assert planned.exchanges == 3, "keys are looked up in the whole table"
    assert table.read().num_rows == 40


def test_a_write_that_meets_the_creation_of_a_record_index_repeats_by_it(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("native", options=ROUTED)
    write_rows(table, rows(0, 30, 1), Operation.UPSERT)
    real, created = table.timeline.append, iter([True])

    def appended(decide: Any, *facts: Any, **more: Any) -> Any:
        if facts and next(created, False):
            create_metadata(Table.open(str(tables.folder / "native")), ("record_index",))
        return real(decide, *facts, **more)

    table.timeline.append = appended  # type: ignore[method-assign]
    elsewhere = rows(20, 40, 2, regions=2)
    assert write_dataframe(table, spark.createDataFrame(elsewhere), Operation.UPSERT).attempts == 2
    assert sorted(table.read(columns=["id"]).column(0).to_pylist()) == rows(0, 40, 1).column("id").to_pylist()
    assert check_table(table) == []


def test_the_report_sees_a_second_evaluation(spark: SparkSession, tables: Tables) -> None:
    once = spark.createDataFrame(rows(0, 10, 1)).repartition(2)
    twice = once.union(once.withColumn("ts", f.col("ts") + 1))
    assert report_of(once, twice, key_scans=0).source_evaluations == 2
    # Seen from the outside that is one evaluation of a larger source, and its exchanges are its own.
    planned = explain_write(tables.create("native", options=ROUTED), twice, Operation.UPSERT)
    assert (planned.source_evaluations, planned.exchanges) == (1, 1)


def test_speculation_is_refused(spark: SparkSession) -> None:
    refuse_speculation(SparkConf(loadDefaults=False).set("spark.speculation", "false"))
    refuse_speculation(spark.sparkContext.getConf())
    with pytest.raises(InvalidOption):
        refuse_speculation(SparkConf(loadDefaults=False).set("spark.speculation", "true"))


def test_settings_of_the_session_are_left_as_they_were(spark: SparkSession, tables: Tables) -> None:
    keys = ("spark.sql.adaptive.enabled", "spark.sql.sources.parallelPartitionDiscovery.threshold")
    before = [spark.conf.get(key) for key in keys]
    table = tables.create("native", options={**ROUTED, "tideline.spark.broadcast.keys": 0})
    write_rows(table, rows(0, 10, 1), Operation.UPSERT)
    explain_write(table, spark.createDataFrame(rows(0, 10, 1)), Operation.UPSERT)
    assert [spark.conf.get(key) for key in keys] == before


def test_the_job_group_of_the_caller_is_kept(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("native")
    df = spark.createDataFrame(rows(0, 10, 1)).withColumn("amount", f.col("amount") * 2)
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", "mine")
    try:
        write_dataframe(table, df, Operation.BULK_INSERT)
        assert spark.sparkContext.statusTracker().getJobIdsForGroup("mine")
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert pa.compute.sum(table.read().column("amount")).as_py() == pytest.approx(2 * (45 + 10 * 0.001))
