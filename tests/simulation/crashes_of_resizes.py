"""The process dies before, after or within each storage call of a change of the numbers of buckets by partition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import pytest
from tests.simulation.faults import SimulatedCrash, crash_at, crash_points
from tests.simulation.recovery import OPTIONS, recover
from tests.simulation.starting_point import Prepared, Undisturbed, crashed_everywhere, place, undisturbed
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


@pytest.mark.parametrize("when", ["after", "torn"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
def test_crash_at_every_call(operation: Callable[[Table], None], when: str) -> None:
    done = outcome(operation)
    seen = set()
    for disk, clock, _ in crashed_everywhere(prepared(), done, operation, when):
        found = open_table(disk, clock, "next")
        numbers = numbers_of(found)
        seen.add(tuple(numbers.values()))
        assert numbers in (NUMBERS, OPERATIONS[operation])
        # Recovery and a write have completed files and properties: the command need not run again.
        check_complete(found, numbers)
        check_places(found, numbers)
        assert found.read(where="id = 'k1'").num_rows == 2
        write(found, [(f"n{n}", "p", 3, "z") for n in range(6)])
        check_places(found, numbers)
        clock.advance(1)
        rules = "^p$,6;q,10"
        resize_buckets(found, partition_buckets=rules, overwrite=True)
        check_places(found, {"p": 6, "q": 10})
        check_complete(found, {"p": 6, "q": 10})
        assert contents(found) == contents(open_table(disk, clock))
    if when != "torn":
        assert seen == {tuple(NUMBERS.values()), tuple(OPERATIONS[operation].values())}, "crashes on both sides of the commit point"


@pytest.mark.parametrize("when", ["after", "torn"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
def test_a_writer_alone_completes_what_died_after_the_commit(operation: Callable[[Table], None], when: str) -> None:
    """Before the commit, the resize may be alive to a writer: it keeps the properties as they are, and recovery restores them."""
    committed = 0
    for number in crash_points(outcome(operation).mutating, when):
        faulty, disk, clock = place(prepared())
        crash_at(faulty, number, when)
        with pytest.raises(SimulatedCrash):
            operation(open_table(faulty, clock, **OPTIONS))
        found = open_table(disk, clock, "next")
        write(found, [(f"n{n}", "p", 3, "z") for n in range(6)])
        numbers = numbers_of(found)
        if list(found.state.pending()):
            recover(disk, clock)
        else:
            committed += numbers != NUMBERS
        check_complete(found, numbers)
        check_places(found, numbers)
    assert committed or when == "torn"


@pytest.mark.parametrize("when", ["after", "torn"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
@pytest.mark.parametrize("names_earlier", [False, True], ids=["hidden", "earlier"])
def test_a_writer_dies_at_every_call_of_the_completion(
    operation: Callable[[Table], None], when: str, *, names_earlier: bool
) -> None:
    before = left_by(operation, names_earlier=names_earlier)
    done = undisturbed(before, complete)
    assert len(done.mutating) >= 5, "files of rules, then the three steps of the properties"
    for disk, clock, _ in crashed_everywhere(before, done, complete, when):
        check_complete(open_table(disk, clock, "next"), OPERATIONS[operation])
