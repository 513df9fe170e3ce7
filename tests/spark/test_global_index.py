"""DataFrames written with a global index: rows move between partitions, wherever keys are looked up; what cannot do so is refused."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import Tables, content, rows

from tideline_spark import small_source
from tideline_spark.small_source import DriverLimits
from tideline_spark.write import explain_write, write_dataframe
from tideline_table.errors import InvalidOption
from tideline_table.table import TableType, write_rows
from tideline_table.writer import Operation

GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE"}
STAYS = {**GLOBAL, "hoodie.simple.index.update.partition.path": False}


@pytest.mark.parametrize(
    ("kind", "options", "by_tasks"),
    [(TableType.COW, GLOBAL, False), (TableType.MOR, GLOBAL, True), (TableType.COW, STAYS, True)],
    ids=["moves", "moves, by tasks", "stays, by tasks"],
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


def test_large_sources_are_refused(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", options={**GLOBAL, "tideline.spark.collect.bytes": 0})
    source = spark.createDataFrame(rows(0, 10, 1))
    for operation in (Operation.UPSERT, Operation.DELETE):
        with pytest.raises(InvalidOption, match="for a large DataFrame"):
            write_dataframe(table, source, operation)
        with pytest.raises(InvalidOption, match="for a large DataFrame"):
            explain_write(table, source, operation)
    with pytest.raises(InvalidOption, match="for a large DataFrame"):
        write_dataframe(table, source, Operation.INSERT, options={"hoodie.datasource.insert.dup.policy": "drop"})
    assert not table.refresh().actions
    write_dataframe(table, source, Operation.BULK_INSERT)
    assert table.read().num_rows == 10, "what looks no keys up is written"
