"""The record index holds the place of each key after each action, tags writes, and is never trusted when it is damaged."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.table.tables import cluster, compact, new_table, open_table, write

from tideline_table.action import (
    check_index,
    create_index,
    create_savepoint,
    delete_partitions,
    restore_to_savepoint,
    run_clean,
    schedule_clean,
    schedule_clustering,
)
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.file_group.slice import FileGroupId
from tideline_table.log.metadata import RECORD_INDEX, MetadataPartition
from tideline_table.metadata_table.partition import Source
from tideline_table.metadata_table.reading import read_group, recorded_group, recorded_names
from tideline_table.metadata_table.record_index import RecordLocation, decode_location, live_keys
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

SOON = {
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.metadata.compact.max.delta.commits": 3,
    "hoodie.metadata.record.index.min.filegroup.count": 3,
    "tideline.clustering.min.input.files": 1,
}
A = [("a", "p", 1, "x"), ("b", "q", 1, "x"), ("c", "q", 1, "x")]


def indexed(kind: TableType = TableType.COW, **options: Any) -> tuple[Table, MemoryStorage, Any]:
    table, storage, clock = new_table(type=kind)
    table = open_table(storage, clock, **SOON, **options)
    create_index(table, (RECORD_INDEX,))
    assert isinstance(storage, MemoryStorage)
    return table, storage, clock


def part_of(table: Table) -> MetadataPartition:
    known = table.refresh().metadata
    assert known is not None
    found = known.partition(RECORD_INDEX)
    assert found is not None
    return found


def held(table: Table) -> dict[str, RecordLocation]:
    """Key → location, as a reader of the metadata table finds it."""
    part = part_of(table)
    names = recorded_names(table.storage, part)
    groups = [read_group(table.storage, part, n, recorded_group(part, n, names)) for n in range(part.file_groups)]
    return {key.decode(): decode_location(datum) for group in groups for key, datum in group.items()}


def places(table: Table) -> dict[str, FileGroupId]:
    return {key: location.group for key, location in held(table).items()}


def stored(table: Table) -> dict[str, FileGroupId]:
    """Key → file group, from the data files."""
    source = Source(table.storage, table.refresh(), table.timeline.rule)
    return {key.decode(): s.group for s in source.state.latest_slices() for key in live_keys(source, s)}


def agree(table: Table) -> None:
    assert places(table) == stored(table)
    assert check_index(table) == []


def rows(table: Table) -> dict[str, tuple[Any, ...]]:
    found = table.refresh() and table.read(["id", "part", "v"])
    return {row["id"]: (row["part"], row["v"]) for row in found.to_pylist()}


@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
def test_it_agrees_after_each_action(kind):
    table, _, clock = indexed(kind)
    write(table, A)
    agree(table)
    write(table, [("a", "p", 2, "y"), ("d", "p", 2, "y")])
    agree(table)
    write(table, [("b", "q", 9, "")], Operation.DELETE)
    agree(table)
    assert "b" not in places(table)
    write(table, [("b", "q", 10, "again")])
    agree(table)
    clock.advance(1)
    WriteTransaction.begin(table.timeline, table.lock, "UPSERT", table.write_action()).roll_back()
    agree(table)
    if kind is TableType.MOR:
        compact(table)
        agree(table)
    before = places(table)
    schedule_clustering(table)
    assert cluster(table) is not None
    agree(table)
    assert before.keys() == places(table).keys()
    assert set(before.values()).isdisjoint(places(table).values())
    saved = create_savepoint(table).instant
    at_savepoint = places(table)
    for number in range(4):
        write(table, [("a", "p", 3 + number, "z"), (f"n{number}", "r", 1, "z")])
        agree(table)
    assert part_of(table).older_base, "it was compacted"
    assert schedule_clean(table) is not None
    run_clean(table)
    agree(table)
    restore_to_savepoint(table, saved)
    agree(table)
    assert places(table) == at_savepoint
    write(table, [("a", "p", 10, "w"), ("new", "p", 1, "w")], Operation.INSERT_OVERWRITE)
    agree(table)
    clock.advance(1)
    delete_partitions(table, ["q"])
    agree(table)
    assert places(table).keys() == {"a", "new"}
