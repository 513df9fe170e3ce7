"""The process dies, or its storage fails, at each call of a savepoint, of its deletion and of a restore.

A fresh one recovers, twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.crashes import Scenario, rows_survive
from tests.simulation.faults import FaultyStorage, SimulatedCrash, crash_at, fail_at, heal
from tests.simulation.recovery import OPTIONS, check_sound, recover
from tests.simulation.starting_point import Prepared, Undisturbed, place, undisturbed
from tests.unit.table.tables import Row, compact, contents, create, open_table, write

from tideline_table.action import create_savepoint, delete_savepoint, restore_to_savepoint
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.errors import RestorePending, TidelineError
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

ROWS = [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("a", "q", 1, "x"), ("c", "q", 1, "x")]


def saved(table: Table) -> str:
    return min(table.state.savepoints)


def save(table: Table) -> None:
    create_savepoint(table, table.state.completed_writes()[-1].instant)


def give_up(table: Table) -> None:
    delete_savepoint(table, saved(table))


def restore(table: Table) -> None:
    restore_to_savepoint(table, saved(table))


OPERATIONS = [save, give_up, restore]


@functools.cache
def prepared(kind: TableType) -> Prepared:
    """A savepoint; behind it writes of each kind, a savepoint, a clean that is pending, a write and a plan under way."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=kind)
    table = open_table(storage, clock, **OPTIONS)
    write(table, ROWS)
    write(table, [("a", "p", 2, "saved"), ("d", "p", 1, "saved")])
    create_savepoint(table)
    write(table, [("a", "p", 3, "y"), ("n", "r", 1, "new")])
    write(table, [("b", "p", 9, ""), ("c", "q", 9, "")], Operation.DELETE)
    create_savepoint(table)
    write(table, [("a", "q", 2, "over")], Operation.INSERT_OVERWRITE)
    if kind is TableType.MOR:
        for number in range(4, 6):
            compact(table)
            write(table, [("a", "p", number, "z")])
    else:
        for number in range(4, 7):
            write(table, [("a", "p", number, "z")])
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    schedule_clustering(table, {"tideline.clustering.min.input.files": 1})
    faulty = FaultyStorage(storage)
    dying = open_table(faulty, clock, "dying")
    crash_at(faulty, 8, "before")
    with pytest.raises(SimulatedCrash):
        write(dying, [("a", "p", 8, "never"), ("m", "s", 1, "never")])
    return storage, clock.monotonic_s()


@functools.cache
def outcome(operation: Callable[[Table], None], kind: TableType) -> Undisturbed:
    return undisturbed(prepared(kind), operation)


def check(disk: Storage, clock: ManualClock, allowed: list[tuple]) -> None:
    """Also that log files on storage are those of the state, and that the savepoint can be read, or is gone."""
    table = open_table(disk, clock)
    on_disk = {o.path for o in disk.list_objects("") if ".log." in o.path and not o.path.startswith(".hoodie")}
    assert on_disk == {path for s in table.state.every_slice() for path in s.log_paths}
    for instant in table.state.savepoints:
        contents(table, as_of=instant)
    check_sound(disk, clock, [list(rows) for rows in allowed])


def test_the_operations_do_something():
    for kind in TableType:
        for operation in OPERATIONS:
            done = outcome(operation, kind)
            assert (done.before != done.after) == (operation is restore)
            assert len(done.mutating) >= (40 if operation is restore else 3)


def saved_or_restored(operation: Callable[[Table], None], kind: TableType) -> Scenario:
    """Readers see the one or the other, recovered or not."""

    def at_once(disk: MemoryStorage, clock: ManualClock, when: str) -> None:
        done = outcome(operation, kind)
        assert tuple(contents(open_table(disk, clock))) in (done.before, done.after)

    def behind(disk: MemoryStorage, clock: ManualClock, _: object) -> tuple[Row, ...]:
        recover(disk, clock)
        found = tuple(contents(open_table(disk, clock)))
        done = outcome(operation, kind)
        check(disk, clock, [done.before, done.after])
        return found

    def ended(seen: set[tuple[Row, ...]], when: str) -> None:
        done = outcome(operation, kind)
        assert seen == {done.before, done.after} or when == "torn", "crashes on both sides of the commit point"

    more = {"at_once": at_once, "behind": behind, "ended": ended}
    name = f"{operation.__name__}, {kind.value}"
    return rows_survive(name, operation, partial(prepared, kind), partial(outcome, operation, kind), **more)


SCENARIOS = [saved_or_restored(operation, kind) for operation in OPERATIONS for kind in TableType]


@pytest.mark.parametrize("number", range(0, 60, 20))
@pytest.mark.parametrize("kind", TableType)
def test_crash_in_the_recovery_of_a_crashed_restore(kind, number):
    """Also of a recovery that is itself the second one; nothing comes back once it began."""
    done = outcome(restore, kind)
    for first in (len(done.mutating) // 2, len(done.mutating) - 4):
        faulty, disk, clock = place(prepared(kind))
        table = open_table(faulty, clock, **OPTIONS)
        crash_at(faulty, first, "after")
        with pytest.raises(SimulatedCrash):
            restore(table)
        began = bool(open_table(disk, clock).state.restoring)
        for attempt in range(2):
            again = FaultyStorage(disk)
            crash_at(again, number, "before" if attempt else "after")
            try:
                recover(again, clock)
            except SimulatedCrash:
                continue
        recover(disk, clock)
        check(disk, clock, [done.after] if began else [done.before, done.after])


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
def test_storage_error_at_every_call(operation, when, times):
    """A call that fails (or whose reply is lost): the operation says so or succeeds; what it acknowledged is there."""
    kind = TableType.MOR
    done = outcome(operation, kind)
    for number in range(0, len(done.calls), 7 if operation is restore else 2):
        faulty, disk, clock = place(prepared(kind))
        table = open_table(faulty, clock, **OPTIONS)
        fail_at(faulty, number, times, when)
        allowed = [done.before, done.after]
        try:
            operation(table)
            allowed = [done.after]
        except TidelineError:
            pass
        heal(faulty)
        assert tuple(contents(open_table(disk, clock))) in allowed
        recover(disk, clock)
        check(disk, clock, allowed)


@pytest.mark.parametrize("kind", TableType)
def test_a_writer_that_lives_through_a_restore_that_died(kind):
    """At whichever call: its write never becomes visible beside the restored rows, and no file of it stays."""
    done = outcome(restore, kind)
    for number in range(0, len(done.mutating), 5):
        faulty, disk, clock = place(prepared(kind))
        writer = open_table(disk, clock, "writer", **{"tideline.write.conflict.retries": 0})
        begun = WriteTransaction.begin(writer.timeline, writer.lock, "UPSERT")
        table = open_table(faulty, clock, **OPTIONS)
        crash_at(faulty, number, "after")
        with pytest.raises(SimulatedCrash):
            restore(table)
        try:
            write(writer, [("live", "p", 1, "x")])
            allowed = [(*rows, ("live", "p", 1, "x")) for rows in (done.before, done.after)]
        except RestorePending:
            allowed = [done.after]
        except TidelineError:
            allowed = [done.before, done.after]
        begun.roll_back()
        recover(disk, clock)
        check(disk, clock, [tuple(sorted(rows, key=repr)) for rows in allowed])
