"""A job of Apache Hudi that takes no lock and knows no conflicts, beside plans of a shared table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.table.shared import Unlogged, before_commit, opened, peer_of, put, shared_table
from tests.unit.table.tables import HEARTBEAT, cluster, contents

from tideline_locks import open_hudi_lock
from tideline_table.action import compact_slice, request_clustering, request_compaction, run_compaction
from tideline_table.action.compaction.plan import CompactionTask
from tideline_table.action.decision import NotDue, Trigger
from tideline_table.clock import ManualClock
from tideline_table.coordination.lock import HeldHudiTableLock
from tideline_table.coordination.timeline import Decide
from tideline_table.errors import WriteConflict
from tideline_table.hudi.formats import format_of
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.listing import ListedTimeline, list_timeline
from tideline_table.hudi.properties import read_properties
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.log.entry import Entry
from tideline_table.storage import Storage
from tideline_table.table import FindingKind, Table, TableType, findings_of
from tideline_table.writer import Operation

ONE = {"hoodie.compact.inline.max.delta.commits": 1}
SMALL = {"hoodie.clustering.plan.strategy.small.file.limit": 10**9}
FIRST = [("a", "p", 1, "1"), ("b", "q", 1, "1")]
LATE = ("a", "p", 3, "3")


class _Always(HeldHudiTableLock):
    def is_held(self) -> bool:
        return True


class Unlocked(Unlogged):
    """A job without the options of sharing: it completes on what it saw when it began, and asks nobody."""

    def _append(self, decide: Decide) -> Entry:
        with self.replica.mutex:
            self.follower.listed = ListedTimeline.read(self.storage, self.format)
            draft = self._timed(decide(self.state))
            self._take_step(draft, _Always())
            entry = draft.entry(self.state.sequence + 1, self.clock.now())
            self.state.apply(entry)
            return entry


def run_pending(table: Table) -> object:
    return run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])


def unlocked_job(storage: Storage, clock: ManualClock) -> Table:
    job = peer_of(storage, clock)
    assert job.sharing is not None
    job.timeline = timeline = Unlocked(job.timeline.replica, open_hudi_lock(storage, job.sharing, "job", clock, job.options))
    timeline.refresh_view()
    return job


def _merging() -> tuple[Table, Storage, ManualClock]:
    table, storage, clock = shared_table(TableType.MOR)
    put(table, FIRST)
    put(table, [("a", "p", 2, "2")])
    return table, storage, clock


@contextmanager
def unseen(storage: Storage) -> Iterator[None]:
    """What is inflight has no timeline files for a while: its instant was taken, and its files come later."""
    paths = list_timeline(storage, format_of(read_properties(storage))).paths
    done = {i.time for i in paths if i.state is State.COMPLETED}
    held = {path: storage.read(path) for i, path in paths.items() if i.state is not State.COMPLETED and i.time not in done}
    for path in held:
        storage.delete(path)
    yield
    for path, content in held.items():
        storage.put(path, content)


PLANS: list[Callable[[Table], str | None]] = [
    lambda table: schedule_compaction(table, ONE),
    lambda table: schedule_clustering(table, SMALL),
]


@pytest.mark.parametrize("plan", PLANS, ids=["compaction", "clustering"])
def test_nothing_is_planned_over_a_write_and_no_acknowledged_row_is_lost(plan: Callable[[Table], str | None]) -> None:
    ours, storage, clock = _merging()
    put(ours, [("n", "p", 1, "1")])
    job = unlocked_job(storage, clock)
    planned: list[str | None] = []

    def meanwhile() -> None:
        services = opened(storage, clock, "services")
        planned.append(plan(services))
        run_pending(services)

    with before_commit(job, meanwhile):
        put(job, [LATE])
    assert LATE in contents(opened(storage, clock))
    assert planned == [None]
    assert plan(opened(storage, clock)) is not None


def test_the_reason_names_the_write_and_the_planner_sees_it_too() -> None:
    _, storage, clock = _merging()
    job = unlocked_job(storage, clock)
    found: list[str] = []

    def meanwhile() -> None:
        services = opened(storage, clock, "services", **ONE)
        answer = request_compaction(services)
        assert isinstance(answer, NotDue)
        (writing,) = (a for a in services.state.pending() if a.action is Action.DELTA_COMMIT)
        assert writing.instant in answer.reason
        found.append(answer.until)

    with before_commit(job, meanwhile):
        put(job, [LATE])
    assert found == ["the end of that write; if its process died: tideline run rollback PATH"]


def _late_write(storage: Storage, clock: ManualClock, then: Callable[[], object] = lambda: None) -> str:
    """Complete a write that a compaction plan did not see; `then` happens before it completes. Returns the compaction."""
    job, plans = unlocked_job(storage, clock), list[str | None]()

    def meanwhile() -> None:
        clock.advance(1)
        with unseen(storage):
            plans.append(schedule_compaction(opened(storage, clock, "services"), ONE))
            then()

    with before_commit(job, meanwhile):
        put(job, [LATE])
    (compaction,) = plans
    assert compaction is not None
    return compaction


def test_a_plan_has_the_earlier_instant_and_waits_for_the_write_that_took_its_own_just_before() -> None:
    """Apache Hudi would end the job that finds a plan above its instant. Now nothing finds a conflict, so its rows must be read."""
    _, storage, clock = _merging()
    clock.advance(5)
    job, plans = unlocked_job(storage, clock), list[str | None]()

    def meanwhile() -> None:
        services = opened(storage, clock, "services")
        (writing,) = (a.instant for a in services.state.pending())
        clock.advance(0.3)
        with unseen(storage):
            plans.append(schedule_compaction(opened(storage, clock, "services"), ONE))
        assert (plans[0] or "9") < writing
        asked = clock.now()
        with pytest.raises(WriteConflict, match=f"write {writing} of Apache Hudi may not know compaction {plans[0]}"):
            run_compaction(opened(storage, clock, "services"), run=lambda _: pytest.fail("it merged beside that write"))
        assert clock.now() == asked  # who asks for the lock again and again keeps it from the job

    with before_commit(job, meanwhile):
        put(job, [LATE])
    before = contents(opened(storage, clock))
    assert LATE in before
    clock.advance(HEARTBEAT.total_seconds() * 10)
    services = opened(storage, clock, "services")
    assert _hidden(services) == []
    assert run_pending(services)
    assert _hidden(services) == []
    assert contents(opened(storage, clock)) == before


def taken_back(storage: Storage) -> Callable[[], None]:
    """Make the last write inflight again; the result completes it."""
    folder = format_of(read_properties(storage)).timeline_folder
    path = max(o.path for o in storage.list_folder(folder).objects if o.path.endswith(".deltacommit"))
    content = storage.read(path)
    storage.delete(path)
    return lambda: storage.put(path, content)


def _hidden(table: Table) -> list[str]:
    table.timeline.catch_up()
    return [found.text for found in findings_of(table) if found.kind is FindingKind.HIDDEN_COMMIT]


def test_the_rows_of_a_write_below_a_plan_that_did_not_see_it_stay_visible() -> None:
    _, storage, clock = _merging()
    compaction = _late_write(storage, clock)
    services = opened(storage, clock, "services")
    (found,) = _hidden(services)
    assert f"tideline run compaction PATH {compaction}" in found
    before = contents(opened(storage, clock))
    assert LATE in before
    run_pending(services)
    assert _hidden(services) == []
    assert contents(opened(storage, clock)) == before


def test_a_write_that_completes_below_a_compaction_while_it_runs_makes_it_run_again() -> None:
    _, storage, clock = _merging()
    _late_write(storage, clock)
    services = opened(storage, clock, "services")
    complete = taken_back(storage)

    def run(tasks: Sequence[CompactionTask]) -> list[WriteStat]:
        done = [compact_slice(task, storage) for task in tasks]
        complete()
        return done

    with pytest.raises(WriteConflict, match="run the compaction again"):
        run_compaction(services, run=run)
    before = contents(opened(storage, clock))
    assert LATE in before
    clock.advance(HEARTBEAT.total_seconds() * 10)
    assert run_pending(services)
    assert contents(opened(storage, clock)) == before


@pytest.mark.parametrize("by_hudi", [True, False])
def test_a_write_that_nobody_reads_any_more_is_found_hidden(by_hudi: bool) -> None:
    """Apache Hudi ran the plan while the write completed, or the write completed after the compaction."""
    _, storage, clock = _merging()
    if by_hudi:
        compaction = _late_write(storage, clock)
        complete = taken_back(storage)
        run_pending(peer_of(storage, clock))
        complete()
    else:
        compaction = _late_write(storage, clock, lambda: run_pending(opened(storage, clock, "services")))
    services = opened(storage, clock, "services")
    (found,) = _hidden(services)
    assert compaction in found
    assert "tideline reappend PATH" in found
    assert LATE not in contents(opened(storage, clock))


def test_a_write_that_saw_the_plan_is_not_hidden() -> None:
    ours, storage, clock = _merging()
    assert schedule_compaction(ours, ONE)
    put(unlocked_job(storage, clock), [LATE])
    services = opened(storage, clock, "services")
    services.timeline.catch_up()
    assert run_pending(services) is not None
    assert findings_of(services) == ()
    assert LATE in contents(services)


def test_the_planner_clusters_only_partitions_that_no_job_writes() -> None:
    """A job that updates a file group under a pending clustering fails, however short the clustering is pending."""
    table, storage, clock = shared_table()
    put(table, [("a", "p", 1, "1"), ("b", "q", 1, "1")])
    put(table, [("c", "p", 1, "1"), ("d", "q", 1, "1")], Operation.INSERT)
    asked = Trigger(2, 0)
    clock.advance(1000)
    put(peer_of(storage, clock), [("a", "p", 2, "2")])
    ours = opened(storage, clock)
    planned = request_clustering(ours, SMALL, trigger=asked)
    assert isinstance(planned, str)
    assert {group.partition_path for group in ours.state.planned_groups(planned)} == {"q"}
    cluster(ours, planned)
    waiting = request_clustering(ours, SMALL, trigger=asked)
    assert isinstance(waiting, NotDue)
    assert "were written within 600 s, 'p' is one" in waiting.reason
    assert "tideline.clustering.quiet" in waiting.until
    clock.advance(601)
    assert isinstance(request_clustering(opened(storage, clock), SMALL, trigger=asked), str)
