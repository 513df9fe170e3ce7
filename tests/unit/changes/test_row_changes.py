"""A topic of row changes, applied from its start, equals the table after every step of it."""

from __future__ import annotations

import json
from contextlib import closing

import pyarrow as pa
import pytest
from tests.unit.changes.conftest import Changes, records_of, settle
from tests.unit.services.fleet import SCHEMA, rows

from tideline_events import CHANGES_POSITIONS
from tideline_table.action import write_rows
from tideline_table.config import SMALL_FILE_LIMIT
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

BOTH = pytest.mark.parametrize("kind", [TableType.COW, TableType.MOR])


def upsert(table: Table, first: int, count: int = 5, city: str = "oslo", fare: float = 1.0) -> None:
    given = rows(first, count, city).set_column(2, SCHEMA.field("fare"), pa.array([fare] * count))
    write_rows(table, given, Operation.UPSERT, parallelism=1)


@BOTH
def test_the_topic_equals_the_table_after_each_commit(fleet: Changes, kind: TableType) -> None:
    table = fleet.create(type=kind)
    upsert(table, 0, 10)
    service = fleet.run()
    settle(service)
    assert fleet.check(table).ops == ["t"] + ["r"] * 10
    for step in range(4):
        upsert(table, 5 * step, 10, fare=2.0 + step)
        upsert(table, 5 * step, 3, "bergen", fare=step)
        settle(service)
        fleet.check(table)
    replica = fleet.check(table)
    assert {"c", "u"} <= set(replica.ops)
    assert replica.truncations == 1
