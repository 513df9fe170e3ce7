"""The process dies before, after or within each storage call of a change of the numbers of buckets by partition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from tests.simulation.crashes import Scenario, rows_survive
from tests.simulation.recovery import OPTIONS, check_sound, recover
from tests.simulation.starting_point import Prepared, Undisturbed, place, undisturbed
from tests.unit.table.action.write.test_partition_resize import check_places
from tests.unit.table.tables import contents, create, open_table, set_properties, write

from tideline_table.action import resize_buckets
from tideline_table.action.write import resize
from tideline_table.clock import ManualClock
from tideline_table.coordination.shared.partition_numbers import newest_rules
from tideline_table.hudi.properties import read_properties
from tideline_table.index.bucket import RESIZING, BucketIndex
from tideline_table.storage import MemoryStorage
from tideline_table.table import BucketIndex as NewBuckets
from tideline_table.table import Table, TableType

ROWS = [(f"k{n}", "p", 1, "x") for n in range(10)] + [(f"k{n}", "q", 1, "x") for n in range(6)]
NUMBERS = {"p": 3, "q": 2}


def split(table: Table) -> None:
    table.clock.advance(1)  # type: ignore[attr-defined]
    assert resize_buckets(table, partition_buckets="^p$,6;q,2") is not None


def overwrite(table: Table) -> None:
    table.clock.advance(1)  # type: ignore[attr-defined]
    assert resize_buckets(table, 5, partition_buckets="^p$,2", overwrite=True) is not None


def complete(table: Table) -> None:
    """What every writer does first."""
    table.check_writable()


OPERATIONS = {split: {"p": 6, "q": 2}, overwrite: {"p": 2, "q": 5}}


@functools.cache
def prepared() -> Prepared:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR, index=NewBuckets(2, partition_buckets="^p$,3"))
    table = open_table(storage, clock, **OPTIONS)
    write(table, ROWS)
    write(table, [("k1", "p", 1, "y"), ("k2", "q", 1, "y")])
    return storage, clock.monotonic_s()


@functools.cache
def outcome(operation: Callable[[Table], None]) -> Undisturbed:
    return undisturbed(prepared(), operation)


@functools.cache
def left_by(operation: Callable[[Table], None], *, names_earlier: bool) -> Prepared:
    """The table after a resize whose process died right after its commit, or before which a slow process wrote earlier numbers."""
    _, disk, clock = place(prepared())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resize, "settle", lambda _: None)
        operation(open_table(disk, clock, **OPTIONS))
    assert RESIZING in read_properties(disk)
    if names_earlier:
        set_properties(disk, read_properties(prepared()[0]))
    return disk, clock.monotonic_s()


def index_of(table: Table) -> BucketIndex:
    table.refresh()
    index = table.definition.buckets
    assert index is not None
    return index


def numbers_of(table: Table) -> dict[str, int]:
    return {name: index_of(table).in_partition(name).number for name in ("p", "q")}


def check_complete(table: Table, numbers: Mapping[str, int]) -> None:
    """Nothing of a resize is left to do: what Apache Hudi reads has the numbers of the log."""
    properties, index = read_properties(table.storage), index_of(table)
    assert numbers_of(table) == numbers
    assert RESIZING not in properties
    assert index.properties.items() <= properties.items()
    newest = newest_rules(table.storage, table.timeline.format)[0]
    assert (newest.rules, newest.number) == (index.rules, index.number)


def recovered(operation: Callable[[Table], None]) -> Scenario:
    """Recovery and a write complete files and properties: the command need not run again."""

    def behind(disk: MemoryStorage, clock: ManualClock, _: object) -> tuple[int, ...]:
        recover(disk, clock)
        check_sound(disk, clock, outcome(operation).allowed)
        found = open_table(disk, clock, "next")
        numbers = numbers_of(found)
        assert numbers in (NUMBERS, OPERATIONS[operation])
        check_complete(found, numbers)
        check_places(found, numbers)
        assert found.read(where="id = 'k1'").num_rows == 2
        write(found, [(f"n{n}", "p", 3, "z") for n in range(6)])
        check_places(found, numbers)
        clock.advance(1)
        resize_buckets(found, partition_buckets="^p$,6;q,10", overwrite=True)
        check_places(found, {"p": 6, "q": 10})
        check_complete(found, {"p": 6, "q": 10})
        assert contents(found) == contents(open_table(disk, clock))
        return tuple(numbers.values())

    def ended(seen: set[tuple[int, ...]], when: str) -> None:
        if when != "torn":
            wanted = {tuple(NUMBERS.values()), tuple(OPERATIONS[operation].values())}
            assert seen == wanted, "crashes on both sides of the commit point"

    return rows_survive(operation.__name__, operation, prepared, lambda: outcome(operation), behind=behind, ended=ended)


def written_on(operation: Callable[[Table], None]) -> Scenario:
    """A writer alone completes what died after the commit.

    Before the commit, the resize may be alive to a writer: it keeps the properties as they are, and recovery restores them.
    """

    def behind(disk: MemoryStorage, clock: ManualClock, _: object) -> bool:
        found = open_table(disk, clock, "next")
        write(found, [(f"n{n}", "p", 3, "z") for n in range(6)])
        numbers, is_pending = numbers_of(found), bool(list(found.state.pending()))
        if is_pending:
            recover(disk, clock)
        check_complete(found, numbers)
        check_places(found, numbers)
        return not is_pending and numbers != NUMBERS

    def ended(committed: set[bool], when: str) -> None:
        assert True in committed or when == "torn"

    name = f"{operation.__name__}, then a writer alone"
    return rows_survive(name, operation, prepared, lambda: outcome(operation), behind=behind, ended=ended)


def completed(operation: Callable[[Table], None], *, names_earlier: bool) -> Scenario:
    """A writer dies while it completes the resize."""
    before = partial(left_by, operation, names_earlier=names_earlier)

    @functools.cache
    def done() -> Undisturbed:
        found = undisturbed(before(), complete)
        assert len(found.mutating) >= 5, "files of rules, then the three steps of the properties"
        return found

    def behind(disk: MemoryStorage, clock: ManualClock, _: object) -> None:
        recover(disk, clock)
        check_sound(disk, clock, done().allowed)
        check_complete(open_table(disk, clock, "next"), OPERATIONS[operation])

    name = f"completion of {operation.__name__}, {'earlier' if names_earlier else 'hidden'}"
    return rows_survive(name, complete, before, done, behind=behind, ended=lambda seen, when: None)


SCENARIOS = [
    *(recovered(operation) for operation in OPERATIONS),
    *(written_on(operation) for operation in OPERATIONS),
    *(completed(operation, names_earlier=earlier) for operation in OPERATIONS for earlier in (False, True)),
]
