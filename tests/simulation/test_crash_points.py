"""The process dies before or after each storage call of each operation; a fresh one recovers, twice."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.crashes import Place, Scenario, rows_survive
from tests.simulation.faults import MUTATING, FaultyStorage, SimulatedCrash, crash_at, fail_at, heal, sampled
from tests.simulation.recovery import OPTIONS, check_sound, recover
from tests.simulation.starting_point import Prepared, Undisturbed, live_through, place, undisturbed
from tests.unit.table.tables import DEATH_S, cluster, contents, create, open_table, write

from tideline_table.action import roll_back_dead, run_clean
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.errors import TableExists, TableNotFound, TidelineError
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table
from tideline_table.writer import Operation

ROWS = [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("a", "q", 1, "x"), ("c", "q", 1, "x")]


def upsert(table: Table) -> None:
    write(table, [("a", "p", 2, "new"), ("n", "p", 2, "new"), ("c", "q", 2, "new"), ("z", "r", 2, "new")])


def delete(table: Table) -> None:
    write(table, [("a", "p", 0, ""), ("b", "p", 0, ""), ("c", "q", 0, "")], Operation.DELETE)


def bulk_insert(table: Table) -> None:
    write(table, [("m", "p", 1, "bulk"), ("m", "s", 1, "bulk")], Operation.BULK_INSERT)


def cluster_all(table: Table) -> None:
    schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "v"})
    cluster(table)


def clean(table: Table) -> None:
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)


def roll_back_abandoned(table: Table) -> None:
    """Of a writer that wrote two files, saw its commit fail for good, and went away."""
    assert len(roll_back_dead(table)) == 1


OPERATIONS = [upsert, delete, bulk_insert, cluster_all, clean, roll_back_abandoned]


@functools.cache
def prepared(operation: Callable[[Table], None]) -> Prepared:
    """A table just before the operation, and how much time has passed."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock)
    table = open_table(storage, clock, **OPTIONS)
    write(table, ROWS)
    write(table, [("a", "p", 1, "y"), ("d", "p", 1, "x")])
    write(table, [("c", "q", 1, "y"), ("e", "q", 1, "x")])
    if operation is roll_back_abandoned:
        faulty = FaultyStorage(storage)
        other = open_table(faulty, clock, "other")
        crash_at(faulty, 12, "before")
        with pytest.raises(SimulatedCrash):
            upsert(other)
        clock.advance(DEATH_S)
    return storage, clock.monotonic_s()


@functools.cache
def outcome(operation: Callable[[Table], None]) -> Undisturbed:
    return undisturbed(prepared(operation), operation)


def created_again(disk: MemoryStorage, clock: ManualClock, _: object) -> None:
    """The table is there, or it can be created."""
    try:
        open_table(disk, clock)
        with pytest.raises(TableExists):
            create(disk, clock)
    except TableNotFound:
        create(disk, clock)
    write(open_table(disk, clock), ROWS)
    assert contents(open_table(disk, clock)) == sorted(ROWS)
    check_sound(disk, clock, [sorted(ROWS)])


def nothing() -> Place:
    clock = ManualClock()
    disk = MemoryStorage(clock=clock)
    return FaultyStorage(disk), disk, clock


@functools.cache
def calls_of_creation() -> tuple[str, ...]:
    whole, _, clock = nothing()
    create(whole, clock)
    calls = tuple(call for call, _ in whole.calls if call in MUTATING)
    assert len(calls) >= 4
    return calls


CREATION = Scenario(
    name="creation",
    arrange=nothing,
    opened=lambda storage, clock: (storage, clock),
    act=lambda held: create(*held),
    calls=calls_of_creation,
    deaths=("before", "after"),
    behind=created_again,
)
SCENARIOS = [CREATION, *(rows_survive(o.__name__, o, partial(prepared, o), partial(outcome, o)) for o in OPERATIONS)]


def test_the_operations_do_something():
    for operation in OPERATIONS:
        done = outcome(operation)
        assert (done.before != done.after) == (operation in (upsert, delete, bulk_insert))
        assert len(done.mutating) >= 9


@pytest.mark.parametrize("number", range(0, 30, 3))
def test_crash_in_the_recovery_of_a_crashed_write(number):
    """Also of a recovery that is itself the second one."""
    done = outcome(upsert)
    for first in (len(done.mutating) // 2, len(done.mutating) - 4):
        faulty, disk, clock = place(prepared(upsert))
        table = open_table(faulty, clock, **OPTIONS)
        crash_at(faulty, first, "after")
        with pytest.raises(SimulatedCrash):
            upsert(table)
        for attempt in range(2):
            again = FaultyStorage(disk)
            crash_at(again, number, "before" if attempt else "after")
            try:
                recover(again, clock)
            except SimulatedCrash:
                continue
        recover(disk, clock)
        check_sound(disk, clock, done.allowed)


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
def test_storage_error_at_every_call(operation, when, times):
    """A call that fails (or whose reply is lost): the operation says so or succeeds; what it acknowledged is there."""
    done = outcome(operation)
    failed = [list(done.before)] if done.before != done.after else done.allowed
    for number in sampled(range(len(done.calls))):
        fail = partial(fail_at, first=number, times=times, when=when)
        live_through(prepared(operation), operation, fail, done=list(done.after), failed=failed, unknown=done.allowed)


def test_a_long_outage_in_the_middle_of_a_write():
    """The writer lives on, but the storage does not answer any more; nobody waits for ever."""
    done = outcome(upsert)
    for number in range(0, len(done.calls), 4):
        faulty, disk, clock = place(prepared(upsert))
        table = open_table(faulty, clock, **OPTIONS)
        fail_at(faulty, number, 10**6, "before")
        with_error = False
        try:
            upsert(table)
        except TidelineError:
            with_error = True
        heal(faulty)
        allowed = done.allowed if with_error else [list(done.after)]
        recover(disk, clock)
        check_sound(disk, clock, allowed)


def test_an_abandoned_begin_without_any_file():
    faulty, disk, clock = place(prepared(upsert))
    table = open_table(faulty, clock, **OPTIONS)
    WriteTransaction.begin(table.timeline, table.lock, "UPSERT").abandon()
    recover(disk, clock)
    check_sound(disk, clock, [list(outcome(upsert).before)])
