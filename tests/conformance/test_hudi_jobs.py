"""Jobs as a user of Apache Hudi writes them, run on Spark by Apache Hudi 1.2.0 and, with only the format's name changed, here.

Each `Query` of a job gives the same rows on both sides, meta fields of keys and partitions included, and what one side refuses, the
other refuses, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed, SaveMode

from tideline_spark.data_source import register
from tideline_spark.frames import NAME
from tideline_table.errors import TidelineError
from tideline_table.hudi import WRITE_ACTIONS
from tideline_table.table import Table

pytestmark = pytest.mark.timeout(900)

SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("city", pa.string()), ("fare", pa.float64()), ("epoch", pa.int64())])
WIDER = SCHEMA.append(pa.field("tip", pa.float64()))
W, R = "hoodie.datasource.write.", "hoodie.datasource.read."
TRIPS = {
    "hoodie.table.name": "trips",
    W + "recordkey.field": "id",
    W + "partitionpath.field": "city",
    W + "precombine.field": "ts",
}
MOR = {**TRIPS, W + "table.type": "MERGE_ON_READ"}
TUNED = {
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
    "hoodie.bulkinsert.shuffle.parallelism": "2",
    "hoodie.delete.shuffle.parallelism": "2",
    "hoodie.memory.merge.max.size": "104857600",
    "hoodie.cleaner.policy": "KEEP_LATEST_COMMITS",
    "hoodie.cleaner.commits.retained": "10",
    "hoodie.datasource.hive_sync.enable": "false",
    "hoodie.parquet.max.file.size": "125829120",
}
BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3", "hoodie.bucket.index.hash.field": "id"}
V9 = {"hoodie.write.table.version": "9"}
UNORDERED = {key: value for key, value in TRIPS.items() if "precombine" not in key}
KEYLESS = {key: value for key, value in UNORDERED.items() if "recordkey" not in key}
GLOBAL = {"hoodie.index.type": "GLOBAL_BLOOM"}
KEYS = ("_hoodie_record_key", "_hoodie_partition_path")


def rows(numbers: Iterable[int], ts: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    cities = ("paris", "rome", "oslo")
    found = [
        {"id": f"k{n:03}", "ts": ts, "city": cities[n % 3], "fare": n + ts / 10, "epoch": 86_400 * n, "tip": float(n)}
        for n in numbers
    ]
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in found], schema=schema)


def flagged(found: pa.Table, keys: Iterable[str]) -> pa.Table:
    """`found` with Hudi's column that says of a row that it is deleted."""
    return found.append_column("_hoodie_is_deleted", pa.array([key in set(keys) for key in found.column("id").to_pylist()]))


def moved(found: pa.Table, city: str = "lima") -> pa.Table:
    """`found` with every row in one city."""
    return found.set_column(SCHEMA.get_field_index("city"), "city", pa.array([city] * found.num_rows))


def op(name: str) -> dict[str, str]:
    return {W + "operation": name}


@dataclass(frozen=True)
class Save:
    rows: pa.Table
    options: Mapping[str, str]
    mode: SaveMode = "append"
    refused: bool = False
    refused_there: bool = False
    """Apache Hudi writes nothing and raises an error, where Spark's contract of the mode is to write nothing."""


@dataclass(frozen=True)
class Query:
    """`at` are options whose values are the instants of writes, by their number.

    `as_text` are columns that Apache Hudi's reader shows as text: a column of time-based folders.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    at: Mapping[str, int] = field(default_factory=dict)
    as_text: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Columns that Apache Hudi's reader fills from the names of folders (docs/peer-differences.md, 14), and keys made up."""


ALL = Query()
FIRST, LATER = rows(range(9), 1), rows(range(6, 15), 2)
JOBS: dict[str, list[Save | Query]] = {
    "upsert": [Save(FIRST, {**TRIPS, **TUNED}, "overwrite"), ALL, Save(LATER, {**TRIPS, **TUNED}), ALL],
    "older rows lose": [Save(LATER, TRIPS), Save(FIRST, TRIPS), ALL],
    "insert": [Save(FIRST, {**TRIPS, **op("insert")}), Save(LATER, {**TRIPS, **op("insert")}), ALL],
    "bulk insert": [Save(FIRST, {**TRIPS, **op("bulk_insert")}, "overwrite"), Save(LATER, {**TRIPS, **op("bulk_insert")}), ALL],
    "inserts that drop duplicates": [
        Save(FIRST, TRIPS),
        Save(LATER, {**TRIPS, **op("insert"), W + "insert.drop.duplicates": "true"}),
        ALL,
    ],
    "delete": [Save(FIRST, TRIPS), Save(rows(range(3), 9), {**TRIPS, **op("delete")}), ALL],
    "delete in mode overwrite": [Save(FIRST, TRIPS), Save(FIRST, {**TRIPS, **op("delete")}, "overwrite", refused=True), ALL],
    "insert overwrite": [Save(FIRST, TRIPS), Save(rows([0, 21], 3), {**TRIPS, **op("insert_overwrite")}), ALL],
    "insert overwrite table": [Save(FIRST, TRIPS), Save(rows([0, 21], 3), {**TRIPS, **op("insert_overwrite_table")}), ALL],
    "insert overwrite in mode overwrite": [
        Save(FIRST, TRIPS),
        Save(rows([0, 21], 3), {**TRIPS, **op("insert_overwrite")}, "overwrite"),
        ALL,
    ],
    "delete partitions by name": [
        Save(FIRST, TRIPS),
        Save(FIRST, {**TRIPS, **op("delete_partition"), W + "partitions.to.delete": "paris,os*"}),
        ALL,
    ],
    "delete partitions of rows": [Save(FIRST, TRIPS), Save(rows([1, 4], 3), {**TRIPS, **op("delete_partition")}), ALL],
    "overwrite": [Save(FIRST, TRIPS), Save(pa.concat_tables([LATER, rows([6], 1)]), TRIPS, "overwrite"), ALL],
    "ignore": [Save(FIRST, TRIPS, "ignore"), Save(LATER, TRIPS, "ignore", refused_there=True), ALL],
    "error if exists": [Save(FIRST, TRIPS, "errorifexists"), Save(LATER, TRIPS, "errorifexists", refused=True), ALL],
    "another name": [
        Save(FIRST, TRIPS),
        Save(LATER, {**TRIPS, "hoodie.table.name": "rides"}, refused=True),
        Save(LATER, {**TRIPS, W + "recordkey.field": "ts"}, refused=True),
        ALL,
    ],
    "buckets": [Save(FIRST, {**TRIPS, **BUCKET}), Save(LATER, {**TRIPS, **BUCKET}), ALL],
    "buckets of a merge-on-read table": [
        Save(FIRST, {**MOR, **BUCKET}),
        Save(LATER, {**MOR, **BUCKET}),
        Save(rows([0, 1], 5), {**MOR, **BUCKET, **op("delete")}),
        ALL,
    ],
    "merge-on-read": [
        Save(FIRST, {**MOR, **TUNED}),
        Save(LATER, {**MOR, **TUNED, "hoodie.compact.inline": "false"}),
        ALL,
        Query({"hoodie.datasource.query.type": "snapshot"}),
    ],
    "time travel": [
        Save(FIRST, TRIPS),
        Save(LATER, TRIPS),
        Save(rows([0], 9), {**TRIPS, **op("delete")}),
        Query(at={"as.of.instant": 0}),
        Query(at={"as.of.instant": 1}),
        ALL,
    ],
    "incremental": [
        Save(FIRST, TRIPS),
        Save(LATER, TRIPS),
        Save(rows([0, 7], 5), TRIPS),
        Query({"hoodie.datasource.query.type": "incremental"}, {R + "begin.instanttime": 0}),
        Query({"hoodie.datasource.query.type": "incremental"}, {R + "begin.instanttime": 0, R + "end.instanttime": 1}),
        Query({"hoodie.datasource.query.type": "incremental", R + "begin.instanttime": "000"}),
    ],
    "a key of two columns, Hive-style folders": [
        Save(
            part,
            {
                **TRIPS,
                W + "recordkey.field": "id,epoch",
                W + "partitionpath.field": "city,ts",
                W + "keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
                W + "hive_style_partitioning": "true",
            },
        )
        for part in (FIRST, LATER)
    ]
    + [ALL],
    "no partitions": [
        Save(
            part,
            {**TRIPS, W + "partitionpath.field": "", W + "keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator"},
        )
        for part in (FIRST, LATER)
    ]
    + [ALL],
    "folders by day": [
        Save(
            part,
            {
                **TRIPS,
                W + "partitionpath.field": "epoch",
                W + "keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
                "hoodie.keygen.timebased.timestamp.type": "UNIX_TIMESTAMP",
                "hoodie.keygen.timebased.output.dateformat": "yyyy-MM-dd",
            },
        )
        for part in (FIRST, LATER)
    ]
    + [Query(as_text=("epoch",))],
    "the later write wins without a precombine column": [Save(LATER, UNORDERED), Save(FIRST, UNORDERED), ALL],
    "a payload that keeps the last": [
        Save(part, {**UNORDERED, W + "payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"})
        for part in (LATER, FIRST)
    ]
    + [ALL],
    "rows that say they are deleted": [
        Save(flagged(FIRST, ()), TRIPS),
        Save(flagged(LATER, ("k007", "k008", "k013")), TRIPS),
        ALL,
    ],
    "rows that move to another partition": [
        Save(FIRST, {**TRIPS, **GLOBAL, "hoodie.bloom.index.update.partition.path": "true"}),
        Save(moved(LATER), {**TRIPS, **GLOBAL, "hoodie.bloom.index.update.partition.path": "true"}),
        ALL,
    ],
    "rows that stay in their partition": [
        Save(FIRST, {**TRIPS, **GLOBAL, "hoodie.bloom.index.update.partition.path": "false"}),
        Save(moved(LATER), {**TRIPS, **GLOBAL, "hoodie.bloom.index.update.partition.path": "false"}),
        Query(without=("city",)),
    ],
    "duplicates in one insert": [
        Save(
            pa.concat_tables([FIRST, rows(range(3), 8), rows(range(3), 4)]),
            {**TRIPS, **op("insert"), "hoodie.combine.before.insert": "true"},
        ),
        ALL,
    ],
    "special characters in folders": [
        Save(moved(part, "são/paulo 50%"), {**TRIPS, W + "hive_style_partitioning": "true", W + "partitionpath.urlencode": "true"})
        for part in (FIRST, LATER)
    ]
    + [ALL],
    "queries of a merge-on-read table": [
        Save(FIRST, {**MOR, **op("bulk_insert")}),
        Save(rows(range(3), 2), MOR),
        Save(rows(range(6), 3), MOR),
        Query({"hoodie.datasource.query.type": "read_optimized"}),
        Query({"hoodie.datasource.query.type": "incremental"}, {R + "begin.instanttime": 1}),
        Query(at={"as.of.instant": 1}),
        ALL,
    ],
    "partition operations of a merge-on-read table": [
        Save(FIRST, MOR),
        Save(LATER, MOR),
        Save(rows([0, 21], 3), {**MOR, **op("insert_overwrite")}),
        Save(FIRST, {**MOR, **op("delete_partition"), W + "partitions.to.delete": "rome"}),
        ALL,
    ],
    "another type": [Save(FIRST, TRIPS), Save(LATER, MOR, refused=True)],
    "hash rings": [
        Save(FIRST, {**MOR, **BUCKET, "hoodie.index.bucket.engine": "CONSISTENT_HASHING"}),
        Save(LATER, {**MOR, **BUCKET, "hoodie.index.bucket.engine": "CONSISTENT_HASHING"}),
        ALL,
    ],
    "version 9": [
        Save(FIRST, {**TRIPS, **V9}),
        Save(LATER, {**TRIPS, **V9}),
        Save(rows([1], 3), {**TRIPS, **V9, **op("delete")}),
        Query(at={"as.of.instant": 1}),
        Query({"hoodie.datasource.query.type": "incremental", R + "begin.instanttime": "000"}),
        ALL,
    ],
    "merge-on-read of version 9": [
        Save(FIRST, {**MOR, **V9}),
        Save(LATER, {**MOR, **V9}),
        Save(rows([0, 21], 3), {**MOR, **V9, **op("insert_overwrite")}),
        ALL,
    ],
    "no record key": [
        Save(FIRST, KEYLESS),
        Save(LATER, KEYLESS),
        Save(LATER, {**KEYLESS, **op("insert")}),
        Query(without=KEYS[:1]),
        Query({"hoodie.datasource.query.type": "incremental"}, {R + "begin.instanttime": 0}, without=KEYS[:1]),
        Save(rows([0, 21], 3), {**KEYLESS, **op("insert_overwrite")}),
        Query(without=KEYS[:1]),
    ],
    "a column more": [Save(FIRST, TRIPS), Save(rows(range(6, 12), 2, WIDER), TRIPS), ALL],
}


@dataclass(frozen=True)
class There:
    """The job as it is written, by Apache Hudi."""

    peer: ApacheHudi
    base: Path

    def save(self, step: Save) -> str:
        """Return why the step was refused, empty if it was not."""
        try:
            self.peer.write(self.base, step.rows, step.options, step.mode)
        except PeerFailed as error:
            return str(error)
        return ""

    def instants(self) -> list[str]:
        actions = {action.value for action in WRITE_ACTIONS}
        return [found.instant for found in self.peer.timeline(self.base) if found.state == "COMPLETED" and found.action in actions]

    def query(self, options: Mapping[str, str]) -> pa.Table:
        kind: Any = options.get("hoodie.datasource.query.type", "snapshot")
        return self.peer.read(self.base, kind, options=options)


@dataclass(frozen=True)
class Here:
    """The same job with the format's name changed."""

    spark: SparkSession
    base: Path

    def save(self, step: Save) -> str:
        """Return why the step was refused, empty if it was not."""
        df = self.spark.createDataFrame(step.rows)
        try:
            df.write.format(NAME).options(**step.options).mode(step.mode).save(str(self.base))
        except TidelineError as error:
            return str(error)
        return ""

    def instants(self) -> list[str]:
        return sorted(str(write.instant) for write in Table.open(str(self.base)).state.completed_writes())

    def query(self, options: Mapping[str, str]) -> pa.Table:
        return self.spark.read.format(NAME).options(**options).load(str(self.base)).toArrow()


def content(found: pa.Table, query: Query) -> list[dict[str, Any]]:
    found = found.drop_columns(list(query.without))
    for name in query.as_text:
        found = found.set_column(found.column_names.index(name), name, found.column(name).cast(pa.string()))
    columns = [
        *(name for name in KEYS if name not in query.without),
        *(name for name in sorted(found.column_names) if not name.startswith("_hoodie_")),
    ]
    return sorted(found.select(columns).to_pylist(), key=str)


@pytest.mark.every_fourth
@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_hudi_gives_the_same_rows_here(apache_hudi: ApacheHudi, spark: SparkSession, workdir: Path, name: str) -> None:
    register(spark)
    here, there = Here(spark, workdir / "here"), There(apache_hudi, workdir / "there")
    for number, step in enumerate(JOBS[name]):
        if isinstance(step, Save):
            told = (there.save(step), here.save(step))
            assert [bool(text) for text in told] == [step.refused or step.refused_there, step.refused], f"step {number}: {told}"
            continue
        results = []
        for side in (there, here):
            instants = side.instants() if step.at else []
            at = {option: instants[write] for option, write in step.at.items()}
            results.append(content(side.query({**step.options, **at}), step))
        assert results[1] == results[0], f"step {number}"
        assert results[0], f"step {number}"
