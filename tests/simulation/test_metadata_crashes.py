"""The process dies at each storage call while a table has a metadata table: readers of it miss nothing at any moment, and the next
process makes it whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.crashes import Scenario
from tests.simulation.faults import SimulatedCrash, crash_at, sampled
from tests.simulation.metadata_reader import check_readers_miss_nothing, is_used
from tests.simulation.recovery import OPTIONS, check_sound, recover
from tests.simulation.starting_point import Prepared, Undisturbed, place, undisturbed
from tests.unit.table.tables import cluster, create, open_table, write

from tideline_table.action import (
    check_table,
    create_metadata,
    create_savepoint,
    delete_partitions,
    drop_metadata,
    repair_metadata,
    restore_to_savepoint,
    run_clean,
)
from tideline_table.clock import Clock, ManualClock
from tideline_table.coordination import exclusive
from tideline_table.log import table_log
from tideline_table.log.entry import Entry
from tideline_table.log.table_log import TableLog
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import Table

ROWS = [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("a", "q", 1, "x"), ("c", "q", 1, "x")]
OTHERS = ["bloom_filters", "column_stats"]
"""Partitions whose records come from base files; `test_record_index_crashes` has the record index."""
SOON = {**OPTIONS, "hoodie.metadata.compact.max.delta.commits": 3}


def upsert(table: Table) -> None:
    """Its delta commit is the fourth: it compacts the metadata table first."""
    write(table, [("a", "p", 2, "new"), ("n", "p", 2, "new"), ("c", "q", 2, "new"), ("z", "r", 2, "new")])


def upsert_beside(table: Table) -> None:
    upsert(table)


def cluster_all(table: Table) -> None:
    schedule_clustering(table, {"hoodie.clustering.plan.strategy.sort.columns": "v"})
    cluster(table)


def clean(table: Table) -> None:
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)


def restore(table: Table) -> None:
    restore_to_savepoint(table, min(table.state.savepoints))


def drop_partition(table: Table) -> None:
    table.clock.advance(1)  # type: ignore[attr-defined]
    delete_partitions(table, ["q"])


def create_it(table: Table) -> None:
    create_metadata(table)


def add_others(table: Table) -> None:
    create_metadata(table, OTHERS)


def upsert_all(table: Table) -> None:
    upsert(table)


def clean_all(table: Table) -> None:
    clean(table)


def restore_all(table: Table) -> None:
    restore(table)


def drop(table: Table) -> None:
    drop_metadata(table)


def repair(table: Table) -> None:
    repair_metadata(table)


OPERATIONS = [
    upsert,
    cluster_all,
    clean,
    restore,
    drop_partition,
    create_it,
    drop,
    repair,
    add_others,
    upsert_all,
    clean_all,
    restore_all,
]


@functools.cache
def prepared(operation: Callable[[Table], None]) -> Prepared:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock)
    table = open_table(storage, clock, **SOON)
    write(table, ROWS)
    if operation is not create_it:
        create_metadata(table, ["files", *OTHERS] if operation in (upsert_all, clean_all, restore_all) else ["files"])
    create_savepoint(table)
    for number in range(1 if operation is upsert_beside else 3):
        write(table, [("a", "p", 1, f"y{number}"), ("d", "q", 1, f"x{number}")])
    return storage, clock.monotonic_s()


@functools.cache
def outcome(operation: Callable[[Table], None]) -> Undisturbed:
    return undisturbed(prepared(operation), operation)


def crashed(operation: Callable[[Table], None], number: int, when: str) -> tuple[MemoryStorage, ManualClock]:
    faulty, disk, clock = place(prepared(operation))
    table = open_table(faulty, clock, **SOON)
    crash_at(faulty, number, when)
    with pytest.raises(SimulatedCrash):
        operation(table)
    return disk, clock


def settle(operation: Callable[[Table], None], disk: MemoryStorage, clock: ManualClock) -> Table:
    """A process recovers the table. Interrupted by its death, an administrator repeats what he asked for."""
    table = recover(disk, clock)
    if operation in (create_it, drop, repair):
        wanted = operation is not drop
        if (table.state.metadata is not None) != wanted:
            operation(table)
        elif check_table(table):
            repair(table)
    if operation is add_others and not {*OTHERS} <= {*names(table)}:
        operation(table)
    return table


def names(table: Table) -> tuple[str, ...]:
    known = table.refresh().metadata
    return known.names if known is not None else ()


def with_metadata(operation: Callable[[Table], None]) -> Scenario:
    """Readers of the metadata table miss nothing at any moment, and the next process makes it whole."""

    def calls() -> tuple[str, ...]:
        mutating = outcome(operation).mutating
        assert len(mutating) >= 8
        return mutating

    def behind(disk: MemoryStorage, clock: ManualClock, _: object) -> None:
        table = settle(operation, disk, clock)
        check_readers_miss_nothing(disk)
        assert check_table(table) == []
        check_sound(disk, clock, outcome(operation).allowed)
        assert check_table(open_table(disk, clock)) == []
        assert is_used(disk) == (operation is not drop)

    return Scenario(
        name=operation.__name__,
        arrange=lambda: place(prepared(operation)),
        opened=lambda storage, clock: open_table(storage, clock, **SOON),
        act=operation,
        calls=calls,
        deaths=("before",),
        chosen=sampled,
        at_once=lambda disk, clock, when: check_readers_miss_nothing(disk),
        behind=behind,
    )


SCENARIOS = [with_metadata(operation) for operation in OPERATIONS]


def test_the_operations_compact():
    for operation in (upsert, upsert_beside):
        disk, clock = crashed(operation, len(outcome(operation).mutating) - 1, "after")
        known = open_table(disk, clock).state.metadata
        assert known is not None
        assert bool(known.files.older_base) == (operation is upsert)


@contextmanager
def published_after_the_timeline() -> Iterator[None]:
    """The seeded bug: readers see a commit before the metadata table lists its files."""
    real = TableLog.materialise

    def materialise(log: TableLog, entry: Entry, before_files: Callable[[], None] = lambda: None) -> None:
        real(log, entry)
        before_files()

    with patch.object(table_log.TableLog, "materialise", materialise):
        yield


@contextmanager
def never_healed() -> Iterator[None]:
    """The seeded bug: whichever process heals an entry of another writer creates its timeline files only."""
    real = exclusive.publish_metadata

    def publish(storage: Storage, log: TableLog, clock: Clock, entry: Entry, *more: Any) -> None:
        if entry.writer_id == log.writer_id:
            real(storage, log, clock, entry, *more)

    with patch.object(exclusive, "publish_metadata", publish):
        yield


@pytest.mark.parametrize("bug", [published_after_the_timeline, never_healed])
def test_seeded_bugs_are_found(bug):
    done = outcome(upsert_beside)

    def lives() -> None:
        for number in range(len(done.mutating)):
            disk, clock = crashed(upsert_beside, number, "after")
            check_readers_miss_nothing(disk)
            write(open_table(disk, clock, "next", **SOON), [("next", "p", 1, "x")])
            check_readers_miss_nothing(disk)

    lives()
    with bug(), pytest.raises(AssertionError, match="is not listed"):
        lives()
