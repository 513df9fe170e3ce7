"""Conditions on floating columns: to Spark, NaN is greater than all numbers and equals itself, and 0.0 equals -0.0.

Statistics and dictionaries in Parquet files know neither.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.tables import Tables

from tideline_spark.read import read
from tideline_table.action import write_rows
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

NAN = float("nan")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("x", pa.float64()),
        ("s", pa.struct([("f", pa.float32()), ("deep", pa.struct([("g", pa.float64())]))])),
    ]
)
COLUMNS = ["x", "s.f", "s.deep.g"]
FOUND = {
    "{} > 5": ["nan"],
    "{} = double('NaN')": ["nan"],
    "{} <=> double('NaN')": ["nan"],
    "not ({} <= 5)": ["nan"],
    "{} = 0": ["zero"],
}
"""The keys that Spark finds in rows in memory."""


def content(values: dict[str, float | None]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": k, "x": v, "s": None if v is None else {"f": v, "deep": {"g": v}}} for k, v in values.items()], schema=SCHEMA
    )


def keys(frame: DataFrame) -> list[str]:
    return sorted(found["id"] for found in frame.select("id").collect())


def written(tables: Tables, kind: TableType, logs: dict[str, float | None]) -> Table:
    options = {"tideline.spark.scan.base.bytes": 0}
    table = tables.create("t", schema=SCHEMA, partition_fields=(), ordering_field="", type=kind, options=options)
    write_rows(table, content({"one": 1.0, "nan": NAN, "null": None, "zero": -0.0, "other": 1.0}), Operation.UPSERT)
    if logs:
        write_rows(table, content(logs), Operation.UPSERT)
    return table


@pytest.mark.parametrize("kind", TableType)
def test_a_filter_on_read_finds_what_spark_finds_in_the_rows(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch, kind: TableType
) -> None:
    # Files of earlier versions, with bounds that leave out NaN.
    monkeypatch.setattr("tideline_table.writer.base_file.footer_statistics", lambda *_, **__: True)
    table = written(tables, kind, {"other": 1.0})
    assert bool(table.slices()[0].log_files) == (kind == TableType.MOR)
    rows = read(spark, table)
    for column in COLUMNS:
        for condition, expected in FOUND.items():
            assert keys(rows.where(condition.format(column))) == expected, (column, condition)
    assert keys(read(spark, table, where="x > 5")) == ["nan"]


def test_other_readers_on_spark_find_the_nan_in_base_files(spark: SparkSession, tables: Tables) -> None:
    """Apache Hudi and plain Spark push conditions down to the base files."""
    table = written(tables, TableType.COW, {})
    (part,) = table.slices()
    scan = spark.read.parquet(f"{table.storage.root}/{part.path}")
    for column in COLUMNS:
        assert keys(scan.where(f"{column} > 5")) == ["nan"]


def test_other_columns_still_reach_the_scan_of_spark(spark: SparkSession, tables: Tables) -> None:
    table = written(tables, TableType.COW, {})
    plan = str(read(spark, table).where("id = 'one' and x > 0")._jdf.queryExecution().executedPlan().toString())
    assert "EqualTo(id,one)" in plan
    assert "GreaterThan(x" not in plan
