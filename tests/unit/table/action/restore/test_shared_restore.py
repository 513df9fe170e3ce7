"""Apache Hudi restores a shared table: rows, schema and the progress of feeders go back, and readers of changes are told."""

from __future__ import annotations

import pytest
from tests.plans import schedule_clean
from tests.unit.table.archives import FEW, live
from tests.unit.table.shared import SHARING, opened, put, roll_back_as_hudi, shared_table
from tests.unit.table.tables import contents, new_table, open_table, rows_of

from tideline_locks import open_hudi_lock
from tideline_table.action import archive, run_clean, write_rows
from tideline_table.action.clean import plan as clean_plan
from tideline_table.action.restore.plan import plan_restore, restore_metadata
from tideline_table.errors import CorruptMetadata, HistoryRewritten
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.plans import RESTORE_METADATA, RESTORE_PLAN, encode_document
from tideline_table.log.progress import ProgressStep
from tideline_table.log.savepoint import Savepoint
from tideline_table.storage import Storage
from tideline_table.table import Table, share_table
from tideline_table.writer import Operation


def restore_as_hudi(storage: Storage, table: Table, at: str) -> None:
    """The files that its restore leaves, and none of those that it removes."""
    state = table.refresh()
    plan = plan_restore(state, Savepoint(at, state.sequence, ""))
    for path in (*plan.rewind.timeline_files(WRITTEN), *(p for paths in plan.files.values() for p in paths)):
        storage.delete(path)
    restore = table.timeline.mint(state)
    storage.put(f".hoodie/{restore}.restore.requested", encode_document(RESTORE_PLAN, plan.to_body().plan))
    storage.put(f".hoodie/{restore}.restore.inflight", b"")
    metadata = restore_metadata(restore, plan.rewind, plan.files, storage.root, 1)
    storage.put(f".hoodie/{restore}.restore", encode_document(RESTORE_METADATA, metadata))


def feeder(table, clock):
    """Writes one row and moves the progress of a key with it."""

    def fed(key, before, value, row):
        clock.advance(1)
        return write_rows(table, rows_of([row]), Operation.UPSERT, progress=ProgressStep(key, before, value))

    return fed


def test_everything_goes_back():
    table, storage, clock = shared_table()
    fed = feeder(table, clock)
    fed("k", None, "1", ("a", "p", 1, "x"))
    at = fed("j", None, "7", ("b", "q", 1, "x")).instant
    saved = contents(table)
    fed("k", "1", "2", ("a", "p", 2, "y"))
    fed("n", None, "1", ("c", "p", 2, "y"))
    seen = table.refresh().sequence
    clock.advance(1)
    restore_as_hudi(storage, table, at)
    fresh = opened(storage, clock)
    for found in (fresh, opened(storage, clock)):
        assert contents(found) == saved
        assert {key: held.value for key, held in found.state.progress.items()} == {"k": "1", "j": "7"}
    fed("k", "1", "2", ("a", "p", 2, "again"))
    assert ("a", "p", 2, "again") in contents(opened(storage, clock))
    with pytest.raises(HistoryRewritten):
        opened(storage, clock).incremental(seen)


def test_the_rollback_of_a_completed_commit_takes_its_progress_back():
    """The records of that commit were gone for good: whichever process fed them went on behind them."""
    table, storage, clock = shared_table()
    fed = feeder(table, clock)
    fed("k", None, "1", ("a", "p", 1, "x"))
    fed("j", None, "7", ("b", "q", 1, "x"))
    saved = contents(table)
    done = fed("k", "1", "2", ("c", "r", 2, "y"))
    clock.advance(1)
    roll_back_as_hudi(table, done)
    table.refresh()
    for found in (opened(storage, clock), table):
        assert contents(found) == saved
        assert {key: held.value for key, held in found.state.progress.items()} == {"k": "1", "j": "7"}
    fed("k", "1", "2", ("c", "r", 2, "again"))
    assert ("c", "r", 2, "again") in contents(opened(storage, clock))


def test_progress_outlives_the_log_of_a_table_that_is_shared_again():
    """As the remedy of `WritesMissed` has it. Who feeds the table would begin from the start, or leave out what came since."""
    table, storage, clock = shared_table()
    clock.advance(1)
    write_rows(table, rows_of([("a", "p", 1, "x")]), Operation.INSERT, progress=ProgressStep("k", None, "1"))
    storage.delete_below(".hoodie/.tideline")
    clock.advance(1)
    again = share_table(open_table(storage, clock), SHARING, open_hudi_lock)
    assert {key: held.value for key, held in again.state.progress.items()} == {"k": "1"}
    clock.advance(1)
    write_rows(again, rows_of([("b", "p", 1, "x")]), Operation.INSERT, progress=ProgressStep("k", "1", "2"))
    assert {key: held.value for key, held in opened(storage, clock).state.progress.items()} == {"k": "2"}


@pytest.mark.parametrize("ends", ["restored", "shared again"])
def test_progress_of_a_write_that_left_the_timeline_is_found_in_the_archive(ends):
    """It was forgotten, and the feeder began from the start."""
    table, storage, clock = new_table()
    clock.advance(1)
    write_rows(table, rows_of([("f", "p", 1, "x")]), Operation.INSERT, progress=ProgressStep("k", None, "1"))
    live(table)
    archived = archive(table, FEW)[0]
    assert archived is not None
    assert table.state.progress["k"].instant in archived.instants
    shared = share_table(table, SHARING, open_hudi_lock)
    if ends == "restored":
        at = put(shared, [("g", "p", 1, "x")]).instant
        clock.advance(1)
        write_rows(shared, rows_of([("h", "p", 1, "x")]), Operation.INSERT, progress=ProgressStep("k", "1", "2"))
        restore_as_hudi(storage, shared, at)
    else:
        storage.delete_below(".hoodie/.tideline")
        share_table(open_table(storage, clock), SHARING, open_hudi_lock)
    assert {key: held.value for key, held in opened(storage, clock).state.progress.items()} == {"k": "1"}


def test_a_savepoint_that_hudi_makes_during_a_clean_keeps_its_files(monkeypatch):
    """The plan is older than the savepoint, and some of its files are gone already."""
    table, storage, _ = shared_table()
    done = [put(table, [("a", "p", ts, str(ts))]) for ts in range(1, 7)]
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1}) is not None
    saved, gone, delete = done[0].instant, [], storage.delete

    def deletes(path):
        if path.endswith(".parquet"):
            gone.append(path)
            storage.put(f".hoodie/{saved}.savepoint.inflight", b"")
            storage.put(f".hoodie/{saved}.savepoint", b"")
        return delete(path)

    monkeypatch.setattr(clean_plan, "BATCH_FILES", 1)
    monkeypatch.setattr(storage, "delete", deletes)
    with pytest.raises(CorruptMetadata, match="savepoint"):
        run_clean(table)
    assert gone
    assert done[0].stats[0].path not in gone
    assert contents(table, saved) == [("a", "p", 1, "1")]


def test_a_clean_of_what_came_back_is_refused_and_goes():
    """It was pending for ever, and no other one was planned."""
    table, storage, clock = shared_table()
    retained = {"hoodie.cleaner.commits.retained": 1}
    write = lambda ts: put(table, [("a", "p", ts, str(ts))]).instant  # noqa: E731
    at, *_ = [write(ts) for ts in range(1, 5)]
    plan = schedule_clean(table, retained)
    assert plan is not None
    restore_as_hudi(storage, table, at)
    fresh = opened(storage, clock)
    with pytest.raises(CorruptMetadata, match="latest slice"):
        run_clean(fresh)
    assert not list(fresh.refresh().pending())
    assert not [o.path for o in storage.list_folder(".hoodie").objects if plan in o.path]
    assert contents(opened(storage, clock)) == [("a", "p", 1, "1")]
    for ts in range(5, 9):
        write(ts)
    assert schedule_clean(table, retained) is not None
    assert run_clean(table)
    assert contents(opened(storage, clock)) == [("a", "p", 8, "8")]
