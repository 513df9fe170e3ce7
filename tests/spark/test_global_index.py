"""DataFrames written with a global index: rows move between partitions, wherever keys are looked up."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.spark.tables import SCHEMA, Tables, content, rows

from tideline_spark import small_source, write
from tideline_spark.data_source import register
from tideline_spark.frames import NAME
from tideline_spark.report import WriteReport
from tideline_spark.small_source import DriverLimits
from tideline_spark.write import write_dataframe
from tideline_table.action import check_table, create_metadata, write_rows
from tideline_table.errors import DuplicateKey, InvalidOption, SchemaMismatch, TidelineError, UnsupportedTable
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE"}
STAYS = {**GLOBAL, "hoodie.simple.index.update.partition.path": False}


@pytest.mark.parametrize(
    ("kind", "options", "by_tasks"),
    [(TableType.MOR, GLOBAL, True), (TableType.COW, STAYS, False)],
    ids=["moves, logs, by tasks", "stays"],
)
def test_small_sources_find_keys_in_all_partitions(
    spark: SparkSession,
    tables: Tables,
    kind: TableType,
    options: dict[str, object],
    by_tasks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if by_tasks:
        monkeypatch.setattr(small_source, "LIMITS", DriverLimits(files=0, keys=0, merged_bytes=0))
    model, table = (tables.create(name, type=kind, options=options) for name in ("model", "t"))
    for written, operation in (
        (rows(0, 30, 3), Operation.UPSERT),
        (rows(10, 40, 4, regions=4), Operation.UPSERT),
        (rows(20, 25, 0, regions=1).select(["id", "region"]), Operation.DELETE),
        (rows(15, 28, 5, regions=5), Operation.UPSERT),
    ):
        write_rows(model, written, operation)
        write_dataframe(table, spark.createDataFrame(written), operation)
        assert content(table.read()) == content(model.read())
    names = ["_hoodie_record_key", "_hoodie_partition_path"]
    assert sorted(map(str, table.read(names).to_pylist())) == sorted(map(str, model.read(names).to_pylist()))
    assert table.read().num_rows == 40


LARGE = {"tideline.spark.collect.bytes": 0}
SHUFFLED = {**LARGE, "tideline.spark.broadcast.keys": 0}


@pytest.mark.parametrize("options", [{}, LARGE, SHUFFLED], ids=["small", "large", "shuffled"])
@pytest.mark.parametrize("kind", TableType)
def test_deletions_without_partition_columns_search_all_partitions(
    spark: SparkSession, tables: Tables, kind: TableType, options: dict[str, object]
) -> None:
    model, table = (tables.create(name, type=kind, options=options) for name in ("model", "t"))
    for made in (model, table):
        write_rows(made, rows(0, 30, 3), Operation.UPSERT)
        write_rows(made, rows(3, 9, 4), Operation.UPSERT)
    gone = rows(5, 12, 0).select(["id"])
    write_rows(model, gone, "delete")
    write_dataframe(table, spark.createDataFrame(gone), "DELETE", options={"hoodie.index.type": "SIMPLE"})
    assert content(table.read()) == content(model.read())
    assert table.read().num_rows == 23
    register(spark)
    more = spark.createDataFrame(rows(12, 20, 0).select(["id"]))
    more.write.format(NAME).mode("append").option("operation", "delete").save(table.storage.root)
    table.refresh()
    assert table.read().num_rows == 15


def test_deletions_without_partition_columns_are_refused_where_a_key_names_a_bucket(spark: SparkSession, tables: Tables) -> None:
    path = str(tables.folder / "t")
    create_table(path, TableRequest("t", SCHEMA, ("id",), ("region",), index=BucketIndex(2)))
    table = Table.open(path)
    gone = rows(0, 3, 0).select(["id"])
    for run in (lambda: write_rows(table, gone, "delete"), lambda: write_dataframe(table, spark.createDataFrame(gone), "delete")):
        with pytest.raises(SchemaMismatch, match="keys without region"):
            run()


def test_what_is_no_operation_is_refused_by_name(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t")
    for run in (lambda: write_rows(table, rows(0, 3, 0), "merge"), lambda: write_dataframe(table, spark.range(3), "merge")):
        with pytest.raises(InvalidOption, match="operation 'merge'; expected one of upsert"):
            run()


def marked(source: pa.Table) -> pa.Table:
    """Every third row is a deletion."""
    return source.append_column("_hoodie_is_deleted", pa.array([n % 3 == 0 for n in range(source.num_rows)]))


@pytest.mark.parametrize(
    ("kind", "options"),
    [(TableType.COW, {**GLOBAL, **LARGE}), (TableType.MOR, {**GLOBAL, **SHUFFLED}), (TableType.MOR, {**STAYS, **LARGE})],
    ids=["moves", "moves, shuffled, logs", "stays, logs"],
)
def test_large_sources_end_as_the_engine_writes_them(
    spark: SparkSession, tables: Tables, kind: TableType, options: dict[str, object]
) -> None:
    model, table = (tables.create(name, type=kind, options=options) for name in ("model", "t"))
    several = pa.concat_tables([rows(30, 45, 4, regions=2), rows(40, 50, 3, regions=5), rows(40, 42, 6, regions=4)])
    drop = {"hoodie.datasource.insert.dup.policy": "drop"}
    for written, operation, more in (
        # Of a key that stands in several partitions of the source the newest row stays.
        (pa.concat_tables([rows(0, 30, 3), rows(20, 25, 5, regions=2)]), Operation.UPSERT, {}),
        (pa.concat_tables([rows(10, 40, 4, regions=4), rows(0, 8, 2, regions=5)]), Operation.UPSERT, {}),
        (rows(21, 27, 0, regions=1).select(["id", "region"]), Operation.DELETE, {}),
        (marked(pa.concat_tables([rows(15, 30, 5, regions=5), several])), Operation.UPSERT, {}),
        (rows(20, 60, 9, regions=5), Operation.INSERT, drop),
        (rows(0, 60, 9, regions=2), Operation.UPSERT, {}),
    ):
        write_rows(model, written, operation, options=more)
        write_dataframe(table, spark.createDataFrame(written), operation, options=more)
        names = ["_hoodie_record_key", "_hoodie_partition_path"]
        assert content(table.read()) == content(model.read())
        assert sorted(map(str, table.read(names).to_pylist())) == sorted(map(str, model.read(names).to_pylist()))


def test_large_sources_refuse_known_keys_and_keys_that_come_twice(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", options={**GLOBAL, **LARGE})
    write_rows(table, rows(0, 10, 1), Operation.UPSERT)
    fail = {"hoodie.datasource.insert.dup.policy": "fail"}
    with pytest.raises(DuplicateKey, match="already in the table"):
        write_dataframe(table, spark.createDataFrame(rows(9, 12, 1, regions=2)), Operation.INSERT, options=fail)
    twice = spark.createDataFrame(pa.concat_tables([rows(20, 22, 1), rows(20, 21, 1, regions=1), rows(20, 21, 1, regions=7)]))
    with pytest.raises(DuplicateKey, match="'k000020' occur more than once"):
        write_dataframe(table, twice, Operation.UPSERT, options={"hoodie.combine.before.upsert": False})
    assert table.read().num_rows == 10
    assert not list(table.refresh().pending())


def test_a_large_overwrite_beside_the_creation_of_a_record_index_is_refused(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables.create("t", options={**GLOBAL, **LARGE})
    write_rows(table, rows(0, 20, 1, regions=2), Operation.UPSERT)
    other, real, once = Table.open(table.storage.root), write.in_transaction, iter([True])

    def behind_the_creation(*given: Any) -> Any:
        if next(once, False):
            create_metadata(other, ("record_index",))
        return real(*given)

    monkeypatch.setattr(write, "in_transaction", behind_the_creation)
    with pytest.raises(UnsupportedTable, match="with a record index"):
        write_dataframe(table, spark.createDataFrame(rows(0, 20, 2, regions=1)), Operation.INSERT_OVERWRITE)
    assert next(once, None) is None
    assert table.refresh().metadata is not None
    assert table.read().num_rows == 20
    assert check_table(table) == []


def test_a_key_that_another_writer_adds_to_another_partition_meanwhile(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", options={**GLOBAL, **LARGE})
    other = Table.open(table.storage.root, options=GLOBAL)
    interfered: list[WriteReport] = []

    def between(report: WriteReport) -> None:
        if not interfered:
            write_rows(other, rows(5, 15, 1, regions=7), Operation.UPSERT)
        interfered.append(report)

    committed = write_dataframe(table, spark.createDataFrame(rows(0, 10, 2)), Operation.UPSERT, on_report=between)
    assert (committed.attempts, len(interfered)) == (2, 2)
    assert sorted(table.read().column("id").to_pylist()) == [f"k{n:06d}" for n in range(15)]


def test_an_ordering_column_that_is_compared_otherwise_is_refused(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", options={**GLOBAL, **LARGE})
    texts = spark.createDataFrame(rows(0, 10, 1)).withColumn("ts", f.col("ts").cast("string"))
    with pytest.raises(TidelineError):
        write_dataframe(table, texts, Operation.UPSERT)
    assert not list(table.refresh().completed_writes())


@pytest.mark.parametrize("by_tasks", [False, True])
def test_a_key_that_a_record_index_cannot_hold_is_refused_before_the_commit(
    spark: SparkSession, tables: Tables, by_tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit succeeded, and no writer could follow it."""
    if by_tasks:
        monkeypatch.setattr(small_source, "LIMITS", DriverLimits(files=0, keys=0, merged_bytes=0))
    table = tables.create("t")
    write_dataframe(table, spark.createDataFrame(rows(0, 5, 1)), Operation.UPSERT)
    create_metadata(table, ("record_index",))
    long = rows(5, 6, 1).set_column(0, "id", pa.array(["k" * 32_758]))
    with pytest.raises(TidelineError, match="32758 bytes for a record index"):
        write_dataframe(table, spark.createDataFrame(long), Operation.UPSERT)
    write_dataframe(table, spark.createDataFrame(rows(3, 8, 2)), Operation.UPSERT)
    assert len(table.read()) == 8
    assert not check_table(table)
