"""A DataFrame write leaves the same table as the same rows written by the engine in one process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import ROUTED, Tables, content, rows

from tideline_spark.write import write_dataframe
from tideline_table.action import write_rows
from tideline_table.coordination.committed import Committed
from tideline_table.table import Table
from tideline_table.writer import Operation


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Small sources would take another way."""
    return Tables(tmp_path, ROUTED)


def counts(committed: Committed) -> tuple[int, int, int]:
    return committed.rows_inserted, committed.rows_updated, committed.rows_deleted


def write_both(spark: SparkSession, pair: tuple[Table, Table], written: pa.Table, operation: Operation, **options: object) -> None:
    """Write to both and compare what came out."""
    engine, native = pair
    expected = write_rows(engine, written, operation, options=options)
    found = write_dataframe(native, spark.createDataFrame(written), operation, options=options)
    assert counts(found) == counts(expected)
    assert content(native.read()) == content(engine.read())
    assert Table.open(native.storage.root).read().num_rows == native.read().num_rows


def shuffled(table: pa.Table) -> pa.Table:
    """The rows in an order that mixes their keys, the same for every run."""
    return table.take(pa.array(sorted(range(table.num_rows), key=lambda n: (n * 7919) % 1009)))


@pytest.mark.parametrize(("ordering_field", "broadcast_keys"), [("ts", 0), ("ts", 500_000), ("", 500_000)])
def test_upserts_and_deletes(spark: SparkSession, tables: Tables, ordering_field: str, broadcast_keys: int) -> None:
    options = {"tideline.spark.broadcast.keys": broadcast_keys}
    pair = (
        tables.create("engine", ordering_field=ordering_field),
        tables.create("native", ordering_field=ordering_field, options=options),
    )
    write_both(spark, pair, rows(0, 90, 5), Operation.UPSERT)
    # Two versions of each key with equal ordering values, new keys, and rows that are older than the table's.
    twice = pa.concat_tables([rows(50, 120, 6), rows(60, 100, 6, regions=3).set_column(3, "amount", pa.array([-1.0] * 40))])
    write_both(spark, pair, shuffled(pa.concat_tables([twice, rows(0, 20, 4)])), Operation.UPSERT)
    marked = rows(100, 125, 7).append_column("_hoodie_is_deleted", pa.array([n % 2 == 0 for n in range(25)]))
    no_ordering = marked.set_column(2, "ts", pa.array([None if n % 5 == 0 else 7 for n in range(25)], pa.int64()))
    write_both(spark, pair, no_ordering, Operation.UPSERT)
    write_both(spark, pair, rows(10, 200, 0).select(["id", "region"]), Operation.DELETE)


def test_inserts(spark: SparkSession, tables: Tables) -> None:
    pair = (tables.create("engine"), tables.create("native"))
    sorting = {"hoodie.bulkinsert.user.defined.partitioner.sort.columns": "amount"}
    write_both(spark, pair, shuffled(rows(0, 60, 1)), Operation.BULK_INSERT, **sorting)
    write_both(spark, pair, rows(50, 80, 2), Operation.INSERT)
    write_both(spark, pair, rows(70, 90, 3), Operation.INSERT, **{"hoodie.datasource.insert.dup.policy": "drop"})
    twice = pa.concat_tables([rows(90, 95, 4), rows(90, 95, 5)])
    write_both(spark, pair, twice, Operation.INSERT, **{"hoodie.combine.before.insert": True})
    # The keys 50 to 59 are in the table twice by now; both copies change.
    write_both(spark, pair, rows(45, 65, 9), Operation.UPSERT)


def test_overwriting(spark: SparkSession, tables: Tables) -> None:
    pair = (tables.create("engine"), tables.create("native"))
    write_both(spark, pair, shuffled(rows(0, 60, 1)), Operation.INSERT)
    one_region = rows(0, 200, 2).filter(pc.equal(rows(0, 200, 2)["region"], rows(0, 1, 2)["region"][0]))
    write_both(spark, pair, one_region, Operation.INSERT_OVERWRITE, **{"hoodie.datasource.insert.dup.policy": "drop"})
    write_both(spark, pair, rows(10, 30, 3), Operation.UPSERT)
    write_both(spark, pair, rows(0, 5, 4), Operation.INSERT_OVERWRITE_TABLE)
    assert pair[0].read().num_rows == 5


def test_keys_of_several_columns_and_types(spark: SparkSession, tables: Tables) -> None:
    schema = pa.schema(
        [("number", pa.int32()), ("day", pa.date32()), ("at", pa.timestamp("ms", tz="UTC")), ("tags", pa.list_(pa.string()))]
    )
    pair = tuple(
        tables.create(name, schema=schema, key_fields=("number", "at"), partition_fields=("day", "number"), ordering_field="at")
        for name in ("engine", "native")
    )
    assert len(pair) == 2
    written = pa.table(
        {
            # Whole numbers of another width, and timestamps in Spark's unit.
            "number": pa.array([1, 2, 3, None], pa.int64()),
            "day": pa.array([0, 1, None, 3], pa.int32()).cast(pa.date32()),
            "at": pa.array([0, 1000, 2000, 3000], pa.timestamp("us", tz="UTC")),
            "tags": [["a"], [], None, ["b", "c"]],
        }
    )
    write_both(spark, (pair[0], pair[1]), written, Operation.UPSERT)
    write_both(spark, (pair[0], pair[1]), written.slice(1), Operation.UPSERT)
    write_both(spark, (pair[0], pair[1]), written.slice(2), Operation.DELETE)


def test_a_table_is_named_by_its_base_path(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t")
    write_dataframe(str(tables.folder / "t"), spark.createDataFrame(rows(0, 30, 1)), Operation.UPSERT)
    table.refresh()
    assert content(table.read()) == content(rows(0, 30, 1))


def test_an_empty_source_commits_nothing_but_itself(spark: SparkSession, tables: Tables) -> None:
    pair = (tables.create("engine"), tables.create("native"))
    write_both(spark, pair, rows(0, 0, 1), Operation.UPSERT)


@pytest.mark.parametrize("operation", [Operation.BULK_INSERT, Operation.UPSERT])
def test_the_files_of_a_first_load_have_the_size_that_was_asked_for(
    spark: SparkSession, tables: Tables, operation: Operation
) -> None:
    """They had a fifth of it: each row counted as 256 bytes."""
    options = {"hoodie.parquet.max.file.size": 30_000, "tideline.spark.insert.parallelism": 1}
    table = tables.create("native", partition_fields=(), options=options)
    done = write_dataframe(table, spark.createDataFrame(rows(0, 20_000, 1)), operation)
    sizes = sorted(s.file_size_bytes for s in done.stats)
    assert sum(s.num_inserts for s in done.stats) == 20_000
    assert 20_000 < sizes[len(sizes) // 2] < 40_000, sizes


def test_inserts_fill_small_files_and_spread_over_buckets(spark: SparkSession, tables: Tables) -> None:
    small = {"hoodie.parquet.max.file.size": 20_000, "hoodie.parquet.small.file.limit": 15_000}
    table = tables.create("native", partition_fields=(), options={**small, "tideline.spark.insert.parallelism": 3})
    first = write_dataframe(table, spark.createDataFrame(rows(0, 30, 1)), Operation.UPSERT)
    assert len(first.stats) == 3
    second = write_dataframe(table, spark.createDataFrame(rows(20, 60, 2)), Operation.UPSERT)
    assert {s.file_id for s in second.stats} == {s.file_id for s in first.stats}, "inserts go where there is room"
    assert (second.rows_inserted, second.rows_updated) == (30, 10)
    third = write_dataframe(table, spark.createDataFrame(rows(60, 1500, 3)), Operation.INSERT)
    assert len(third.stats) > 6, "full buckets go on in new file groups"
    read = table.read()
    assert len(set(read.column("id").to_pylist())) == read.num_rows == 1500
    numbers = read.column("_hoodie_commit_seqno").to_pylist()
    assert len(set(numbers)) == len(numbers)
