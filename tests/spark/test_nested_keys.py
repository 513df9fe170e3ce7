"""Keys, partition and ordering columns inside of structs: Spark writes the same table as the engine, by every way of tagging."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.tables import ROUTED, content

from tideline_spark.data_source import register
from tideline_spark.write import write_dataframe
from tideline_table.action import write_rows
from tideline_table.errors import InvalidRecord
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

PLACE = pa.struct([("id", pa.string()), ("n", pa.int64()), ("region", pa.string()), ("ts", pa.int64())])
SCHEMA = pa.schema([("place", PLACE), ("amount", pa.float64())])


def rows(start: int, end: int, ts: int, regions: int = 3) -> pa.Table:
    places = [{"id": f"k{n:04}", "n": n, "region": f"r{n % regions}", "ts": ts} for n in range(start, end)]
    return pa.table({"place": places, "amount": [n + ts / 8 for n in range(start, end)]}, SCHEMA)


@pytest.mark.parametrize("kind", [*TableType])
@pytest.mark.parametrize(
    ("key", "options", "buckets"),
    [
        (("place.id",), {}, None),
        (("place.id", "place.n"), {"tideline.spark.broadcast.keys": 0}, None),
        (("place.n",), {"hoodie.index.type": "GLOBAL_SIMPLE"}, None),
        (("place.id", "place.n"), {}, 4),
    ],
    ids=["join", "shuffled join", "global", "bucket"],
)
def test_dataframes_write_what_the_engine_writes(
    spark: SparkSession, tmp_path: Path, kind: TableType, key: tuple[str, ...], options: dict[str, object], buckets: int | None
) -> None:
    tables = []
    for name in ("engine", "native"):
        path = str(tmp_path / name)
        create_table(
            path,
            TableRequest("t", SCHEMA, key, ("place.region",), "place.ts", kind, index=BucketIndex(buckets) if buckets else None),
        )
        tables.append(Table.open(path, options={**ROUTED, **options}))
    engine, native = tables
    regions = 2 if "hoodie.index.type" in options else 3  # rows move to another partition
    keys = pa.table({"place": [{"id": f"k{n:04}", "n": n, "region": f"r{n % 3}"} for n in range(60, 90)]})
    steps = [
        (rows(0, 60, 5), Operation.UPSERT),
        (pa.concat_tables([rows(30, 90, 6, regions), rows(0, 20, 4), rows(40, 50, 7, regions)]), Operation.UPSERT),
        (keys, Operation.DELETE),
    ]
    for given, operation in steps:
        expected = write_rows(engine, given, operation)
        found = write_dataframe(native, spark.createDataFrame(given), operation)
        assert (found.rows_inserted, found.rows_updated) == (expected.rows_inserted, expected.rows_updated)
        assert content(native.read()) == content(engine.read())
    columns = ["_hoodie_record_key", "_hoodie_partition_path"]
    assert sorted(map(str, native.read(columns).to_pylist())) == sorted(map(str, engine.read(columns).to_pylist()))


def test_a_bulk_insert_sorts_by_a_key_in_a_struct(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    create_table(path, TableRequest("t", SCHEMA, ("place.id",), ("place.region",)))
    table = Table.open(path, options={**ROUTED, "hoodie.bulkinsert.sort.mode": "GLOBAL_SORT"})
    given = rows(0, 60, 1, regions=1)
    write_dataframe(table, spark.createDataFrame(given.take(list(range(59, -1, -1)))), Operation.BULK_INSERT)
    for found in (Path(path) / "r0").glob("*.parquet"):
        keys = pq.read_table(found, columns=["_hoodie_record_key"])["_hoodie_record_key"].to_pylist()
        assert keys == sorted(keys)


def test_the_data_source_writes_and_reads_such_a_table(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    create_table(path, TableRequest("t", SCHEMA, ("place.id",), ("place.region",), "place.ts"))
    register(spark)
    for ts in (5, 6):
        spark.createDataFrame(rows(0, 9, ts)).write.format("tideline").mode("append").option("operation", "upsert").save(path)
    found = spark.read.format("tideline").load(path).where("place.id = 'k0003'").toArrow()
    assert found.num_rows == 1
    assert found["place"][0].as_py()["ts"] == 6
    assert Table.open(path).read().num_rows == 9


def test_null_structs_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    create_table(path, TableRequest("t", SCHEMA, ("place.id",), (), "place.ts"))
    table = Table.open(path, options=ROUTED)
    given = pa.concat_tables([rows(0, 3, 5), pa.table({"place": [None], "amount": [1.0]}, SCHEMA)])
    with pytest.raises(InvalidRecord, match=r"place\.id"):
        write_dataframe(table, spark.createDataFrame(given), Operation.UPSERT)
    assert Table.open(path).read().num_rows == 0
