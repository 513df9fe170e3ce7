"""The process dies while it changes a table with a record index: at any moment, a reader of the index finds each row that it
shows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from tests.plans import schedule_clustering
from tests.simulation.crashes import Scenario
from tests.simulation.faults import MUTATING, FaultyStorage, SimulatedCrash, copy_of, crash_at, sampled
from tests.simulation.metadata_reader import check_index_for_readers
from tests.simulation.recovery import OPTIONS, check_sound, recover
from tests.unit.table.tables import Row, cluster, compact, contents, create, open_table, write

from tideline_table.action import (
    check_table,
    create_metadata,
    create_savepoint,
    delete_partitions,
    drop_metadata,
    repair_metadata,
    restore_to_savepoint,
)
from tideline_table.clock import ManualClock
from tideline_table.coordination import exclusive
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.metadata_table.partition import Records, Source
from tideline_table.metadata_table.record_index import RecordIndexPartition
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

ASIDE = ("/.temp/", "/.heartbeat/", "/checkpoints/")
"""Folders whose files have no part in what readers of the index find."""
Act = Callable[[Table], None]
SOON = {
    **OPTIONS,
    "hoodie.metadata.compact.max.delta.commits": 3,
    "hoodie.metadata.record.index.min.filegroup.count": 2,
    "tideline.clustering.min.input.files": 1,
}


def upsert(table: Table) -> None:
    """Its delta commit is the fourth: it compacts the metadata table first."""
    write(table, [("a", "p", 20, "new"), ("n", "p", 20, "new"), ("c", "q", 20, "new")])


def delete(table: Table) -> None:
    write(table, [("a", "p", 99, ""), ("c", "q", 99, "")], Operation.DELETE)


def move(table: Table) -> None:
    write(table, [("b", "q", 20, "new")], **{"hoodie.record.index.update.partition.path": True})


def overwrite(table: Table) -> None:
    write(table, [("a", "p", 20, "new"), ("m", "p", 20, "new")], Operation.INSERT_OVERWRITE)


def drop_partition(table: Table) -> None:
    table.clock.advance(1)  # type: ignore[attr-defined]
    delete_partitions(table, ["q"])


def cluster_all(table: Table) -> None:
    schedule_clustering(table)
    cluster(table)


def restore(table: Table) -> None:
    restore_to_savepoint(table, min(table.state.savepoints))


def compact_all(table: Table) -> None:
    compact(table)


def add(table: Table) -> None:
    create_metadata(table, (RECORD_INDEX,))


def drop(table: Table) -> None:
    drop_metadata(table, (RECORD_INDEX,))


def repair(table: Table) -> None:
    repair_metadata(table)


CASES = [
    *((TableType.COW, act) for act in (upsert, delete, move, overwrite, drop_partition, cluster_all, restore, add, drop, repair)),
    *((TableType.MOR, act) for act in (delete, compact_all)),
]


@functools.cache
def prepared(kind: TableType, act: Act) -> tuple[MemoryStorage, float, tuple[Row, ...]]:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=kind)
    table = open_table(storage, clock, **SOON)
    write(table, [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("c", "q", 1, "x")])
    create_metadata(table, (RECORD_INDEX,))
    if act is add:
        drop_metadata(table, (RECORD_INDEX,))
    create_savepoint(table)
    write(table, [("d", "q", 1, "x"), ("a", "p", 2, "y")])
    write(table, [("e", "q", 1, "x")])
    if act is restore:
        cluster_all(table)
    else:
        write(table, [("a", "p", 3, "y")])
    return storage, clock.monotonic_s(), tuple(contents(table))


def placed(kind: TableType, act: Act) -> tuple[FaultyStorage, MemoryStorage, ManualClock, tuple[Row, ...]]:
    storage, passed_s, before = prepared(kind, act)
    clock = ManualClock()
    clock.advance(passed_s)
    disk = copy_of(storage, clock)
    return FaultyStorage(disk), disk, clock, before


@functools.cache
def undisturbed(kind: TableType, act: Act) -> tuple[tuple[int, ...], list[list[Row]]]:
    """The numbers of the calls that change the log, a timeline or the properties; and the rows before and after."""
    faulty, _, clock, before = placed(kind, act)
    table = open_table(faulty, clock, **SOON)
    start = len(faulty.calls)
    act(table)
    changing = [path for call, path in faulty.calls[start:] if call in MUTATING]
    chosen = tuple(n for n, path in enumerate(changing) if path.startswith(".hoodie/") and not any(part in path for part in ASIDE))
    return chosen, [list(before), contents(table)]


def crashed(kind: TableType, act: Act, number: int) -> tuple[MemoryStorage, ManualClock]:
    faulty, disk, clock, _ = placed(kind, act)
    table = open_table(faulty, clock, **SOON)
    crash_at(faulty, number, "before")
    with pytest.raises(SimulatedCrash):
        act(table)
    return disk, clock


def repeated(act: Act, table: Table) -> None:
    """Interrupted by the death of the process, an administrator repeats what he asked for."""
    known = table.state.metadata
    if act is repair and (known is None or check_table(table)):
        repair_metadata(table)
    if act is add and (known is None or known.partition(RECORD_INDEX) is None):
        add(table)
    if act is drop and known is not None and known.partition(RECORD_INDEX) is not None:
        drop(table)
    known = table.refresh().metadata
    if act is repair and known is not None and known.partition(RECORD_INDEX) is None:
        add(table)


def with_index(kind: TableType, act: Act) -> Scenario:
    """At any moment a reader of the index finds each row that it shows."""

    def chosen(_: object) -> Sequence[int]:
        """Every third call of operations that differ little from the others."""
        numbers, _rows = undisturbed(kind, act)
        assert len(numbers) >= 8
        return sampled(numbers) if act in (upsert, restore, repair) else numbers[len(act.__name__) % 3 :: 3]

    def at_once(disk: MemoryStorage, clock: ManualClock, when: str) -> None:
        if kind is TableType.COW:
            check_index_for_readers(disk)

    def behind(disk: MemoryStorage, clock: ManualClock, _: object) -> None:
        table = recover(disk, clock)
        if act in (add, drop, repair):
            repeated(act, table)
        assert check_table(table) == []
        at_once(disk, clock, "")
        check_sound(disk, clock, undisturbed(kind, act)[1])
        assert check_table(open_table(disk, clock)) == []

    return Scenario(
        name=f"{act.__name__}, {kind.value}",
        arrange=lambda: placed(kind, act)[:3],
        opened=lambda storage, clock: open_table(storage, clock, **SOON),
        act=act,
        calls=lambda: ["put"],  # `chosen` knows them
        deaths=("before",),
        chosen=chosen,
        at_once=at_once,
        behind=behind,
    )


SCENARIOS = [with_index(kind, act) for kind, act in CASES]


@contextmanager
def deletes_forgotten() -> Iterator[None]:
    """The seeded bug: a key that a write deleted stays in the index."""
    real = RecordIndexPartition.changed_by

    def changed_by(self: RecordIndexPartition, source: Source, entry: Entry) -> Records:
        return Records(real(self, source, entry).updates)

    with patch.object(RecordIndexPartition, "changed_by", changed_by):
        yield


@contextmanager
def shown_while_restoring() -> Iterator[None]:
    """The seeded bug: readers go on with the index while a restore takes its writes back."""
    with patch.object(exclusive, "hide_records", lambda storage, state: None):
        yield


def test_a_forgotten_delete_is_found() -> None:
    _, disk, clock, _ = placed(TableType.COW, delete)
    with deletes_forgotten():
        delete(open_table(disk, clock, **SOON))
    assert [finding.kind.value for finding in check_table(open_table(disk, clock))] == ["listed in vain"]


def test_an_index_that_a_restore_does_not_hide_is_found() -> None:
    numbers, _ = undisturbed(TableType.COW, restore)

    def lives() -> None:
        for number in numbers:
            disk, _ = crashed(TableType.COW, restore, number)
            check_index_for_readers(disk)

    lives()
    with shown_while_restoring(), pytest.raises(AssertionError, match="the record index says"):
        lives()
