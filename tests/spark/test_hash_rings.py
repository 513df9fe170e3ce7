"""Spark and consistent hashing: the native hash is xxHash32, and large sources take one exchange by the ring of each partition."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.plans import schedule_clustering
from tests.spark.tables import ROUTED, SCHEMA, content, counted_source, rows
from tests.spark.test_bucket_index import TEXTS

from tideline_spark.application import cluster_tasks
from tideline_spark.plan_run import Termination
from tideline_spark.report import WriteReport
from tideline_spark.rings import text_hash, with_nodes
from tideline_spark.write import explain_write, write_dataframe
from tideline_table.action import resize_rings, run_clustering, write_rows
from tideline_table.index import BucketIndex, Engine, HashRing
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.index.hash_ring import RingNode
from tideline_table.index.xx_hash import text_hashes
from tideline_table.table import BucketIndex as NewBuckets
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation


def test_the_native_hash_is_xx_hash_32(spark: SparkSession) -> None:
    """Of texts of all lengths up to three stripes, of more stripes, and of bytes above 127."""
    texts = [*TEXTS, *(("k0é9漢😀zZ" * 9)[:n] for n in range(60)), "x" * 1000]
    found = spark.createDataFrame(pa.table({"text": texts})).select(text_hash(f.col("text")).alias("code")).toArrow()
    assert found["code"].to_pylist() == text_hashes(pa.array(texts)).tolist()


def resized(number: int) -> HashRing:
    """A ring whose last node does not have the largest value: hashes above it belong to the first node."""
    values = sorted({7, 2**29, 2**29 + 1, 2**30, *range(2**20, 2**31 - 2**27, 2**31 // number)})
    return HashRing("a", "20260101000000000", 97, 1, tuple(RingNode(value, f"p{value}") for value in values))


@pytest.mark.parametrize("number", [1, 97, 46_340])
def test_the_native_expression_finds_nodes_as_the_engine_does(spark: SparkSession, number: int) -> None:
    keys = [*TEXTS, *(f"id:{n},n:{n}" for n in range(100)), *(f"{n}" for n in range(200))]
    paths = ["a", "b", "é=1"]
    source = pa.table({"key": keys * 3, "path": [path for path in paths for _ in keys]})
    index = bucket_index(number, ("id", "w"), ("id", "n", "w"), Engine.CONSISTENT)
    changed: dict[str, HashRing] = {} if number == 1 else {"a": resized(5), "é=1": resized(1000)}
    found = with_nodes(spark.createDataFrame(source), "key", "path", "node", index, changed).toArrow()
    for path, ring in {**{path: HashRing.first(path, number) for path in paths}, **changed}.items():
        part = found.filter(pa.compute.equal(found["path"], path))
        wanted = dict(zip(keys, index.in_partition("", ring).buckets(pa.array(keys)).tolist(), strict=True))
        assert part["node"].to_pylist() == [wanted[key] for key in part["key"].to_pylist()]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    path = str(tmp_path / "rings")
    request = TableRequest("t", SCHEMA, ("id",), ("region",), "ts", TableType.MOR, index=NewBuckets(4, consistent=True))
    create_table(path, request)
    return Table.open(path, options=ROUTED)


def index_of(table: Table) -> BucketIndex:
    index = table.definition.buckets
    assert index is not None
    return index


def check_places(table: Table) -> None:
    """Each row is in the file group of its node, and no key twice."""
    table.refresh()
    index, found = index_of(table), table.read()
    rings = table.rings().of({s.group.partition_path for s in table.slices()})
    for partition, ring in rings.items():
        part = found.filter(pa.compute.equal(found["_hoodie_partition_path"], partition))
        held = [ring.file_ids[at] for at in index.in_partition("", ring).buckets(part["_hoodie_record_key"]).tolist()]
        assert [name.removeprefix(".").split("_")[0] for name in part["_hoodie_file_name"].to_pylist()] == held
        ring.by_node([s for s in table.slices() if s.group.partition_path == partition])
        assert (Path(table.base_path) / ring.path).read_bytes() == ring.content
    keys = list(zip(found["region"].to_pylist(), found["id"].to_pylist(), strict=True))
    assert len(set(keys)) == len(keys)


def resize(table: Table, region: str) -> None:
    """Split the buckets of one partition."""
    paths = [s.group.partition_path for s in table.slices()]
    assert region in paths
    split: dict[str, Any] = {"hoodie.parquet.max.file.size": 1024, "hoodie.bucket.index.max.num.buckets": 16}
    assert resize_rings(Table.open(table.base_path), options=split).committed is not None


def test_a_large_source_is_exchanged_once_by_the_ring_of_each_partition(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    source, seen = counted_source(spark, rows(0, 300, 1, regions=2), tmp_path)
    planned = explain_write(table, source, Operation.UPSERT)
    assert (seen.value, planned.exchanges, planned.broadcasts, planned.python_maps) == (0, 1, 0, 1)
    reports: list[WriteReport] = []
    done = write_dataframe(table, source, Operation.UPSERT, on_report=reports.append)
    assert (seen.value, reports[0].source_evaluations, reports[0].exchanges, reports[0].broadcasts) == (300, 1, 1, 0)
    assert len(done.stats) == len({s.file_id for s in done.stats}) == 8, "each node by one task"
    check_places(table)
    # Resized rings are broadcast; those of partitions that begin now are first rings.
    resize(table, "r 0")
    table.refresh()
    report = explain_write(table, spark.createDataFrame(rows(150, 450, 2)), Operation.UPSERT)
    assert (report.exchanges, report.broadcasts, report.python_maps) == (1, 1, 1)
    write_dataframe(table, spark.createDataFrame(rows(150, 450, 2, regions=2)), Operation.UPSERT)
    write_dataframe(table, spark.createDataFrame(rows(2, 302, 3, regions=3)), Operation.INSERT)
    check_places(table)
    assert {"r 0", "r 1", "r 2"} == {s.group.partition_path for s in table.slices()}
    write_dataframe(table, spark.createDataFrame(rows(0, 150, 4, regions=2)), Operation.DELETE)
    write_dataframe(table, spark.createDataFrame(rows(600, 620, 4, regions=5)), Operation.DELETE)
    check_places(table)
    # What goes through the driver meets the same file groups.
    write_dataframe(Table.open(table.base_path), spark.createDataFrame(rows(430, 460, 6, regions=2)), Operation.UPSERT)
    check_places(table)


def test_large_sources_write_what_small_ones_write(spark: SparkSession, table: Table) -> None:
    def write(source: pa.Table, operation: Operation, **options: object) -> None:
        write_dataframe(table, spark.createDataFrame(source).repartition(3), operation, options=options)
        check_places(table)

    write(rows(0, 60, 1), Operation.BULK_INSERT, **{"hoodie.bulkinsert.user.defined.partitioner.sort.columns": "amount"})
    write(rows(30, 90, 3), Operation.UPSERT)
    write(pa.concat_tables([rows(80, 100, 5), rows(80, 100, 4)]), Operation.INSERT, **{"tideline.insert.to.log": True})
    write(rows(0, 30, 0), Operation.UPSERT)
    write(rows(0, 3, 9), Operation.DELETE)
    expected = pa.concat_tables([rows(3, 30, 1), rows(30, 80, 3), rows(80, 100, 5)])
    assert content(table.read()) == content(expected)


def test_large_overwrites_give_partitions_other_rings(spark: SparkSession, table: Table) -> None:
    write_rows(table, rows(0, 90, 1), Operation.UPSERT)
    resize(table, "r 0")
    table.refresh()
    before = table.rings().of(["r 0", "r 1", "r 2"])

    def write(source: pa.Table, operation: Operation) -> None:
        write_dataframe(table, spark.createDataFrame(source), operation)
        check_places(table)

    first = rows(0, 60, 2).filter(pa.compute.is_in(rows(0, 60, 2)["region"], pa.array(["r 0", "r 1"])))
    write(first, Operation.INSERT_OVERWRITE)
    after = table.rings().of(["r 0", "r 1", "r 2"])
    assert [after[name] == before[name] for name in sorted(after)] == [False, False, True]
    assert dict(Counter(table.read()["ts"].to_pylist())) == {1: 30, 2: 40}
    write(rows(0, 90, 3), Operation.UPSERT)
    write(rows(0, 8, 4, regions=1), Operation.INSERT_OVERWRITE_TABLE)
    write(rows(4, 94, 5), Operation.UPSERT)
    assert table.read().num_rows == 90 + sum(n % 3 != 0 or n < 4 for n in range(8))


def test_a_large_write_that_meets_a_resize_is_repeated_by_the_new_ring(spark: SparkSession, table: Table) -> None:
    write_rows(table, rows(0, 90, 1), Operation.UPSERT)
    resized_at = []

    def first(_: WriteReport) -> None:
        if not resized_at:
            resize(table, "r 0")
            resized_at.append(True)

    done = write_dataframe(table, spark.createDataFrame(rows(45, 135, 2)), Operation.UPSERT, on_report=first)
    assert done.attempts == 2
    check_places(table)
    assert dict(Counter(table.read()["ts"].to_pylist())) == {1: 45, 2: 90}


def test_spark_clusters_nodes_beside_a_large_write_that_is_repeated_by_the_new_ring(spark: SparkSession, table: Table) -> None:
    write_rows(table, rows(0, 90, 1), Operation.UPSERT)
    resize(table, "r 0")
    other = Table.open(table.base_path)
    before = other.rings().of(["r 0", "r 1", "r 2"])

    def cluster() -> None:
        assert schedule_clustering(other, {"hoodie.clustering.plan.strategy.sort.columns": "amount"}) is not None
        held = content(other.read())
        assert run_clustering(other, run=lambda tasks: cluster_tasks(spark, tasks, Termination())) is not None
        assert content(other.read()) == held
        check_places(other)

    done_at: list[bool] = []

    def first(_: WriteReport) -> None:
        if not done_at:
            done_at.append(True)
            cluster()

    done = write_dataframe(table, spark.createDataFrame(rows(45, 135, 2)), Operation.UPSERT, on_report=first)
    assert done.attempts == 2
    check_places(table)
    after = table.rings().of(before)
    assert all(not set(after[name].file_ids) & set(before[name].file_ids) for name in before)
    assert dict(Counter(table.read()["ts"].to_pylist())) == {1: 45, 2: 90}
