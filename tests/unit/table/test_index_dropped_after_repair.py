"""Dropping one partition of a metadata table that a repair made in one entry of the log: the others stay."""

from __future__ import annotations

import pytest
from tests.unit.table.tables import contents, new_table, open_table, write

from tideline_table.action import INDEX_TYPES, check_index, create_index, drop_index, repair_index
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.table import TableType


@pytest.mark.parametrize("name", INDEX_TYPES[1:])
def test_the_others_stay(name: str) -> None:
    table, storage, clock = new_table(type=TableType.MOR)
    create_index(table, INDEX_TYPES)
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    repair_index(table)
    drop_index(table, (name,))
    left = [found for found in INDEX_TYPES if found != name]
    reader = open_table(storage, clock, "reader")
    assert reader.state.metadata is not None
    assert sorted(reader.state.metadata.names) == sorted(left)
    assert read_properties(storage)[METADATA_PARTITIONS] == ",".join(sorted(left))
    assert check_index(reader) == []
    write(reader, [("a", "p", 2, "y"), ("c", "q", 2, "y")])
    assert check_index(reader) == []
    assert len(contents(reader)) == 3
    create_index(reader, (name,))
    assert check_index(reader) == []
    drop_index(reader, (name,))
    drop_index(reader)
    assert read_properties(storage)[METADATA_PARTITIONS] == ""
    assert check_index(reader) == []
