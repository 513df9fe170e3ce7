"""Whether a write whose tasks run elsewhere lost already: what it announced decides, not what others did to the rest of the
table."""

from __future__ import annotations

import pytest
from tests.plans import schedule_compaction
from tests.unit.table.shared import peer_of, put, shared_table
from tests.unit.table.tables import new_table, open_table, write

from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.action.write.write_set import MarkedGroups, MarkerCheck
from tideline_table.coordination import roll_back
from tideline_table.errors import TransactionRolledBack, WriteConflict
from tideline_table.hudi.file_names import base_file_name
from tideline_table.hudi.formats import WRITTEN
from tideline_table.table import TableType
from tideline_table.writer.marker import MarkerType, create_marker

COMPACT = {"hoodie.compact.inline.max.delta.commits": 1}


def begun(kind=TableType.COW):
    table, storage, clock = new_table(type=kind)
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    slices = {s.group.partition_path: s for s in table.slices()}
    transaction = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    check = MarkerCheck(transaction, {s.group: s.version for s in slices.values()})
    return transaction, check, slices, open_table(storage, clock, "other")


def announce(transaction, file_slice, *, as_log=False):
    group = file_slice.group
    name = base_file_name(group.file_id, "0-1-1", transaction.instant, "parquet")
    if as_log:
        name = WRITTEN.log_file_name(group.file_id, file_slice.base_instant, file_slice.base_instant, 1, "0-1-1")
    kind = MarkerType.APPEND if as_log else MarkerType.MERGE
    create_marker(transaction.timeline.storage, transaction.instant, f"{group.partition_path}/{name}", kind)


def test_only_groups_that_it_announced_make_it_lose():
    transaction, check, slices, other = begun()
    announce(transaction, slices["p"])
    check()
    taken = write(other, [("b", "q", 2, "other")])
    check()
    assert check.marked == MarkedGroups(rewrites=frozenset({slices["p"].group}))
    # The tasks get there.
    announce(transaction, slices["q"])
    with pytest.raises(WriteConflict, match="was written by") as lost:
        check()
    assert lost.value.with_instant == taken.instant
    assert check.marked.rewrites == {slices["p"].group, slices["q"].group}


def test_markers_are_not_listed_while_nobody_else_writes(monkeypatch):
    transaction, check, slices, other = begun()
    announce(transaction, slices["p"])
    listed = []
    storage = transaction.timeline.storage
    find = type(storage).list_objects
    monkeypatch.setattr(type(storage), "list_objects", lambda self, path, after="": listed.append(path) or find(self, path, after))
    write(other, [("c", "new", 1, "x")])
    listed.clear()
    check()
    check()
    assert listed == []
    write(other, [("a", "p", 2, "other")])
    listed.clear()
    with pytest.raises(WriteConflict):
        check()
    assert len(listed) == 1


def test_an_append_lost_where_a_compaction_was_planned_but_not_where_others_append():
    transaction, check, slices, other = begun(TableType.MOR)
    announce(transaction, slices["p"], as_log=True)
    write(other, [("a", "p", 2, "other")])
    check()
    assert check.marked == MarkedGroups(appends=frozenset({slices["p"].group}))
    assert schedule_compaction(other, COMPACT)
    with pytest.raises(WriteConflict, match="was written by"):
        check()


def test_a_write_that_was_rolled_back_hears_of_it():
    transaction, check, _, other = begun()
    other.refresh()
    assert roll_back(other.timeline, transaction.instant, force=True) is not None
    with pytest.raises(TransactionRolledBack):
        check()


def test_what_nobody_adopted_yet_in_a_shared_table_makes_it_lose():
    table, storage, clock = shared_table()
    put(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    slices = {s.group.partition_path: s for s in table.slices()}
    transaction = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    check = MarkerCheck(transaction, {s.group: s.version for s in slices.values()})
    announce(transaction, slices["p"])
    theirs = peer_of(storage, clock)
    put(theirs, [("b", "q", 2, "theirs")])
    check()
    taken = put(theirs, [("a", "p", 2, "theirs")])
    with pytest.raises(WriteConflict, match="was written by") as lost:
        check()
    assert lost.value.with_instant == taken.instant
    transaction.roll_back()
