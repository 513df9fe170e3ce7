"""DataFrame writes to merge-on-read tables: updates go to log files, and the rows are those of a copy-on-write table."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import Tables, content, rows

from tideline_spark.write import write_dataframe
from tideline_table.table import Table, TableType, run_compaction, schedule_compaction, write_rows
from tideline_table.writer import Operation


@pytest.mark.parametrize("log_format", ["avro", "parquet"])
def test_upserts_and_deletes(spark: SparkSession, tables: Tables, log_format: str) -> None:
    options = {"hoodie.logfile.data.block.format": log_format, "hoodie.compact.inline.max.delta.commits": 1}
    model = tables.create("model")
    table = tables.create("native", type=TableType.MOR, options=options)

    def write(written: pa.Table, operation: Operation) -> None:
        write_rows(model, written, operation)
        write_dataframe(table, spark.createDataFrame(written), operation)
        assert content(Table.open(table.storage.root).read()) == content(model.read())

    write(rows(0, 90, 5), Operation.UPSERT)
    write(rows(10, 60, 6), Operation.UPSERT)
    assert all(s.log_files and s.base_file for s in table.slices())
    # Updates of updated rows, rows that lose, new keys and deletions by mark.
    mixed = pa.concat_tables([rows(50, 120, 7), rows(0, 10, 4)])
    marks = pa.array([n % 10 == 0 for n in range(mixed.num_rows)])
    write(mixed.append_column("_hoodie_is_deleted", marks), Operation.UPSERT)
    write(rows(30, 45, 0).select(["id", "region"]), Operation.DELETE)
    instant = schedule_compaction(table)
    write(rows(20, 40, 8), Operation.UPSERT)
    assert {s.base_instant for s in table.slices() if s.log_files and s.base_instant == instant} == {instant}
    run_compaction(table)
    assert content(Table.open(table.storage.root).read()) == content(model.read())


def test_keys_that_only_log_files_hold_are_found(spark: SparkSession, tables: Tables) -> None:
    """Groups that began with a log file, inserts in logs of groups that have a base file, and rows that a compaction dropped meanwhile."""
    options = {"hoodie.compact.inline.max.delta.commits": 1, "tideline.insert.to.log": True}
    model = tables.create("model")
    table = tables.create("native", type=TableType.MOR, options=options)

    def here(written: pa.Table, operation: Operation) -> None:
        write_rows(model, written, operation)
        write_rows(table, written, operation)

    def native(written: pa.Table, operation: Operation) -> None:
        write_rows(model, written, operation)
        write_dataframe(table, spark.createDataFrame(written), operation)
        assert content(Table.open(table.storage.root).read()) == content(model.read())

    here(rows(0, 30, 5), Operation.UPSERT)
    assert all(s.log_files and not s.base_file for s in table.slices())
    native(rows(10, 40, 6), Operation.UPSERT)
    here(rows(12, 16, 0).select(["id", "region"]), Operation.DELETE)
    schedule_compaction(table)
    here(rows(10, 20, 7), Operation.UPSERT)
    run_compaction(table)
    here(rows(40, 50, 7), Operation.UPSERT)
    native(rows(10, 60, 8), Operation.UPSERT)
    native(rows(5, 55, 0).select(["id", "region"]), Operation.DELETE)
