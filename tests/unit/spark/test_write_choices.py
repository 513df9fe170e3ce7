"""What DataFrame writes do by the index of the table, and which of them the driver has to do."""

from __future__ import annotations

import pytest
from tests.unit.table.tables import SCHEMA, new_table, open_table

from tideline_spark.choices import refuse_look_ups, write_choices
from tideline_table.action import create_metadata
from tideline_table.config import INDEX_TYPE
from tideline_table.errors import InvalidOption, UnsupportedTable
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.table import BucketIndex, TableType
from tideline_table.writer import Operation


def test_a_write_without_an_index_takes_the_record_index_of_the_table() -> None:
    table, storage, clock = new_table()
    before = write_choices(table, Operation.INSERT, None, SCHEMA)
    assert (before.options[INDEX_TYPE], before.operation) == ("SIMPLE", Operation.INSERT)
    refuse_look_ups(table, Operation.INSERT_OVERWRITE, before.options)
    create_metadata(open_table(storage, clock, "other"), (RECORD_INDEX,))
    table.refresh()
    chosen = write_choices(table, Operation.INSERT, None, SCHEMA)
    assert (chosen.options[INDEX_TYPE], chosen.operation, chosen.named) == ("RECORD_INDEX", Operation.UPSERT, Operation.INSERT)
    with pytest.raises(UnsupportedTable, match="record index"):
        refuse_look_ups(table, Operation.INSERT_OVERWRITE, chosen.options)
    with pytest.raises(InvalidOption, match="leave this option out"):
        write_choices(table, Operation.UPSERT, {"hoodie.index.type": "SIMPLE"}, SCHEMA)


def test_a_large_source_for_a_hash_ring_needs_no_look_up() -> None:
    table, _, _ = new_table(index=BucketIndex(2, consistent=True), type=TableType.MOR)
    for operation in (Operation.UPSERT, Operation.DELETE, Operation.BULK_INSERT, Operation.INSERT_OVERWRITE):
        chosen = write_choices(table, operation, None, SCHEMA)
        assert chosen.operation is operation
        refuse_look_ups(table, operation, chosen.options)
    minding = write_choices(table, Operation.INSERT, {"hoodie.datasource.insert.dup.policy": "fail"}, SCHEMA)
    with pytest.raises(UnsupportedTable, match="bucket index"):
        refuse_look_ups(table, Operation.INSERT, minding.options)


def test_tasks_route_inserts_to_buckets() -> None:
    table, _, _ = new_table(index=BucketIndex(2))
    chosen = write_choices(table, Operation.INSERT, None, SCHEMA)
    assert (chosen.operation, chosen.holds_once) == (Operation.INSERT, True)
    refuse_look_ups(table, Operation.INSERT, chosen.options)
    minding = write_choices(table, Operation.INSERT, {"hoodie.datasource.insert.dup.policy": "fail"}, SCHEMA)
    with pytest.raises(UnsupportedTable, match="bucket index"):
        refuse_look_ups(table, Operation.INSERT, minding.options)
