"""Clustering groups that several Spark tasks share: the order, the rows, the files, and what a failure leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.plans import schedule_clustering
from tests.spark import retrying_driver
from tests.spark.dying_tasks import dying
from tests.spark.tables import Tables
from tests.unit.table.mixed_rows import SCHEMA, base_files, in_order, is_sorted, rows_of, some_rows
from tests.unit.table.range_worker import clustered_by_ranges

from tideline_spark.application import cluster_tasks
from tideline_spark.errors import SparkFailed
from tideline_spark.invocation import ExitCode
from tideline_spark.plan_run import Termination
from tideline_table.action import ClusteredGroup, ClusteringTask, run_clustering, write_rows
from tideline_table.errors import ObjectNotFound
from tideline_table.hudi.instant import State
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

SPLIT = "tideline.clustering.split.group.bytes"
SORT = "hoodie.clustering.plan.strategy.sort.columns"
LAYOUT = "hoodie.layout.optimize.strategy"
TARGET = "hoodie.clustering.plan.strategy.target.file.max.bytes"
SLICES, ROWS, FILES = 4, 1500, 3


def made(tables: Tables, *, name: str = "t", type: TableType = TableType.COW, **options: object) -> Table:  # noqa: A002
    kept = {"hoodie.parquet.small.file.limit": 0, "tideline.parquet.row.group.rows": 500, SPLIT: 1, **options}
    table = tables.create(name, schema=SCHEMA, partition_fields=(), type=type, options=kept)
    for part in range(SLICES):
        write_rows(table, some_rows(part, part * ROWS, ROWS, 1), Operation.BULK_INSERT, parallelism=1)
    assert len(table.slices()) == SLICES
    return table


def target(table: Table, files: int) -> int:
    return -(-sum(s.total_bytes for s in table.slices()) // files)


def plan(table: Table, columns: str, files: int = FILES, **more: object) -> str:
    instant = schedule_clustering(table, {SORT: columns, TARGET: target(table, files), **more})
    assert instant is not None
    return instant


def run_on(spark: SparkSession, table: Table, instant: str) -> Any:
    return run_clustering(table, instant, run=lambda tasks: cluster_tasks(spark, tasks, Termination()))


@pytest.mark.parametrize("columns", [("score", "city"), ("price", "at")])
def test_rows_are_sorted_over_all_files_of_the_group(spark: SparkSession, tables: Tables, columns: tuple[str, ...]) -> None:
    table = made(tables)
    before = rows_of(table)
    done = run_on(spark, table, plan(table, ",".join(columns)))
    table.refresh()
    assert rows_of(table) == before
    assert len(done.stats) == FILES
    assert all(abs(s.num_writes - SLICES * ROWS / FILES) < SLICES * ROWS / FILES * 0.05 for s in done.stats), "the target size"
    assert is_sorted(in_order(table, done.stats, columns), columns)


def test_files_are_those_of_the_same_steps_without_spark(spark: SparkSession, tables: Tables) -> None:
    table = made(tables)
    seen: list[list[bytes]] = []

    def run(tasks: Sequence[ClusteringTask]) -> list[ClusteredGroup]:
        for results in (clustered_by_ranges(tasks), cluster_tasks(spark, tasks, Termination())):
            seen.append([(tables.folder / "t" / s.path).read_bytes() for r in results for s in r.stats])
        return results

    run_clustering(table, plan(table, "city"), run=run)
    assert seen[0] == seen[1]
    assert len(list((tables.folder / "t").glob("*.parquet"))) == SLICES + FILES


def test_slices_with_logs_on_a_curve_beside_small_groups(spark: SparkSession, tables: Tables) -> None:
    options = {"hoodie.parquet.small.file.limit": 0, SPLIT: 1}
    table = tables.create("t", schema=SCHEMA, partition_fields=("city",), type=TableType.MOR, options=options)
    for part in range(SLICES):
        batch = some_rows(part, part * ROWS, ROWS, 1)
        write_rows(
            table, batch.set_column(3, "city", pa.array(["Oslo", "Bergen"] * (ROWS // 2))), Operation.BULK_INSERT, parallelism=1
        )
    changes = some_rows(9, 0, 2 * ROWS, 2)
    write_rows(table, changes.set_column(3, "city", pa.array(["Oslo", "Bergen"] * ROWS)), Operation.UPSERT)
    assert any(s.log_files for s in table.slices())
    before = rows_of(table)
    instant = plan(table, "score,price", 2 * FILES, **{LAYOUT: "hilbert"})
    kinds: list[int] = []

    def run(tasks: Sequence[ClusteringTask]) -> list[ClusteredGroup]:
        large, small = tasks
        kinds.extend([large.output_files, small.output_files])
        return cluster_tasks(spark, [large, replace(small, input_bytes=0)], Termination())

    done = run_clustering(table, instant, run=run)
    assert done is not None
    assert min(kinds) > 1
    table.refresh()
    assert len(done.stats) == sum(kinds)
    assert rows_of(table) == before
    assert not any(s.log_files for s in table.slices())


def test_an_error_of_a_reader_keeps_its_type_and_leaves_no_file(spark: SparkSession, tables: Tables) -> None:
    table = made(tables)
    instant = plan(table, "score")
    gone = table.slices()[1].path
    kept = table.storage.read(gone)
    before = rows_of(table)
    started: list[str] = []

    def run(tasks: Sequence[ClusteringTask]) -> list[ClusteredGroup]:
        started.extend(s.path for s in table.slices())
        table.storage.delete(gone)
        return cluster_tasks(spark, tasks, Termination())

    with pytest.raises(ObjectNotFound) as caught:
        run_clustering(table, instant, run=run)
    assert caught.value.path == gone
    assert base_files(table) == {*started} - {gone}
    table.storage.put(gone, kept)
    assert table.refresh().actions[instant].state is State.ROLLED_BACK
    assert rows_of(table) == before


def test_a_worker_that_dies_fails_the_group(spark: SparkSession, tables: Tables) -> None:
    table = made(tables)
    before, files = rows_of(table), base_files(table)
    instant = plan(table, "score")
    with pytest.raises(SparkFailed):
        run_clustering(table, instant, run=lambda tasks: cluster_tasks(spark, [dying(t, 1) for t in tasks], Termination()))
    assert table.refresh().actions[instant].state is State.ROLLED_BACK
    assert base_files(table) == files
    assert rows_of(table) == before


def test_a_worker_that_dies_is_replaced_where_spark_repeats_tasks(tables: Tables) -> None:
    table = made(tables)
    before, files = rows_of(table), base_files(table)
    plan(table, "score,city")
    program = [sys.executable, "-m", retrying_driver.__name__, table.storage.root, "1"]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False, cwd=Path(__file__).parents[2])
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert (len(found["files"]), found["rows"]) == (FILES, len(before))
    assert base_files(table) == files | set(found["files"]), "no other file"
    table.refresh()
    assert rows_of(table) == before


def test_the_application_splits_a_large_group(tables: Tables, tmp_path: Path) -> None:
    table = made(tables)
    before = rows_of(table)
    instant = plan(table, "at")
    program = [sys.executable, "-m", "tideline_spark.application", "clustering", "--table", table.storage.root]
    more = ["--instant", instant, "--local-cores", "2", "--options", f"{SPLIT}=1"]
    ended = subprocess.run([*program, *more], capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == ExitCode.SUCCEEDED, ended.stderr
    lines = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    (split,) = [line for line in lines if "ranges" in line]
    assert (split["group"], split["rows"], split["slices"], split["ranges"]) == (0, len(before), SLICES, FILES)
    table.refresh()
    assert rows_of(table) == before
    assert len(table.slices()) == FILES
