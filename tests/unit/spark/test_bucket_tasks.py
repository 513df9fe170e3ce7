"""What a task of a query by buckets does, on real tables and without Spark: joins and groups against loops over rows, portions,
limits."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tideline_spark.bucket_groups import Aggregate, BucketGroups
from tideline_spark.bucket_matches import BucketJoin, JoinKind
from tideline_spark.bucket_rows import BucketRows
from tideline_spark.errors import BucketTooLarge
from tideline_table.action import write_rows
from tideline_table.errors import InvalidOption, InvalidRecord
from tideline_table.index.colocation import KeyCheck
from tideline_table.table import BucketIndex, Snapshot, Table, TableRequest, create_table
from tideline_table.writer import Operation

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("ts", pa.int64()), ("v", pa.list_(pa.int64())), ("n", pa.int64())])
JOINED = pa.schema(
    [("k", pa.string()), ("id", pa.int64()), ("v", pa.list_(pa.int64())), ("other", pa.int64()), ("w", pa.list_(pa.int64()))]
)
NUMBERS = [2**62, 2**62, -(2**62), 2**53 + 1, 0, -1, None]


def snapshot(path: Path, rows: list[dict[str, Any]]) -> Snapshot:
    create_table(str(path), TableRequest("t", SCHEMA, ("id",), (), "ts", index=BucketIndex(1)))
    table = Table.open(str(path))
    if rows:
        write_rows(table, pa.Table.from_pylist(rows, SCHEMA), Operation.UPSERT)
    return table.snapshot()


def random_rows(chance: random.Random, number: int, keys: int) -> list[dict[str, Any]]:
    return [
        {
            "id": at,
            "k": chance.choice([None, *(f"k{n}" for n in range(keys))]),
            "ts": 1,
            "v": chance.choice([None, [at]]),
            "n": chance.choice(NUMBERS),
        }
        for at in range(number)
    ]


def read(names: dict[str, str], memory_bytes: int = 2**20) -> BucketRows:
    return BucketRows("t", names, ("k",), KeyCheck(), memory_bytes)


def by_loops(kind: JoinKind, left: list[dict[str, Any]], right: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    matched: set[int] = set()
    for own in left:
        others = [at for at, other in enumerate(right) if own["k"] is not None and own["k"] == other["k"]]
        matched |= set(others)
        row = (own["k"], own["id"], own["v"])
        if kind.is_filter:
            if bool(others) == (kind is JoinKind.SEMI):
                yield row
            continue
        yield from ((*row, right[at]["id"], right[at]["v"]) for at in others)
        if not others and kind.keeps(left=True):
            yield (*row, None, None)
    if kind.keeps(left=False):
        yield from ((other["k"], None, None, other["id"], other["v"]) for at, other in enumerate(right) if at not in matched)


@pytest.mark.parametrize(("sizes", "keys"), [((90, 40), 12), ((40, 90), 12), ((30, 30), 2), ((20, 30), 90)])
def test_joins_are_those_of_loops_over_all_rows(tmp_path: Path, sizes: tuple[int, int], keys: int) -> None:
    """Either side is the one that is held; the other one comes in many portions; one of them may have no file."""
    chance = random.Random(keys)
    rows = [random_rows(chance, size, keys) for size in sizes]
    parts = [snapshot(tmp_path / str(at), own) for at, own in enumerate(rows)]
    none = [replace(part, slices=()) for part in parts]
    choices = [(0, 1, *rows), (2, 1, [], rows[1]), (0, 3, rows[0], []), (2, 3, [], [])]
    for kind in JoinKind:
        schema = pa.schema(list(JOINED)[:3]) if kind.is_filter else JOINED
        right = read({} if kind.is_filter else {"id": "other", "v": "w"})
        join = BucketJoin(kind, read({"id": "id", "v": "v"}, 10_000), replace(right, memory_bytes=10_000), schema)
        for own, other, left_rows, right_rows in choices:
            both = [*parts, *none]
            found = pa.Table.from_batches(join((both[own], both[other])), schema=schema).to_pylist()
            expected = sorted(by_loops(kind, left_rows, right_rows), key=str)
            assert sorted((tuple(row.values()) for row in found), key=str) == expected, kind


def test_groups_are_those_of_loops_over_all_rows(tmp_path: Path) -> None:
    rows = random_rows(random.Random(5), 300, 9)
    for row in rows:
        row["n"] = None if row["n"] is None else row["n"] // 8
    texts = {"rows": "count(*)", "some": "count(n)", "total": "sum(n)", "low": "min(n)", "mean": "avg(n)"}
    aggregates = tuple(Aggregate.parse(name, text, SCHEMA) for name, text in texts.items())
    schema = pa.schema([("k", pa.string()), *((a.name, a.type) for a in aggregates)])
    groups: dict[str | None, list[Any]] = defaultdict(list)
    for row in rows:
        groups[row["k"]].append(row["n"])
    part = snapshot(tmp_path / "t", rows)
    for memory_bytes in (1024, 2**20):
        work = BucketGroups(read({"n": "n"}, memory_bytes), aggregates, schema)
        found = {row.pop("k"): row for row in pa.Table.from_batches(work(part), schema=schema).to_pylist()}
        assert found.keys() == groups.keys()
        for key, numbers in groups.items():
            known = [number for number in numbers if number is not None]
            assert (found[key]["rows"], found[key]["some"]) == (len(numbers), len(known))
            assert (found[key]["total"], found[key]["low"]) == (sum(known), min(known))
            assert found[key]["mean"] == pytest.approx(sum(known) / len(known))
    assert list(work(replace(part, slices=()))) == []


def test_a_sum_that_its_type_does_not_hold_is_an_error(tmp_path: Path) -> None:
    """Arrow's own sum would wrap to a wrong number."""
    row = {"k": "a", "ts": 1, "v": None, "n": 2**62}
    part = snapshot(tmp_path / "t", [{**row, "id": 1}, {**row, "id": 2}])
    total = Aggregate.parse("total", "sum(n)", SCHEMA)
    with pytest.raises(InvalidRecord, match=r"sum\(n\) of a group exceeds int64"):
        list(BucketGroups(read({"n": "n"}), (total,), pa.schema([("k", pa.string()), ("total", pa.int64())]))(part))
    mean = Aggregate.parse("mean", "avg(n)", SCHEMA)
    (found,) = BucketGroups(read({"n": "n"}), (mean,), pa.schema([("k", pa.string()), ("mean", pa.float64())]))(part)
    assert found.to_pylist() == [{"k": "a", "mean": 2.0**62}]


def test_memory_is_limited_by_name(tmp_path: Path) -> None:
    part = snapshot(tmp_path / "t", [{"id": n, "k": f"key {n}", "ts": 1, "v": [n], "n": n} for n in range(200)])
    names = {"id": "id", "v": "v"}
    assert read(names, 100_000).whole(part).num_rows == 200
    with pytest.raises(BucketTooLarge, match=r"rows of bucket 00000000 of table 't'.*1,024 bytes"):
        read(names, 1024).whole(part)
    count = Aggregate.parse("n", "count(*)", SCHEMA)
    with pytest.raises(BucketTooLarge, match="groups of bucket 00000000"):
        list(BucketGroups(read({}, 1024), (count,), pa.schema([("k", pa.string()), ("n", pa.int64())]))(part))
    for text in ("", "sum", "sum(n", "stddev(n)", "count(distinct n)", "sum(n) + 1"):
        with pytest.raises(InvalidOption, match="the aggregate"):
            Aggregate.parse("n", text, SCHEMA)
