"""Clustering of tables with consistent hashing: rows are sorted inside their nodes, and these get other file ids by the next
ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.action.write.test_ring_overwrites import overwrite
from tests.unit.table.index.test_bucket_index import KEYS, SORTED, rows
from tests.unit.table.index.test_hash_rings import SMALL, check_rings, index_of, ring_table
from tests.unit.table.tables import DEATH_S, Row, beside, cluster, compact, contents, open_table, write

from tideline_locks import open_hudi_lock
from tideline_table.action import (
    NotDue,
    SkippedPartition,
    SkipReason,
    cancel_plan,
    create_metadata,
    create_savepoint,
    preview_clustering,
    preview_restore,
    request_clustering,
    resize_rings,
    run_clean,
    run_clustering,
)
from tideline_table.action.clustering.decision import plan_bucket_clustering
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.clustering.task import ClusteredGroup, ClusteringTask
from tideline_table.action.decision import Due
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.committed import Committed
from tideline_table.errors import ClusteringFirst, UnsupportedTable, WriteConflict
from tideline_table.hudi.instant import State
from tideline_table.index.hash_ring import HashRing, marker_path, parse_ring, ring_folder
from tideline_table.index.ring_change import renewed_file_id, renewed_ring
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.log.state import TableState
from tideline_table.metadata_table.reading import live, read_files, slice_files
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, share_table, sharing
from tideline_table.writer import Operation

ONE = {**SORTED, "hoodie.clustering.plan.strategy.max.num.groups": 1}
NO_RETRY = {"tideline.write.conflict.retries": 0}


def mixed(keys: Sequence[str], ts: int, partition: str = "p") -> list[Row]:
    """Rows whose values are in another order than their keys."""
    return [(key, partition, ts, f"v{(7 * n) % len(keys):02}") for n, key in enumerate(keys)]


def filled(**more: Any) -> tuple[Table, MemoryStorage, Any]:
    table, storage, clock = ring_table(**more)
    write(table, mixed(KEYS, 1) + mixed(KEYS[:20], 1, "q"))
    write(table, [(key, "p", 2, f"w{n % 5}") for n, key in enumerate(KEYS[:20])])
    return table, storage, clock


def node_of(table: Table, key: str, partition: str = "p") -> int:
    ring = table.rings().at(partition)
    return int(index_of(table).in_partition("", ring).buckets(pa.array([key]))[0])


def planned(table: Table, options: dict[str, Any] = SORTED) -> str:
    table.clock.advance(1)  # type: ignore[attr-defined]
    instant = schedule_clustering(table, options)
    assert instant is not None
    return instant


def clustered(table: Table, during: Callable[[], object], options: dict[str, Any] = SORTED) -> Committed | None:
    """Run a clustering, with what `during` does between its tasks and its commit."""

    def run(tasks: Sequence[ClusteringTask]) -> list[ClusteredGroup]:
        results = [cluster_group(task, table.storage) for task in tasks]
        during()
        return results

    planned(table, options)
    return run_clustering(table, options=options, run=run)


def ring_files(storage: MemoryStorage, partition: str = "p") -> list[str]:
    return sorted(o.path.rsplit("/", 1)[-1] for o in storage.list_objects(ring_folder(partition)))


def check_sorted(table: Table, instant: str) -> int:
    """Return how many file groups the clustering made; in each, the rows are sorted."""
    made = [s for s in table.slices() if s.base_instant == instant]
    for file_slice in made:
        values = replace(table.snapshot(), slices=(file_slice,)).read(["v"])["v"].to_pylist()
        assert values == sorted(values)
    return len(made)


def test_a_replacement_of_some_file_groups_keeps_the_other_nodes() -> None:
    ring = HashRing.first("p", 4)
    chosen = {ring.file_ids[0], ring.file_ids[2]}
    made = renewed_ring(ring, "20260101000000000", chosen)
    assert [node.value for node in made.nodes] == [node.value for node in ring.nodes]
    assert set(made.file_ids) & set(ring.file_ids) == set(ring.file_ids) - chosen
    assert made.file_ids[2] == renewed_file_id(ring, ring.file_ids[2], "20260101000000000")
    assert renewed_ring(ring, "20260101000000000").file_ids[2] == made.file_ids[2]
    assert (made.sequence, made.instant) == (1, "20260101000000000")


def test_clustering_sorts_the_rows_of_each_node_and_gives_it_another_file_id() -> None:
    table, storage, clock = filled()
    before, first = contents(table), table.state.last_instant
    rings = table.rings().of("pq")
    assert schedule_clustering(table) is None, "without sort columns there is nothing to gain"
    assert preview_clustering(table, SORTED).groups == 8
    instant = planned(table)
    assert ring_files(storage) == ["00000000000000.hashing_meta"]
    assert cluster(table) is not None
    assert contents(table) == before
    check_rings(table)
    assert check_sorted(table, instant) == 8
    assert table.state.ring_resizes == {instant: ("p", "q")}
    assert table.state.ring_clusterings == {instant}
    for name, ring in table.rings().of("pq").items():
        assert not set(ring.file_ids) & set(rings[name].file_ids)
        assert [node.value for node in ring.nodes] == [node.value for node in rings[name].nodes]
        assert parse_ring(storage.read(ring.path), ring.path, name, instant) == ring
        assert storage.read(marker_path(ring)) == b""
    # Queries of earlier use the ring of that time.
    reader = open_table(storage, clock, "reader")
    assert contents(reader, first) == before
    for as_of in ("", first):
        assert reader.snapshot(as_of).only(pc.field("id") == "k007").slices != reader.snapshot(as_of).slices
        assert reader.read(["v"], where="id = 'k007' AND part = 'p'", as_of=as_of)["v"].to_pylist() == ["w2"]
    assert sum(batch.num_rows for batch in table.changes(table.state.sequence - 1).scan()) == 0, "no row changed"


def test_only_nodes_that_changed_are_clustered_again() -> None:
    table, storage, clock = filled()
    planned(table)
    cluster(table)
    assert isinstance(why := request_clustering(table, SORTED), NotDue)
    assert why.reason == "no bucket changed since the last clustering"
    before = table.rings().of("pq")
    write(table, rows(KEYS[:1], 3, "new"))
    instant = planned(table)
    assert cluster(table) is not None
    after = table.rings().of("pq")
    assert after["q"] == before["q"]
    changed = {at for at, (a, b) in enumerate(zip(after["p"].file_ids, before["p"].file_ids, strict=True)) if a != b}
    assert changed == {node_of(table, KEYS[0])}
    assert check_sorted(table, instant) == 1
    assert isinstance(request_clustering(table, SORTED), NotDue)
    write(table, rows(KEYS, 9, "last") + rows(KEYS, 9, "last", "r"))
    compact(table)
    check_rings(table)
    assert table.read().num_rows == 60 + 20 + 60
    assert {value for *_, partition, _, value in contents(open_table(storage, clock, "r")) if partition == "p"} == {"last"}


def test_rows_of_a_node_without_files_go_to_the_file_group_that_it_always_had() -> None:
    table, storage, clock = ring_table()
    index, ring = index_of(table), HashRing.first("p", 4)
    nodes = index.in_partition("", ring).buckets(pa.array(KEYS)).tolist()
    write(table, rows([k for k, n in zip(KEYS, nodes, strict=True) if n == 0], 1, "a"))
    planned(table)
    cluster(table)
    after = table.rings().at("p")
    assert after.file_ids[1:] == ring.file_ids[1:]
    write(table, rows(KEYS, 2, "b"))
    check_rings(table)
    assert len(contents(open_table(storage, clock, "r"))) == 60


def test_a_write_that_was_routed_by_the_ring_before_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = filled()
    other = open_table(storage, clock, "other")
    planned(other)
    beside(monkeypatch, lambda: cluster(other))
    assert write(table, rows(KEYS[:30], 3, "mine")).attempts == 2
    check_rings(table)
    assert {v for k, p, _, v in contents(table) if p == "p" and k < KEYS[30]} == {"mine"}


def test_a_write_that_opens_a_node_of_a_clustered_partition_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = ring_table()
    nodes = index_of(table).in_partition("p", HashRing.first("p", 4)).buckets(pa.array(KEYS)).tolist()
    write(table, rows([k for k, n in zip(KEYS, nodes, strict=True) if n == 0], 1, "a"))
    other = open_table(storage, clock, "other")
    planned(other)
    beside(monkeypatch, lambda: cluster(other))
    assert write(table, rows([k for k, n in zip(KEYS, nodes, strict=True) if n == 2], 2, "b")).attempts == 2
    check_rings(table)


def test_a_clustering_yields_to_a_write_and_leaves_no_ring() -> None:
    table, storage, clock = filled()
    other = open_table(storage, clock, "other")
    seen = ring_files(storage)
    with pytest.raises(WriteConflict, match="was written by"):
        clustered(table, lambda: write(other, rows(KEYS[:1], 3, "theirs"), **NO_RETRY))
    assert (
        table.refresh().actions[max(a.instant for a in table.state.actions.values() if a.is_clustering)].state is State.ROLLED_BACK
    )
    assert ring_files(storage) == seen
    assert not table.state.ring_resizes
    check_rings(table)
    assert ("k000", "p", 3, "theirs") in contents(table)
    planned(table)
    assert cluster(table) is not None
    check_rings(table)


def test_a_write_into_another_node_commits_and_the_clustering_goes_on() -> None:
    table, storage, clock = filled()
    other = open_table(storage, clock, "other")
    planned(table)
    cluster(table)
    write(table, rows(KEYS[:1], 3, "changed"))
    key = next(k for k in KEYS if node_of(table, k) != node_of(table, KEYS[0]))
    done = clustered(table, lambda: write(other, rows([key], 4, "theirs"), **NO_RETRY))
    assert done is not None
    check_rings(table)
    assert {(key, "p", 4, "theirs"), (KEYS[0], "p", 3, "changed")} <= set(contents(table))


def test_a_write_is_rejected_where_the_options_say_so() -> None:
    table, storage, clock = filled()
    other = open_table(storage, clock, "other", **{"tideline.clustering.update.strategy": "reject"})

    def rejected() -> None:
        with pytest.raises(ClusteringFirst):
            write(other, rows(KEYS[:1], 3, "theirs"), **NO_RETRY)

    assert clustered(table, rejected) is not None
    write(other, rows(KEYS[:1], 3, "theirs"))
    check_rings(table)
    assert ("k000", "p", 3, "theirs") in contents(table)


def test_writes_are_carried_over_into_the_node_of_the_next_ring() -> None:
    table, storage, clock = filled()
    other = open_table(storage, clock, "other")

    def updates() -> None:
        write(other, rows(KEYS[:5], 3, "u1"), **NO_RETRY)
        write(other, rows(KEYS[3:6], 0, "x"), Operation.DELETE, **NO_RETRY)
        write(other, rows(["new"], 3, "n"), **NO_RETRY)

    done = clustered(table, updates, {**SORTED, "hoodie.clustering.updates.strategy": "carry-over"})
    assert done is not None
    assert sum(stat.is_log for stat in done.stats) > 0
    check_rings(table)
    found = {k: v for k, p, _, v in contents(open_table(storage, clock, "r")) if p == "p"}
    assert {k: found.get(k) for k in (*KEYS[:7], "new")} == {
        **dict.fromkeys(KEYS[:3], "u1"),
        **dict.fromkeys(KEYS[3:6]),
        KEYS[6]: "w1",
        "new": "n",
    }
    write(table, rows(KEYS, 9, "last"))
    compact(table)
    check_rings(table)


# --- beside resizes and overwrites ---------------------------------------------------------------------------------------


def test_a_resize_leaves_partitions_of_a_pending_clustering_alone() -> None:
    table, storage, clock = filled()
    instant = planned(table, {**SORTED, "hoodie.clustering.plan.strategy.max.num.groups": 4})
    (partition,) = {g.partition_path for g in table.state.planned_groups(instant)}
    assert partition == "p"
    clock.advance(1)
    resized = resize_rings(table, options=SMALL)
    assert resized.skipped == (SkippedPartition("p", SkipReason.PLAN_PENDING, (instant,)),)
    done = resized.committed
    assert done is not None
    assert table.state.ring_resizes == {done.instant: ("q",)}
    assert cluster(table) is not None
    assert table.state.ring_resizes == {instant: ("p",), done.instant: ("q",)}
    check_rings(table)
    clock.advance(1)
    again = resize_rings(table, options=SMALL).committed
    assert again is not None
    assert len(table.rings().at("p").nodes) == 8
    check_rings(table)
    # What a resize writes is not sorted, although its commit calls itself a clustering.
    last = planned(table)
    cluster(table)
    check_rings(table)
    assert check_sorted(table, last) >= 8
    assert len(contents(open_table(storage, clock, "r"))) == 80


def uneven() -> tuple[Table, MemoryStorage, Any, dict[str, Any]]:
    """A table of two nodes of which the next clustering plan names the smaller one, and options of a resize that splits the
    other one."""
    table, storage, clock = ring_table(buckets=2)
    small = node_of(table, KEYS[0])
    long = [(k, "p", 1, "".join(map(str, range(n, n + 999)))) for n, k in enumerate(KEYS) if node_of(table, k) != small]
    write(table, [*long, *rows([k for k in KEYS if node_of(table, k) == small], 1, "x")])
    planned(table)
    cluster(table)
    write(table, rows(KEYS[:1], 3, "changed"))
    least, most = sorted(s.total_bytes for s in table.slices())
    assert least < most
    options = {
        "hoodie.parquet.max.file.size": least,
        "hoodie.bucket.index.split.threshold": 1.0,
        "hoodie.bucket.index.merge.threshold": 0.0,
        "hoodie.bucket.index.max.num.buckets": 3,
    }
    return table, storage, clock, options


def test_a_clustering_goes_on_from_the_ring_of_a_resize_that_began_before_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resize splits a node that is not clustered, and its ring is older than that of the clustering."""
    table, storage, clock, options = uneven()
    other = open_table(storage, clock, "other")
    plans: list[str] = []
    beside(monkeypatch, lambda: plans.append(planned(other)))
    clock.advance(1)
    resized = resize_rings(table, options=options).committed
    assert resized is not None
    assert resized.instant < plans[0]
    ring = table.rings().at("p")
    assert cluster(table) is not None
    check_rings(table)
    after = table.rings().at("p")
    assert (after.instant, after.sequence, len(after.nodes)) == (plans[0], ring.sequence + 1, 3)
    assert len(set(after.file_ids) & set(ring.file_ids)) == 2
    assert len(contents(open_table(storage, clock, "r"))) == 60


def test_a_clustering_loses_to_the_ring_of_a_resize_that_commits_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resize has an earlier instant and splits another node: no file group of the clustering has changed."""
    table, storage, clock, options = uneven()
    resizing = open_table(storage, clock, "resizing")
    commit, at_commit, may_commit = WriteTransaction.commit, Event(), Event()

    def waits(self: WriteTransaction, *args: Any, **more: Any) -> Committed:
        at_commit.set()
        assert may_commit.wait(60)
        return commit(self, *args, **more)

    monkeypatch.setattr(WriteTransaction, "commit", waits)
    clock.advance(1)
    with ThreadPoolExecutor(1) as threads:
        resized = threads.submit(resize_rings, resizing, options=options)
        assert at_commit.wait(60)

        def during() -> None:
            may_commit.set()
            resized.result()

        with pytest.raises(WriteConflict, match="got another hash ring by"):
            clustered(table, during)
    assert not list(table.refresh().pending())
    assert len(table.state.ring_resizes) == 2
    check_rings(table)
    assert len(contents(open_table(storage, clock, "r"))) == 60


def test_a_clustering_whose_ring_would_be_older_than_another_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of an earlier release, which resizes beside a plan and does not look for it."""
    table, storage, clock, options = uneven()
    instant = planned(table)
    clock.advance(1)
    with monkeypatch.context() as patched:
        patched.setattr(TableState, "groups_under_clustering", lambda _: {})
        resized = resize_rings(table, options=options).committed
    assert resized is not None
    assert resized.instant > instant
    with pytest.raises(WriteConflict, match=f"got another hash ring by {resized.instant}"):
        cluster(table)
    assert table.refresh().actions[instant].state is State.ROLLED_BACK
    check_rings(table)
    assert len(contents(open_table(storage, clock, "r"))) == 60


def test_a_clustering_loses_to_a_resize_of_its_nodes_that_began_before_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = filled()
    other = open_table(storage, clock, "other")
    beside(monkeypatch, lambda: planned(other))
    clock.advance(1)
    done = resize_rings(table, options=SMALL).committed
    assert done is not None
    files = ring_files(storage)
    with pytest.raises(WriteConflict, match="got another hash ring by"):
        cluster(table)
    assert not list(table.refresh().pending())
    assert ring_files(storage) == files
    check_rings(table)
    planned(table)
    assert cluster(table) is not None
    check_rings(table)


@pytest.mark.parametrize("during", [False, True])
def test_a_clustering_loses_to_an_overwrite_of_its_partition(during: bool) -> None:
    table, storage, clock = filled()
    other = open_table(storage, clock, "other")

    def act() -> None:
        overwrite(other, rows(KEYS[:30], 9, "only"))

    if not during:
        planned(table)
        act()
    with pytest.raises(WriteConflict, match="got another hash ring by"):
        clustered(table, act) if during else cluster(table)
    assert not list(table.refresh().pending())
    made = [name for name in ring_files(storage) if name.endswith("hashing_meta")]
    assert made == ["00000000000000.hashing_meta", f"{next(iter(table.state.ring_resizes))}.hashing_meta"]
    write(table, rows(KEYS, 10, "later"))
    check_rings(table)
    assert len([row for row in contents(table) if row[1] == "p"]) == 60


def test_an_overwrite_that_meets_a_clustering_replaces_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = filled()
    other = open_table(storage, clock, "other")
    planned(other)
    beside(monkeypatch, lambda: cluster(other))
    overwrite(table, rows(KEYS[:30], 9, "only"))
    assert {v for _, p, _, v in contents(table) if p == "p"} == {"only"}
    write(table, rows(KEYS, 10, "later"))
    check_rings(table)


def test_a_resize_that_meets_a_clustering_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = filled()
    other = open_table(storage, clock, "other")

    def whole_clustering() -> None:
        planned(other)
        cluster(other)

    beside(monkeypatch, whole_clustering)
    clock.advance(1)
    done = resize_rings(table, options=SMALL).committed
    assert done is not None
    assert done.attempts == 2
    check_rings(table)
    assert len(contents(table)) == 80


def test_one_clustering_is_planned_in_a_partition_at_a_time() -> None:
    table, _, _ = filled()
    first, second = planned(table, ONE), planned(table, ONE)
    found = [{g.partition_path for g in table.state.planned_groups(at)} for at in (first, second)]
    assert found == [{"p"}, {"q"}]
    assert isinstance(why := request_clustering(table, ONE), NotDue)
    assert why.reason == "no bucket changed since the last clustering in partitions without a pending clustering"
    for instant in (second, first):
        assert cluster(table, instant) is not None
    check_rings(table)


# --- undone, and refused --------------------------------------------------------------------------------------------------


def test_a_ring_that_an_earlier_attempt_left_is_completed_or_ends_the_clustering() -> None:
    table, storage, _ = filled()
    instant = planned(table)
    ring = renewed_ring(HashRing.first("p", 4), instant)
    storage.put_if_absent(ring.path, ring.content[:50])
    assert cluster(table) is not None
    assert storage.read(ring.path) == ring.content
    check_rings(table)
    write(table, rows(KEYS, 5, "again"))
    instant = planned(table)
    stale = replace(table.rings().at("p"), instant=instant)
    storage.put_if_absent(stale.path, stale.content)
    with pytest.raises(WriteConflict, match=f"an earlier attempt of {instant} has left another ring"):
        cluster(table)
    assert f"{instant}.hashing_meta" not in ring_files(storage)
    assert not list(table.refresh().pending())
    check_rings(table)


def test_the_ring_of_a_clustering_that_died_and_was_cancelled_never_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing the table deletes it: Apache Hudi would take it for valid."""
    table, storage, clock = filled()
    instant = planned(table)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tideline_table.action.clustering.run._append", dies)
        with pytest.raises(KeyboardInterrupt):
            cluster(open_table(storage, clock, "dying"))
    assert f"{instant}.hashing_meta" in ring_files(storage)
    clock.advance(DEATH_S)
    cancel_plan(table, instant)
    assert table.refresh().actions[instant].state is State.ROLLED_BACK
    write(open_table(storage, clock, "next"), rows(KEYS, 5, "later"))
    check_rings(table)
    last = planned(table)
    assert cluster(table) is not None
    check_rings(table)
    clock.advance(1)
    shared = share_table(table, Sharing(HudiLockKind.STORAGE), open_hudi_lock)
    assert ring_files(storage) == ["00000000000000.hashing_meta", f"{last}.commit", f"{last}.hashing_meta"]
    write(shared, rows(KEYS, 6, "shared"))
    check_rings(shared)


def test_a_restore_to_before_a_clustering_is_refused() -> None:
    table, _, _ = filled()
    saved = create_savepoint(table).instant
    planned(table)
    cluster(table)
    with pytest.raises(UnsupportedTable, match="gave them other hash rings"):
        preview_restore(table, saved)


def test_cleaning_after_clusterings_deletes_replaced_files_only() -> None:
    table, storage, clock = filled()
    create_metadata(table)
    for turn in range(4):
        write(table, rows(KEYS[turn : turn + 1], turn + 3, "more"))
        planned(table)
        assert cluster(table) is not None
    wanted = contents(table)
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table) is not None
    assert table.state.ring_clusterings >= set(table.state.ring_resizes)
    assert isinstance(request_clustering(table, SORTED), NotDue), "it is known what was clustered"
    assert contents(open_table(storage, clock, "r")) == wanted
    known = table.refresh().metadata
    assert known is not None
    found = read_files(storage, known.files, slice_files(storage, known.files)).files
    assert {name for names in found.values() for name in live(names)} >= {s.path.split("/")[1] for s in table.slices()}
    write(table, rows(KEYS, 19, "last"))
    check_rings(table)


def test_nodes_of_a_split_that_a_clean_forgot_are_still_clustered() -> None:
    table, _, _, options = uneven()
    assert resize_rings(table, options=options) is not None
    split = {s.group for s in table.slices()}
    instant = planned(table, {**SORTED, "hoodie.clustering.plan.strategy.max.num.groups": 1})
    assert cluster(table, instant) is not None
    for ts in (1, 2):
        write(table, rows(KEYS[:1], ts, "x", "elsewhere"))
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table) is not None
    assert instant in table.state.ring_resizes
    assert len([at for at, names in table.state.ring_resizes.items() if "p" in names]) == 1, "the clean forgot the split"
    left = {s.group for s in table.slices()} & split
    assert left
    due = plan_bucket_clustering(table.view(SORTED))
    assert isinstance(due, Due)
    assert left <= set(due.body.groups)


def test_no_plan_in_a_partition_of_which_a_writer_has_reserved_nodes() -> None:
    """The new ring of the partition would stop the writer, though it replaces none of its file groups."""
    table, _, _ = filled()
    held = next(s.group.file_id for s in table.slices() if s.group.partition_path == "p")
    due = plan_bucket_clustering(table.view(SORTED), (held,))
    assert isinstance(due, Due)
    assert {group.partition_path for group in due.body.groups} == {"q"}, "the ring of p stays"


def test_a_shared_table_is_not_clustered(monkeypatch: pytest.MonkeyPatch) -> None:
    table, _, clock = filled()
    shared_by = Sharing(HudiLockKind.STORAGE)
    instant = planned(table)
    with pytest.raises(UnsupportedTable, match=f"clustering {instant} of table 't1' with consistent hashing is pending"):
        share_table(table, shared_by, open_hudi_lock)
    with monkeypatch.context() as patched:
        patched.setattr(sharing, "_check_ours", lambda *_: None)
        clock.advance(1)
        shared = share_table(table, shared_by, open_hudi_lock)
    assert isinstance(why := request_clustering(shared, SORTED), NotDue)
    assert "a shared table with consistent hashing is not clustered" in why.reason
    with pytest.raises(UnsupportedTable, match=f"clustering plan {instant} in the shared table"):
        cluster(shared, instant)
    assert shared.refresh().actions[instant].state is State.REQUESTED
