"""Log compaction where log files are named after their writes (versions 8 and 9): exclusive, and shared with Apache Hudi."""

from __future__ import annotations

import pytest
from tests.plans import schedule_compaction, schedule_log_compaction
from tests.unit.table.action.log_compaction.test_log_compaction import log_compact, of_hudi, run, slice_of
from tests.unit.table.shared import SHARING, opened, peer_of, put, shared_table
from tests.unit.table.tables import compact, contents, create, open_table, write

from tideline_locks import open_hudi_lock
from tideline_table.action import NotDue, TableService, cancel_plan, request_log_compaction
from tideline_table.action.log_compaction import run as log_compaction_run
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.errors import WriteConflict
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, fold_file
from tideline_table.hudi.instant import State
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.reader import log_blocks
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType, share_table
from tideline_table.writer import Operation

NOW = {"hoodie.log.compaction.blocks.threshold": 2}


def of_version(version, ordering=""):
    """A slice with an update, a deletion, and one more update, in an exclusive table."""
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR, ordering=ordering, version=version)
    table = open_table(storage, clock, **NOW)
    write(table, [(k, "p", 1, "x") for k in "abcd"])
    write(table, [("a", "p", 2, "y"), ("b", "p", 2, "y")])
    write(table, [("b", "p", 0, "")], Operation.DELETE)
    write(table, [("a", "p", 3, "z")])
    return table, storage, clock


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("ordering", ["ts", ""])
def test_every_reader_finds_the_rows_beside_writers(version, ordering, monkeypatch):
    table, storage, clock = of_version(version, ordering)
    instant = schedule_log_compaction(table)
    write(table, [("a", "p", 4, "newer"), ("c", "p", 4, "newer")])
    before = contents(table)
    assert run(table).instant == instant
    write(table, [("d", "p", 5, "last")])
    expected = [("a", "p", 4, "newer"), ("c", "p", 4, "newer"), ("d", "p", 5, "last")]
    assert before == [*expected[:2], ("d", "p", 1, "x")]
    again = open_table(storage, clock)
    assert again.state == table.state
    assert contents(table) == contents(again) == of_hudi(storage, clock) == expected
    merged = [log.merges_earlier for log in slice_of(table).log_files]
    assert merged == [False] * 3 + [True, False, False]
    monkeypatch.setattr(log_blocks, "_with_compacted", lambda blocks: blocks)
    assert of_hudi(storage, clock) == expected, "readers that apply merged blocks, too"


def test_a_second_one_and_a_compaction_merge_the_first():
    table, storage, clock = of_version(9)
    log_compact(table)
    assert isinstance(request_log_compaction(table), NotDue), "a reader opens one log file"
    write(table, [("d", "p", 5, "late"), ("b", "p", 5, "back")])
    before = contents(table)
    done = log_compact(table)
    assert [log.instant for log in slice_of(table).applied.log_files] == [done.instant]
    assert contents(table) == contents(open_table(storage, clock)) == of_hudi(storage, clock) == before


def test_a_write_that_began_before_it_is_repeated(monkeypatch):
    """Its log file would come before the merged one, which does not hold it."""
    table, storage, clock = of_version(9)
    real, slow = WriteTransaction.commit, []

    def late(transaction, *arguments, **named):
        if not slow:
            slow.append(log_compact(open_table(storage, clock, "service", **NOW)))
        return real(transaction, *arguments, **named)

    monkeypatch.setattr(WriteTransaction, "commit", late)
    done = write(table, [("a", "p", 7, "slow")], **{"tideline.write.conflict.retries": 1})
    assert (done.attempts, done.instant > slow[0].instant) == (2, True)
    assert ("a", "p", 7, "slow") in contents(table)
    assert contents(table) == of_hudi(storage, clock)


def test_it_gives_way_to_a_write_that_had_begun_before(monkeypatch):
    table, storage, clock = of_version(9)
    service, planned = open_table(storage, clock, "service", **NOW), []
    real = WriteTransaction.commit

    def late(transaction, *arguments, **named):
        planned.append(schedule_log_compaction(service))
        return real(transaction, *arguments, **named)

    monkeypatch.setattr(WriteTransaction, "commit", late)
    write(table, [("a", "p", 7, "slow")])
    service.refresh()
    with pytest.raises(WriteConflict, match="which had begun before log compaction"):
        run(service)
    assert service.state.actions[planned[0]].state is State.ROLLED_BACK
    assert contents(service) == of_hudi(storage, clock)


def test_a_log_file_of_an_earlier_write_is_not_taken_for_merged():
    """Writers of Apache Hudi that look for no conflicts complete such a write behind the log compaction."""
    group, at = FileGroupId("p", "f"), "20260101000000000"
    logs = [LogFile(f".f_2026010100000000{n}.log.1_0-0-0", 1, f"2026010100000000{n}", 1) for n in (1, 3)]
    merged = LogFile(".f_20260101000000005.log.1_0-0-0", 1, "20260101000000005", 1, merges_earlier=True)
    slices = {at: FileSlice(group, at, "f_0_20260101000000000.parquet", 1, 1, (*logs, merged))}
    for number, opened_files in ((7, 2), (2, 5)):
        stat = WriteStat("f", "p", f"p/.f_2026010100000000{number}.log.1_0-0-0", "", 1, 1)
        fold_file(slices, group, f"2026010100000000{number}", stat, at)
        assert len(slices[at].applied.log_files) == opened_files


def test_in_a_shared_table_either_side_compacts_the_log():
    ours, storage, clock = shared_table(TableType.MOR, 9)
    theirs = peer_of(storage, clock)
    put(ours, [("1", "a", 1, "x"), ("2", "a", 1, "x")])
    for ts in (2, 3):
        put(ours if ts == 2 else theirs, [("1", "a", ts, "y")])
    assert schedule_log_compaction(theirs, NOW) is not None
    adopted = opened(storage, clock)
    adopted.timeline.catch_up()
    (pending,) = adopted.refresh().pending_log_compactions()
    assert (pending.is_by_hudi, len(adopted.state.planned_groups(pending.instant))) == (True, 1)
    assert run(theirs) is not None
    put(ours, [("2", "a", 4, "z")])
    expected = [("1", "a", 3, "y"), ("2", "a", 4, "z")]
    (found,) = ours.slices()
    assert [log.merges_earlier for log in found.log_files] == [False, False, True, False]
    assert contents(ours) == contents(opened(storage, clock)) == expected
    put(theirs, [("2", "a", 5, "z")])
    assert schedule_log_compaction(ours, NOW) is not None
    writing = WriteTransaction.begin(theirs.timeline, theirs.lock, "upsert")
    with pytest.raises(WriteConflict, match=f"write {writing.instant} of Apache Hudi is pending"):
        run(ours)
    writing.abandon()
    for found_file in [o for o in storage.list_objects(".hoodie/timeline") if writing.instant in o.path]:
        storage.delete(found_file.path)
    ours.timeline.catch_up()
    planned = schedule_log_compaction(ours, NOW)
    assert planned is not None
    assert cancel_plan(ours, planned).service is TableService.LOG_COMPACTION
    assert schedule_log_compaction(ours, NOW) is not None
    assert run(ours) is not None
    (found,) = ours.slices()
    assert len(found.applied.log_files) == 1
    assert contents(ours) == contents(opened(storage, clock)) == [expected[0], ("2", "a", 5, "z")]


@pytest.mark.parametrize("is_run", [False, True])
def test_a_table_is_shared_with_a_log_compaction_planned_or_done(is_run):
    """Of Apache Hudi: Tideline takes the table in with the plan, or with the merged file, whose blocks say what it merged."""
    table, storage, clock = of_version(9)
    planned = schedule_log_compaction(table)
    if is_run:
        run(table)
    before = contents(table)
    storage.delete_below(".hoodie/.tideline")
    shared = share_table(opened(storage, clock), SHARING, open_hudi_lock)
    assert [a.instant for a in shared.state.pending_log_compactions()] == ([] if is_run else [planned])
    assert contents(shared) == before
    put(shared, [("d", "p", 6, "more")])
    if not is_run:
        assert run(shared).instant == planned
    assert contents(shared) == contents(opened(storage, clock)) == [*before[:-1], ("d", "p", 6, "more")]


def test_no_compaction_is_planned_over_a_log_compaction_of_the_other_side(monkeypatch):
    """It looks for no conflict: its log file would come behind the new base file, and bring back what was deleted since."""
    ours, storage, clock = shared_table(TableType.MOR, 9)
    theirs = peer_of(storage, clock)
    put(ours, [("1", "a", 1, "x"), ("2", "a", 1, "x")])
    put(ours, [("1", "a", 2, "y")])
    put(ours, [("1", "a", 3, "y")])
    assert schedule_log_compaction(theirs, NOW) is not None
    put(ours, [("1", "a", 0, "")], Operation.DELETE)
    put(ours, [("2", "a", 7, "new")])
    at_once = {"hoodie.compact.inline.max.delta.commits": 1}
    assert schedule_compaction(ours, at_once) is None
    monkeypatch.setattr(log_compaction_run, "find_log_compaction_conflict", lambda *_: None)
    theirs.refresh()
    assert run(theirs) is not None
    assert contents(opened(storage, clock)) == [("2", "a", 7, "new")]
    ours.timeline.catch_up()
    assert compact(ours) is not None
    assert contents(opened(storage, clock)) == [("2", "a", 7, "new")]
