"""A merger of another package on Spark: its workers find it, and a DataFrame ends as the same rows in one process."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tideline
from tideline_spark.read import read
from tideline_spark.write import write_dataframe
from tideline_table.merge import merger
from tideline_table.table import Table
from tideline_table.writer import Operation

CODE = """
import pyarrow.compute as pc

class Sums:
    def merge(self, older, newer):
        path = pc.binary_join_element_wise("(", older["path"], newer["path"], ")", "")
        found = newer.set_column(newer.schema.get_field_index("amount"), "amount", pc.add(older["amount"], newer["amount"]))
        return found.set_column(found.schema.get_field_index("path"), "path", path)
"""
SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("amount", pa.int64()), ("path", pa.string())])


@pytest.fixture(scope="module")
def package(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An archive with an installed package, which a session sends to its workers."""
    archive = tmp_path_factory.mktemp("package") / "some_sums.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("some_sums.py", CODE)
        packed.writestr("some_sums-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-sums\nVersion: 1.0\n")
        packed.writestr("some_sums-1.0.dist-info/entry_points.txt", "[tideline.mergers]\nsums = some_sums:Sums\n")
    spark.sparkContext.addPyFile(str(archive))
    assert any("some_sums" in path for path in sys.path)
    merger._loaded.cache_clear()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_rows_are_merged_by_the_workers(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    paths = {name: tmp_path / name for name in ("here", "there")}
    made = {"schema": SCHEMA, "key": "id", "partition": "day", "merge": "sums", "type": kind, "table_version": 9}
    here, _ = (tideline.create(path, **made) for path in paths.values())
    there = Table.open(str(paths["there"]), options={"tideline.spark.collect.bytes": 0})  # no merge in this process
    for turn, keys in enumerate((range(40), range(20, 60), range(30, 50))):
        found = [{"id": f"k{n}", "day": f"d{n % 2}", "amount": n + turn, "path": str(turn)} for n in keys]
        rows = pa.Table.from_pylist(found, SCHEMA)
        here.upsert(rows)
        write_dataframe(there, spark.createDataFrame(rows).repartition(2), Operation.UPSERT)
        expected = here.read().sort_by("id").to_pylist()
        assert tideline.open(paths["there"]).read().sort_by("id").to_pylist() == expected
        loaded = read(spark, there, columns=SCHEMA.names).orderBy("id").collect()
        assert [row.asDict() for row in loaded] == expected
    assert {row["path"] for row in expected} == {"0", "1", "(01)", "(12)", "((01)2)"}
