"""Clustering groups that several Spark tasks share: the order, the rows, the files, and what a failure leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import Tables

from tideline_spark.application import cluster_tasks
from tideline_spark.plan_run import Termination
from tideline_table.action import run_clustering, schedule_clustering, write_rows
from tideline_table.schema.meta_fields import with_meta_fields
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

SPLIT = "tideline.clustering.split.group.bytes"
LIMIT = "tideline.clustering.memory.limit"
SORT = "hoodie.clustering.plan.strategy.sort.columns"
LAYOUT = "hoodie.layout.optimize.strategy"
TARGET = "hoodie.clustering.plan.strategy.target.file.max.bytes"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("ts", pa.int64()),
        ("score", pa.float64()),
        ("city", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
SLICES, ROWS = 8, 1500


def some_rows(seed: int, start: int, count: int, ts: int) -> pa.Table:
    """Rows with nulls, NaN, and one city in half of all rows."""
    random = np.random.default_rng(seed)
    score = random.normal(size=count)
    score[random.random(count) < 0.1] = np.nan
    absent = pa.array(random.random(count) < 0.1)
    cities = np.where(random.random(count) < 0.5, "Oslo", np.char.add("c", random.integers(0, 50, count).astype(str)))
    return pa.table(
        {
            "id": [f"k{n:06d}" for n in range(start, start + count)],
            "ts": pa.array([ts] * count, pa.int64()),
            "score": pc.if_else(absent, pa.scalar(None, pa.float64()), pa.array(score)),
            "city": pa.array(np.where(random.random(count) < 0.05, None, cities), pa.string()),
            "price": pa.array(random.integers(0, 10_000, count).astype(np.int32)).cast(pa.decimal128(12, 2)),
            "at": pa.array(random.integers(0, 10**15, count)).cast(pa.timestamp("us", "UTC")),
            "tags": [["a", "b"][: n % 3] for n in range(count)],
        },
        schema=SCHEMA,
    )


def made(tables: Tables, *, name: str = "t", type: TableType = TableType.COW, **options: object) -> Table:  # noqa: A002
    kept = {"hoodie.parquet.small.file.limit": 0, "tideline.parquet.row.group.rows": 500, SPLIT: 1, **options}
    table = tables.create(name, schema=SCHEMA, partition_fields=(), type=type, options=kept)
    for part in range(SLICES):
        write_rows(table, some_rows(part, part * ROWS, ROWS, 1), Operation.BULK_INSERT, parallelism=1)
    assert len(table.slices()) == SLICES
    return table


def target(table: Table, files: int) -> int:
    return -(-sum(s.total_bytes for s in table.slices()) // files)


def plan(table: Table, columns: str, files: int = 5, **more: object) -> str:
    instant = schedule_clustering(table, {SORT: columns, TARGET: target(table, files), **more})
    assert instant is not None
    return instant


def run_on(spark: SparkSession, table: Table, instant: str) -> Any:
    return run_clustering(table, instant, run=lambda tasks: cluster_tasks(spark, tasks, Termination()))


def rows_of(table: Table) -> pa.Table:
    """All rows with the meta fields that a clustering keeps."""
    read = table.read([n for n in with_meta_fields(table.schema).names if n != "_hoodie_file_name"])
    return read.sort_by("_hoodie_record_key").combine_chunks()


def in_order(table: Table, stats: Sequence[Any], columns: Sequence[str]) -> pa.Table:
    """The rows of the files in the order of the files."""
    schema = with_meta_fields(table.schema)
    found = []
    for stat in stats:
        (file_slice,) = [s for s in table.slices() if s.group.file_id == stat.file_id]
        found += list(table.log_rule().open_base(table.storage, file_slice, schema).filtered(list(columns), None))
    return pa.Table.from_batches(found)


def base_files(table: Table) -> set[str]:
    return {f.path for f in table.storage.list_objects("") if f.path.endswith(".parquet")}


def same_as_sorted(found: pa.Table, columns: Sequence[str]) -> bool:
    ordered = found.select(list(columns))
    return bool(ordered.take(pc.sort_indices(ordered, [(c, "ascending") for c in columns])).equals(ordered)) or (
        # NaN is not equal to NaN.
        str(ordered.take(pc.sort_indices(ordered, [(c, "ascending") for c in columns])).to_pydict()) == str(ordered.to_pydict())
    )


@pytest.mark.parametrize("columns", [("score", "city"), ("city",), ("price", "at"), ("at",)])
@pytest.mark.parametrize("limit", [4 << 20, 1 << 30], ids=["in-files", "in-memory"])
def test_rows_are_sorted_over_all_files_of_the_group(
    spark: SparkSession, tables: Tables, columns: tuple[str, ...], limit: int
) -> None:
    table = made(tables, **{LIMIT: limit})
    before = rows_of(table)
    done = run_on(spark, table, plan(table, ",".join(columns)))
    table.refresh()
    assert str(rows_of(table).to_pydict()) == str(before.to_pydict())
    assert len(done.stats) == 5
    assert all(abs(s.num_writes - SLICES * ROWS / 5) < SLICES * ROWS / 5 * 0.1 for s in done.stats), "files of the target size"
    assert same_as_sorted(in_order(table, done.stats, columns), columns)
