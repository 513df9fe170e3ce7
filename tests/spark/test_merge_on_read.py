"""DataFrame writes to merge-on-read tables: updates go to log files, and the rows are those of a copy-on-write table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.plans import schedule_compaction
from tests.spark.tables import ROUTED, Tables, content, rows

from tideline_spark.report import WriteReport
from tideline_spark.write import write_dataframe
from tideline_table.action import run_compaction, write_rows
from tideline_table.errors import DuplicateKey
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Small sources would take another way."""
    return Tables(tmp_path, ROUTED)


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
    """Groups that began with a log file, inserts in logs of groups that have a base file, and rows that a compaction dropped
    meanwhile."""
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


POLICY = "hoodie.datasource.insert.dup.policy"


def test_keys_that_logs_deleted_are_written_again(spark: SparkSession, tables: Tables) -> None:
    """By inserts that keep what the table shows, and by upserts where a blind insert put such a key into a second file group."""
    model = tables.create("model")
    table = tables.create("native", type=TableType.MOR)
    reports: list[WriteReport] = []

    def write(written: pa.Table, operation: Operation, **chosen: object) -> None:
        write_rows(model, written, operation, options=chosen)
        write_dataframe(table, spark.createDataFrame(written), operation, options=chosen, on_report=reports.append)
        assert content(Table.open(table.storage.root).read()) == content(model.read())

    write(rows(0, 30, 5), Operation.UPSERT)
    write(rows(0, 12, 0).select(["id", "region"]), Operation.DELETE)
    groups = {s.group for s in table.slices()}
    write(rows(3, 15, 6), Operation.INSERT, **{POLICY: "drop"})
    # The source, the keys and what logs deleted; one job more finds that.
    assert (reports[-1].source_evaluations, reports[-1].exchanges, reports[-1].broadcasts) == (1, 1, 2)
    assert {s.group for s in table.slices()} == groups, "what a log deleted goes back to where it was"
    write(rows(6, 9, 0).select(["id", "region"]), Operation.DELETE)
    write(rows(6, 8, 7), Operation.INSERT, **{POLICY: "fail"})
    with pytest.raises(DuplicateKey, match="1 record key"):
        write_dataframe(table, spark.createDataFrame(rows(8, 10, 7)), Operation.INSERT, options={POLICY: "fail"})
    # 0 to 2 are deleted still; blind inserts open new groups for them, of which later writes know.
    write(rows(0, 3, 8), Operation.INSERT, **{"hoodie.parquet.small.file.limit": 0})
    assert len(table.slices()) > len(groups)
    write(rows(1, 4, 9), Operation.UPSERT)
    write(rows(2, 5, 0).select(["id", "region"]), Operation.DELETE)
    write(rows(0, 30, 10), Operation.UPSERT, **{"tideline.spark.broadcast.keys": 0})
    assert (reports[-1].source_evaluations, reports[-1].exchanges, reports[-1].broadcasts) == (1, 3, 1)


def test_inserts_into_log_files(spark: SparkSession, tables: Tables) -> None:
    options = {"tideline.insert.to.log": True, "hoodie.compact.inline.max.delta.commits": 1}
    model = tables.create("model")
    table = tables.create("native", type=TableType.MOR, options=options)

    def write(written: pa.Table, operation: Operation, **chosen: object) -> None:
        write_rows(model, written, operation, options=chosen)
        write_dataframe(table, spark.createDataFrame(written), operation, options=chosen)
        assert content(Table.open(table.storage.root).read()) == content(model.read())

    write(rows(0, 30, 5), Operation.UPSERT)
    assert [(s.base_file, len(s.log_files)) for s in table.slices()] == [("", 1)] * 3, "new groups begin with a log file"
    marks = pa.array([n % 7 == 0 for n in range(30)])
    write(rows(20, 50, 6).append_column("_hoodie_is_deleted", marks), Operation.UPSERT)
    assert [(s.base_file, len(s.log_files)) for s in table.slices()] == [("", 2)] * 3, "inserts and updates share a log file"
    # Of 21 and 28 the log holds deletions; of the others it has rows.
    write(rows(20, 60, 7), Operation.INSERT, **{POLICY: "drop"})
    assert len(table.slices()) == 3
    with pytest.raises(DuplicateKey, match="1 record key"):
        write_dataframe(table, spark.createDataFrame(rows(59, 62, 8)), Operation.INSERT, options={POLICY: "fail"})
    # Blind: other groups; two rows of one key are no rows of one log.
    write(pa.concat_tables([rows(60, 63, 7), rows(63, 64, 7), rows(63, 64, 8)]), Operation.INSERT)
    new = [s for s in table.slices() if len(s.log_files) < 3]
    assert sorted(bool(s.base_file) for s in new) == [False, False, True]
    schedule_compaction(table)
    run_compaction(table)
    assert all(s.base_file for s in table.slices())
    # Not the key that stands twice: of its rows only the first meets a log, and both an upsert that writes the file over.
    write(pa.concat_tables([rows(0, 63, 9), rows(64, 80, 9)]), Operation.UPSERT)
    assert [len(s.log_files) for s in table.slices() if s.group not in {n.group for n in new}] == [1] * 3
    bulk = write_dataframe(table, spark.createDataFrame(rows(80, 90, 1)), Operation.BULK_INSERT)
    assert not any(stat.is_log for stat in bulk.stats)
