"""Keys, partition and ordering columns inside of structs: Apache Hudi and Tideline write one table in turn, and hudi-rs reads
it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import NAME, Turns
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.plans import schedule_clustering, schedule_compaction

from tideline_table.action import run_clustering, run_compaction
from tideline_table.errors import InvalidRecord
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

DEEP = pa.struct([("id", pa.string()), ("n", pa.int32())])
PLACE = pa.struct([("part", pa.string()), ("ts", pa.int64()), ("deep", DEEP)])
SCHEMA = pa.schema([("a", PLACE), ("price", pa.float64()), ("part", pa.string()), ("ts", pa.int64())])
WHOLE = {"hoodie.clustering.plan.strategy.small.file.limit": 10**9, "hoodie.clustering.plan.strategy.target.file.max.bytes": 10**9}


def rows(numbers: Iterable[int], ts: int) -> pa.Table:
    chosen = list(numbers)
    places = [{"part": f"p{n % 2}", "ts": ts, "deep": {"id": f"k{n:04}", "n": n}} for n in chosen]
    columns = {"a": places, "price": [n + ts / 4 for n in chosen], "part": ["q"] * len(chosen), "ts": [0] * len(chosen)}
    return pa.table(columns, schema=SCHEMA)


@dataclass(frozen=True)
class Case:
    name: str
    key: str = "a.deep.id"
    partition: str = "a.part"
    ordering: str = "a.ts"
    request: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3", "hoodie.bucket.index.hash.field": "a.deep.id"}
CASES = [
    Case("one key field"),
    Case("two key fields in Hive style", "a.deep.id,a.deep.n", request={"hive_style": True}),
    Case(
        "buckets by one of two key fields",
        "a.deep.id,a.deep.n",
        "part",
        "ts",
        {"index": BucketIndex(3, ("a.deep.id",))},
        BUCKETS,
    ),
    Case("no partitions", partition=""),
]
HIVE = {"hoodie.datasource.write.hive_style_partitioning": "true"}


def turns_of(case: Case, kind: Kind, peer: ApacheHudi, path: Path) -> Turns:
    options = {
        "hoodie.datasource.write.recordkey.field": case.key,
        "hoodie.datasource.write.partitionpath.field": case.partition,
        "hoodie.datasource.write.precombine.field": case.ordering,
        **(HIVE if case.request.get("hive_style") else {}),
        **case.options,
    }
    return Turns(peer, path, kind, options)


def create(case: Case, kind: Kind, path: Path) -> None:
    partition = tuple(filter(None, [case.partition]))
    create_table(
        str(path),
        TableRequest(NAME, SCHEMA, tuple(case.key.split(",")), partition, case.ordering, TableType(kind.value), **case.request),
    )


def agreed(turns: Turns, case: Case, what: str, expected: dict[int, float]) -> None:
    """Both read these prices by the number in the key, and hudi-rs if it can (docs/peer-differences.md, 27 and 28)."""
    compare = Comparison()
    found = turns.agree(compare, what, len(expected))
    if "." not in case.partition and (turns.kind is Kind.COW or "." not in case.ordering):
        compare.rows(found, read_hudi_rs(turns.path), what, "hudi-rs")
    assert {row["a"]["deep"]["n"]: row["price"] for row in found.select(["a", "price"]).to_pylist()} == expected, what


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("made_here", [True, False], ids=["made here", "made there"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_write_in_turn(apache_hudi: ApacheHudi, workdir: Path, case: Case, kind: Kind, made_here: bool) -> None:
    turns = turns_of(case, kind, apache_hudi, workdir / "table")
    if made_here:
        create(case, kind, turns.path)
        turns.share()
        expected = {}
    else:
        turns.theirs(rows(range(60), 1))  # enough to tell which columns an index hashes
        turns.share()
        expected = {n: n + 0.25 for n in range(60)}
    is_nested = case.ordering == "a.ts"
    turns.ours(rows(range(6), 4))
    turns.theirs(rows(range(4, 8), 5))
    turns.ours(rows([7, 8], 6))
    expected |= {n: n + (6 if n > 6 else 5 if n > 3 else 4) / 4 for n in range(9)}
    agreed(turns, case, "inserted and updated", expected)
    turns.theirs(rows([7], 2))
    turns.ours(rows([0], 2))
    if not is_nested:
        expected |= {7: 7.5, 0: 0.5}
    agreed(turns, case, "rows with smaller ordering values", expected)
    turns.theirs(rows([1], 9), "delete")
    turns.ours(rows([5], 9), Operation.DELETE)
    turns.ours(rows([6], 9).append_column("_hoodie_is_deleted", pa.array([True])))
    expected = {n: price for n, price in expected.items() if n not in (1, 5, 6)}
    agreed(turns, case, "deleted", expected)
    if kind is Kind.MOR:
        assert schedule_compaction(turns.open(), {"hoodie.compact.inline.max.delta.commits": 1}) is not None
        assert run_compaction(turns.open()) is not None
        turns.theirs(rows([2], 9))
        expected[2] = 2 + 9 / 4
        agreed(turns, case, "compacted", expected)
    if not case.options:
        turns.ours(rows([90], 9), Operation.BULK_INSERT)
        turns.ours(rows([91], 9), Operation.BULK_INSERT)
        expected |= {n: n + 9 / 4 for n in (90, 91)}
        assert schedule_clustering(turns.open(), WHOLE) is not None
        assert run_clustering(turns.open()) is not None
        turns.theirs(rows([3], 9))
        expected[3] = 3 + 9 / 4
        agreed(turns, case, "clustered", expected)


NULLS = pa.table({"a": [None], "price": [1.0], "part": ["q"], "ts": [0]}, schema=SCHEMA)
LEAVES = pa.table({"a": [{"part": None, "ts": 1, "deep": {"id": None, "n": 1}}], "price": [1.0], "part": ["q"], "ts": [0]}, SCHEMA)


@pytest.mark.parametrize(
    ("case", "given", "accepted"),
    [
        (Case("key", partition="part", ordering="ts"), NULLS, False),
        (Case("key", partition="part", ordering="ts"), LEAVES, False),
        (Case("keys", "ts,a.deep.id", "part", "ts"), NULLS, False),
        (Case("keys", "ts,a.deep.id", "part", "ts"), LEAVES, True),
        (Case("partition", "ts", "a.part", "ts"), NULLS, True),
        (Case("partition", "ts", "a.part", "ts"), LEAVES, True),
        (Case("ordering", "ts", "part", "a.ts"), NULLS, False),
    ],
)
def test_nulls_are_refused_where_apache_hudi_refuses_them(
    apache_hudi: ApacheHudi, workdir: Path, case: Case, given: pa.Table, accepted: bool
) -> None:
    theirs = turns_of(case, Kind.COW, apache_hudi, workdir / "theirs")
    create(case, Kind.COW, workdir / "ours")
    ours = Table.open(str(workdir / "ours"))
    if not accepted:
        with pytest.raises(PeerFailed):
            theirs.theirs(given)
        with pytest.raises(InvalidRecord):
            Turns.write(ours, given)
        return
    theirs.theirs(given)
    Turns.write(ours, given)
    columns = ["_hoodie_record_key", "_hoodie_partition_path", "price"]
    found = Table.open(str(workdir / "ours")).read(columns).to_pylist()
    assert found == Table.open(str(workdir / "theirs")).read(columns).to_pylist()
    assert found == apache_hudi.read(workdir / "ours").select(columns).to_pylist()
