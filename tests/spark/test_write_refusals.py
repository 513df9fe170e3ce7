"""Rows and conflicts that end a write: typed errors, and nothing becomes visible."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.spark.tables import ROUTED, SCHEMA, Tables, content, rows

from tideline_spark.errors import SparkFailed
from tideline_spark.write import write_dataframe
from tideline_table.action import write_rows
from tideline_table.errors import (
    DuplicateKey,
    InvalidOption,
    InvalidRecord,
    SchemaMismatch,
    TidelineError,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.table import BucketIndex, Table, TableRequest, create_table
from tideline_table.writer import Operation


@pytest.fixture(params=["through the driver", "routed"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    """Both ways that a source takes."""
    return Tables(tmp_path, ROUTED if request.param == "routed" else None)


def assert_untouched(table: Table, before: list[str]) -> None:
    table.refresh()
    assert content(table.read()) == before
    assert not list(table.state.pending())
    visible = {s.path for s in table.state.every_slice()}
    on_disk = {o.path for o in table.storage.list_objects("") if o.path.endswith(".parquet")}
    assert on_disk == visible, "the files of the attempt are gone"


def refused(table: Table, df: object, operation: Operation, **options: object) -> TidelineError:
    with pytest.raises(TidelineError) as caught:
        write_dataframe(table, df, operation, options=options)  # type: ignore[arg-type]
    return caught.value


def test_bad_rows_are_refused_by_name(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("native")
    write_rows(table, rows(0, 30, 1), Operation.UPSERT)
    before = content(table.read())
    good = spark.createDataFrame(rows(0, 60, 2))

    error = refused(table, good.withColumn("id", f.when(f.col("id") != "k000007", f.col("id"))), Operation.UPSERT)
    # The table requires the column, so a null is refused before it is looked at as a key.
    assert isinstance(error, SchemaMismatch)
    assert "'id'" in error.found
    assert_untouched(table, before)

    error = refused(table, good.withColumn("id", f.lit("")), Operation.DELETE)
    assert isinstance(error, InvalidRecord)
    assert "record key" in error.found
    assert_untouched(table, before)

    climbing = good.withColumn("region", f.when(f.col("id") == "k000007", f.lit("a/../..")).otherwise(f.col("region")))
    error = refused(table, climbing, Operation.UPSERT)
    assert isinstance(error, InvalidRecord)
    assert "a/../.." in error.found
    assert_untouched(table, before)
    assert not (tables.folder / "native" / "a").exists()


def test_a_schema_that_does_not_fit_is_refused_before_anything_begins(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("native")
    df = spark.createDataFrame(rows(0, 3, 1))
    sequence = table.refresh().sequence
    for wrong in (df.withColumn("more", f.lit(1)), df.drop("id"), df.withColumn("amount", f.array(f.lit(1)))):
        assert isinstance(refused(table, wrong, Operation.UPSERT), SchemaMismatch)
    assert table.refresh().sequence == sequence


def test_duplicates_are_refused_where_keys_must_be_unique(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("native")
    write_rows(table, rows(0, 30, 1), Operation.UPSERT)
    before = content(table.read())
    fail = {"hoodie.datasource.insert.dup.policy": "fail"}
    assert isinstance(refused(table, spark.createDataFrame(rows(29, 35, 2)), Operation.INSERT, **fail), DuplicateKey)
    assert_untouched(table, before)
    twice = spark.createDataFrame(pa.concat_tables([rows(40, 45, 2), rows(44, 46, 2)]))
    error = refused(table, twice, Operation.INSERT, **fail)
    assert isinstance(error, DuplicateKey)
    assert "k000044" in error.found
    assert_untouched(table, before)


def test_a_failing_source_is_rolled_back(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("native")
    write_rows(table, rows(0, 30, 1), Operation.UPSERT)
    before = content(table.read())
    broken = spark.createDataFrame(rows(0, 60, 2)).withColumn(
        "amount", f.when(f.col("id") == "k000042", f.raise_error(f.lit("the source broke")).cast("double")).otherwise(f.lit(1.0))
    )
    error = refused(table, broken, Operation.UPSERT)
    assert isinstance(error, SparkFailed)
    assert "the source broke" in error.found
    assert_untouched(table, before)


@pytest.mark.parametrize("carried", [True, False])
def test_a_conflict_is_retried_on_fresh_state(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch, carried: bool
) -> None:
    if not carried:  # the other commit is then looked at through its files
        monkeypatch.setattr("tideline_table.action.write.transaction.MAX_CARRIED_HASHES", 0)
    table = tables.create("native")
    other = Table.open(table.storage.root)
    interfered = threading.Event()
    heard: list[WriteConflict] = []

    df = spark.createDataFrame(rows(0, 30, 5))

    def between(_report: object) -> None:
        # The rows of the first attempt are written, its commit comes next.
        if not interfered.is_set():
            interfered.set()
            write_rows(other, rows(20, 40, 9), Operation.UPSERT)

    committed = write_dataframe(
        table, df, Operation.UPSERT, on_conflict=lambda error, _attempt: heard.append(error), on_report=between
    )
    assert committed.attempts == 2
    assert len(heard) == 1
    assert (committed.rows_inserted, committed.rows_updated) == (20, 0), "the other side's rows are newer"
    read = table.read()
    assert sorted(read.column("id").to_pylist()) == [f"k{n:06d}" for n in range(40)]
    assert sum(read.column("ts").to_pylist()) == 20 * 5 + 20 * 9


def test_a_duplicate_policy_needs_the_driver_for_a_bucket_index(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "buckets")
    create_table(path, TableRequest("t", SCHEMA, ("id",), ("region",), "ts", index=BucketIndex(4)))
    table = Table.open(path)
    write_dataframe(table, spark.createDataFrame(rows(0, 60, 1)), Operation.UPSERT)
    policy = {"hoodie.datasource.insert.dup.policy": "drop"}
    error = refused(table, spark.createDataFrame(rows(0, 5, 4)), Operation.INSERT, **ROUTED, **policy)
    assert isinstance(error, UnsupportedTable)
    assert "with a bucket index" in error.found
    other = {"hoodie.index.type": "SIMPLE"}
    assert isinstance(refused(table, spark.createDataFrame(rows(0, 5, 4)), Operation.UPSERT, **other), InvalidOption)
    assert_untouched(table, content(rows(0, 60, 1)))
