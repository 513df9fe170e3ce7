"""Spark and partitions with numbers of buckets of their own: expressions of Java, one exchange, joins and groups by the common
divisor."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.spark.tables import ROUTED, SCHEMA, content, rows

from tideline_spark.bucket_query import BucketScan, bucket_aggregate, bucket_join, sample_buckets
from tideline_spark.buckets import bucket_number
from tideline_spark.report import WriteReport
from tideline_spark.write import write_dataframe
from tideline_table.action import resize_buckets
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.committed import Committed
from tideline_table.errors import InvalidOption
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.index import PartitionRules
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.index.java_pattern import java_pattern
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

RULES = r"^region=r 0$,8;[1]$,2"
CHARACTERS = [
    "a",
    "b",
    "p",
    "0",
    "7",
    "-",
    "_",
    ".",
    "/",
    "=",
    " ",
    "&",
    "]",
    "\t",
    "\n",
    "\r",
    "\u0085",
    "\u2028",
    "é",
    "٣",
    "😀",
    "\u00a0",
    "\x1f",
]


def atom(chance: random.Random) -> str:
    literal = [c if c.isalnum() or c in " =/\n_é٣😀-&" else f"\\{c}" for c in "abp07-_./= é٣😀&]\n"]
    chosen = chance.choice
    kind = chance.randrange(5)
    if kind == 0:
        return chosen([".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"])
    if kind == 1:
        items = [
            chosen(
                [
                    "a-p",
                    "0-7",
                    "é-😀",
                    r"\d",
                    r"\W",
                    r"\s",
                    "a",
                    "/",
                    ".",
                    "$",
                    "|",
                    "(",
                    "*",
                    " ",
                    r"\]",
                    r"\-",
                    r"\^",
                    r"\&",
                    "😀",
                    "\n",
                ]
            )
            for _ in range(chance.randrange(1, 4))
        ]
        return f"[{chosen(['', '^'])}{''.join(items)}{chosen(['', '-'])}]"
    return chosen(literal)


def branch(chance: random.Random, depth: int) -> str:
    pieces = []
    for _ in range(chance.randrange(1, 4)):
        if depth and chance.random() < 0.3:
            body = branch(chance, 0) if chance.random() < 0.5 else expression(chance, depth - 1)
            pieces.append(f"({chance.choice(['', '?:'])}{body}){chance.choice(['', '?', '+', '{2}'])}")
        else:
            pieces.append(atom(chance) + chance.choice(["", "", "", "*", "+", "?", "{2}"]))
    return chance.choice(["", "", "^"]) + "".join(pieces) + chance.choice(["", "", "$"])


def expression(chance: random.Random, depth: int = 2) -> str:
    return "|".join(branch(chance, depth) for _ in range(chance.choice([1, 1, 2])))


def test_expressions_find_what_java_finds(spark: SparkSession) -> None:
    """Spark's `rlike` is `java.util.regex.Matcher.find`, as Apache Hudi calls it for a partition path."""
    chance = random.Random(89)
    paths = ["", *("".join(chance.choices(CHARACTERS, k=chance.randrange(1, 7))) for _ in range(80))]
    paths += ["a\r\n", "a\n", "\n\r", "\r\n", "a\n\n", "dt=2026-01-01/p7"]
    expressions, refused = [], 0
    while len(expressions) < 300:
        text = expression(chance)
        try:
            java_pattern(text)
            expressions.append(text)
        except InvalidOption:
            refused += 1
    assert refused < 600, "most generated expressions are in the subset"
    schema = "path string"
    # `collect` of a local relation: neither expressions nor paths are read as SQL.
    frame = spark.createDataFrame(pa.table({"path": paths}), schema)
    found = frame.select(*(f.col("path").rlike(text).alias(str(at)) for at, text in enumerate(expressions))).toArrow()
    for at, text in enumerate(expressions):
        ours = [java_pattern(text).search(path) is not None for path in paths]
        assert found[str(at)].to_pylist() == ours, (
            text,
            [p for p, a, b in zip(paths, found[str(at)].to_pylist(), ours, strict=True) if a != b],
        )
    answers = Counter(answer for at in range(len(expressions)) for answer in found[str(at)].to_pylist())
    assert min(answers[True], answers[False]) > len(paths) * len(expressions) / 10


def test_the_native_expression_counts_buckets_by_partition(spark: SparkSession) -> None:
    index = bucket_index(97, (), ("id",), rules=PartitionRules.parse("^a,8;b$,5;a,3"))
    keys, paths = [f"k{n}" for n in range(40)], ["a", "ab", "b", "ba", "c", ""]
    source = pa.table({"key": keys * len(paths), "path": [path for path in paths for _ in keys]})
    found = spark.createDataFrame(source).select(bucket_number(f.col("key"), index, f.col("path")).alias("bucket")).toArrow()
    expected = [b for path in paths for b in index.in_partition(path).buckets(pa.array(keys)).tolist()]
    assert found["bucket"].to_pylist() == expected


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return new_table(tmp_path / "buckets", request.param)


def new_table(path: Path, kind: TableType = TableType.COW, rules: str = RULES) -> Table:
    request = TableRequest(
        "t", SCHEMA, ("id",), ("region",), "ts", kind, hive_style=True, index=BucketIndex(4, partition_buckets=rules)
    )
    create_table(str(path), request)
    return Table.open(str(path), options=ROUTED)


def check_places(table: Table) -> None:
    table.refresh()
    index = table.definition.buckets
    assert index is not None
    found = table.read(["_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"])
    for path, key, name in zip(*(found.column(at).to_pylist() for at in (1, 0, 2)), strict=True):
        assert index.in_partition(path).buckets(pa.array([key])).tolist() == [bucket_of_file_id(name)]
    groups = [(s.group.partition_path, bucket_of_file_id(s.group.file_id)) for s in table.slices()]
    assert len(set(groups)) == len(groups)


def test_large_sources_are_exchanged_once_by_the_buckets_of_each_partition(spark: SparkSession, table: Table) -> None:
    def write(source: pa.Table, operation: Operation) -> WriteReport:
        reports: list[WriteReport] = []
        write_dataframe(table, spark.createDataFrame(source).repartition(3), operation, on_report=reports.append)
        check_places(table)
        return reports[0]

    report = write(rows(0, 300, 1), Operation.UPSERT)
    assert (report.exchanges, report.broadcasts, report.python_maps) == (1, 0, 1)
    assert Counter(s.group.partition_path for s in table.slices()) == {"region=r 0": 8, "region=r 1": 2, "region=r 2": 4}
    write(rows(200, 400, 3), Operation.UPSERT)
    write(rows(0, 20, 2), Operation.DELETE)
    write(pa.concat_tables([rows(390, 420, 5), rows(390, 420, 4)]), Operation.INSERT)
    expected = pa.concat_tables([rows(20, 200, 1), rows(200, 390, 3), rows(390, 420, 5)])
    assert content(table.read()) == content(expected)
    # What goes through the driver meets the same file groups.
    write_dataframe(Table.open(table.base_path), spark.createDataFrame(rows(20, 30, 6)), Operation.UPSERT)
    check_places(table)
    assert table.read().num_rows == 400


def test_large_sources_follow_the_rules_of_a_resize(spark: SparkSession, table: Table) -> None:
    """Also through a table that was opened before it, and with a resize between the plan of a write and its commit."""
    write_dataframe(table, spark.createDataFrame(rows(0, 200, 1)), Operation.UPSERT)
    other = Table.open(table.base_path)
    assert resize_buckets(other, partition_buckets="region=r 0$,16;[12]$,4") is not None
    reports: list[WriteReport] = []
    write_dataframe(table, spark.createDataFrame(rows(100, 400, 2)).repartition(3), Operation.UPSERT, on_report=reports.append)
    assert (reports[0].exchanges, reports[0].python_maps) == (1, 1)
    check_places(table)
    assert Counter(s.group.partition_path for s in table.slices()) == {"region=r 0": 16, "region=r 1": 4, "region=r 2": 4}
    resizes = iter([lambda: resize_buckets(other, partition_buckets="region=r 0$,5;[12]$,7", overwrite=True)])
    commit = WriteTransaction.commit

    def beside(*args: Any, **named: Any) -> Committed:
        for resize in resizes:
            assert resize() is not None
        return commit(*args, **named)

    with patch.object(WriteTransaction, "commit", beside):
        done = write_dataframe(table, spark.createDataFrame(rows(390, 500, 3)), Operation.UPSERT)
    assert done.attempts == 2
    check_places(table)
    assert Counter(s.group.partition_path for s in table.slices()) == {"region=r 0": 5, "region=r 1": 7, "region=r 2": 7}
    assert content(table.read()) == content(pa.concat_tables([rows(0, 100, 1), rows(100, 390, 2), rows(390, 500, 3)]))


def test_joins_groups_and_samples_count_off_by_the_common_divisor(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    other = new_table(tmp_path / "other", rules=r"0$,12;[12]$,6")
    write_dataframe(table, spark.createDataFrame(rows(0, 90, 1)), Operation.UPSERT)
    write_dataframe(other, spark.createDataFrame(rows(40, 130, 2, regions=2)), Operation.UPSERT)
    joined = bucket_join(spark, BucketScan(table, columns=["ts"]), BucketScan(other, columns=["amount"]), on="id")
    assert "Exchange" not in str(joined._jdf.queryExecution().executedPlan())
    assert sorted(row["id"] for row in joined.collect()) == [f"k{n:06d}" for n in range(40, 90)]
    assert joined.rdd.getNumPartitions() <= 2
    groups = bucket_aggregate(spark, table, "id", {"n": "count(*)"}).collect()
    assert sorted((row["id"], row["n"]) for row in groups) == [(f"k{n:06d}", 1) for n in range(90)]
    samples = [{row["id"] for row in sample_buckets(spark, source, 1, 2).collect()} for source in (table, other)]
    both = {f"k{n:06d}" for n in range(40, 90)}
    assert samples[0] & both == samples[1] & both
    assert 0 < len(samples[0]) < 90


def test_numbers_without_a_common_divisor_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    odd = new_table(tmp_path / "odd", rules="0$,3;1$,9")
    write_dataframe(odd, spark.createDataFrame(rows(0, 90, 1)), Operation.UPSERT)
    for query in (
        lambda: bucket_join(spark, odd, odd, on="id", how="semi"),
        lambda: bucket_aggregate(spark, odd, "id", {"n": "count(*)"}),
        lambda: sample_buckets(spark, odd, 0),
    ):
        with pytest.raises(InvalidOption, match="partitions with 3, 4, 9 buckets"):
            query()
