"""Dropping one partition of a metadata table that a repair made in one entry of the log: the others stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.unit.table.tables import contents, new_table, open_table, write

from tideline_table.action import METADATA_TYPES, check_table, create_metadata, drop_metadata, repair_metadata
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.log.metadata import BLOOM_FILTERS, COLUMN_STATS, FILES, RECORD_INDEX
from tideline_table.table import Table, TableType


@pytest.mark.parametrize("name", METADATA_TYPES[1:])
def test_the_others_stay(name: str) -> None:
    table, storage, clock = new_table(type=TableType.MOR)
    create_metadata(table, METADATA_TYPES)
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    repair_metadata(table)
    drop_metadata(table, (name,))
    left = [found for found in METADATA_TYPES if found != name]
    reader = open_table(storage, clock, "reader")
    assert reader.state.metadata is not None
    assert sorted(reader.state.metadata.names) == sorted(left)
    assert read_properties(storage)[METADATA_PARTITIONS] == ",".join(sorted(left))
    assert check_table(reader) == []
    write(reader, [("a", "p", 2, "y"), ("c", "q", 2, "y")])
    assert check_table(reader) == []
    assert len(contents(reader)) == 3
    create_metadata(reader, (name,))
    assert check_table(reader) == []
    drop_metadata(reader, (name,))
    drop_metadata(reader)
    assert read_properties(storage)[METADATA_PARTITIONS] == ""
    assert check_table(reader) == []


def repaired(names: Sequence[str]) -> tuple[Table, Table]:
    """Return a table whose metadata table one entry made, opened twice."""
    table, storage, clock = new_table()
    create_metadata(table, names)
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    repair_metadata(table)
    return table, open_table(storage, clock, "other")


def before_the_entry(table: Table, act: Callable[[], object]) -> None:
    """Let `act` happen before the next entry that `table` appends, once."""
    real, once = table.timeline.append, iter([True])

    def append(decide: Any, *gather: Any, **more: Any) -> Any:
        if next(once, False):
            act()
        return real(decide, *gather, **more)

    table.timeline.append = append  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("act", "left"),
    [
        (lambda other: create_metadata(other, (RECORD_INDEX,)), (BLOOM_FILTERS, FILES, RECORD_INDEX)),
        (lambda other: drop_metadata(other, (BLOOM_FILTERS,)), (FILES,)),
    ],
    ids=["creates", "drops"],
)
def test_what_another_process_does_meanwhile_stays(act: Callable[[Table], object], left: Sequence[str]) -> None:
    table, other = repaired((FILES, COLUMN_STATS, BLOOM_FILTERS))
    before_the_entry(table, lambda: act(other))
    drop_metadata(table, (COLUMN_STATS,))
    assert table.state.metadata is not None
    assert sorted(table.state.metadata.names) == list(left)
    assert check_table(table) == []


def test_a_drop_that_meets_a_repair_drops_from_what_it_made() -> None:
    table, storage, clock = new_table()
    create_metadata(table, (FILES,))
    create_metadata(table, (BLOOM_FILTERS,))
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    other = open_table(storage, clock, "other")
    before_the_entry(table, lambda: repair_metadata(other))
    drop_metadata(table, (BLOOM_FILTERS,))
    assert table.state.metadata is not None
    assert table.state.metadata.names == (FILES,)
    assert check_table(table) == []
