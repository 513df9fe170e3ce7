"""Apache Hudi and Tideline write partitions with numbers of buckets of their own in turn, whichever of them made the rules.

Apache Hudi keeps rules in memory by their text alone: each table here needs rules of its own (docs/peer-differences.md).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import SHARING, Turns, meet_rules, trips
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.conformance.test_bucket_index import Expected
from tests.plans import schedule_clustering, schedule_compaction

from tideline_locks import open_hudi_lock
from tideline_table.action import resize_buckets, run_clustering, run_compaction
from tideline_table.action.write import resize
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.hudi.properties import read_properties
from tideline_table.index import BucketIndex
from tideline_table.table import BucketIndex as AskedBuckets
from tideline_table.table import Table, share_table

pytestmark = pytest.mark.timeout(900)

NEW_TABLE = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
EXPRESSIONS = "hoodie.bucket.index.partition.expressions"


@dataclass
class Held(Expected):
    """The number of buckets of each partition, beside the rows."""

    numbers: dict[str, int]

    def check(self, what: str) -> None:
        """Both sides and hudi-rs read these rows, each key once, and each row in the one file group of its bucket of its
        partition."""
        compare = Comparison()
        found = self.turns.agree(compare, what)
        compare.rows(found, read_hudi_rs(self.turns.path), what, "hudi-rs")
        assert sorted(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True)) == sorted(
            (f"k{n:04}", ts) for n, ts in self.live.items()
        ), what
        names = ("part", "_hoodie_record_key", "_hoodie_file_name")
        for partition, key, name in zip(*(found[column].to_pylist() for column in names), strict=True):
            own = BucketIndex(self.numbers[partition], ("id",), ("id",))
            assert own.buckets(pa.array([key])).tolist() == [bucket_of_file_id(name.split("_")[0])], what
        table = Table.open(str(self.turns.path))
        groups = Counter((s.group.partition_path, bucket_of_file_id(s.group.file_id)) for s in table.slices())
        assert max(groups.values()) == 1, what

    def check_queries(self, numbers: range, what: str) -> None:
        """Queries that leave out buckets find the rows."""
        wanted = sorted(f"k{n:04}" for n in numbers if n in self.live)
        texts = ", ".join(f"'k{n:04}'" for n in numbers)
        assert sorted(self.turns.peer.read(self.turns.path, where=f"id in ({texts})")["id"].to_pylist()) == wanted, what
        assert sorted(Table.open(str(self.turns.path)).read(where=f"id in ({texts})")["id"].to_pylist()) == wanted, what


def write_in_turn(held: Held, steps: int = 9) -> None:
    kind = held.turns.kind
    for step in range(steps):
        here, ts = step % 2 == 0, step + 2
        if step in (4, 7):
            held.delete(range(step * 3, step * 3 + 8), ts, here=here)
        else:
            # New keys, keys of the last steps and keys of long ago, in groups of both sides.
            numbers, old = range(step * 6, step * 6 + 16), range(step % 7)
            if step == 6:
                held.upsert(numbers, ts, here=here, operation="insert")
                held.upsert(old, ts, here=here)
            else:
                held.upsert([*numbers, *old], ts, here=here)
        if step % 3 == 2 or step == steps - 1:
            held.check(f"{kind}, step {step} by {'Tideline' if here else 'Apache Hudi'}")
        if step == 5:
            table = held.turns.open()
            assert schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "price"}) is not None
            assert run_clustering(table) is not None
            held.check("our clustering")
        if kind is Kind.MOR and step == 6:
            table = held.turns.open()
            schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
            assert run_compaction(table) is not None
            held.check("our compaction")
        if kind is Kind.MOR and step == 8:
            held.turns.call(
                f"run_compaction(op => 'scheduleandexecute', path => '{held.turns.path}')",
                **{"hoodie.compact.inline.max.delta.commits": "1"},
            )
            held.check("their compaction")
    held.check_queries(range(3, 60, 5), f"{kind}, at the end")


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(Kind))
def test_both_write_partitions_by_the_rules_of_a_table_of_tideline(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    """Hudi's writers are not told of the rules: they take them from `hoodie.properties`."""
    rules = rf"^p[0]$,7;p\d$,{2 if kind is Kind.COW else 3}"
    turns = Turns(apache_hudi, workdir / "table", kind, request={"index": AskedBuckets(4, partition_buckets=rules)})
    meet_rules(apache_hudi, workdir / "met", f"{rules};.*,4", 4)
    turns.create_here()
    held = Held(turns, {}, {"p0": 7, "p1": 2 if kind is Kind.COW else 3})
    write_in_turn(held)
    with pytest.raises(PeerFailed, match=f"Config conflict[^$]*{EXPRESSIONS}"):
        turns.theirs(trips(range(9), 90), **{EXPRESSIONS: "p0,3"})
    held.upsert(range(80, 90), 91, here=True)
    held.check(f"{kind}, after the refusal")


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(Kind))
def test_both_write_partitions_by_rules_that_hudi_made(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    """Rules of the procedure are adopted from its folder; of rules that are options of Hudi's writers only the caller knows."""
    rules = f"^p0,{6 if kind is Kind.COW else 5}"
    own = {**NEW_TABLE, **BUCKETS}
    turns = Turns(apache_hudi, workdir / "table", kind, own)
    held = Held(turns, {}, {"p0": 6 if kind is Kind.COW else 5, "p1": 3})
    meet_rules(apache_hudi, workdir / "met", rules, 3)
    held.upsert(range(40), 0, here=False)
    name = f"ruled_{kind.name.lower()}"
    apache_hudi.sql(
        f"create table {name} using hudi options ('hoodie.index.type'='BUCKET','hoodie.bucket.index.num.buckets'='3') location "
        f"'{turns.path}'"
    )
    apache_hudi.sql(
        f"call partition_bucket_index_manager(table => '{name}', overwrite => '{rules}', rule => 'regex', bucket_number => 3, "
        "dry_run => false)",
        {**turns.hudi_options, "hoodie.metadata.enable": "false"},
    )
    shared = turns.share()
    assert shared.definition.index_text == f"3 bucket(s) by id, by partition {rules}"
    held.check(f"{kind}, shared")
    write_in_turn(held, 4)
    # Once hoodie.properties keep rules, Hudi's own procedure conflicts with them.
    with pytest.raises(PeerFailed, match=f"Config conflict[^$]*{EXPRESSIONS}"):
        apache_hudi.sql(
            f"call partition_bucket_index_manager(table => '{name}', overwrite => '^p0,2', rule => 'regex', bucket_number => 3, "
            "dry_run => false)",
            {**turns.hudi_options, "hoodie.metadata.enable": "false"},
        )
    held.upsert(range(30, 50), 99, here=True)
    held.check(f"{kind}, after a change of rules that failed")
    assert turns.open().sharing is not None


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(Kind))
def test_rules_that_are_options_of_hudis_writers_are_named_at_sharing(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    rules = f"^p0$,{6 if kind is Kind.COW else 5};p[1]+,2"
    turns = Turns(apache_hudi, workdir / "table", kind, {**NEW_TABLE, **BUCKETS, EXPRESSIONS: rules})
    held = Held(turns, {}, {"p0": 6 if kind is Kind.COW else 5, "p1": 2})
    meet_rules(apache_hudi, workdir / "met", rules, 3)
    held.upsert(range(40), 0, here=False)
    table = Table.open(str(turns.path))
    with pytest.raises(UnsupportedTable, match="rows are not where it puts them"):
        share_table(table, SHARING, open_hudi_lock, AskedBuckets(3))
    shared = share_table(table, SHARING, open_hudi_lock, AskedBuckets(3, (), rules))
    assert shared.definition.index_text == f"3 bucket(s) by id, by partition {rules}"
    write_in_turn(held, 4)


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(Kind))
def test_both_write_partitions_by_the_rules_of_a_resize(
    apache_hudi: ApacheHudi, workdir: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Hudi reads while the properties wait for the resize, and as of the time before it; both write by the new rules."""
    few, many = (2, 6) if kind is Kind.COW else (3, 9)
    rules = f"^p0$,{few};.*,4"
    turns = Turns(apache_hudi, workdir / "table", kind, request={"index": AskedBuckets(4, partition_buckets=f"^p0$,{few - 1}")})
    meet_rules(apache_hudi, workdir / "first", f"^p0$,{few - 1};.*,4", 4)
    meet_rules(apache_hudi, workdir / "met", f"^p0$,{many};p\\d$,8;.*,4", 4)
    table = turns.create_exclusive()
    turns.write(table, trips(range(40), 1))
    held = Held(turns, dict.fromkeys(range(40), 1), {"p0": few - 1, "p1": 4})
    held.check_queries(range(3, 60, 5), f"{kind}, before")
    first = table.state.last_instant
    assert resize_buckets(table, partition_buckets=rules, overwrite=True) is not None
    held.numbers = {"p0": few, "p1": 4}
    turns.write(table, trips(range(30, 50), 2))
    held.live.update(dict.fromkeys(range(30, 50), 2))
    monkeypatch.setattr(resize, "settle", lambda _: None)
    assert resize_buckets(table, partition_buckets=f"^p0$,{many};p\\d$,8") is not None
    monkeypatch.undo()
    held.numbers = {"p0": many, "p1": 8}
    held.check(f"{kind}, after a resize that died")
    held.check_queries(range(3, 60, 5), f"{kind}, after a resize that died")
    turns.write(table, trips(range(45, 55), 3))  # a writer completes it
    held.live.update(dict.fromkeys(range(45, 55), 3))
    assert read_properties(table.storage)[EXPRESSIONS] == f"^p0$,{many};p\\d$,8;.*,4"
    held.check(f"{kind}, after the next write")
    held.check_queries(range(3, 60, 5), f"{kind}, after the next write")
    texts = ", ".join(f"'k{n:04}'" for n in range(0, 60, 3))
    then = apache_hudi.read(turns.path, where=f"id in ({texts})", options={"as.of.instant": first})
    assert sorted(then["id"].to_pylist()) == [f"k{n:04}" for n in range(0, 40, 3)]
    turns.share()
    write_in_turn(held, 6)
    # Bulk inserts of Apache Hudi take the rules from the folder, and so does this operation.
    turns.theirs(trips(range(100, 160), 50), "insert_overwrite")
    held.live = dict.fromkeys(range(100, 160), 50)
    held.check(f"{kind}, overwrite by Apache Hudi")
    held.upsert(range(90, 120), 51, here=True)
    held.check(f"{kind}, at last")
