"""Snapshots with logs on Spark: base rows by Spark's scan, log rows by workers, together what the engine reads."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.plans import schedule_compaction, schedule_log_compaction
from tests.spark.tables import Tables, content, rows

from tideline_spark.merged_scan import BroadcastLimits
from tideline_spark.read import read
from tideline_table.action import run_compaction, run_log_compaction, write_rows
from tideline_table.config import Options
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

DIVIDED = {"tideline.spark.scan.base.bytes": 0}
BY_ENGINE = ({**DIVIDED, "tideline.spark.scan.log.bytes": 0}, {**DIVIDED, "tideline.spark.scan.keys.bytes": 0}, {})
MOR = TableType.MOR


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def history(table: Table, seed: int) -> Iterator[None]:
    """Upserts with newer, equal and older ordering values, deletions, new keys, rows marked as deleted, and compactions."""
    chance = random.Random(seed)
    write_rows(table, rows(0, 60, 10), Operation.UPSERT)
    for step in range(6):
        start = chance.randrange(50)
        newer = rows(start, start + chance.randrange(1, 30), chance.choice([5, 10, 10 + step, 40]))
        chosen = newer.take(sorted(chance.sample(range(newer.num_rows), chance.randint(1, newer.num_rows))))
        match chance.randrange(5):
            case 0:
                write_rows(table, chosen, Operation.DELETE)
            case 1:
                marks = pa.array([chance.random() < 0.5 for _ in range(chosen.num_rows)])
                write_rows(table, chosen.append_column("_hoodie_is_deleted", marks), Operation.UPSERT)
            case 2:
                schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
                if chance.random() < 0.7:
                    run_compaction(table)
            case _:
                write_rows(table, chosen, Operation.UPSERT)
        yield


@pytest.mark.parametrize("ordering_field", ["ts", ""])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_histories_read_as_the_engine_reads_them(
    spark: SparkSession, tables: Tables, ordering_field: str, seed: int
) -> None:
    table = tables.create("t", type=MOR, ordering_field=ordering_field, options={**DIVIDED, "hoodie.parquet.small.file.limit": 0})
    divided = 0
    for _ in history(table, seed):
        found = read(spark, table)
        divided += "LeftAnti" in plan_of(found)
        assert found.toArrow().sort_by("_hoodie_record_key").to_pylist() == table.read().sort_by("_hoodie_record_key").to_pylist()
    assert divided >= 3


@pytest.mark.parametrize("options", [DIVIDED, {}], ids=["divided", "by-engine"])
def test_log_files_merged_by_a_log_compaction(spark: SparkSession, tables: Tables, options: dict[str, int]) -> None:
    table = tables.create("t", type=MOR, ordering_field="", options={**options, "hoodie.log.compaction.blocks.threshold": 2})
    write_rows(table, rows(0, 60, 10), Operation.UPSERT)
    write_rows(table, rows(10, 30, 11), Operation.UPSERT)
    write_rows(table, rows(20, 25, 11), Operation.DELETE)
    assert schedule_log_compaction(table) is not None
    write_rows(table, rows(28, 40, 5), Operation.UPSERT)
    before = table.read().sort_by("_hoodie_record_key").to_pylist()
    assert run_log_compaction(table) is not None
    assert read(spark, table).toArrow().sort_by("_hoodie_record_key").to_pylist() == before


def test_the_merge_of_keys_runs_once_and_conditions_reach_the_scan(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", type=MOR, options=DIVIDED)
    write_rows(table, rows(0, 60, 1), Operation.UPSERT)
    write_rows(table, rows(20, 30, 2), Operation.UPSERT)
    found = read(spark, table).where(f.col("ts") == 2).select("id")
    assert sorted(row.id for row in found.collect()) == [f"k{n:06d}" for n in range(20, 30)]
    plan = plan_of(found)
    assert plan.count("ReusedExchange") == 1, "both joins use one broadcast"
    assert "EqualTo(ts,2)" in plan


def test_large_logs_small_bases_and_look_ups_are_read_by_the_engine_alone(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", type=MOR, options=DIVIDED)
    write_rows(table, rows(0, 30, 1), Operation.UPSERT)
    write_rows(table, rows(20, 30, 2), Operation.UPSERT)
    assert "LeftAnti" in plan_of(read(spark, table))
    assert "LeftAnti" not in plan_of(read(spark, table, keys=["k000021"]))
    for options in BY_ENGINE:
        limited = Table.open(str(tables.folder / "t"), options=options)
        assert "LeftAnti" not in plan_of(read(spark, limited))
        assert content(read(spark, limited).toArrow()) == content(table.read())


def test_the_limits_follow_the_session(spark: SparkSession) -> None:
    cores = spark.sparkContext.defaultParallelism
    session = spark.newSession()
    for given, seconds in (("300", 300), ("2min", 120), ("-1", 2**63 - 1)):
        session.conf.set("spark.sql.broadcastTimeout", given)
        assert BroadcastLimits.in_session(Options(), session) == BroadcastLimits.of(Options(), cores, seconds)


def test_earlier_states_and_changed_types_read_as_the_engine_reads_them(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", type=MOR, options={**DIVIDED, "tideline.write.schema.evolution": "evolve"})
    write_rows(table, rows(0, 30, 1), Operation.UPSERT)
    first = write_rows(table, rows(10, 20, 2), Operation.UPSERT)
    write_rows(table, rows(5, 15, 3).append_column("more", pa.array(range(10))), Operation.UPSERT)
    for as_of in (first.instant, ""):
        assert content(read(spark, table, as_of=as_of).toArrow()) == content(table.read(as_of=as_of))
