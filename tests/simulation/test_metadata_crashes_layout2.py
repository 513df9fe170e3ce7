"""The process dies at each storage call while a table of version 9 has a metadata table.

Its readers miss nothing at any moment, and the next process makes it whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from tests.simulation.faults import SimulatedCrash, crash_at, sampled
from tests.simulation.layout2_reader import FILES, advertised, check_readers_miss_nothing
from tests.simulation.recovery import OPTIONS, recover
from tests.simulation.starting_point import Prepared, Undisturbed, place, undisturbed
from tests.simulation.test_metadata_crashes import ROWS, SOON, clean, cluster_all, drop_partition, restore, upsert
from tests.unit.table.tables import contents, create, open_table, write

from tideline_table.action import (
    check_table,
    create_metadata,
    create_savepoint,
    repair_metadata,
)
from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType

PARTITIONS = ["files", "column_stats", "bloom_filters", "record_index"]


def create_it(table: Table) -> None:
    create_metadata(table, PARTITIONS)


OPERATIONS = [upsert, cluster_all, clean, restore, drop_partition, create_it]


@functools.cache
def prepared(operation: Callable[[Table], None]) -> Prepared:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, version=9, type=TableType.MOR if operation is upsert else TableType.COW)
    table = open_table(storage, clock, **SOON)
    write(table, [row for row in ROWS if row[:2] != ("a", "q")])
    if operation is not create_it:
        create_metadata(table, PARTITIONS)
    create_savepoint(table)
    for number in range(3):
        write(table, [("a", "p", 1, f"y{number}"), ("d", "q", 1, f"x{number}")])
    return storage, clock.monotonic_s()


@functools.cache
def outcome(operation: Callable[[Table], None]) -> Undisturbed:
    return undisturbed(prepared(operation), operation)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
def test_crash_at_every_call(operation: Callable[[Table], None]) -> None:
    done = outcome(operation)
    assert len(done.mutating) >= 8
    for number in sampled(range(len(done.mutating))):
        faulty, disk, clock = place(prepared(operation))
        table = open_table(faulty, clock, **SOON)
        crash_at(faulty, number, "before")
        with pytest.raises(SimulatedCrash):
            operation(table)
        check_readers_miss_nothing(disk)
        table = recover(disk, clock)
        if operation is create_it:
            settle(table)
        check_readers_miss_nothing(disk)
        assert contents(open_table(disk, clock)) in done.allowed, f"crash before call {number}"
        assert check_table(table) == [], f"crash before call {number}"
        write(open_table(disk, clock, "next", **OPTIONS), [("next", "p", 1, "x")])
        check_readers_miss_nothing(disk)
        assert check_table(open_table(disk, clock)) == []
        assert FILES in advertised(disk)


def settle(table: Table) -> None:
    """An administrator, interrupted by the death of his process, repeats what he asked for."""
    known = table.refresh().metadata
    if known is None or set(PARTITIONS) - set(known.names):
        create_metadata(table, PARTITIONS)
    elif check_table(table):
        repair_metadata(table)


def test_the_upsert_compacts() -> None:
    _, disk, clock = place(prepared(upsert))
    table = open_table(disk, clock, **SOON)
    upsert(table)
    known = table.refresh().metadata
    assert known is not None
    assert known.files.older_base
    assert known.files.base == known.files.deltas[-1].completion
