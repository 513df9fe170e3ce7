"""Written here from DataFrames, read by Apache Hudi 1.2.0 and hudi-rs: what passes through Spark is the same table in the end.

The files are written by the code of `test_written_here.py`, so this looks at what Spark adds: types that came through it, and
routing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.conformance.matrix import Matrix, Topic
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.stories.schemas import ADDED, FIRST, NESTED, WIDER, evolving
from tests.conformance.written_here import BASE, Readers, rows
from tests.plans import schedule_compaction

from tideline_spark.write import write_dataframe
from tideline_table.action import run_compaction
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

NOW = {"hoodie.compact.inline.max.delta.commits": 1}


@pytest.mark.parametrize("kind", list(TableType))
def test_a_schema_that_grows(spark: SparkSession, apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path, kind: TableType) -> None:
    base = str(workdir / "evolving")
    first = evolving(FIRST, range(8), 5)
    create_table(base, TableRequest("evolving", first.schema, ("id",), ("part",), "ts", type=kind))
    evolve = {"tideline.write.schema.evolution": "evolve", "hoodie.write.set.null.for.missing.columns": True}
    table = Table.open(base, options={**evolve, "hoodie.parquet.small.file.limit": 0})
    readers = Readers(table, apache_hudi, matrix, f"written on Spark, {kind}")
    write_dataframe(table, spark.createDataFrame(first), Operation.BULK_INSERT)
    for name, schema, numbers, ts, operation in (
        ("column added", ADDED, range(6, 10), 6, Operation.UPSERT),
        ("widened", WIDER, range(10, 14), 7, Operation.INSERT),
        ("nested fields added", NESTED, range(1, 3), 8, Operation.UPSERT),
        ("columns missing", FIRST, range(3, 5), 9, Operation.UPSERT),
    ):
        with readers.step(Topic.SCHEMA_EVOLUTION, name) as step:
            write_dataframe(table, spark.createDataFrame(evolving(schema, numbers, ts)), operation)
            step.agree(rust_differs=5 if kind is TableType.MOR and ts >= 8 else 0)
    if kind is TableType.MOR:
        with readers.step(Topic.SCHEMA_EVOLUTION, "compacted") as step:
            assert schedule_compaction(table, NOW) is not None
            assert run_compaction(table) is not None
            step.agree()


def test_inserts_in_logs(spark: SparkSession, apache_hudi: ApacheHudi, matrix: Matrix, workdir: Path) -> None:
    """Groups that begin with a log file, and keys that come back to the log that deleted them."""
    base = str(workdir / "logs")
    create_table(base, replace(BASE, type=TableType.MOR))
    table = Table.open(base, options={"tideline.insert.to.log": True})
    readers = Readers(table, apache_hudi, matrix, "written on Spark, inserts in logs")
    for name, numbers, ts, operation, topic, options in (
        ("first", range(10), 5, Operation.UPSERT, Topic.INSERT, {}),
        ("more", range(6, 16), 6, Operation.UPSERT, Topic.UPSERT, {}),
        ("deleted", range(2, 8), 7, Operation.DELETE, Topic.DELETE, {}),
        ("again", range(20), 8, Operation.INSERT, Topic.INSERT, {"hoodie.datasource.insert.dup.policy": "drop"}),
    ):
        with readers.step(topic, name) as step:
            write_dataframe(table, spark.createDataFrame(rows(numbers, ts)), operation, options=options)
            step.agree()
    assert not any(s.base_file for s in table.slices())
    with readers.step(Topic.COMPACTION, "compacted") as step:
        assert schedule_compaction(table, NOW) is not None
        assert run_compaction(table) is not None
        step.agree()
    assert {row["id"]: row["ts"] for row in table.read(["id", "ts"]).to_pylist()} == {
        f"k{n:04}": 8 if 2 <= n < 8 or n >= 16 else 6 if n >= 6 else 5 for n in range(20)
    }
