"""A restore to a savepoint from before the record index was created: a key may have been in two places then."""

from __future__ import annotations

import pytest
from tests.unit.table.tables import contents, new_table, write

from tideline_table.action import (
    check_table,
    create_metadata,
    create_savepoint,
    drop_metadata,
    preview_restore,
    restore_to_savepoint,
)
from tideline_table.errors import InvalidRecord, UnsupportedTable
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.log_format.hfile_writer import MOST_KEY_BYTES
from tideline_table.table import TableType
from tideline_table.writer import Operation

TWICE = [("a", "p", 1, "x"), ("a", "q", 1, "x")]


@pytest.mark.parametrize("kind", list(TableType), ids=str)
def test_a_key_in_two_places_comes_back_without_a_record_index_only(kind: TableType) -> None:
    table, _, _ = new_table(type=kind)
    write(table, TWICE)
    saved = create_savepoint(table).instant
    write(table, [("a", "q", 2, "")], Operation.DELETE)
    create_metadata(table, (RECORD_INDEX,))
    write(table, [("b", "p", 2, "y")])
    kept = contents(table)
    for restore in (preview_restore, restore_to_savepoint):
        with pytest.raises(UnsupportedTable, match="key 'a' was in two places"):
            restore(table, saved)
    assert contents(table) == kept
    write(table, [("a", "q", 3, "one place")])
    assert len(contents(table)) == 2
    drop_metadata(table, (RECORD_INDEX,))
    restore_to_savepoint(table, saved)
    assert contents(table) == TWICE


@pytest.mark.parametrize("kind", list(TableType), ids=str)
def test_keys_that_were_in_one_place_come_back_with_the_index(kind: TableType) -> None:
    table, _, _ = new_table(type=kind)
    write(table, TWICE[:1])
    saved = create_savepoint(table).instant
    create_metadata(table, (RECORD_INDEX,))
    write(table, [("b", "p", 2, "y")])
    restore_to_savepoint(table, saved)
    assert contents(table) == TWICE[:1]
    assert check_table(table) == []
    write(table, [("a", "q", 3, "moved not"), ("b", "q", 3, "new")])
    assert len(contents(table)) == 2
    assert check_table(table) == []


def test_a_key_that_the_index_cannot_hold_comes_back_without_it_only() -> None:
    table, _, _ = new_table(type=TableType.COW)
    long = [("k" * (MOST_KEY_BYTES + 1), "p", 1, "x")]
    write(table, long)
    saved = create_savepoint(table).instant
    write(table, long, Operation.DELETE)
    create_metadata(table, (RECORD_INDEX,))
    for restore in (preview_restore, restore_to_savepoint):
        with pytest.raises(InvalidRecord, match="for a record index"):
            restore(table, saved)
    assert contents(table) == []
    drop_metadata(table, (RECORD_INDEX,))
    restore_to_savepoint(table, saved)
    assert contents(table) == long
