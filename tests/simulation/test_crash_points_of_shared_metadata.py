"""The process dies at each storage call while a shared table has a metadata table that Tideline keeps: readers of it miss
nothing at any moment.

Nor does one of its readers find a file in it that is not on storage, statistics that exclude a value of a file, or a key at a
wrong place. Apache Hudi, which rolls back such a delta commit itself, plays in `tests/conformance`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.crashes import Scenario
from tests.simulation.crashes_of_shared import (
    FaultyObjects,
    clean_all,
    cluster_all,
    overwrite_everything,
    prepared,
    roll_back_a_dead_peer,
    upsert,
    upsert_behind_the_peer,
)
from tests.simulation.faults import MUTATING, SAMPLE_STEP, copy_of, fail_at, heal, sampled
from tests.simulation.metadata_reader import check_readers_miss_nothing, is_used
from tests.simulation.recovery import OPTIONS
from tests.simulation.starting_point import Prepared, place
from tests.unit.table.hudi_metadata import make_metadata
from tests.unit.table.shared import opened, put, shared_table
from tests.unit.table.tables import DEATH_S, Row, cluster, contents

from tideline_table.action import check_table, roll_back_dead, run_clean
from tideline_table.clock import ManualClock
from tideline_table.config import SHARED_METADATA
from tideline_table.coordination.shared import timeline as shared_timeline
from tideline_table.errors import TidelineError
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table
from tideline_table.writer import Operation

KEPT = {**OPTIONS, SHARED_METADATA.key: "files,column_stats,bloom_filters"}
COLUMNS = ("_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_record_key", "id", "ts", "v")
BY_KEY = {**OPTIONS, SHARED_METADATA.key: "files,record_index"}


def upsert_by_index(table: Table) -> None:
    put(table, [("a", "p", 2, "new"), ("n", "q", 2, "new")])


def delete_by_index(table: Table) -> None:
    put(table, [("b", "p", 2, "")], Operation.DELETE)


BY_INDEX = (upsert_by_index, delete_by_index)
OPERATIONS = [
    *BY_INDEX,
    upsert,
    overwrite_everything,
    upsert_behind_the_peer,
    roll_back_a_dead_peer,
    cluster_all,
    clean_all,
]


def kept(operation: Callable[[Table], None]) -> dict[str, Any]:
    """The options of the table's writers."""
    return BY_KEY if operation in BY_INDEX else KEPT


@functools.cache
def with_metadata(operation: Callable[[Table], None]) -> Prepared:
    if operation in BY_INDEX:
        shared, started, clock = shared_table()
        put(shared, [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("c", "q", 1, "x")])
        make_metadata(opened(started, clock, **BY_KEY), with_keys=True)
        assert isinstance(started, MemoryStorage)
        return started, (clock.now() - ManualClock().now()).total_seconds()
    storage, passed_s = prepared(operation)
    clock = ManualClock()
    clock.advance(passed_s)
    disk = copy_of(storage, clock)
    make_metadata(opened(disk, clock, **KEPT), COLUMNS)
    return disk, passed_s


def arrange(operation: Callable[[Table], None]) -> tuple[FaultyObjects, MemoryStorage, ManualClock]:
    _, disk, clock = place(with_metadata(operation))
    return FaultyObjects(disk), disk, clock


@functools.cache
def undisturbed(operation: Callable[[Table], None]) -> tuple[tuple[str, ...], list[list[Row]]]:
    """The calls that change something, and the rows that readers may find."""
    faulty, disk, clock = arrange(operation)
    before, table = contents(opened(disk, clock)), opened(faulty, clock, **kept(operation))
    first = len(faulty.calls)
    operation(table)
    check(disk, clock)
    assert is_used(disk)
    changing = tuple(call for call, _ in faulty.calls[first:] if call in MUTATING)
    return changing, [before, contents(opened(disk, clock))]


def check(disk: MemoryStorage, clock: ManualClock) -> None:
    check_readers_miss_nothing(disk)
    assert check_table(opened(disk, clock, "checker")) == []


def recover(operation: Callable[[Table], None], disk: MemoryStorage, clock: ManualClock) -> Table:
    for attempt in range(2):
        clock.advance(DEATH_S)
        table = opened(disk, clock, f"recovery-{attempt}", **kept(operation))
        table.timeline.heal(0.0)
        roll_back_dead(table)
        check(disk, clock)
        cluster(table)
        run_clean(table)
        check(disk, clock)
    return table


def with_replica(operation: Callable[[Table], None]) -> Scenario:
    """Readers of the metadata table miss nothing, at once, behind the recovery, behind a further write."""

    def at_once(disk: MemoryStorage, clock: ManualClock, when: str) -> list[Row]:
        check(disk, clock)
        now = contents(opened(disk, clock))
        assert now in undisturbed(operation)[1]
        return now

    def behind(disk: MemoryStorage, clock: ManualClock, now: list[Row]) -> bool:
        table = recover(operation, disk, clock)
        used = is_used(disk)
        assert contents(opened(disk, clock)) == now
        put(table, [("further", "p", 1, "ours")])
        check(disk, clock)
        return used

    def ended(used: set[bool], when: str) -> None:
        assert used == {True, False} or SAMPLE_STEP > 4, "a crash outside of the delta commit keeps it, one inside turns it off"

    return Scenario(
        name=operation.__name__,
        arrange=lambda: arrange(operation),
        opened=lambda storage, clock: opened(storage, clock, **kept(operation)),
        act=operation,
        calls=lambda: undisturbed(operation)[0],
        deaths=("before",),
        chosen=sampled,
        at_once=at_once,
        behind=behind,
        ended=ended,
    )


SCENARIOS = [with_replica(operation) for operation in OPERATIONS]


@pytest.mark.parametrize(("operation", "when"), [(upsert, "after"), (cluster_all, "before"), (clean_all, "after")])
def test_storage_error_at_every_call(operation, when):
    """A call fails, or takes effect without an answer."""
    faulty, disk, clock = arrange(operation)
    table = opened(faulty, clock, **kept(operation))
    first = len(faulty.calls)
    operation(table)
    for number in sampled(range(len(faulty.calls) - first)):
        faulty, disk, clock = arrange(operation)
        table = opened(faulty, clock, **kept(operation))
        fail_at(faulty, number, 1, when)
        try:
            operation(table)
        except (TidelineError, AssertionError):
            heal(faulty)
        check(disk, clock)
        table = recover(operation, disk, clock)
        put(table, [("further", "p", 1, "ours")])
        check(disk, clock)


def test_a_delta_commit_after_the_timeline_file_is_noticed(monkeypatch):
    """A seeded bug: readers miss the files of a write whose process dies between the two."""
    monkeypatch.setattr(shared_timeline, "follow_step", lambda *_: False)
    with pytest.raises(AssertionError, match="is not listed"):
        undisturbed.__wrapped__(upsert)
