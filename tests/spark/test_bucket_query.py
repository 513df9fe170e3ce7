"""Joins, aggregations and samples by buckets: no Exchange in the plan, and the rows of Spark's own shuffled queries."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tideline_locks import open_hudi_lock
from tideline_spark.bucket_query import BucketScan, bucket_aggregate, bucket_join, sample_buckets
from tideline_spark.read import read
from tideline_table.action import resize_buckets, write_rows
from tideline_table.errors import InvalidOption, SchemaMismatch, UnsupportedTable
from tideline_table.table import BucketIndex, HudiLockKind, Sharing, Table, TableRequest, TableType, create_table, share_table
from tideline_table.writer import Operation

VISITS = pa.schema(
    [
        *(("user", pa.string()), ("page", pa.string()), ("day", pa.string()), ("ts", pa.int64()), ("team", pa.int32())),
        *(
            ("fare", pa.float64()),
            ("tip", pa.decimal128(9, 2)),
            ("seen", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
        ),
    ]
)
USERS = pa.schema([("user", pa.string()), ("land", pa.string()), ("at", pa.int64()), ("team", pa.int64()), ("name", pa.string())])
KINDS = ["inner", "left", "right", "full", "semi", "anti"]
NAN = float("nan")


def visits(chance: random.Random, number: int, ts: int) -> pa.Table:
    """Rows with users that repeat, and nulls in all columns but the key."""
    rows = []
    for _ in range(number):
        fare = chance.choice([None, NAN, -0.0, 0.0, 1.5, -2.25, chance.random()])
        rows.append(
            {
                "user": f"u{chance.randrange(60)}",
                "page": chance.choice(["/", "a,b", "http://x:1/", "p"]) + str(chance.randrange(4)),
                "day": chance.choice(["d1", "d2", "d3"]),
                "ts": ts,
                "team": chance.choice([None, 1, 2]),
                "fare": fare,
                "tip": chance.choice([None, "1.25", "-7.50", "9999999.99"]),
                "seen": chance.choice([None, 1_700_000_000_000_000 + chance.randrange(10**9)]),
                "tags": chance.choice([None, [], ["x"], ["y", None]]),
            }
        )
    found = pa.Table.from_pylist(
        [{k: v for k, v in row.items() if k != "tip"} for row in rows], pa.schema([s for s in VISITS if s.name != "tip"])
    )
    tips = pa.array([row["tip"] for row in rows], pa.string()).cast(pa.decimal128(9, 2))
    return found.add_column(VISITS.get_field_index("tip"), VISITS.field("tip"), tips)


def users(chance: random.Random, first: int, last: int, at: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"user": f"u{n}", "land": f"l{n % 2}", "at": at, "team": chance.choice([None, 1, 2, 2**40]), "name": f"name {n} {at}"}
            for n in range(first, last)
        ],
        USERS,
    )


def made(path: Path, schema: pa.Schema, key: tuple[str, ...], partition: tuple[str, ...], ordering: str, **more: Any) -> Table:
    create_table(str(path), TableRequest("t", schema, key, partition, ordering, **more))
    return Table.open(str(path), options={"tideline.insert.to.log": True, "hoodie.parquet.small.file.limit": 0})


CASES = [(TableType.COW, 4, 4), (TableType.MOR, 8, 4), (TableType.MOR, 6, 4)]


def filled(folder: Path, kind: TableType, left_number: int, right_number: int) -> tuple[Table, Table]:
    """Tables with updates and deletions, in several partitions; keys of both, of one of them, and in several partitions.

    With six buckets, these have several file groups.
    """
    chance, several = random.Random(left_number), left_number == 6
    left = made(
        folder / "visits",
        VISITS,
        ("user", "page"),
        ("day",),
        "ts",
        type=kind,
        index=BucketIndex(left_number, ("user",), several_file_groups=several),
    )
    right = made(
        folder / "users", USERS, ("user",), ("land",), "at", type=kind, index=BucketIndex(right_number, several_file_groups=several)
    )
    for ts in (1, 2):
        write_rows(left, visits(chance, 150, ts), Operation.UPSERT)
        write_rows(right, users(chance, 20 * ts, 20 * ts + 50, ts), Operation.UPSERT)
    write_rows(left, visits(chance, 30, 3), Operation.DELETE)
    write_rows(right, users(chance, 30, 34, 3), Operation.DELETE)
    assert any(s.log_files for s in left.slices()) == (kind is TableType.MOR)
    for table in (left, right):
        groups = Counter((s.group.partition_path, s.group.file_id[:8]) for s in table.slices())
        assert (max(groups.values()) > 1) == several
    return left, right


@pytest.fixture(scope="module", params=CASES, ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, Table]:
    """Tables that no test changes."""
    return filled(tmp_path_factory.mktemp("pair"), *request.param)


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan())


def check_plan(frame: DataFrame) -> None:
    """The physical plan moves no row between tasks."""
    assert "Exchange" not in plan_of(frame)
    assert "MapInArrow" in plan_of(frame)


def content(frame: DataFrame) -> list[str]:
    """All rows, in a fixed order; NaN and the signs of zeros are shown."""
    return sorted(str([(name, value) for name, value in row.items()]) for row in frame.toArrow().to_pylist())


@pytest.mark.parametrize("kind", KINDS)
def test_joins_have_the_rows_of_a_shuffled_join(spark: SparkSession, pair: tuple[Table, Table], kind: str) -> None:
    left, right = pair
    own = [name for name in VISITS.names if name != "team"]
    found = bucket_join(spark, BucketScan(left, columns=own), BucketScan(right, columns=["at", "name"]), on="user", how=kind)
    check_plan(found)
    shuffled = read(spark, left, columns=own).join(read(spark, right, columns=["user", "at", "name"]), ["user"], kind)
    assert "Exchange" in plan_of(shuffled)
    assert found.columns == shuffled.columns
    assert [field.dataType for field in found.schema] == [field.dataType for field in shuffled.schema]
    assert content(found) == content(shuffled)
    assert content(shuffled)


@pytest.mark.parametrize("kind", KINDS)
def test_nulls_in_further_join_columns_match_nothing(spark: SparkSession, pair: tuple[Table, Table], kind: str) -> None:
    """With filters, other names, whole numbers of two widths, and the tables in the other order."""
    right, left = pair
    found = bucket_join(
        spark,
        BucketScan(left, columns={"name": "shown", "at": "ts"}, where="at > 1 or land = 'l0'"),
        BucketScan(right, columns=["page", "fare"], where=pc.field("page") != "p0"),
        on=["team", "user"],
        how=kind,
    )
    check_plan(found)
    sides = (
        read(spark, left, where="at > 1 or land = 'l0'").selectExpr("team", "user", "name as shown", "at as ts"),
        read(spark, right, where="page != 'p0'").selectExpr("cast(team as bigint) as team", "user", "page", "fare"),
    )
    shuffled = sides[0].join(sides[1], ["team", "user"], kind)
    assert found.columns == shuffled.columns
    assert content(found) == content(shuffled)
    assert content(shuffled)


def test_groups_are_those_of_a_shuffled_aggregation(spark: SparkSession, pair: tuple[Table, Table]) -> None:
    table = pair[0]
    texts = {
        "rows": "count(*)",
        "again": "count(*)",
        "fares": "count(fare)",
        "total": "sum(team)",
        "mean": "avg(team)",
        "tips": "sum(tip)",
        "low": "min(fare)",
        "high": "max(fare)",
        "first": "min(seen)",
        "last": "max(seen)",
        "page_": "max(page)",
        "tip_": "min(tip)",
        "sum_ts": "SUM( `ts` )",
        "mean_fare": "avg(fare)",
    }
    for by in (["user"], ["day", "user"], ["user", "page"], ["user", "seen", "tip"]):
        found = bucket_aggregate(spark, BucketScan(table, where="page != 'p0'"), by, texts)
        check_plan(found)
        rows = read(spark, table, where="page != 'p0'").groupBy(*by)
        shuffled = rows.agg(*(f.expr(text).alias(name) for name, text in texts.items()))
        assert "Exchange" in plan_of(shuffled)
        assert [(s.name, s.dataType) for s in found.schema] == [(s.name, s.dataType) for s in shuffled.schema]
        # Minimum and maximum of -0.0 and 0.0 are either of them.
        same = {name: f.round(f.col(name) + 0.0, 9) for name in ("low", "high", "mean_fare")}
        assert content(found.withColumns(same)) == content(shuffled.withColumns(same))


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_time_travel_and_resized_tables(spark: SparkSession, case: tuple[TableType, int, int], tmp_path: Path) -> None:
    left, right = filled(tmp_path, *case)
    before = write_rows(left, visits(random.Random(8), 20, 8), Operation.UPSERT).instant
    number = left.definition.buckets.number  # type: ignore[union-attr]
    resize_buckets(left, 2 * number)
    write_rows(left, visits(random.Random(9), 60, 9), Operation.UPSERT)
    for as_of in ("", before):
        columns = ["page", "fare"]
        found = bucket_join(spark, BucketScan(left, columns=columns, as_of=as_of), BucketScan(right, columns=["name"]), on=["user"])
        shuffled = read(spark, left, columns=["user", *columns], as_of=as_of).join(
            read(spark, right, columns=["user", "name"]), ["user"]
        )
        assert content(found) == content(shuffled)
        groups = bucket_aggregate(spark, BucketScan(left, as_of=as_of), "user", {"n": "count(*)"})
        assert content(groups) == content(read(spark, left, as_of=as_of).groupBy("user").agg(f.count("*").alias("n")))


def test_samples_are_whole_buckets_and_fit_together(spark: SparkSession, pair: tuple[Table, Table]) -> None:
    right = pair[1]
    whole = [read(spark, table, columns=["user"]).toArrow()["user"].to_pylist() for table in pair]
    seen: list[list[str]] = [[], []]
    for bucket in (0, 1):
        samples = [sample_buckets(spark, t, bucket, out_of=2, columns=["user"]).toArrow()["user"].to_pylist() for t in pair]
        assert all(0 < len(sample) < len(rows) for sample, rows in zip(samples, whole, strict=True))
        assert not (set(samples[0]) | set(samples[1])) & (set(seen[0]) | set(seen[1])), "a key is in one sample of both tables"
        seen = [[*old, *new] for old, new in zip(seen, samples, strict=True)]
    assert [sorted(rows) for rows in seen] == [sorted(rows) for rows in whole]
    one = sample_buckets(spark, right, [0, 3], where="at = 2")
    assert {name[:8] for name in one.toArrow()["_hoodie_file_name"].to_pylist()} <= {"00000000", "00000003"}
    for buckets, out_of in ((4, None), (0, 3), ([], None), (-1, 2), (0, 0)):
        with pytest.raises(InvalidOption):
            sample_buckets(spark, right, buckets, out_of)


def test_what_is_not_in_equal_buckets_is_refused(spark: SparkSession, pair: tuple[Table, Table], tmp_path: Path) -> None:
    left, right = pair
    numbered = made(
        tmp_path / "n", pa.schema([("user", pa.int64()), ("ts", pa.int64())]), ("user",), (), "ts", index=BucketIndex(4)
    )
    odd = made(tmp_path / "odd", USERS, ("user",), (), "at", index=BucketIndex(3 if left.definition.buckets.number == 4 else 5))  # type: ignore[union-attr]
    plain = made(tmp_path / "plain", USERS, ("user",), (), "at")
    few = BucketScan(left, columns=["page"])
    for other, on, error, says in (
        (right, ["team"], InvalidOption, "hash"),
        (numbered, ["user"], SchemaMismatch, "is int64"),
        (odd, ["user"], InvalidOption, "common divisor"),
        (plain, ["user"], UnsupportedTable, "no bucket index"),
        (right, [("page", "user")], InvalidOption, "hash fields"),
        (right, ["user", ("user", "team")], InvalidOption, "twice"),
        (right, ["nowhere"], SchemaMismatch, "nowhere"),
        (right, [], InvalidOption, "without join columns"),
        (right, [("user", "user", "user")], InvalidOption, "a pair of names"),
    ):
        with pytest.raises(error, match=says):
            bucket_join(spark, few, BucketScan(other, columns=[]), on)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="cross"):
        bucket_join(spark, few, right, "user", "cross")
    with pytest.raises(SchemaMismatch, match="'team' in the result"):
        bucket_join(spark, left, right, "user")
    with pytest.raises(InvalidOption, match="without hash field"):
        bucket_aggregate(spark, left, ["page"], {"n": "count(*)"})
    for text, kind in (
        ("median(fare)", InvalidOption),
        ("sum(*)", InvalidOption),
        ("sum(page)", SchemaMismatch),
        ("max(no)", SchemaMismatch),
    ):
        with pytest.raises(kind):
            bucket_aggregate(spark, left, ["user"], {"n": text})
    with pytest.raises(SchemaMismatch, match="groups by column 'fare'"):
        bucket_aggregate(spark, left, ["user", "fare"], {"n": "count(*)"})


def test_keys_with_separators_are_refused_where_their_buckets_are_uncertain(spark: SparkSession, tmp_path: Path) -> None:
    """`a:1,b:2` as the only column of a key is cut like a composite key, and `a` as a part of one is its text up to the comma."""
    schema = pa.schema([("user", pa.string()), ("page", pa.string()), ("ts", pa.int64())])
    left = made(tmp_path / "l", schema, ("user", "page"), (), "ts", index=BucketIndex(4, ("user",)))
    right = made(tmp_path / "r", schema, ("user",), (), "ts", index=BucketIndex(4))
    third = made(tmp_path / "x", schema, ("user",), (), "ts", index=BucketIndex(8))
    for table in (left, right, third):
        names = ["u", "x:y", "a,b", "12:30:00"]
        write_rows(table, pa.table({"user": names, "page": names, "ts": [1] * 4}, schema=schema), Operation.UPSERT)

    def joined(first: Table, second: Table) -> list[Any]:
        frame = bucket_join(spark, BucketScan(first, columns=["ts"]), BucketScan(second, columns=["page"]), "user")
        return sorted(frame.toArrow()["user"].to_pylist())

    assert joined(left, right) == sorted(["u", "x:y", "a,b", "12:30:00"])
    trap = pa.table({"user": ["a:1,b:2"], "page": ["p"], "ts": [1]}, schema=schema)
    for table in (left, right, third):
        write_rows(table, trap, Operation.UPSERT)
    assert "a:1,b:2" in joined(right, third), "the keys of both have one text"
    with pytest.raises(PythonException, match=r"InvalidRecord.*'a:1,b:2'"):
        joined(left, right)
    groups = bucket_aggregate(spark, left, "user", {"n": "count(*)"}).toArrow()
    assert sorted(groups["user"].to_pylist()) == sorted(["u", "x:y", "a,b", "12:30:00", "a:1,b:2"])


def test_a_bucket_beyond_the_memory_fails_the_query_by_name(spark: SparkSession, pair: tuple[Table, Table]) -> None:
    small = Table.open(pair[0].base_path, options={"tideline.spark.bucket.memory.bytes": 1024})
    columns = [name for name in VISITS.names if name != "team"]
    with pytest.raises(PythonException, match=r"BucketTooLarge.*tideline\.spark\.bucket\.memory\.bytes"):
        bucket_join(spark, BucketScan(small, columns=[]), BucketScan(pair[0], columns=columns), "user").toArrow()
    with pytest.raises(PythonException, match="BucketTooLarge"):
        bucket_aggregate(spark, small, ["user", "page"], {"n": "count(*)", "last": "max(tip)"}).toArrow()
    # Groups that fit are merged from many portions.
    bounded = Table.open(pair[0].base_path, options={"tideline.spark.bucket.memory.bytes": 4096})
    found = bucket_aggregate(spark, bounded, "user", {"n": "count(*)", "last": "max(tip)", "total": "sum(ts)"})
    rows = read(spark, pair[0]).groupBy("user").agg(f.count("*").alias("n"), f.max("tip").alias("last"), f.sum("ts").alias("total"))
    assert content(found) == content(rows)


def test_tables_shared_with_apache_hudi_are_joined_by_plain_keys_only(spark: SparkSession, tmp_path: Path) -> None:
    """Releases of Apache Hudi put keys with `:` or `,` into different buckets."""
    opened = []
    for name, number in (("l", 4), ("r", 8)):
        table = made(tmp_path / name, USERS, ("user",), ("land",), "at", index=BucketIndex(number))
        write_rows(table, users(random.Random(number), 0, 40, 1), Operation.UPSERT)
        opened.append(share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock))
    columns = BucketScan(opened[0], columns=["name"]), BucketScan(opened[1], columns=["land"])
    found = bucket_join(spark, *columns, "user")
    check_plan(found)
    assert found.count() == 40
    assert bucket_aggregate(spark, opened[0], "user", {"n": "count(*)"}).count() == 40
    trap = pa.Table.from_pylist([{"user": "a:b", "land": "l0", "at": 1, "team": None, "name": "n"}], USERS)
    write_rows(opened[0], trap, Operation.UPSERT)
    with pytest.raises(PythonException, match=r"InvalidRecord.*'a:b'"):
        bucket_join(spark, *columns, "user").toArrow()
    with pytest.raises(PythonException, match=r"InvalidRecord.*'a:b'"):
        bucket_aggregate(spark, opened[0], "user", {"n": "count(*)"}).toArrow()
