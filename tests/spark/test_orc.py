"""DataFrames written into a table whose base files are ORC: Spark finds their keys, and reads what was written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import tideline
from tideline_spark.read import read
from tideline_spark.write import write_dataframe
from tideline_table.table import Table
from tideline_table.writer import Operation

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("at", pa.timestamp("us", "UTC")), ("price", pa.float64())])


def made(found: list[tuple[str, str, int, float]]) -> pa.Table:
    return pa.table([pa.array(values, f.type) for values, f in zip(zip(*found, strict=True), SCHEMA, strict=True)], schema=SCHEMA)


def test_an_upsert_finds_the_keys_of_orc_files(spark: SparkSession, tmp_path: Path) -> None:
    orc = {"hoodie.table.base.file.format": "ORC"}
    tideline.create(tmp_path / "t", schema=SCHEMA, key="id", partition="part", options=orc)
    table = Table.open(str(tmp_path / "t"), options={"tideline.spark.collect.bytes": 0})
    expected: dict[str, tuple[str, str, int, float]] = {}
    for turn, keys in enumerate((range(40), range(20, 60))):
        found = [(f"k{n:02}", f"p{n % 2}", n * 10**12 + turn, n / 4 + turn) for n in keys]
        expected |= {row[0]: row for row in found}
        write_dataframe(table, spark.createDataFrame(made(found)).repartition(2), Operation.UPSERT)
        loaded = read(spark, table, columns=SCHEMA.names).toArrow().sort_by("id").cast(SCHEMA)
        assert loaded.to_pylist() == made(sorted(expected.values())).to_pylist()
    assert {path.suffix for path in (tmp_path / "t").glob("p?/[!.]*")} == {".orc"}
