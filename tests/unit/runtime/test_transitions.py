"""Events of overwrites and partition deletions: the rows and the partitions that are gone."""

from __future__ import annotations

import pytest
from tests.unit.table.tables import Row, new_table, rows_of

from tideline_runtime.transitions import backfill
from tideline_table.action import delete_partitions, write_rows
from tideline_table.coordination.committed import Committed
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

ROWS: list[Row] = [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("c", "q", 1, "x")]


def told(table: Table, done: Committed) -> tuple[int, int, tuple[str, ...], dict[str, str]]:
    (event,) = backfill(table, done.sequence, done.sequence)
    return event.rows_added, event.rows_removed, event.partitions, dict(event.checkpoint)


@pytest.mark.parametrize("kind", TableType)
def test_replaced_rows_are_removed_in_partitions_that_nothing_was_written_to(kind: TableType) -> None:
    """They were none, in no partition."""
    table, _, clock = new_table(type=kind)
    clock.advance(1)
    write_rows(table, rows_of(ROWS), Operation.UPSERT, parallelism=1)
    done = write_rows(table, rows_of([("d", "p", 1, "new")]), Operation.INSERT_OVERWRITE, parallelism=1)
    assert told(table, done) == (1, 2, ("p",), {})
    assert told(table, delete_partitions(table, ["q"])) == (0, 1, ("q",), {})
    done = write_rows(table, rows_of([("e", "r", 1, "new")]), Operation.INSERT_OVERWRITE_TABLE, parallelism=1)
    assert told(table, done) == (1, 1, ("p", "r"), {})
