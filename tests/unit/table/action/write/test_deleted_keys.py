"""A key that a log deleted and that is written again stands in the table once, whatever a compaction does meanwhile."""

from __future__ import annotations

import pytest
from tests.plans import schedule_compaction
from tests.unit.table.shared import SHARING
from tests.unit.table.tables import contents, new_table, write

from tideline_locks import open_hudi_lock
from tideline_table.action import run_compaction
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.errors import DuplicateKey, UnsupportedTable
from tideline_table.table import TableType, share_table
from tideline_table.writer import Operation

AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}
DROP = {"hoodie.datasource.insert.dup.policy": "drop"}


@pytest.fixture
def deleted():
    """A key in a base file, deleted by the log behind it."""
    table, _, _ = new_table(type=TableType.MOR)
    write(table, [("a", "p", 1, "first"), ("b", "p", 1, "first")])
    write(table, [("a", "p", 2, "gone")], Operation.DELETE)
    assert [r[0] for r in contents(table)] == ["b"]
    return table


def compact(table):
    return run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])


@pytest.mark.parametrize("again", [Operation.UPSERT, Operation.INSERT])
def test_written_again_while_a_compaction_is_pending(deleted, again):
    schedule_compaction(deleted, AT_ONCE)
    write(deleted, [("a", "p", 3, "second")], again, **DROP)
    assert ("a", "p", 3, "second") in contents(deleted)
    write(deleted, [("a", "p", 4, "third")])
    compact(deleted)
    write(deleted, [("a", "p", 5, "fourth")])
    assert contents(deleted) == [("a", "p", 5, "fourth"), ("b", "p", 1, "first")]
    write(deleted, [("a", "p", 6, "")], Operation.DELETE)
    assert contents(deleted) == [("b", "p", 1, "first")]


def test_an_update_while_a_compaction_is_pending_still_goes_to_the_log(deleted):
    schedule_compaction(deleted, AT_ONCE)
    committed = write(deleted, [("b", "p", 3, "second")])
    assert [s.is_log for s in committed.stats] == [True]
    compact(deleted)
    assert contents(deleted) == [("b", "p", 3, "second")]


def test_inserts_know_that_it_is_gone(deleted):
    write(deleted, [("a", "p", 3, "second"), ("b", "p", 3, "second"), ("c", "p", 3, "second")], Operation.INSERT, **DROP)
    assert contents(deleted) == [("a", "p", 3, "second"), ("b", "p", 1, "first"), ("c", "p", 3, "second")]
    write(deleted, [("a", "p", 4, "third")])
    assert contents(deleted)[0] == ("a", "p", 4, "third")
    with pytest.raises(DuplicateKey):
        write(deleted, [("a", "p", 5, "x")], Operation.INSERT, **{"hoodie.datasource.insert.dup.policy": "fail"})


def test_a_blind_insert_of_it_is_the_one_that_later_upserts_change(deleted):
    write(deleted, [("a", "p", 3, "second")], Operation.INSERT)
    write(deleted, [("a", "p", 4, "third")])
    assert contents(deleted) == [("a", "p", 4, "third"), ("b", "p", 1, "first")]


def test_bulk_inserts_know_that_it_is_gone(deleted):
    rows = [("c", "p", 3, "second"), ("b", "p", 3, "second"), ("a", "p", 3, "second")]
    write(deleted, rows, Operation.BULK_INSERT, **DROP, **{"hoodie.bulkinsert.user.defined.partitioner.sort.columns": "id"})
    assert contents(deleted) == [("a", "p", 3, "second"), ("b", "p", 1, "first"), ("c", "p", 3, "second")]


def test_logs_without_deletions_are_not_asked(deleted, monkeypatch):
    asked = []
    monkeypatch.setattr("tideline_table.action.write.live_keys.read_slice", lambda *args, **more: asked.append(args))
    write(deleted, [("b", "q", 1, "first")])
    write(deleted, [("b", "q", 2, "second")])
    write(deleted, [("b", "q", 3, "third"), ("c", "q", 3, "third")], Operation.INSERT, **DROP)
    assert asked == []


def test_a_late_row_behind_a_deletion_is_compacted_before_the_table_is_shared(deleted):
    """A shared table is read by Apache Hudi's rule, which would show the deleted row in its place."""
    write(deleted, [("a", "p", 0, "late")])
    before = contents(deleted)
    assert [row[3] for row in before] == ["late", "first"]
    with pytest.raises(UnsupportedTable, match="behind deletions that are not compacted"):
        share_table(deleted, SHARING, open_hudi_lock)
    schedule_compaction(deleted, AT_ONCE)
    compact(deleted)
    assert contents(share_table(deleted, SHARING, open_hudi_lock)) == before


def test_a_deletion_that_is_the_last_write_does_not_keep_a_table_from_being_shared(deleted):
    before = contents(deleted)
    assert contents(share_table(deleted, SHARING, open_hudi_lock)) == before


def test_a_table_ordered_by_commits_is_shared_with_rows_behind_deletions():
    table, _, _ = new_table(type=TableType.MOR, ordering="")
    write(table, [("a", "p", 1, "first"), ("b", "p", 1, "first")])
    write(table, [("a", "p", 2, "gone")], Operation.DELETE)
    write(table, [("a", "p", 0, "late")])
    before = contents(table)
    assert contents(share_table(table, SHARING, open_hudi_lock)) == before
