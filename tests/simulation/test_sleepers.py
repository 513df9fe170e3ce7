"""Who ends something that is pending falls asleep at any call, until others ended it so long ago that it was archived.

Found by the simulator: a healer that woke up then took the forgotten instant for a matter of course.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.simulation.recovery import OPTIONS
from tests.simulation.recovery import compact as run_compactions
from tests.simulation.starting_point import Prepared, Undisturbed, place, undisturbed
from tests.unit.table.archives import TASK_S
from tests.unit.table.tables import DEATH_S, cluster, contents, create, open_table, write

from tideline_table.action import archive, roll_back_dead, run_clean
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.errors import TidelineError
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType

FEW = {"hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 2, "hoodie.cleaner.commits.retained": 1}
ROWS = [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("c", "q", 1, "x")]
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1, "tideline.clustering.min.input.files": 1}


def undo(table: Table) -> None:
    roll_back_dead(table)


def cluster_all(table: Table) -> None:
    cluster(table)


def compact_all(table: Table) -> None:
    run_compactions(table)


def clean(table: Table) -> None:
    run_clean(table)


OPERATIONS = [undo, cluster_all, compact_all, clean]


@functools.cache
def prepared(operation: Callable[[Table], None]) -> Prepared:
    """A table in which there is just this to do."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR if operation is compact_all else TableType.COW)
    table = open_table(storage, clock, **OPTIONS)
    write(table, ROWS)
    write(table, [("a", "p", 2, "y"), ("c", "q", 2, "y")])
    write(table, [("a", "p", 3, "y"), ("c", "q", 3, "y")])
    if operation is undo:
        dead = open_table(storage, clock, "dead")
        WriteTransaction.begin(dead.timeline, dead.lock, "UPSERT", dead.write_action()).abandon()
        clock.advance(DEATH_S)
    elif operation is clean:
        assert schedule_clean(table, FEW)
    else:
        assert (schedule_clustering if operation is cluster_all else schedule_compaction)(table, AT_ONCE)
    return storage, clock.monotonic_s()


@functools.cache
def outcome(operation: Callable[[Table], None]) -> Undisturbed:
    return undisturbed(prepared(operation), operation)


def live_on(disk: MemoryStorage, clock: ManualClock) -> None:
    """Others take over what is pending, and go on until it is archived."""
    clock.advance(DEATH_S)
    table = open_table(disk, clock, "others", **OPTIONS)
    for number in range(3):
        roll_back_dead(table)
        cluster(table)
        write(table, [("a", "p", 4 + number, "z"), ("c", "q", 4 + number, "z")])
        if table.definition.type is TableType.MOR:
            schedule_compaction(table, AT_ONCE)
        run_compactions(table)
        schedule_clean(table, FEW)
        run_clean(table)
    clock.advance(TASK_S)
    for _ in range(2):
        archive(table, FEW)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
def test_nothing_is_left_to_do_after_a_long_sleep(operation):
    """At every third call.

    What the sleeper says is an error that can be caught; rows, files and the timeline are those of the others.
    """
    forgotten = 0
    for number in range(0, len(outcome(operation).calls), 3):
        faulty, disk, clock = place(prepared(operation))
        (pending,) = open_table(disk, clock).state.pending()
        table = open_table(faulty, clock, **OPTIONS)
        first = len(faulty.calls)

        def sleep(at: int, call: str, path: str, when=first + number, faulty=faulty, disk=disk, clock=clock) -> None:
            if at == when:
                live_on(disk, clock)

        faulty.before = sleep
        with suppress(TidelineError):
            operation(table)
        others = open_table(disk, clock, "others")
        forgotten += pending.instant not in others.state.actions
        roll_back_dead(others)
        assert contents(others) == [("a", "p", 6, "z"), ("b", "p", 1, "x"), ("c", "q", 6, "z")]
        assert list(others.state.pending()) == []
    assert forgotten >= 5
