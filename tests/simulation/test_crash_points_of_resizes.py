"""The process dies before, after or within each storage call of a change of the numbers of buckets by partition."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from tests.simulation.recovery import OPTIONS
from tests.simulation.starting_point import Prepared, Undisturbed, crashed_everywhere, undisturbed
from tests.unit.table.tables import contents, create, open_table, write
from tests.unit.table.test_partition_resize import check_places

from tideline_table.action import resize_buckets
from tideline_table.clock import ManualClock
from tideline_table.coordination.shared.partition_numbers import newest_rules
from tideline_table.hudi.properties import read_properties
from tideline_table.index.bucket import RESIZING, BucketIndex
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType

ROWS = [(f"k{n}", "p", 1, "x") for n in range(10)] + [(f"k{n}", "q", 1, "x") for n in range(6)]
NUMBERS = {"p": 3, "q": 2}


def split(table: Table) -> None:
    table.clock.advance(1)  # type: ignore[attr-defined]
    assert resize_buckets(table, partition_buckets="^p$,6;q,2") is not None


def overwrite(table: Table) -> None:
    table.clock.advance(1)  # type: ignore[attr-defined]
    assert resize_buckets(table, 5, partition_buckets="^p$,2", overwrite=True) is not None


OPERATIONS = {split: {"p": 6, "q": 2}, overwrite: {"p": 2, "q": 5}}


@functools.cache
def prepared() -> Prepared:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR, buckets=2, partition_buckets="^p$,3")
    table = open_table(storage, clock, **OPTIONS)
    write(table, ROWS)
    write(table, [("k1", "p", 1, "y"), ("k2", "q", 1, "y")])
    return storage, clock.monotonic_s()


@functools.cache
def outcome(operation: Callable[[Table], None]) -> Undisturbed:
    return undisturbed(prepared(), operation)


def index_of(table: Table) -> BucketIndex:
    table.refresh()
    index = table.definition.buckets
    assert index is not None
    return index


@pytest.mark.parametrize("when", ["before", "after", "torn"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.__name__)
def test_crash_at_every_call(operation: Callable[[Table], None], when: str) -> None:
    done = outcome(operation)
    seen = set()
    for disk, clock, _ in crashed_everywhere(prepared(), done, operation, when):
        found = open_table(disk, clock, "next")
        numbers = {name: index_of(found).in_partition(name).number for name in ("p", "q")}
        seen.add(tuple(numbers.values()))
        assert numbers in (NUMBERS, OPERATIONS[operation])
        check_places(found, numbers)
        assert found.read(where="id = 'k1'").num_rows == 2
        # What died is no obstacle: writers go on, and the command, run again, completes files and properties.
        write(found, [(f"n{n}", "p", 3, "z") for n in range(6)])
        check_places(found, numbers)
        clock.advance(1)
        resize_buckets(found, index_of(found).number, partition_buckets=index_of(found).rules.text)
        clock.advance(1)
        rules = "^p$,6;q,10"
        resize_buckets(found, partition_buckets=rules, overwrite=True)
        check_places(found, {"p": 6, "q": 10})
        properties = read_properties(disk)
        assert RESIZING not in properties
        assert properties["hoodie.bucket.index.partition.expressions"].startswith(rules)
        assert newest_rules(disk)[0].rules == index_of(found).rules
        assert contents(found) == contents(open_table(disk, clock))
    if when != "torn":
        assert seen == {tuple(NUMBERS.values()), tuple(OPERATIONS[operation].values())}, "crashes on both sides of the commit point"
