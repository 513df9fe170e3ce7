"""Plans of shared tables: either side runs what nobody has begun, what Hudi runs is left alone until it gave no sign of life
for too long."""

from __future__ import annotations

import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.unit.table.shared import opened, peer_of, put, shared_table
from tests.unit.table.tables import cluster, contents

from tideline_table.action import check_table, roll_back_dead, run_clean, run_clustering, run_compaction
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.clock import ManualClock
from tideline_table.errors import TransactionRolledBack, WriteConflict
from tideline_table.hudi.instant import Instant, State
from tideline_table.table import TableType
from tideline_table.writer import Operation

FIRST = [("a", "p", 1, "1"), ("b", "p", 1, "1"), ("c", "q", 1, "1")]
EXPIRED_S = 3600
HUDIS = {"hoodie.client.heartbeat.interval_in_ms": 60_000}
"""The heartbeats of a table as it is by default: two minutes without one are allowed."""
SMALL = {"hoodie.clustering.plan.strategy.small.file.limit": 10**9}


def test_pending_clustering_of_the_other_side_lets_no_update_pass_and_can_be_run() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST[:1])
    put(ours, FIRST[1:2], Operation.INSERT)
    theirs = peer_of(storage, clock)
    plan = schedule_clustering(theirs, SMALL)
    assert plan is not None
    with pytest.raises(WriteConflict, match="lets no writer pass"):
        put(ours, [("a", "p", 2, "2")], **{"tideline.write.conflict.retries": 0})
    put(ours, [("n", "q", 1, "1")])
    done = cluster(ours)
    assert done is not None
    assert done.instant == plan
    put(ours, [("a", "p", 2, "2")])
    assert contents(ours) == [("a", "p", 2, "2"), FIRST[1], ("n", "q", 1, "1")]


def test_plan_that_the_other_side_runs_is_left_alone() -> None:
    _, storage, clock = shared_table()
    ours = opened(storage, clock, **HUDIS)
    put(ours, FIRST[:1])
    put(ours, FIRST[1:2], Operation.INSERT)
    plan = schedule_clustering(ours, SMALL)
    assert plan is not None
    storage.put(f".hoodie/{plan}.replacecommit.inflight", b"")
    clock.advance(EXPIRED_S - 5)
    assert run_clustering(ours) is None
    with pytest.raises(WriteConflict, match="being run by Apache Hudi"):
        run_clustering(ours, plan)
    assert roll_back_dead(ours) == []


SIGNS = ["plan", "timeline file", "heartbeat", "marker"]


@pytest.mark.parametrize("sign", SIGNS)
def test_clustering_that_the_other_side_gave_up_is_rolled_back(sign: str) -> None:
    _, storage, clock = shared_table()
    ours = opened(storage, clock, **HUDIS)
    put(ours, FIRST[:1])
    put(ours, FIRST[1:2], Operation.INSERT)
    theirs = peer_of(storage, clock)
    plan = schedule_clustering(theirs, SMALL)
    assert plan is not None
    path = f"p/theirs-0_0-0-0_{plan}.parquet"
    steps = {
        "plan": lambda: None,
        "timeline file": lambda: storage.put(f".hoodie/{plan}.replacecommit.inflight", b""),
        "heartbeat": lambda: storage.put(f".hoodie/.heartbeat/{plan}", b""),
        "marker": lambda: (storage.put(f".hoodie/.temp/{plan}/{path}.marker.CREATE", b""), storage.put(path, b"rows")),
    }
    # Each sign is the only fresh one for once: the others are old by then.
    for other in SIGNS:
        if other != sign:
            steps[other]()
    clock.advance(EXPIRED_S - 10)
    steps[sign]()
    clock.advance(5 if sign == "plan" else EXPIRED_S - 5)
    ours.refresh()
    assert roll_back_dead(ours) == []
    with pytest.raises(WriteConflict, match="lets no writer pass"):
        put(ours, [("a", "p", 2, "2")], **{"tideline.write.conflict.retries": 0})
    clock.advance(10)
    assert roll_back_dead(ours) == [plan]
    assert not any(plan in o.path for o in storage.list_objects("") if ".tideline" not in o.path and "rollback" not in o.path)
    put(ours, [("a", "p", 2, "2")])
    assert contents(ours) == [("a", "p", 2, "2"), FIRST[1]]
    # Should it be alive after all, it cannot complete any more.
    theirs.refresh()
    assert run_clustering(theirs) is None


def test_compaction_that_the_other_side_gave_up_is_run_again() -> None:
    _, storage, clock = shared_table(TableType.MOR)
    ours = opened(storage, clock, **HUDIS)
    put(ours, FIRST)
    put(ours, [("a", "p", 2, "2")])
    plan = schedule_compaction(ours, {"hoodie.compact.inline.max.delta.commits": 1})
    assert plan is not None
    [group] = [g for g in ours.state.groups_under_compaction() if g.partition_path == "p"]
    clock.advance(1)
    storage.put(f".hoodie/{plan}.compaction.inflight", b"")
    left = f"p/{group.file_id}_7-7-7_{plan}.parquet"
    storage.put(f".hoodie/.temp/{plan}/{left}.marker.MERGE", b"")
    storage.put(left, b"torn")
    clock.advance(EXPIRED_S - 5)
    assert run_compaction(ours) is None
    with pytest.raises(WriteConflict, match="being run by Apache Hudi"):
        run_compaction(ours, plan)
    clock.advance(10)
    done = run_compaction(ours, run=lambda tasks: [compact_slice(task, storage) for task in tasks])
    assert done is not None
    assert done.instant == plan
    assert contents(ours) == [("a", "p", 2, "2"), *FIRST[1:]]
    assert left not in {o.path for o in storage.list_objects("")}


def test_plan_that_both_sides_begin_at_once_is_run_by_one() -> None:
    ours, storage, _ = shared_table()
    put(ours, FIRST[:1])
    put(ours, FIRST[1:2], Operation.INSERT)
    plan = schedule_clustering(ours, SMALL)
    inflight, put_if_absent = f".hoodie/{plan}.replacecommit.inflight", storage.put_if_absent

    def put_late(path: str, data: bytes) -> None:
        # Hudi takes no lock to begin a plan: its file comes behind our last look.
        if path == inflight:
            put_if_absent(path, b"")
        put_if_absent(path, data)

    storage.put_if_absent = put_late  # type: ignore[method-assign]
    with pytest.raises(TransactionRolledBack, match="exists already"):
        run_clustering(ours)
    assert not any(o.path.startswith(f".hoodie/.temp/{plan}") for o in storage.list_objects(""))
    storage.put_if_absent = put_if_absent  # type: ignore[method-assign]
    assert run_clustering(ours) is None


def test_a_machine_whose_clock_is_ahead_gives_up_no_plan_of_the_other_side() -> None:
    ours, storage, clock = shared_table()
    put(ours, FIRST[:1])
    put(ours, FIRST[1:2], Operation.INSERT)
    plan = schedule_clustering(peer_of(storage, clock), SMALL)
    clock.advance(EXPIRED_S / 2)  # of other instants one this old without a heartbeat is dead
    storage.put(f".hoodie/{plan}.replacecommit.inflight", b"")
    ahead = ManualClock(clock.now())
    ahead.advance(2 * EXPIRED_S)
    assert roll_back_dead(opened(storage, ahead, **HUDIS)) == []
    clock.advance(2 * EXPIRED_S)
    assert roll_back_dead(opened(storage, clock, **HUDIS)) == [plan]


def test_a_clean_is_never_seen_requested_alone_and_both_sides_may_run_it() -> None:
    """A job that begins a requested clean in the moment in which the cleaner does fails behind its commit."""
    ours, storage, clock = shared_table()
    for number in range(3):
        put(ours, [("a", "p", number, str(number))])
    planned = schedule_clean(ours, {"hoodie.cleaner.commits.retained": 1})
    assert planned
    requested = storage.read(f".hoodie/{planned}.clean.requested")
    assert requested == storage.read(f".hoodie/{planned}.clean.inflight"), "where the archiver of Apache Hudi 0.15 reads the plan"
    assert run_clean(peer_of(storage, clock))
    assert run_clean(ours) is None
    assert contents(ours) == [("a", "p", 2, "2")]


def test_log_files_that_a_rollback_left_go_with_their_slice() -> None:
    """If the file with the block of the rollback went alone, the rows would come back once the group is not known as replaced."""
    ours, storage, _ = shared_table(TableType.MOR)

    def left_behind() -> str:
        (of,) = [s for s in ours.refresh().latest_slices() if s.group.partition_path == "p"]
        path = f"p/.{of.group.file_id}_{of.base_instant}.log.7_0-9-9"
        storage.put(path, b"of a write that was rolled back")
        return path

    put(ours, FIRST)
    put(ours, [("a", "p", 2, "2")])
    old = left_behind()
    assert schedule_compaction(ours, {"hoodie.compact.inline.max.delta.commits": 1})
    run_compaction(ours, run=lambda tasks: [compact_slice(task, storage) for task in tasks])
    new = left_behind()
    for number in range(3, 5):
        put(ours, [("c", "q", number, "3")])
    assert schedule_clean(ours, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(ours)
    held = {found.path for found in storage.list_folder("p").objects}
    assert old not in held
    assert new in held
    assert ("a", "p", 2, "2") in contents(ours)


@pytest.mark.parametrize("version", [6, 9])
def test_a_check_names_a_lost_timeline_file_of_a_completed_write(version: int) -> None:
    ours, storage, _ = shared_table(version=version)
    put(ours, FIRST[:1])
    assert check_table(ours) == []
    written = max(ours.state.completed_writes(), key=lambda a: a.instant)
    path = ours.timeline.format.timeline_path(Instant(written.instant, written.action, State.COMPLETED), written.completion)
    storage.delete(path)
    (found,) = check_table(ours)
    assert found.path == path
    assert "rolls it back" in found.found
