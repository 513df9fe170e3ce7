"""As `test_crash_points`, in a merge-on-read table, with the calls to a lock and reservations beside it, and in the recovery
itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.simulation.crashes import rows_survive
from tests.simulation.faults import MUTATING, PUTS, FaultyStorage, SimulatedCrash, crash_at, fail_at, fill_up
from tests.simulation.recovery import OPTIONS, check_sound, compact, recover
from tests.simulation.starting_point import Prepared, Undisturbed, live_through, place, undisturbed
from tests.unit.table.tables import DEATH_S, cluster, contents, create, open_table, write

from tideline_locks import StorageLockProvider, StorageReservations
from tideline_locks.table_lock import ProviderLock
from tideline_table.action import delete_partitions, roll_back_dead, run_clean, run_clustering
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.clustering.task import ClusteredGroup, ClusteringTask
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.reservations import Reservation
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

ROWS = [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("a", "q", 1, "x"), ("c", "q", 1, "x")]
OTHERS = [("b", "p", 2, "other"), ("a", "q", 2, "other")]
CARRY = {"hoodie.clustering.updates.strategy": "carry-over", "tideline.clustering.min.input.files": 1}
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}


def upsert(table: Table) -> None:
    """To two logs, to a new group, to a new partition."""
    write(table, [("a", "p", 2, "new"), ("n", "p", 2, "new"), ("c", "q", 2, "new"), ("z", "r", 2, "new")])


def upsert_all_to_logs(table: Table) -> None:
    rows = [("a", "p", 2, "new"), ("n", "p", 2, "new"), ("z", "r", 2, "new")]
    write(table, rows, **{"tideline.insert.to.log": True, "hoodie.parquet.small.file.limit": 10**8})


def delete(table: Table) -> None:
    write(table, [("a", "p", 0, ""), ("b", "p", 0, ""), ("c", "q", 0, "")], Operation.DELETE)


def append_behind_others(table: Table) -> None:
    """Another process appends to the same slices when the log files are written: they move behind."""
    real = WriteTransaction.commit

    def late(transaction: WriteTransaction, *arguments: Any, **named: Any) -> Committed:
        inner.undo()
        write(open_table(table.storage.inner, table.clock, "other"), OTHERS)
        return real(transaction, *arguments, **named)

    with pytest.MonkeyPatch.context() as inner:
        inner.setattr(WriteTransaction, "commit", late)
        upsert(table)


def compact_all(table: Table) -> None:
    schedule_compaction(table, AT_ONCE)
    compact(table)


def append_beside_a_compaction(table: Table) -> None:
    upsert(table)


def cluster_all(table: Table) -> None:
    schedule_clustering(table, {"tideline.clustering.min.input.files": 1, "hoodie.clustering.plan.strategy.sort.columns": "v"})
    cluster(table)


def cluster_beside_writers(table: Table) -> None:
    """Other processes update rows and delete one while the clustering runs: it carries both over."""
    schedule_clustering(table, CARRY)

    def run(tasks: Sequence[ClusteringTask]) -> list[ClusteredGroup]:
        results = [cluster_group(task, table.storage) for task in tasks]
        other = open_table(table.storage.inner, table.clock, "other")
        write(other, OTHERS)
        write(other, [("c", "q", 0, "")], Operation.DELETE)
        return results

    run_clustering(table, options=CARRY, run=run)


def clean(table: Table) -> None:
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)


def overwrite(table: Table) -> None:
    write(table, [("o", "p", 1, "only")], Operation.INSERT_OVERWRITE)


def overwrite_everything(table: Table) -> None:
    write(table, [("o", "p", 1, "only")], Operation.INSERT_OVERWRITE_TABLE)


def drop_partition(table: Table) -> None:
    delete_partitions(table, ["q"])


def roll_back_abandoned(table: Table) -> None:
    """Of a writer that died behind two of its log files."""
    assert len(roll_back_dead(table)) == 1


def upsert_in_turn(table: Table) -> None:
    """Under a lock and reservations, both beside the table; a dead process has a reservation."""
    provider = StorageLockProvider(table.storage, clock=table.clock)
    table.lock = ProviderLock(provider, "table:t", "w")
    table.reservations = StorageReservations(table.storage, table.clock)
    rows = [("a", "p", 2, "new"), ("n", "p", 2, "new")]
    write(table, rows, **{"hoodie.parquet.small.file.limit": 10**8})
    overwrite(table)


CHANGES_ROWS = [
    upsert,
    upsert_all_to_logs,
    delete,
    append_beside_a_compaction,
    overwrite,
    overwrite_everything,
    drop_partition,
    upsert_in_turn,
    cluster_beside_writers,
]
OF_LOGS = [
    upsert,
    upsert_all_to_logs,
    delete,
    append_beside_a_compaction,
    append_behind_others,
    compact_all,
    clean,
    roll_back_abandoned,
    cluster_beside_writers,
]
"""What only happens in merge-on-read tables, or to log files: of the rest `test_crash_points` has the storage errors."""
OPERATIONS = [*CHANGES_ROWS, compact_all, cluster_all, clean, roll_back_abandoned]


@functools.cache
def prepared(operation: Callable[[Table], None]) -> Prepared:
    """A table just before the operation, and how much time has passed."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    table = open_table(storage, clock, **OPTIONS)
    write(table, ROWS)
    write(table, [("a", "p", 1, "y"), ("d", "p", 1, "x")])
    write(table, [("c", "q", 1, "y")])
    if operation is append_beside_a_compaction:
        schedule_compaction(table, AT_ONCE)
        write(table, [("b", "p", 1, "y")])
    if operation is clean:
        compact_all(table)
        write(table, [("a", "p", 1, "z"), ("c", "q", 1, "z")])
    if operation is upsert_in_turn:
        dead = Reservation("20260101000000001", frozenset(s.group.file_id for s in table.slices()))
        StorageReservations(storage, clock).claim(dead)
    if operation is roll_back_abandoned:
        faulty = FaultyStorage(storage)
        other = open_table(faulty, clock, "other")
        crash_at(faulty, 15, "before")
        with pytest.raises(SimulatedCrash):
            upsert(other)
        clock.advance(DEATH_S)
    return storage, clock.monotonic_s()


@functools.cache
def outcome(operation: Callable[[Table], None]) -> Undisturbed:
    return undisturbed(prepared(operation), operation)


def allowed(operation: Callable[[Table], None]) -> list[list]:
    return [*outcome(operation).allowed, *between(operation)]


@functools.cache
def between(operation: Callable[[Table], None]) -> list[list]:
    """What readers may find behind the first of two writes."""
    first = {
        upsert_in_turn: [("a", "p", 2, "new"), ("n", "p", 2, "new")],
        append_behind_others: OTHERS,
        cluster_beside_writers: OTHERS,
    }.get(operation)
    if first is None:
        return []
    _, disk, clock = place(prepared(operation))
    table = open_table(disk, clock, **OPTIONS)
    write(table, first)
    return [contents(table)]


SCENARIOS = [
    rows_survive(o.__name__, o, partial(prepared, o), partial(outcome, o), allowed=partial(allowed, o)) for o in OPERATIONS
]


def test_the_operations_do_something():
    for operation in OPERATIONS:
        done = outcome(operation)
        assert (done.before != done.after) == (operation in CHANGES_ROWS)
        assert len(done.mutating) >= 9, operation
    logs = [path for path in prepared(upsert)[0]._objects if ".log." in path and not path.startswith(".hoodie")]
    assert len(logs) == 2


@pytest.mark.parametrize("operation", OF_LOGS, ids=lambda o: o.__name__)
def test_storage_error_at_every_call(operation):
    """It fails, its reply is lost, or from there on is no space: the operation says so or succeeds; what it acknowledged is there.

    Each call has one of these, the same call of the next operation another one, and of those that only read every other one
    has: time is short.
    """
    done = outcome(operation)
    failed = [list(done.before), *between(operation)] if done.before != done.after else done.allowed
    if operation is cluster_beside_writers:
        failed = allowed(operation)  # The clustering may fail behind the writes.
    rows = {"done": list(done.after), "failed": failed, "unknown": allowed(operation)}
    for number, call in enumerate(done.calls):
        turn = number + OF_LOGS.index(operation)
        faults = [partial(fail_at, first=number, times=1, when="before")]
        if call in MUTATING:
            faults.append(partial(fail_at, first=number, times=1, when="after"))
        elif turn % 2:
            continue
        if call in PUTS:
            faults.append(partial(fill_up, first=number))
        live_through(prepared(operation), operation, faults[turn % len(faults)], **rows)


@pytest.mark.parametrize(
    "operation", [upsert, compact_all, cluster_all, cluster_beside_writers, drop_partition], ids=lambda o: o.__name__
)
def test_crash_in_the_recovery(operation):
    """At every third call of a first recovery, and of the one that takes over from it."""
    made = outcome(operation).mutating
    for first in (len(made) // 2, len(made) - 4):
        for number in range(0, 30, 3):
            faulty, disk, clock = place(prepared(operation))
            table = open_table(faulty, clock, **OPTIONS)
            crash_at(faulty, first, "after")
            with pytest.raises(SimulatedCrash):
                operation(table)
            died = 0
            for attempt in range(2):
                again = FaultyStorage(disk)
                crash_at(again, number, "before" if attempt else "after")
                try:
                    recover(again, clock)
                except SimulatedCrash:
                    died += 1
            recover(disk, clock)
            check_sound(disk, clock, allowed(operation))
            if died == 0:
                break  # this recovery has no more calls


def test_a_writer_that_died_under_the_lock_does_not_keep_the_next_one_out():
    for number in range(len(outcome(upsert_in_turn).mutating)):
        faulty, disk, clock = place(prepared(upsert_in_turn))
        table = open_table(faulty, clock, **OPTIONS)
        crash_at(faulty, number, "after")
        with pytest.raises(SimulatedCrash):
            upsert_in_turn(table)
        recover(disk, clock)
        upsert_in_turn(open_table(disk, clock, "next", **OPTIONS))
        assert ("o", "p", 1, "only") in contents(open_table(disk, clock))
