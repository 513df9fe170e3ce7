"""Apache Hudi and Tideline write into the buckets of one table in turn, whichever of them created it.

A shared table is no longer written once Hudi's writers begin to use an index that it does not keep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.conformance.both_in_turn import SCHEMA, Turns, meet_rules, steps_of, trips
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.table.tables import set_properties

from tideline_table.action import run_clustering, run_compaction, write_rows
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.hudi.properties import read_properties
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(900)

NEW_TABLE = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
BUCKETS = {
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "3",
    "hoodie.storage.layout.type": "BUCKET",
    "hoodie.storage.layout.partitioner.class": "org.apache.hudi.table.action.commit.SparkBucketIndexPartitioner",
}
PARTITION_RULES = "hoodie.bucket.index.partition.expressions"
BEATS: dict[str, object] = {"hoodie.client.heartbeat.interval_in_ms": 1000, "hoodie.client.heartbeat.tolerable.misses": 8}


def test_a_shared_table_that_gets_a_bucket_index_is_refused(apache_hudi: ApacheHudi, workdir: Path) -> None:
    turns = Turns(apache_hudi, workdir / "table", Kind.COW, {k: str(v) for k, v in BEATS.items()}, BEATS)
    turns.create_here()
    # Hudi itself fails where a file group has no bucket number, and writes where there are none. One random file id of forty begins
    # with eight digits, which Hudi takes for a number: of three file groups, at least one has none.
    for number in (1, 3, 5):
        turns.ours(trips([number], 1), Operation.INSERT)
    with pytest.raises(PeerFailed, match=r"bucket|NumberFormat"):
        turns.theirs(trips([1, 5], 2), **BUCKETS)
    # Its request is left, without its inflight file: we wait until its heartbeat has run out.
    turns.ours(trips([5], 2))
    turns.theirs(trips(range(0, 12, 2), 3), **BUCKETS)
    with pytest.raises(UnsupportedTable, match=r"bucket index \(file id 0000000"):
        turns.ours(trips([7], 4))
    assert sorted(pa.compute.unique(Table.open(str(turns.path)).read().column("part")).to_pylist()) == ["p0", "p1"]


@pytest.mark.pairs
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_a_shared_table_whose_partitions_get_other_numbers_of_buckets_is_refused(
    apache_hudi: ApacheHudi, workdir: Path, kind: Kind
) -> None:
    """Fewer buckets leave every file id in range, so only the folder of the rules shows them; a write here would double keys.

    Hudi itself refuses rules of writers and of its procedure, unless an earlier release shared the table.
    """
    turns = Turns(apache_hudi, workdir / "table", kind, request={"index": BucketIndex(4)})
    table = turns.create_here()
    turns.ours(trips(range(40), 1))
    for operation in ("upsert", "bulk_insert"):
        with pytest.raises(PeerFailed, match=f"Config conflict[^$]*{PARTITION_RULES}"):
            turns.theirs(trips(range(40), 2), operation, **{PARTITION_RULES: "p0,2"})
    turns.theirs(trips(range(40, 60), 2))
    turns.theirs(trips(range(60, 70), 2), "insert_overwrite")
    assert turns.agree(Comparison(), "with an empty text for rules", 10)["ts"].to_pylist() == [2] * 10
    turns.ours(trips(range(40), 1))
    properties = read_properties(table.storage)
    assert properties.pop(PARTITION_RULES) == ""
    set_properties(table.storage, properties)
    name = f"fewer_buckets_{kind.name.lower()}"
    meet_rules(apache_hudi, workdir / "met", f"p0,{2 if kind is Kind.COW else 1}", 4)
    apache_hudi.sql(f"create table {name} using hudi location '{turns.path}'")
    # Apache Hudi keeps rules in memory by their text: each table needs its own.
    apache_hudi.sql(
        f"call partition_bucket_index_manager(table => '{name}', overwrite => 'p0,{2 if kind is Kind.COW else 1}', rule => "
        "'regex', "
        "bucket_number => 4, dry_run => false)",
        {**turns.hudi_options, "hoodie.metadata.enable": "false"},
    )
    turns.theirs(trips(range(20), 2))
    with pytest.raises(UnsupportedTable, match="partition_bucket_index_meta"):
        turns.ours(trips(range(40), 3))
    keys = Table.open(str(turns.path)).read().column("_hoodie_record_key").to_pylist()
    assert len(keys) == len(set(keys)) == 50


VERSIONS = [(Kind.COW, 8), (Kind.MOR, 9), (Kind.MOR, 6), (Kind.COW, 6)]


@dataclass
class Expected:
    """The rows that a table has after each step: the newest `ts` of each number that was not deleted."""

    turns: Turns
    live: dict[int, int]

    def upsert(self, numbers: Iterable[int], ts: int, *, here: bool, operation: str = "upsert") -> None:
        rows = trips(numbers := sorted(set(numbers)), ts)
        if here:
            self.turns.ours(rows, Operation(operation))
        else:
            self.turns.theirs(rows, operation)
        self.live.update({n: max(ts, self.live.get(n, 0)) for n in numbers})

    def delete(self, numbers: range, ts: int, *, here: bool) -> None:
        self.upsert_nothing(trips(numbers, ts), here=here)
        for number in numbers:
            self.live.pop(number, None)

    def upsert_nothing(self, rows: pa.Table, *, here: bool) -> None:
        if here:
            self.turns.ours(rows, Operation.DELETE)
        else:
            self.turns.theirs(rows, "delete")

    def check(self, what: str) -> None:
        """Both sides read these rows, each key once, and each row in the one file group of its bucket."""
        compare = Comparison()
        found = self.turns.agree(compare, what)
        assert sorted(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True)) == sorted(
            (f"k{n:04}", ts) for n, ts in self.live.items()
        ), what
        self.check_places(Table.open(str(self.turns.path)), found, what)

    def check_places(self, table: Table, found: pa.Table, what: str) -> None:
        """Each row is in the file group of its bucket, and a bucket has one file group."""
        index = table.definition.buckets
        assert index is not None
        for row_bucket, name in zip(
            index.buckets(found["_hoodie_record_key"]), found["_hoodie_file_name"].to_pylist(), strict=True
        ):
            assert bucket_of_file_id(name.split("_")[0]) == row_bucket, what
        groups = [(s.group.partition_path, bucket_of_file_id(s.group.file_id)) for s in table.slices()]
        assert len(set(groups)) == len(groups), what


@pytest.mark.pairs
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("kind", "version"), VERSIONS)
def test_both_write_the_buckets_of_one_table_in_turn(apache_hudi: ApacheHudi, workdir: Path, kind: Kind, version: int) -> None:
    """Hudi's writers are not told of the index: they take it from `hoodie.properties`."""
    turns = Turns(apache_hudi, workdir / "table", kind, request={"index": BucketIndex(4)}, version=version)
    turns.create_here()
    write_in_turn(turns, Expected(turns, {}))


@pytest.mark.pairs
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("kind", "version"), [VERSIONS[1], VERSIONS[0], *VERSIONS[:1:-1]])
def test_both_write_the_buckets_of_a_table_that_hudi_created(
    apache_hudi: ApacheHudi, workdir: Path, kind: Kind, version: int
) -> None:
    """Number and hash fields are found in the rows; Hudi's writers go on with the options that they had."""
    options = {**NEW_TABLE, "hoodie.write.table.version": str(version), **BUCKETS}
    turns = Turns(apache_hudi, workdir / "table", kind, options, version=version)
    held = Expected(turns, {})
    held.upsert(range(40), 0, here=False)
    held.upsert(range(20, 30), 1, here=False)
    index = turns.share().definition.buckets
    assert index is not None
    assert index.text == "3 bucket(s) by id"
    held.check(f"{kind}, shared")
    write_in_turn(turns, held, 16)
    Comparison().rows(Table.open(str(turns.path)).read(), read_hudi_rs(turns.path), f"{kind}", "hudi-rs")
    one = Table.open(str(turns.path)).snapshot()
    # By columns, too, if the properties of the table say with which types it was created.
    named = one.only(pc.field("_hoodie_record_key") == "k0003").slices
    assert {bucket_of_file_id(s.group.file_id) for s in named} == set(index.buckets(pa.array(["k0003"])).tolist())
    assert one.read(where="id = 'k0003'").equals(one.read(where="_hoodie_record_key = 'k0003'"))


def write_in_turn(turns: Turns, held: Expected, number: int = 20) -> None:
    """Steps with updates, new keys, deletions, a clustering of ours, and compactions of both, of which the last follows the
    sixteenth step."""
    kind = turns.kind
    steps = steps_of(number)
    for step in steps:
        here, ts = step % 2 == 0, step + 2
        if step in (8, 13):
            held.delete(range(step, step + 6), ts, here=here)
        else:
            # New keys, keys of the last steps and keys of long ago, in groups of both sides.
            numbers, old = range(step * 5, step * 5 + 12), range(step % 7)
            if step == 4:
                held.upsert(numbers, ts, here=here, operation="insert")
                held.upsert(old, ts, here=here)
            else:
                held.upsert([*numbers, *old], ts, here=here)
        # What a step does wrong is still there some steps later, and a query of Apache Hudi takes half as long as a write.
        if step % 5 == 4 or step == steps[-1]:
            held.check(f"{kind}, step {step} by {'Tideline' if here else 'Apache Hudi'}")
        if step == 6:
            table = turns.open()
            assert schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "price"}) is not None
            assert run_clustering(table) is not None
            held.check("our clustering")
        if kind is Kind.MOR and step == 10:
            table = turns.open()
            schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
            assert run_compaction(table) is not None
            held.check("our compaction")
        if kind is Kind.MOR and step == 15:
            turns.call(
                f"run_compaction(op => 'scheduleandexecute', path => '{turns.path}')",
                **{"hoodie.compact.inline.max.delta.commits": "1"},
            )
            held.check("their compaction")


@pytest.mark.pairs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", list(Kind))
def test_both_write_the_buckets_of_composite_keys(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    composite = {
        "hoodie.datasource.write.recordkey.field": "id,part",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
    }
    request = {"key_fields": ("id", "part"), "index": BucketIndex(5, ("id",))}
    turns = Turns(apache_hudi, workdir / "table", kind, composite, {"tideline.insert.to.log": True}, request=request)
    turns.create_here()
    held = Expected(turns, {})
    for step in range(6):
        held.upsert(range(step * 4, step * 4 + 10), step + 1, here=step % 2 == 0)
        if kind is Kind.COW or step:
            held.check(f"{kind}, step {step}")


@pytest.mark.parametrize("kind", list(Kind))
def test_hudi_rs_reads_the_buckets(workdir: Path, kind: Kind) -> None:
    request = TableRequest("buckets", SCHEMA, ("id",), ("part",), "ts", TableType(kind.value), index=BucketIndex(4))
    create_table(str(workdir / "table"), request)
    table = Table.open(str(workdir / "table"))
    for first in range(0, 40, 10):
        write_rows(table, trips(range(first, first + 20), first + 1), Operation.UPSERT)
        Comparison().rows(table.read(), read_hudi_rs(workdir / "table"), f"{kind}, from {first}", "hudi-rs")


@pytest.mark.parametrize(
    "other", [{"hoodie.bucket.index.num.buckets": "3"}, {"hoodie.bucket.index.hash.field": "part"}, {"hoodie.index.type": "SIMPLE"}]
)
def test_a_hudi_writer_with_other_settings_is_refused(apache_hudi: ApacheHudi, workdir: Path, other: dict[str, str]) -> None:
    """By Apache Hudi itself, which compares its options with `hoodie.properties`."""
    turns = Turns(apache_hudi, workdir / "table", Kind.COW, request={"index": BucketIndex(4)})
    turns.create_here()
    turns.ours(trips(range(40), 1))
    with pytest.raises(PeerFailed, match=f"Config conflict[^$]*{next(iter(other))}"):
        turns.theirs(trips(range(40, 80), 2), **{**BUCKETS, "hoodie.bucket.index.num.buckets": "4", **other})
    turns.ours(trips(range(40, 80), 3))
    turns.agree(Comparison(), "after the refusal", 80)


@pytest.mark.pairs
@pytest.mark.parametrize("kind", list(Kind))
def test_both_peers_read_buckets_with_several_file_groups(apache_hudi: ApacheHudi, workdir: Path, kind: Kind) -> None:
    """Apache Hudi's readers leave out buckets, not file groups: all those of a bucket count."""
    path = workdir / "table"
    request = TableRequest(
        "buckets", SCHEMA, ("id",), ("part",), "ts", TableType(kind.value), index=BucketIndex(2, several_file_groups=True)
    )
    create_table(str(path), request)
    table = Table.open(str(path), options={"hoodie.parquet.small.file.limit": 0})
    for first in range(0, 40, 10):
        write_rows(table, trips(range(first, first + 20), first + 1), Operation.UPSERT)
    groups = {s.group for s in table.slices()}
    assert len(groups) > 2 * len({group.partition_path for group in groups})
    if kind is Kind.MOR:
        schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
        assert run_compaction(table) is not None
    write_rows(table, trips(range(5), 99), Operation.UPSERT)
    compare = Comparison()
    compare.rows(table.read(), read_hudi_rs(path), f"{kind}", "hudi-rs")
    compare.rows(table.read(), apache_hudi.read(path), f"{kind}", "Apache Hudi")
    for one in ("k0003", "k0033"):
        where = f"id = '{one}'"
        compare.rows(table.read(where=where), apache_hudi.read(path, where=where), f"{kind}, {where}", "Apache Hudi")


def test_both_write_beside_writers_that_look_for_no_conflicts(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """A table of version 9 whose Hudi writers use NON_BLOCKING_CONCURRENCY_CONTROL: we write, plan and compact between them."""
    options = {
        **NEW_TABLE,
        "hoodie.write.table.version": "9",
        **BUCKETS,
        "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
        "hoodie.table.type": "MERGE_ON_READ",
        "hoodie.bucket.index.num.buckets": "4",
    }
    turns = Turns(apache_hudi, workdir / "table", Kind.MOR, options, version=9)
    held = Expected(turns, {})
    held.upsert(range(0, 6, 2), 0, here=False)
    index = turns.share().definition.buckets
    assert index is not None
    assert index.text == "4 bucket(s) by id"
    held.upsert(range(20), 1, here=True)
    held.check("we opened buckets")
    held.upsert(range(10, 30), 2, here=False)
    assert schedule_compaction(turns.open(), {"hoodie.compact.inline.max.delta.commits": 1}) is not None
    held.upsert(range(5, 15), 3, here=False)
    assert run_compaction(turns.open()) is not None
    held.check("we compacted, and they wrote behind the plan")
    held.upsert(range(30), 4, here=True)
    held.upsert(range(3), 5, here=False)
    held.check("both wrote")
