"""Cancelling plans: crashes at every call, writers and executors at every call, and what a reader that only knows Hudi's files
finds meanwhile."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from functools import partial

import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.simulation.crashes import Scenario
from tests.simulation.faults import (
    MUTATING,
    PUTS,
    FaultyStorage,
    SimulatedCrash,
    copy_of,
    crash_at,
    fail_at,
    fill_up,
    heal,
)
from tests.simulation.recovery import OPTIONS, check_sound, compact, recover
from tests.simulation.starting_point import Prepared, Undisturbed, live_through, place, undisturbed
from tests.unit.table.tables import DEATH_S, cluster, contents, create, open_table, write

from tideline_table.action import cancel_plan
from tideline_table.clock import ManualClock
from tideline_table.errors import TidelineError, TransactionRolledBack, UnsupportedTable
from tideline_table.hudi.instant import Action, State
from tideline_table.log.body import Bare
from tideline_table.log.table_log import Draft
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType

ROWS = [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("a", "q", 1, "x"), ("c", "q", 1, "x")]
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}
CLUSTER_ALL = {"tideline.clustering.min.input.files": 1}


def plan_of(table: Table) -> str:
    (plan,) = [a.instant for a in table.refresh().pending() if a.instant in table.state.plans and not a.fenced_by]
    return plan


def cancel(table: Table) -> None:
    cancel_plan(table, plan_of(table))


def compaction() -> Prepared:
    """Planned, with log files behind the plan in one group, also deletions, and none in another."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    table = open_table(storage, clock, **OPTIONS)
    write(table, ROWS)
    write(table, [("a", "p", 2, "y"), ("d", "p", 1, "x"), ("c", "q", 2, "y")])
    schedule_compaction(table, AT_ONCE)
    write(table, [("b", "p", 3, "z")])
    write(table, [("a", "p", 4, "z"), ("b", "p", 4, "zz")])
    return storage, clock.monotonic_s()


def begun_compaction() -> Prepared:
    """Of which an executor died behind its first base file."""
    storage, passed_s = compaction()
    clock = ManualClock()
    clock.advance(passed_s)
    faulty = FaultyStorage(storage)
    crash_at(faulty, 8, "after")
    with pytest.raises(SimulatedCrash):
        compact(open_table(faulty, clock, "executor", **OPTIONS))
    return storage, clock.monotonic_s()


def clustering() -> Prepared:
    storage, passed_s = compaction()
    clock = ManualClock()
    clock.advance(passed_s)
    compact(open_table(storage, clock, **OPTIONS))
    schedule_clustering(open_table(storage, clock, **OPTIONS), CLUSTER_ALL)
    return storage, clock.monotonic_s()


def clean() -> Prepared:
    storage, passed_s = compaction()
    clock = ManualClock()
    clock.advance(passed_s)
    table = open_table(storage, clock, **OPTIONS)
    compact(table)
    write(table, [("a", "p", 5, "z")])
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    return storage, clock.monotonic_s()


PLANS = [compaction, begun_compaction, clustering, clean]
prepared = functools.cache(lambda plan: plan())


@functools.cache
def outcome(plan: Callable[[], Prepared]) -> Undisturbed:
    return undisturbed(prepared(plan), cancel)


def of_hudi(disk: MemoryStorage, clock: ManualClock) -> list:
    """What a reader finds that knows the timeline and the listing only, as Apache Hudi does."""
    other = copy_of(disk, clock)
    other.delete_below(".hoodie/.tideline")
    return contents(open_table(other, clock, "hudi"))


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.__name__)
def test_a_cancelled_plan_is_gone_and_no_row_changes(plan):
    faulty, disk, clock = place(prepared(plan))
    table = open_table(faulty, clock, **OPTIONS)
    instant, before = plan_of(table), contents(table)
    done = cancel_plan(table, instant)
    assert (done.instant, done.was_begun) == (instant, plan is begun_compaction)
    assert done.moved_log_files == (2 if plan in (compaction, begun_compaction) else 0)
    assert table.state.actions[instant].state is State.ROLLED_BACK
    assert contents(table) == contents(open_table(disk, clock)) == of_hudi(disk, clock) == before
    assert not [path for path in disk._objects if f"_{instant}." in path], "no file is named after the plan"
    assert table.state.clustering_losses == {}, "a cancellation is no lost conflict"
    check_sound(disk, clock, [before])
    compact(open_table(disk, clock))
    assert contents(open_table(disk, clock)) == of_hudi(disk, clock)
    with pytest.raises(UnsupportedTable, match="is rolled"):
        cancel_plan(table, instant)


def cancelled(plan: Callable[[], Prepared]) -> Scenario:
    """No row changes at any moment, for no reader."""

    def at_once(disk: MemoryStorage, clock: ManualClock, when: str) -> None:
        if when != "torn":
            assert of_hudi(disk, clock) == contents(open_table(disk, clock)) == list(outcome(plan).before)

    def behind(disk: MemoryStorage, clock: ManualClock, _: object) -> None:
        recover(disk, clock)
        before = list(outcome(plan).before)
        assert of_hudi(disk, clock) == before
        check_sound(disk, clock, [before])

    return Scenario(
        name=plan.__name__,
        arrange=lambda: place(prepared(plan)),
        act=cancel,
        calls=lambda: outcome(plan).mutating,
        at_once=at_once,
        behind=behind,
    )


SCENARIOS = [cancelled(plan) for plan in PLANS]


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.__name__)
def test_storage_error_at_every_call(plan):
    done = outcome(plan)
    rows = {"done": list(done.after), "failed": [list(done.before)], "unknown": [list(done.before)]}
    for number, call in enumerate(done.calls):
        faults = [partial(fail_at, first=number, times=1, when="before")]
        if call in MUTATING:
            faults.append(partial(fail_at, first=number, times=1, when="after"))
        if call in PUTS:
            faults.append(partial(fill_up, first=number))
        live_through(prepared(plan), cancel, faults[number % len(faults)], **rows)


def at_call(faulty: FaultyStorage, number: int, act: Callable[[], bool]) -> list[bool]:
    """Let `act` happen before call `number` from now on; the list holds what it returned."""
    start, results = len(faulty.calls), []
    entered = []

    def beside(at: int, call: str, path: str) -> None:
        if at - start == number and not entered:
            entered.append(True)
            results.append(act())

    faulty.before = beside
    return results


def changing(done: Undisturbed) -> list[int]:
    """The numbers of the calls that change something: before each, another process finds another state."""
    return [number for number, call in enumerate(done.calls) if call in MUTATING]


def wrote(disk: MemoryStorage, clock: ManualClock, rows: list) -> bool:
    try:
        write(open_table(disk, clock, "beside", **{"tideline.write.conflict.retries": 1}), rows)
    except TidelineError:
        return False
    return True


def stopped(disk: MemoryStorage, clock: ManualClock, instant: str) -> bool:
    try:
        cancel_plan(open_table(disk, clock, "operator", **OPTIONS), instant)
    except UnsupportedTable:  # it is completed
        return False
    return True


@pytest.mark.parametrize(
    ("plan", "rows"),
    [
        (compaction, [("b", "p", 9, "new"), ("c", "q", 9, "new")]),
        (compaction, [("c", "q", 9, "new")]),
        (begun_compaction, [("b", "p", 9, "new"), ("n", "p", 9, "new")]),
    ],
    ids=["both", "other", "begun"],
)
def test_a_writer_at_every_call(plan, rows):
    """Its rows are there at the end, for every reader and whatever compacts later; or it says that it failed."""
    done, conflicts = outcome(plan), 0
    keys = {row[:2] for row in rows}
    expected = sorted([*(row for row in done.before if row[:2] not in keys), *rows], key=repr)
    for number in changing(done):
        faulty, disk, clock = place(prepared(plan))
        table = open_table(faulty, clock, **OPTIONS)
        acknowledged = at_call(faulty, number, partial(wrote, disk, clock, rows))
        cancel(table)
        heal(faulty)
        conflicts += acknowledged == [False]
        wanted = expected if acknowledged == [True] else list(done.before)
        assert contents(open_table(disk, clock)) == of_hudi(disk, clock) == wanted, number
        clock.advance(DEATH_S)
        recover(disk, clock)
        again = open_table(disk, clock)
        schedule_compaction(again, AT_ONCE)
        compact(again)
        assert contents(open_table(disk, clock)) == of_hudi(disk, clock) == wanted, number
        check_sound(disk, clock, [wanted])
    assert conflicts < len(changing(done)) / 2


@pytest.mark.parametrize("plan", [compaction, clustering], ids=lambda p: p.__name__)
def test_an_executor_that_runs_the_plan_loses_at_its_commit(plan):
    run = compact if plan is compaction else cluster
    made = undisturbed(prepared(plan), run)
    cancelled = 0
    for number in changing(made):
        faulty, disk, clock = place(prepared(plan))
        executor = open_table(faulty, clock, "executor", **OPTIONS)
        instant = plan_of(executor)
        was_stopped = at_call(faulty, number, partial(stopped, disk, clock, instant))
        done = None
        with contextlib.suppress(TransactionRolledBack):
            done = run(executor)
        heal(faulty)
        state = open_table(disk, clock).state
        is_cancelled = was_stopped == [True]
        assert state.actions[instant].state is (State.ROLLED_BACK if is_cancelled else State.COMPLETED)
        assert (done is None) == is_cancelled
        cancelled += is_cancelled
        clock.advance(DEATH_S)
        recover(disk, clock)
        assert contents(open_table(disk, clock)) == of_hudi(disk, clock) == list(made.before)
        check_sound(disk, clock, [list(made.before)])
    assert 3 < cancelled < len(changing(made)), "on both sides of the commit point"


def test_a_clean_that_began_is_not_cancelled():
    _, disk, clock = place(prepared(clean))
    table = open_table(disk, clock, **OPTIONS)
    instant = plan_of(table)
    table.timeline.append(lambda _: Draft(instant, Action.CLEAN, State.REQUESTED, State.INFLIGHT, "CLEAN", Bare()))
    with pytest.raises(UnsupportedTable, match=r"files that it names may be deleted already; .*tideline run clean PATH"):
        cancel_plan(table, instant)
    assert table.refresh().actions[instant].state is State.INFLIGHT
