"""`read` returns what the engine reads, by Spark's own scan."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.plans import schedule_clustering
from tests.spark.tables import Tables, content, rows
from tests.unit.table.fixtures import unpacked
from tests.unit.table.tables import declare

from tideline_spark.data_source import register
from tideline_spark.frames import NAME
from tideline_spark.read import read
from tideline_table.action import run_clustering, write_rows
from tideline_table.errors import SchemaMismatch
from tideline_table.schema import META_FIELDS
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation


def test_snapshots_as_of_and_columns(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("a table=1%20", options={"hoodie.parquet.small.file.limit": 0})
    assert read(spark, table).collect() == []
    assert read(spark, table).columns == [*META_FIELDS, "id", "region", "ts", "amount"]
    first = write_rows(table, rows(0, 30, 1), Operation.UPSERT)
    write_rows(table, rows(20, 50, 2).set_column(1, "region", pa.array([f"[{n}]*?" for n in range(30)])), Operation.UPSERT)
    write_rows(table, rows(30, 90, 2), Operation.UPSERT)
    for as_of in ("", first.instant):
        found = read(spark, table, as_of=as_of).toArrow()
        expected = table.read(as_of=as_of)
        assert found.column_names == expected.column_names
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))
    schedule_clustering(table)
    run_clustering(table)
    path = str(tables.folder / "a table=1%20")
    some = read(spark, path, columns=["_hoodie_record_key", "ts"])
    assert some.columns == ["_hoodie_record_key", "ts"]
    assert some.where(f.col("ts") == 2).count() == 90
    with pytest.raises(SchemaMismatch):
        read(spark, table, columns=["absent"])


@pytest.mark.parametrize("type_", list(TableType))
def test_a_condition_selects_rows_by_columns_that_are_not_read(spark: SparkSession, tables: Tables, type_: TableType) -> None:
    table = tables.create("t", type=type_)
    write_rows(table, rows(0, 30, 1), Operation.UPSERT)
    write_rows(table, rows(20, 50, 2), Operation.UPSERT)
    path = str(tables.folder / "t")
    expected = sorted(table.read(["id"], "ts = 2").column("id").to_pylist())
    assert len(expected) == 30
    for where in ("ts = 2", f.col("ts") == 2):
        found = read(spark, path, columns=["id"], where=where)
        assert found.columns == ["id"]
        assert sorted(row.id for row in found.collect()) == expected
    assert read(spark, table, where="ts = 2").columns == [*META_FIELDS, "id", "region", "ts", "amount"]
    with pytest.raises(AnalysisException, match="absent"):
        read(spark, table, where="absent = 2")


def test_fields_of_structs_are_columns(spark: SparkSession, tables: Tables) -> None:
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), ("a", pa.struct([("x", pa.int64())]))])
    table = tables.create("t", schema=schema, partition_fields=(), ordering_field="")
    write_rows(table, pa.table({"id": ["1", "2"], "a": [{"x": 5}, None]}, schema), Operation.UPSERT)
    found = read(spark, table, columns=["a.x", "id"])
    assert found.columns == ["a.x", "id"]
    assert sorted(map(tuple, found.collect()), key=str) == [(5, "1"), (None, "2")]
    assert [row.id for row in read(spark, table, columns=["id"], where="a.x = 5").collect()] == ["1"]


def test_a_condition_on_a_field_of_a_struct_leaves_out_files(spark: SparkSession, tables: Tables) -> None:
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), ("a", pa.struct([("x", pa.int64())]))])
    table = tables.create("t", schema=schema, partition_fields=(), ordering_field="")
    indexed = {"hoodie.metadata.index.column.stats.column.list": "a.x"}
    for x in (1, 2):
        write_rows(table, pa.table({"id": [str(x)], "a": [{"x": x}]}, schema), Operation.BULK_INSERT, options=indexed)
    for where, files in (("a.x = 2", 1), ("1 < a.x", 1), ("a.x in (2L, 3L)", 1), ("a.x is null", 0), ("a.x is not null", 2)):
        found = read(spark, table, where=where)
        assert len(found.inputFiles()) == files, where
        assert sorted(row.id for row in found.collect()) == ["1", "2"][2 - files :]


def test_time_travel_shows_the_schema_of_its_time(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", options={"tideline.write.schema.evolution": "evolve"})
    first = write_rows(table, rows(0, 5, 1), Operation.UPSERT)
    write_rows(table, rows(3, 8, 2).append_column("more", pa.array(range(5))), Operation.UPSERT)
    assert read(spark, table, as_of=first.instant).columns == [*META_FIELDS, "id", "region", "ts", "amount"]
    assert read(spark, table).columns[-1] == "more"


def test_partition_columns_that_only_paths_hold(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", partition_fields=("region",))
    write_rows(table, rows(0, 5, 1), Operation.UPSERT)
    declare(table.storage, hoodie__datasource__write__drop__partition__columns="true")
    found = read(spark, str(tables.folder / "t"), columns=["id", "region"]).toArrow()
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, table.read(["id", "region"]).to_pylist()))


def test_partition_values_that_files_of_others_have_lost(spark: SparkSession, tables: Tables) -> None:
    table = tables.create("t", partition_fields=("region",), type=TableType.MOR)
    write_rows(table, rows(0, 5, 1), Operation.UPSERT)
    expected = table.read(["id", "region"])
    path = Path(tables.folder / "t")
    lossy = next(path.rglob("*.parquet"))
    held = pq.read_table(lossy, partitioning=None)
    pq.write_table(held.set_column(held.column_names.index("region"), "region", pa.nulls(held.num_rows, pa.string())), lossy)
    shutil.rmtree(path / ".hoodie" / ".tideline")
    # Other writers record the size of what they wrote.
    (commit,) = (path / ".hoodie").glob("*.deltacommit")
    document = json.loads(commit.read_text())
    for stat in (
        stat for stats in document["partitionToWriteStats"].values() for stat in stats if stat["path"].endswith(lossy.name)
    ):
        stat.pop("tidelineRecord")
        stat["fileSizeInBytes"] = lossy.stat().st_size
    commit.write_text(json.dumps(document))
    found = Table.open(str(path))
    assert not found.capabilities.log_is_truth
    region = pq.read_table(lossy, partitioning=None, columns=["_hoodie_partition_path"])[0][0].as_py().removeprefix("region=")
    ours = found.read(["id"], where=pc.field("region") == region)
    assert sorted(ours["id"].to_pylist()) == sorted(held["id"].to_pylist())
    for answer in (found.read(["id", "region"]), read(spark, str(path), columns=["id", "region"]).toArrow()):
        assert sorted(map(str, answer.to_pylist())) == sorted(map(str, expected.to_pylist()))


def test_types(spark: SparkSession, tables: Tables) -> None:
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("flag", pa.bool_()),
            ("small", pa.float32()),
            ("price", pa.decimal128(12, 3)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("millis", pa.timestamp("ms", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("raw", pa.binary()),
            ("list", pa.list_(pa.int32())),
            ("map", pa.map_(pa.string(), pa.int64())),
            ("nested", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        ]
    )
    table = tables.create("types", schema=schema, partition_fields=(), ordering_field="")
    written = pa.table(
        {
            "id": ["a", "b"],
            "flag": [True, None],
            "small": pa.array([1.5, None], pa.float32()),
            "price": pa.array([Decimal("1.250"), None], pa.decimal128(12, 3)),
            "day": pa.array([1, None], pa.int32()).cast(pa.date32()),
            "at": pa.array([1, None], pa.timestamp("us", tz="UTC")),
            "millis": pa.array([1, None], pa.timestamp("ms", tz="UTC")),
            "local": pa.array([1, None], pa.timestamp("us")),
            "raw": pa.array([b"\x00", None], pa.binary()),
            "list": pa.array([[1, None], None], pa.list_(pa.int32())),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "nested": pa.array([{"a": 1, "b": ["x"]}, None], pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        }
    )
    write_rows(table, written, Operation.INSERT)
    found = read(spark, table).toArrow().select(written.column_names).cast(table.read().select(written.column_names).schema)
    assert content(found) == content(table.read())


RELABELLED = ["derived_trips_cow_v6_whole_seconds", "trips_logical_types_json_mor_read_v8_parquet_log"]


@pytest.mark.parametrize("name", RELABELLED)
def test_relabelled_timestamps_keep_their_numbers(spark: SparkSession, tmp_path: Path, name: str) -> None:
    table = Table.open(str(unpacked("reported", name, tmp_path)))
    names = ["_row_key", "ts_millis", "ts_micros", "local_ts_millis", "local_ts_micros"]
    found = read(spark, table, columns=names)
    assert moments(found.toArrow()) == moments(table.read(names))
    late = "ts_millis > timestamp'2019-01-01 00:00:00'"
    assert found.where(late).count() == 20
    assert read(spark, table, columns=names[:1], where=late).count() == 20
    register(spark)
    assert spark.read.format(NAME).load(table.storage.root).where(late).count() == 20


def moments(found: pa.Table) -> list[tuple[object, ...]]:
    """Rows with timestamps as numbers of microseconds."""
    columns = [
        c.cast(pa.timestamp("us", c.type.tz)).cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in found.columns
    ]
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True))
