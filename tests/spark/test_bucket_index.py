"""Spark and the bucket index: large sources take one exchange, queries leave buckets out, and the native hash is Java's."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.spark.tables import ROUTED, SCHEMA, content, counted_source, rows

from tideline_spark.buckets import bucket_number
from tideline_spark.data_source import register
from tideline_spark.read import read
from tideline_spark.report import WriteReport
from tideline_spark.small_source import DriverAndTasks, DriverLimits
from tideline_spark.write import explain_write, write_dataframe
from tideline_table.action import write_rows
from tideline_table.errors import DuplicateKey, InvalidRecord
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

TEXTS = [
    *("", "a", "abc", "k0000", "a:b", "a,b", "a:b,c:d", "id:1,n:2", "id:__null__", "id:__null__,n:__empty__", ",", ":", ",:", ":,"),
    *(
        "é漢😀",
        "é:漢,😀:ü",
        "polygenelubricants",
        "2024-01-01 10:20:30",
        "a\nb:c\n,d:e",
        "x" * 300,
        "\x00",
        "id:k016,n:16,w:c:d,e:f",
    ),
    *("id:k001,n:1,w:a:b", "id:k015,n:15,w:__null__", "id:k024,n:24,w:__empty__", "id:k:,,n:18,w:12:30:00"),
    *(
        "id:__null__,n:2,w:__empty__",
        "id:é,n:3,w:漢",
        "id:1,n:2,w:3,w:4",
        "n:2,id:1,w:3",
        "id:1,n:2,w:3,x:4",
        "id:,n:,w:",
        "id:1,w:3",
    ),
    *("id:a,n:1,b", "id:1,n:2,w", "id:1,id:2,n:3", "id:x y,n:-7,w:5,", "id:__null__,n:4"),
]


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    path = str(tmp_path / "buckets")
    create_table(path, TableRequest("t", SCHEMA, ("id",), ("region",), "ts", request.param, index=BucketIndex(4)))
    return Table.open(path, options=ROUTED)


def test_the_native_expression_counts_buckets_as_the_engine_does(spark: SparkSession) -> None:
    frame = spark.createDataFrame(pa.table({"key": TEXTS}))
    for fields, key_fields in ((("id",), ("id",)), (("id",), ("id", "n")), (("id", "w"), ("id", "n", "w")), (("n",), ("id", "n"))):
        index = bucket_index(97, fields, key_fields)
        found = frame.select(bucket_number(f.col("key"), index, f.lit("")).alias("bucket")).toArrow()
        assert found["bucket"].to_pylist() == index.buckets(pa.array(TEXTS)).tolist(), fields


def check_places(table: Table) -> None:
    table.refresh()
    index = table.definition.buckets
    assert index is not None
    found = table.read()
    named = [bucket_of_file_id(name) for name in found["_hoodie_file_name"].to_pylist()]
    assert named == index.buckets(found["_hoodie_record_key"]).tolist()
    groups = [(s.group.partition_path, bucket_of_file_id(s.group.file_id)) for s in table.slices()]
    assert len(set(groups)) == len(groups)


def test_a_large_source_is_evaluated_once_and_exchanged_once(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    source, seen = counted_source(spark, rows(0, 300, 1), tmp_path)
    planned = explain_write(table, source, Operation.UPSERT)
    assert (seen.value, planned.exchanges, planned.broadcasts, planned.python_maps) == (0, 1, 0, 1)
    reports: list[WriteReport] = []
    done = write_dataframe(table, source, Operation.UPSERT, on_report=reports.append)
    (report,) = reports
    assert (seen.value, report.source_evaluations) == (300, 1)
    assert (report.exchanges, report.broadcasts, report.python_maps) == (1, 0, 1)
    # Spark names the partitioning of the exchange: partition path and bucket.
    assert [
        line
        for line in report.plan.splitlines()
        if "Exchange hashpartitioning(_tideline_partition" in line and "_tideline_unit" in line
    ]
    assert "_hoodie_record_key" not in report.plan, "no key of the table is looked up"
    assert len(done.stats) == len({s.file_id for s in done.stats}) == 12, (
        "four buckets in each of three partitions, each by one task"
    )
    check_places(table)


def test_large_sources_write_what_small_ones_write(spark: SparkSession, table: Table) -> None:
    def write(source: pa.Table, operation: Operation, **options: object) -> None:
        write_dataframe(table, spark.createDataFrame(source).repartition(3), operation, options=options)
        check_places(table)

    write(rows(0, 60, 1), Operation.BULK_INSERT)
    write(rows(30, 90, 3), Operation.UPSERT)
    write(pa.concat_tables([rows(80, 100, 5), rows(80, 100, 4)]), Operation.INSERT)
    write(rows(0, 30, 0), Operation.UPSERT)
    write(rows(0, 3, 9).append_column("extra", pa.nulls(3, pa.int32())).drop_columns(["extra"]), Operation.DELETE)
    expected = pa.concat_tables([rows(3, 30, 1), rows(30, 80, 3), rows(80, 100, 5)])
    assert content(table.read()) == content(expected)
    with pytest.raises(DuplicateKey):
        write(pa.concat_tables([rows(0, 2, 7), rows(0, 2, 8)]), Operation.UPSERT, **{"hoodie.combine.before.upsert": False})
    write(rows(0, 9, 7), Operation.INSERT_OVERWRITE)
    assert content(table.read()) == content(rows(0, 9, 7))


def test_composite_keys_of_large_sources(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "pairs")
    schema = pa.schema([("user", pa.string()), ("page", pa.string()), ("ts", pa.int64())])
    request = TableRequest("t", schema, ("user", "page"), (), "ts", index=BucketIndex(8, ("user",)))
    create_table(path, request)
    table = Table.open(path, options=ROUTED)
    pairs = [(u, p) for u, p in itertools.product(TEXTS, TEXTS) if (u or p)]
    source = pa.table({"user": [u for u, _ in pairs], "page": [p for _, p in pairs], "ts": range(len(pairs))}, schema=schema)
    write_dataframe(table, spark.createDataFrame(source), Operation.UPSERT)
    check_places(table)
    assert table.read().num_rows == len(pairs)
    for user, page in ((None, "p"), ("u", "x,user:9")):
        with pytest.raises(InvalidRecord):
            write_dataframe(
                table, spark.createDataFrame([(user, page, 1)], "user string, page string, ts bigint"), Operation.UPSERT
            )


def test_queries_read_the_buckets_of_their_values(spark: SparkSession, table: Table) -> None:
    write_dataframe(table, spark.createDataFrame(rows(0, 60, 1)), Operation.UPSERT)
    write_dataframe(table, spark.createDataFrame(rows(0, 60, 2)), Operation.UPSERT)
    register(spark)
    whole = read(spark, table).toArrow()
    for where, most in (("id = 'k000007'", 3), ("id in ('k000007', 'nowhere')", 6), ("id = 'k000007' or amount = 3", 12)):
        expected = sorted(spark.createDataFrame(whole).where(where).toArrow()["id"].to_pylist())
        for frame in (read(spark, table, where=where), spark.read.format("tideline").load(table.base_path).where(where)):
            named = {name.split("_")[0] for name in frame.toArrow()["_hoodie_file_name"].to_pylist()}
            assert sorted(frame.toArrow()["id"].to_pylist()) == expected
            assert len(named) <= most
        files = {bucket_of_file_id(path.rsplit("/", 1)[-1]) for path in read(spark, table, where=where).inputFiles()}
        assert len(files) <= max(most // 3, 1) or table.definition.has_logs


def test_small_sources_and_queries_go_by_hash_rings(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "rings")
    request = TableRequest("t", SCHEMA, ("id",), ("region",), "ts", TableType.MOR, index=BucketIndex(4, consistent=True))
    create_table(path, request)
    table = Table.open(path)
    for first, ts in ((0, 1), (40, 2)):
        write_dataframe(table, spark.createDataFrame(rows(first, first + 80, ts)), Operation.UPSERT)
    found = table.read()
    assert found.num_rows == len(set(found["id"].to_pylist())) == 120
    index = table.definition.buckets
    assert index is not None
    wanted = {
        file_id for ring in table.rings().of({s.group.partition_path for s in table.slices()}).values() for file_id in ring.file_ids
    }
    assert {s.group.file_id for s in table.slices()} <= wanted
    one = found["id"][7].as_py()
    shown = read(spark, table, where=f"id = '{one}'")
    assert [row["id"] for row in shown.collect()] == [one]


def test_small_sources_and_queries_go_by_buckets_with_several_file_groups(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "several")
    create_table(path, TableRequest("t", SCHEMA, ("id",), ("region",), "ts", index=BucketIndex(2, several_file_groups=True)))
    files = {"hoodie.parquet.max.file.size": 4_000, "hoodie.parquet.small.file.limit": 0}
    table = Table.open(path, options=files)
    for first, ts in ((0, 1), (40, 2)):
        write_dataframe(table, spark.createDataFrame(rows(first, first + 80, ts)), Operation.UPSERT)
    found = table.read()
    assert found.num_rows == len(set(found["id"].to_pylist())) == 120
    index = table.definition.buckets
    assert index is not None
    held = [bucket_of_file_id(name.split("_")[0]) for name in found["_hoodie_file_name"].to_pylist()]
    assert held == index.buckets(found["id"]).tolist()
    assert len(table.slices()) > 2 * len({s.group.partition_path for s in table.slices()})
    one = found["id"][7].as_py()
    assert [row["id"] for row in read(spark, table, where=f"id = '{one}'").collect()] == [one]
    # Keys looked up by Spark's tasks, and files written by them.
    spread_out = DriverAndTasks(spark, lambda: None, DriverLimits(files=0, keys=0, merged_bytes=0))
    write_rows(table, found.select(SCHEMA.names), Operation.UPSERT, executor=spread_out)
    assert table.read().num_rows == 120


@pytest.mark.parametrize(("kind", "to_log"), [(TableType.COW, False), (TableType.MOR, True)])
def test_large_sources_go_to_buckets_with_several_file_groups(
    spark: SparkSession, tmp_path: Path, kind: TableType, *, to_log: bool
) -> None:
    path = str(tmp_path / "several")
    create_table(path, TableRequest("t", SCHEMA, ("id",), ("region",), "ts", kind, index=BucketIndex(2, several_file_groups=True)))
    files = {
        "hoodie.parquet.max.file.size": 6_000,
        "hoodie.parquet.small.file.limit": 3_000,
        "hoodie.copyonwrite.record.size.estimate": 200,
        "tideline.insert.to.log": to_log,
    }
    table = Table.open(path, options={**ROUTED, **files})
    write_dataframe(table, spark.createDataFrame(rows(0, 200, 1)), Operation.INSERT)
    planned = explain_write(table, spark.createDataFrame(rows(100, 300, 2)), Operation.UPSERT)
    assert (planned.exchanges, planned.broadcasts, planned.python_maps) == (1, 0, 1)
    write_dataframe(table, spark.createDataFrame(rows(100, 300, 2)), Operation.UPSERT)
    write_dataframe(table, spark.createDataFrame(rows(50, 150, 3)), Operation.BULK_INSERT)
    write_dataframe(table, spark.createDataFrame(rows(0, 20, 4)), Operation.DELETE)
    found = table.read()
    assert dict(Counter(found["ts"].to_pylist())) == {1: 30, 2: 150, 3: 100}
    assert len(set(found["id"].to_pylist())) == found.num_rows
    index = table.definition.buckets
    assert index is not None
    held = [bucket_of_file_id(name.split("_")[0]) for name in found["_hoodie_file_name"].to_pylist()]
    assert held == index.buckets(found["id"]).tolist()
    groups = [(s.group.partition_path, bucket_of_file_id(s.group.file_id)) for s in table.slices()]
    assert max(Counter(groups).values()) > 1
    write_dataframe(table, spark.createDataFrame(rows(0, 40, 5)), Operation.INSERT_OVERWRITE_TABLE)
    assert table.read()["ts"].to_pylist() == [5] * 40


def test_two_large_writers_of_one_new_key_leave_it_once(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "several")
    create_table(path, TableRequest("t", SCHEMA, ("id",), ("region",), "ts", index=BucketIndex(2, several_file_groups=True)))
    table, other = Table.open(path, options=ROUTED), Table.open(path, options={"hoodie.parquet.small.file.limit": 0})
    committed = []

    def first(_: WriteReport) -> None:
        if not committed:
            committed.append(write_rows(other, rows(0, 50, 1), Operation.UPSERT))

    done = write_dataframe(table, spark.createDataFrame(rows(40, 90, 2)), Operation.INSERT, on_report=first)
    assert done.attempts == 2
    found = table.read()
    assert dict(Counter(found["ts"].to_pylist())) == {1: 40, 2: 50}
    assert len(set(found["id"].to_pylist())) == 90
