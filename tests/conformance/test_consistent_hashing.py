"""Apache Hudi and Tideline write into the hash rings of one table in turn, whichever of them created it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import FAST, SCHEMA, Turns, steps_of, trips
from tests.conformance.matrix import Comparison, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.peers.hudi_rs import read_hudi_rs
from tests.conformance.test_bucket_index import NEW_TABLE, Expected
from tests.plans import schedule_clustering, schedule_compaction

from tideline_table.action import (
    ClusteredGroup,
    ClusteringTask,
    cluster_group,
    delete_partitions,
    resize_rings,
    run_clustering,
    run_compaction,
    write_rows,
)
from tideline_table.coordination.committed import Committed
from tideline_table.errors import UnsupportedTable
from tideline_table.index.bucket_kinds import RingIndex
from tideline_table.table import BucketIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.timeout(1500)

HASHING = {
    "hoodie.index.type": "BUCKET",
    "hoodie.index.bucket.engine": "CONSISTENT_HASHING",
    "hoodie.bucket.index.num.buckets": "3",
}
RINGS = ".hoodie/.bucket_index/consistent_hashing_metadata"


@dataclass
class InRings(Expected):
    """As `Expected`; each row is in the file group of its node, and the rings are those of both sides."""

    def check_places(self, table: Table, found: pa.Table, what: str) -> None:
        index = table.definition.buckets
        assert index is not None
        assert isinstance(index, RingIndex)
        rings = table.rings().of({s.group.partition_path for s in table.slices()})
        keys, names = found["_hoodie_record_key"], found["_hoodie_file_name"].to_pylist()
        for at, partition in enumerate(found["_hoodie_partition_path"].to_pylist()):
            ring = rings[partition]
            (node,) = index.in_partition("", ring).buckets(keys.slice(at, 1))
            # A log file does not say its name in rows that Hudi wrote: the file id is enough.
            assert names[at].startswith(ring.nodes[node].prefix), what
        assert {s.group.file_id for s in table.slices()} <= {name for ring in rings.values() for name in ring.file_ids}, what


def write_in_turn(turns: Turns, held: InRings, number: int = 20) -> None:
    """Updates, new keys, log-only groups, deletions, and compactions of both."""
    steps = steps_of(number)
    for step in steps:
        here, ts = step % 2 == 0, step + 2
        if step in (8, 13):
            held.delete(range(step, step + 6), ts, here=here)
        else:
            numbers, old = range(step * 5, step * 5 + 12), range(step % 7)
            if step in (4, 5):
                held.upsert(numbers, ts, here=here, operation="insert")
                held.upsert(old, ts, here=here)
            else:
                held.upsert([*numbers, *old], ts, here=here)
        if step % 5 == 4 or step == steps[-1]:
            held.check(f"step {step} by {'Tideline' if here else 'Apache Hudi'}")
        if step == 10:
            table = turns.open()
            schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
            assert run_compaction(table) is not None
            held.check("our compaction")
        if step == 15:
            turns.call(
                f"run_compaction(op => 'scheduleandexecute', path => '{turns.path}')",
                **{"hoodie.compact.inline.max.delta.commits": "1"},
            )
            held.check("their compaction")


@pytest.mark.parametrize(("to_log", "version"), [(False, 6), (True, 6), (True, 9), (False, 8)])
def test_both_write_the_rings_of_one_table_in_turn(apache_hudi: ApacheHudi, workdir: Path, to_log: bool, version: int) -> None:
    """Hudi's writers are not told of the index: they take it from `hoodie.properties`."""
    turns = Turns(
        apache_hudi,
        workdir / "table",
        Kind.MOR,
        own_options={"tideline.insert.to.log": to_log},
        version=version,
        request={"index": BucketIndex(4, consistent=True)},
    )
    turns.create_here()
    write_in_turn(turns, InRings(turns, {}), 6 if to_log else 20)
    Comparison().rows(Table.open(str(turns.path)).read(), read_hudi_rs(turns.path), "rings", "hudi-rs")


def test_the_first_rings_are_those_of_hudi_byte_for_byte(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """Of composite keys and partition paths with text that JSON escapes, too."""
    theirs = Turns(apache_hudi, workdir / "theirs", Kind.MOR, {**NEW_TABLE, **HASHING})
    theirs.theirs(trips(range(8), 1))
    create_table(
        str(workdir / "ours"),
        TableRequest("turns", SCHEMA, ("id",), ("part",), "ts", TableType.MOR, index=BucketIndex(3, consistent=True)),
    )
    write_rows(Table.open(str(workdir / "ours")), trips(range(8), 1), Operation.UPSERT)
    for partition in ("p0", "p1"):
        made = {p.name: p.read_bytes() for p in (theirs.path / RINGS / partition).iterdir() if not p.name.endswith(".crc")}
        assert made == {p.name: p.read_bytes() for p in (workdir / "ours" / RINGS / partition).iterdir()}
        assert list(made) == ["00000000000000.hashing_meta"]


@pytest.mark.parametrize(
    "other", [{"hoodie.bucket.index.num.buckets": "3"}, {"hoodie.index.bucket.engine": "SIMPLE"}, {"hoodie.index.type": "SIMPLE"}]
)
def test_a_hudi_writer_with_other_settings_is_refused(apache_hudi: ApacheHudi, workdir: Path, other: dict[str, str]) -> None:
    """By Apache Hudi itself, which compares its options with `hoodie.properties`."""
    turns = Turns(apache_hudi, workdir / "table", Kind.MOR, request={"index": BucketIndex(4, consistent=True)})
    turns.create_here()
    turns.ours(trips(range(40), 1))
    with pytest.raises(PeerFailed, match=f"Config conflict[^$]*{next(iter(other))}"):
        turns.theirs(trips(range(40, 80), 2), **{**HASHING, "hoodie.bucket.index.num.buckets": "4", **other})
    turns.ours(trips(range(40, 80), 3))
    turns.agree(Comparison(), "after the refusal", 80)


def test_both_write_the_rings_of_a_table_that_hudi_created(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """Its metadata say the number of buckets, and its rows the hash fields; Hudi's writers go on with the options that they had."""
    turns = Turns(apache_hudi, workdir / "table", Kind.MOR, {**NEW_TABLE, **HASHING})
    held = InRings(turns, {})
    held.upsert(range(40), 0, here=False)
    held.upsert(range(20, 30), 1, here=False)
    index = turns.share().definition.buckets
    assert index is not None
    assert index.text == "3 consistent bucket(s) by id"
    held.check("shared")
    write_in_turn(turns, held, 8)
    Comparison().rows(Table.open(str(turns.path)).read(), read_hudi_rs(turns.path), "rings", "hudi-rs")


RESIZING = {
    **HASHING,
    "hoodie.bucket.index.max.num.buckets": "12",
    "hoodie.parquet.max.file.size": "1024",
    "hoodie.clustering.plan.strategy.class": "org.apache.hudi.client.clustering.plan.strategy.SparkConsistentBucketClusteringPlanStrategy",
    "hoodie.clustering.execution.strategy.class": "org.apache.hudi.client.clustering.run.strategy.SparkConsistentBucketClusteringExecutionStrategy",
    "hoodie.clustering.updates.strategy": "org.apache.hudi.client.clustering.update.strategy.SparkConsistentBucketDuplicateUpdateStrategy",
}


def test_a_table_whose_rings_hudi_resized_is_read_and_not_shared(apache_hudi: ApacheHudi, workdir: Path) -> None:
    turns = Turns(apache_hudi, workdir / "table", Kind.MOR, {**NEW_TABLE, **RESIZING})
    turns.theirs(trips(range(40), 1))
    turns.call(f"run_clustering(op => 'scheduleandexecute', path => '{turns.path}')", **RESIZING)
    before = {path.relative_to(turns.path) for path in turns.path.rglob("*")}
    with pytest.raises(UnsupportedTable, match=r"of a hash ring, which \d+ replaced"):
        turns.share()
    left = {path.relative_to(turns.path) for path in turns.path.rglob("*")} - before
    assert not [path for path in left if ".tideline" not in path.parts]
    assert not Table.open(str(turns.path)).capabilities.keeps_log
    turns.agree(Comparison(), "after a resize of Hudi", 40)


SMALL: dict[str, object] = {"hoodie.parquet.max.file.size": 1024, "hoodie.bucket.index.max.num.buckets": 32}
LARGE: dict[str, object] = {"hoodie.parquet.max.file.size": 100_000_000, "hoodie.bucket.index.min.num.buckets": 2}


def made(apache_hudi: ApacheHudi, workdir: Path, buckets: int, version: int = 6) -> Turns:
    """Create an exclusive table with consistent hashing."""
    turns = Turns(
        apache_hudi, workdir / "table", Kind.MOR, version=version, request={"index": BucketIndex(buckets, consistent=True)}
    )
    turns.create_exclusive()
    return turns


def nodes_of(table: Table) -> set[int]:
    index = table.definition.buckets
    assert index is not None
    return {len(ring.nodes) for ring in table.rings().of(["p0", "p1"]).values()}


@pytest.mark.parametrize("version", [6, 9])
def test_hudi_reads_and_writes_rings_that_tideline_resized(apache_hudi: ApacheHudi, workdir: Path, version: int) -> None:
    """A table is split and merged while it is exclusive, and shared afterwards: Hudi's writers go by the resized rings."""
    turns = made(apache_hudi, workdir, 2, version)
    table = Table.open(str(turns.path), options=FAST)
    held = InRings(turns, {})
    for first in (0, 30):
        write_rows(table, trips(range(first, first + 40), first + 1), Operation.UPSERT)
        held.live.update(dict.fromkeys(range(first, first + 40), first + 1))
    for options in (SMALL, SMALL, LARGE, SMALL):
        assert resize_rings(table, options=options).committed is not None
        held.check(f"after a resize to {nodes_of(table)}")
        Comparison().rows(table.read(), read_hudi_rs(turns.path), f"{nodes_of(table)}", "hudi-rs")
        write_rows(table, trips(range(60, 80), 50 + len(held.live)), Operation.UPSERT)
        held.live.update(dict.fromkeys(range(60, 80), 50 + len(held.live)))
    assert nodes_of(table) == {4}
    turns.share()
    held.check("shared")
    for step in range(6):
        held.upsert(range(step * 12, step * 12 + 30), 200 + step, here=step % 2 == 1)
        if step % 3 == 2:
            held.check(f"step {step} after the resizes")
    assert nodes_of(turns.open()) == {4}


def test_hudi_reads_and_writes_rings_that_overwrites_renewed(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """Overwrites of a partition and of the table, and a deleted partition, of an exclusive table.

    Hudi's writers go by the new rings.
    """
    turns = made(apache_hudi, workdir, buckets=3)
    table = Table.open(str(turns.path), options=FAST)
    held = InRings(turns, {})

    def write(numbers: range, ts: int, operation: Operation = Operation.UPSERT) -> None:
        write_rows(table, trips(numbers, ts), operation)
        held.live.update(dict.fromkeys(numbers, ts))
        held.check(f"after {operation} at {ts}")

    write(range(40), 1)
    held.live = {n: ts for n, ts in held.live.items() if n % 2}
    write(range(0, 20, 2), 2, Operation.INSERT_OVERWRITE)
    write(range(10, 50), 3)
    delete_partitions(table, ["p1"])
    held.live = {n: ts for n, ts in held.live.items() if not n % 2}
    held.check("after the deletion of a partition")
    write(range(30, 60), 4)
    held.live.clear()
    write(range(0, 12, 2), 5, Operation.INSERT_OVERWRITE_TABLE)
    Comparison().rows(table.read(), read_hudi_rs(turns.path), "overwritten", "hudi-rs")
    turns.share()
    held.check("shared")
    # The partition p1 has no rows since the overwrite, and Hudi is the first to write there.
    for step in range(4):
        held.upsert(range(step * 8, step * 8 + 30), 200 + step, here=step % 2 == 1)
        if step % 3 == 0:
            held.check(f"step {step} after the overwrites")
    with pytest.raises(UnsupportedTable, match="insert_overwrite in the shared table"):
        turns.ours(trips(range(4), 300), Operation.INSERT_OVERWRITE)


def test_hudi_reads_and_writes_rings_whose_nodes_tideline_clustered(apache_hudi: ApacheHudi, workdir: Path) -> None:
    """Nodes of an exclusive table are clustered, also after a split and beside a writer; Hudi's writers go by the last rings."""
    turns = made(apache_hudi, workdir, buckets=3)
    table = Table.open(str(turns.path), options=FAST)
    held = InRings(turns, {})

    def write(numbers: range, ts: int) -> None:
        write_rows(Table.open(str(turns.path), options=FAST), trips(numbers, ts), Operation.UPSERT)
        held.live.update(dict.fromkeys(numbers, ts))

    def cluster(during: Callable[[], None] = lambda: None) -> Committed:
        def run(tasks: Sequence[ClusteringTask]) -> Sequence[ClusteredGroup]:
            results = [cluster_group(task) for task in tasks]
            during()
            return results

        options = {"hoodie.clustering.plan.strategy.sort.columns": "price", "hoodie.clustering.updates.strategy": "carry-over"}
        assert schedule_clustering(table, options) is not None
        done = run_clustering(table, options=options, run=run)
        assert done is not None
        held.check(f"after clustering {done.instant}")
        return done

    write(range(40), 1)
    assert len(cluster().stats) == 6
    write(range(10), 2)
    assert any(stat.is_log for stat in cluster(lambda: write(range(4, 14), 3)).stats)
    assert resize_rings(table, options=SMALL).committed is not None
    cluster()
    write(range(30, 60), 4)
    held.check("written after the clusterings")
    Comparison().rows(Table.open(str(turns.path)).read(), read_hudi_rs(turns.path), "clustered", "hudi-rs")
    turns.share()
    held.check("shared")
    for step in range(4):
        held.upsert(range(step * 15, step * 15 + 30), 200 + step, here=step % 2 == 1)
        if step % 3 == 0:
            held.check(f"step {step} after the clusterings")
    assert schedule_clustering(turns.open(), {"hoodie.clustering.plan.strategy.sort.columns": "price"}) is None
