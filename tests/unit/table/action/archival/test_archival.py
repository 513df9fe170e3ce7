"""Archival end to end: what leaves the timeline is in the archive, nothing comes back, and every query answers as before or
says why not."""

from __future__ import annotations

import functools
import io
import json
import struct
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from tests.plans import schedule_archival, schedule_clustering
from tests.simulation.faults import FaultyStorage
from tests.simulation.starting_point import Prepared, place
from tests.unit.table.archives import FEW, INSERT, OLD_S, TASK_S, UPDATE, clean, live, seen_by_others, write_late
from tests.unit.table.tables import DEATH_S, Row, cluster, contents, declare, new_table, open_table, write

from tideline_table.action import (
    NotDue,
    Outcome,
    Rules,
    TableService,
    archive,
    create_savepoint,
    delete_late_files,
    delete_savepoint,
    judge,
    maintain,
    restore_to_savepoint,
    roll_back_dead,
    run_archival,
)
from tideline_table.action.archival import run as table_archival
from tideline_table.action.archival.late_files import OrphanCleanup
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.config import TASK_MAX_LIFETIME_S
from tideline_table.errors import (
    CorruptMetadata,
    HistoryUnavailable,
    InvalidOption,
    SavepointRefused,
    TableFrozen,
    TransactionRolledBack,
    WriteConflict,
)
from tideline_table.hudi.formats import WRITTEN, format_of
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.properties import CHANGES, PROPERTIES_PATH
from tideline_table.hudi.version6 import parse_timeline_file_name
from tideline_table.hudi.version6.archived_entry import ARCHIVED_ENTRY
from tideline_table.log.table_log import HEAL_DEADLINE_S, LogReader, TableLog
from tideline_table.log_format import HeaderKey, scan_log
from tideline_table.log_format.block import read_content
from tideline_table.storage import Folder, MemoryStorage, ObjectStat
from tideline_table.table import Table, TableType


@functools.cache
def prepared(kind: TableType) -> Prepared:
    table, storage, clock = new_table(type=kind)
    assert isinstance(storage, MemoryStorage)
    live(table)
    return storage, clock.monotonic_s()


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def old(request: pytest.FixtureRequest) -> tuple[Table, MemoryStorage, ManualClock]:
    """A table that lived for a while, on storage of its own."""
    _, storage, clock = place(prepared(request.param))
    return open_table(storage, clock), storage, clock


def timeline(storage: MemoryStorage) -> set[str]:
    names = (o.path.rpartition("/")[2] for o in storage.list_folder(".hoodie").objects)
    return {name for name in names if parse_timeline_file_name(name)}


def entries_of(storage: MemoryStorage, path: str) -> list[dict[str, Any]]:
    """What an archive file holds, by another decoder than Tideline's own."""
    found = []
    for block in scan_log(storage, path, needs_instant=False).blocks:
        assert set(block.header) == {HeaderKey.SCHEMA}
        schema = fastavro.parse_schema(json.loads(block.schema_json))
        content = read_content(storage, block, block.type)
        version, count = struct.unpack_from(">ii", content)
        assert version == 3
        assert count <= 10
        at = 8
        for _ in range(count):
            (size,) = struct.unpack_from(">i", content, at)
            found.append(fastavro.schemaless_reader(io.BytesIO(content[at + 4 : at + 4 + size]), schema, None))
            at += 4 + size
        assert at == len(content)
    return found


def test_instants_move_from_the_timeline_to_the_archive(old):
    table, storage, clock = old
    rows, before = contents(table), timeline(storage)
    documents = {name: storage.read(f".hoodie/{name}") for name in before}
    done, *_ = archive(table, FEW)
    assert done is not None
    gone = before - timeline(storage)
    assert timeline(storage) < before
    assert {name.partition(".")[0] for name in gone} == set(done.instants)
    archived = format_of(table.definition.properties).archived_instants(storage)
    assert {a.time for a in archived} == set(done.instants)
    assert {a.state for a in archived} == {State.COMPLETED}
    entries = entries_of(storage, done.path)
    assert len(entries) == len(gone), "one for each state file"
    for entry in entries:
        if entry["actionState"] == "COMPLETED" and entry["hoodieCommitMetadata"]:
            name = f"{entry['commitTime']}.{entry['actionType']}"
            stats = json.loads(documents[name])["partitionToWriteStats"]
            found = entry["hoodieCommitMetadata"]["partitionToWriteStats"]
            assert {p: [s["path"] for s in part] for p, part in found.items()} == {
                p: [s["path"] for s in part] for p, part in stats.items()
            }
    assert contents(table) == rows
    assert contents(open_table(storage, clock, "other")) == rows
    assert seen_by_others(storage, clock) == rows
    assert archive(table, FEW)[:2] == (None, OrphanCleanup())


def test_the_clustering_is_archived_with_its_plan_and_what_it_replaced(old):
    table, storage, _ = old
    done, *_ = archive(table, FEW)
    entries = [e for e in entries_of(storage, done.path) if e["actionType"] == "replacecommit"]
    assert [e["actionState"] for e in entries] == ["REQUESTED", "INFLIGHT", "COMPLETED"]
    assert entries[0]["hoodieRequestedReplaceMetadata"]["operationType"] == "CLUSTER"
    assert entries[2]["hoodieReplaceCommitMetadata"]["partitionToReplaceFileIds"]


def test_the_record_has_the_fields_of_apache_hudi():
    names = [field["name"] for field in ARCHIVED_ENTRY["fields"]]
    assert len(names) == 16
    assert names[13] == "HoodieInflightReplaceMetadata"
    assert json.loads(json.dumps(ARCHIVED_ENTRY)) == ARCHIVED_ENTRY


def test_the_table_goes_on(old):
    table, storage, clock = old
    for _ in range(3):
        archive(table, FEW)
        live(table, 5)
    table = open_table(storage, clock, "late comer")
    assert len(table.state.actions) < 30
    assert len(storage.list_folder(".hoodie/archived").objects) == 3
    assert len(table.state.completed_writes()) >= 3
    assert contents(table) == seen_by_others(storage, clock)
    times = [a.time for a in format_of(table.definition.properties).archived_instants(storage)]
    assert len(times) == len(set(times))


def test_checkpoints_do_not_hold_what_left(old):
    table, storage, clock = old
    archive(table, FEW)
    fast = open_table(storage, clock, "fast", **{"tideline.log.checkpoint.interval": 2})
    live(fast, 1)
    found = open_table(storage, clock, "later")
    assert found.state == fast.state
    assert (found.state.archived_before, found.state.archived_sequence) == (
        table.state.archived_before,
        table.state.archived_sequence,
    )
    assert found.state.archived_sequence > 0


def test_incremental_queries_say_what_they_lack(old):
    table, _, _ = old
    writes = table.state.completed_writes()
    whole, last = table.incremental().read(["id"]).num_rows, writes[-1].sequence
    since = writes[-3].sequence
    recent = table.incremental(since).read(["id", "v"]).to_pylist()
    images = sorted(map(repr, table.changes().scan(["id"])))
    archive(table, FEW)
    first = table.state.archived_sequence
    for query in (table.incremental, table.changes):
        with pytest.raises(HistoryUnavailable, match="were archived") as refused:
            query(writes[0].sequence)
        assert str(first) in refused.value.expected
        assert "hoodie.keep.min.commits" in refused.value.remedy
        with pytest.raises(HistoryUnavailable, match="the end of the requested changes"):
            query("", writes[0].sequence)
        with pytest.raises(HistoryUnavailable):
            query(writes[0].instant)
    assert table.incremental().read(["id"]).num_rows == whole
    assert table.incremental(since).read(["id", "v"]).to_pylist() == recent
    assert table.incremental(last).read(["id"]).num_rows == 0
    assert table.incremental(first).read(["id"]).num_rows > 0
    assert sorted(map(repr, table.changes().scan(["id"]))) == images


def test_time_travel_goes_as_far_back_as_files_do():
    table, _, clock = new_table()
    seen = {}
    for n in range(7):
        at = write(table, [("a", "p", n, f"x{n}"), (f"k{n}", "p", n, "y")]).instant
        seen[at] = contents(table)
    clock.advance(OLD_S)
    done, *_ = archive(table, FEW)
    assert done is not None
    assert len(done.instants) == 4
    assert {at: contents(table, at) for at in seen} == seen


def test_replaced_files_are_cleaned_first():
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x")])
    write(table, [("b", "p", 1, "x")])
    replaced = schedule_clustering(table)
    cluster(table)
    for n in range(6):
        write(table, [("c", "q", n, "x")])
    clock.advance(OLD_S)
    archive(table, FEW)
    assert replaced in table.state.actions
    assert seen_by_others(storage, clock) == contents(table)
    clean(table)
    clock.advance(OLD_S)
    archive(table, FEW)
    assert replaced not in table.state.actions
    assert seen_by_others(storage, clock) == contents(table)


# --- late files --------------------------------------------------------------------------------------------------------------


def aged(table: Table, clock: ManualClock) -> None:
    live(table, 5)
    clock.advance(TASK_S)


@pytest.mark.parametrize("row", [UPDATE, INSERT])
def test_a_late_file_of_a_fenced_write_never_becomes_visible(old, row: Row):
    table, storage, clock = old
    fenced, late = write_late(storage, clock, row)
    assert any(".log." in path for path in late) == (table.definition.has_logs and row is UPDATE)
    assert seen_by_others(storage, clock) == contents(table)
    live(table, 5)
    done, *_ = archive(table, FEW)
    assert done is not None
    assert max(done.instants) < fenced, "its tasks may still run"
    clock.advance(TASK_S)
    done, cleanup, _ = archive(table, FEW)
    assert set(cleanup.deleted) == late
    assert fenced in table.state.actions, "a cleanup that finds something proves nothing"
    done, cleanup, _ = archive(table, FEW)
    assert done is not None
    assert cleanup == OrphanCleanup(frozenset({fenced}))
    assert fenced in done.instants
    assert fenced not in table.state.actions
    assert seen_by_others(storage, clock) == contents(table)
    assert not [o.path for o in storage.list_objects(".hoodie/.temp")]


def test_a_late_change_file_goes_too():
    _, storage, clock = place(prepared(TableType.COW))
    declare(storage, **{CHANGES: "true"})
    table = open_table(storage, clock)
    _, late = write_late(storage, clock, UPDATE)
    assert sorted(path.rpartition(".")[2] for path in late) == ["cdc", "parquet"]
    aged(table, clock)
    _, cleanup, _ = archive(table, FEW)
    assert set(cleanup.deleted) == late


@pytest.mark.parametrize("is_rolled_back_first", [False, True])
def test_a_late_file_of_what_a_restore_took_back_never_becomes_visible(old, is_rolled_back_first: bool):
    """Nothing tells where it may lie: the announcements went with the restore, or with the rollback that the restore took back."""
    table, storage, clock = old
    create_savepoint(table)
    (saved,) = table.state.savepoints

    def undo(other: Table) -> list[str]:
        fenced = roll_back_dead(other) if is_rolled_back_first else [a.instant for a in other.state.pending()]
        restore_to_savepoint(other, saved)
        delete_savepoint(other, saved)
        return fenced

    fenced, late = write_late(storage, clock, ("late", "elsewhere", 99, "late"), undo)
    assert {path.partition("/")[0] for path in late} == {"elsewhere"}
    aged(table, clock)
    _, cleanup, _ = archive(table, FEW)
    assert set(cleanup.deleted) == late
    done, *_ = archive(table, FEW)
    assert done is not None
    assert fenced in done.instants
    assert seen_by_others(storage, clock) == contents(table)


@pytest.mark.parametrize("row", [UPDATE, INSERT])
def test_without_the_cleanup_it_does(old, row: Row, monkeypatch):
    """The seeded bug "archival does not clean up orphans": what the protection is for."""
    table, storage, clock = old
    fenced, _ = write_late(storage, clock, row)
    aged(table, clock)
    monkeypatch.setattr(table_archival, "delete_late_files", lambda *_: OrphanCleanup(frozenset({fenced})))
    done, *_ = archive(table, FEW)
    assert done is not None
    assert fenced in done.instants
    assert row in seen_by_others(storage, clock)
    assert row not in contents(table)


def test_a_writer_that_wakes_up_after_its_instant_was_forgotten(old):
    table, storage, clock = old
    sleeper = open_table(storage, clock, "sleeper")
    transaction = WriteTransaction.begin(sleeper.timeline, sleeper.lock, "UPSERT", sleeper.write_action())
    clock.advance(DEATH_S)
    roll_back_dead(table)
    aged(table, clock)
    done, *_ = archive(table, FEW)
    assert done is not None
    assert transaction.instant in done.instants
    with pytest.raises(TransactionRolledBack):
        transaction.commit([], sleeper.schema_json, {}, None)
    transaction.roll_back()
    assert contents(sleeper) == contents(table)
    assert transaction.instant not in sleeper.state.actions


# --- several at once, and slow ones ------------------------------------------------------------------------------------------


def test_two_run_the_same_plan(old):
    table, storage, clock = old
    rows = contents(table)
    assert schedule_archival(table, FEW) is not None
    assert schedule_archival(table, FEW) is None, "one at a time"
    faulty = FaultyStorage(storage)
    slow, other = open_table(faulty, clock, "slow"), open_table(storage, clock, "other")

    def before(_: int, call: str, path: str) -> None:
        if call == "read" and path.endswith(".inflight"):
            faulty.before = lambda number, call, path: None
            assert run_archival(other) is not None

    faulty.before = before
    assert run_archival(slow) is None
    archived = format_of(table.definition.properties).archived_instants(storage)
    assert len(archived) == len({a.time for a in archived})
    assert contents(open_table(storage, clock)) == seen_by_others(storage, clock) == rows


def test_a_missing_timeline_file_is_named(old):
    table, storage, _ = old
    assert schedule_archival(table, FEW)
    gone = min(name for name in timeline(storage) if name.endswith(".requested"))
    content = storage.read(f".hoodie/{gone}")
    storage.delete(f".hoodie/{gone}")
    with pytest.raises(CorruptMetadata, match=gone):
        run_archival(table)
    storage.put(f".hoodie/{gone}", content)
    assert run_archival(table) is not None


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_writer_that_slept_brings_no_timeline_file_back(trimmed: bool):
    """Also when the log does not go back so far any more."""
    _, storage, clock = new_table()
    short = {"tideline.log.checkpoint.interval": 2, "tideline.log.retained.entries": 10, "tideline.log.retention": 90}
    faulty = FaultyStorage(storage)
    options = short if trimmed else {}
    slow, other = open_table(faulty, clock, "slow", **options), open_table(storage, clock, "other", **options)

    def before(_: int, call: str, path: str) -> None:
        if call == "put_if_absent" and path.endswith(".commit"):
            faulty.before = lambda number, call, path: None
            for n in range(6):
                write(other, [("b", "p", n, "x")])
            clock.advance(OLD_S)
            assert archive(other, FEW)[0] is not None
            for n in range(24 if trimmed else 0):
                clock.advance(10)
                write(other, [("b", "p", n, "y")])
            assert (other.timeline.log.trimmed_to() > 20) == trimmed

    faulty.before = before
    slept = write(slow, [("a", "p", 1, "x")]).instant
    assert slept not in slow.refresh().actions
    assert not [name for name in timeline(storage) if name.startswith(slept)]
    assert contents(other) == seen_by_others(storage, clock)


def test_what_a_dead_healer_brought_back_freezes_nothing_and_goes(old):
    table, storage, clock = old
    entries = [e for e in LogReader(storage).after(0) if e.after is State.COMPLETED]
    archive(table, FEW)
    TableLog(storage, clock, "healer", WRITTEN).materialise(entries[0])
    assert entries[0].instant < min(table.state.actions)
    assert any(name.startswith(entries[0].instant) for name in timeline(storage))
    write(table, [("b", "p", 50, "x")])
    run_archival(table)
    assert not any(name.startswith(entries[0].instant) for name in timeline(storage))
    storage.put(".hoodie/20250101000000000.commit", b"{}")
    with pytest.raises(TableFrozen, match="20250101000000000"):
        write(table, [("b", "p", 51, "x")])


class Lagging(MemoryStorage):
    """Listings of the timeline show one file more, which is gone."""

    gone: ObjectStat | None = None

    def list_folder(self, path: str, after: str = "") -> Folder:
        found = super().list_folder(path, after)
        return replace(found, objects=(self.gone, *found.objects)) if self.gone and path == ".hoodie" else found


def test_a_listing_that_lags_accuses_nobody(old):
    """It shows an instant that nobody knows any more; a file that is there does freeze the table."""
    table, storage, clock = old
    lagging = Lagging(clock=clock)
    for found in storage.list_objects(""):
        lagging.put(found.path, storage.read(found.path))
    table = open_table(lagging, clock)
    unlogged = ".hoodie/20250101000000000.commit"
    lagging.gone = replace(lagging.stat(PROPERTIES_PATH), path=unlogged)
    write(table, [("a", "p", 100, "written")])
    assert ("a", "p", 100, "written") in contents(table)
    lagging.put(unlogged, b"{}")
    with pytest.raises(TableFrozen, match="no Tideline writer made"):
        write(table, [("a", "p", 101, "not written")])


def test_options_that_do_not_fit_are_refused(old):
    table, _, _ = old
    with pytest.raises(InvalidOption):
        schedule_archival(table, {"hoodie.keep.min.commits": 5})
    assert not [a for a in table.state.actions.values() if a.action is Action.ARCHIVAL]


def test_a_cleanup_asks_nothing_without_need(old):
    _, storage, clock = old
    faulty = FaultyStorage(storage)
    looking = open_table(faulty, clock, "looking")
    start = len(faulty.calls)
    assert delete_late_files(looking, FEW) == OrphanCleanup()
    assert not [path for call, path in faulty.calls[start:] if call.startswith("list")]
    assert HEAL_DEADLINE_S < OLD_S


def test_a_cleanup_reaches_new_rollbacks_behind_those_that_it_knows(monkeypatch):
    """A savepoint keeps rolled-back writes on the timeline for years; each cleanup takes a limited number of them."""
    table, _, clock = new_table()
    create_savepoint(table, write(table, [("a", "p", 1, "saved")]).instant)
    monkeypatch.setattr(table_archival, "MOST_CHECKED", 1)
    undone = []
    for _ in range(2):
        lost = WriteTransaction.begin(table.timeline, table.lock, "UPSERT", table.write_action())
        lost.roll_back()
        undone.append(lost.instant)
        clock.advance(table.options[TASK_MAX_LIFETIME_S] + 1)
    write(table, [("a", "p", 2, "later")])
    assert delete_late_files(table) == OrphanCleanup(frozenset(undone[1:]))


def test_maintenance_leaves_an_archival_alone_that_its_rules_hold(old):
    table, _, _ = old
    at = schedule_archival(table, FEW)
    assert at is not None
    rules = Rules(held={service: NotDue("a pause") for service in TableService}, options=FEW)
    assert judge(table, TableService.ARCHIVAL, rules).outcome is Outcome.HELD
    assert {step.outcome for step in maintain(table, rules)} == {"nothing"}
    assert table.refresh().is_pending(at)


def test_savepoints_and_archival():
    """What is about to leave cannot be saved any more; what is saved holds the timeline back."""
    table, _, clock = new_table()
    writes = [write(table, [("a", "p", n, "x")]).instant for n in range(6)]
    clock.advance(OLD_S)
    planned = schedule_archival(table, FEW)
    assert planned is not None
    assert table.state.under_archival() == set(writes[:3])
    for at in writes[:3]:
        with pytest.raises(WriteConflict, match="archival"):
            create_savepoint(table, at)
    kept = create_savepoint(table, writes[3]).instant
    assert run_archival(table, planned) is not None
    with pytest.raises(SavepointRefused, match="no instant"):
        create_savepoint(table, writes[2])
    for n in range(6):
        write(table, [("a", "p", 10 + n, "x")])
    clock.advance(OLD_S)
    assert archive(table, FEW)[0] is None
    assert table.state.archived_before == kept
    delete_savepoint(table, kept)
    done, *_ = archive(table, FEW)
    assert done is not None
    assert kept in done.instants
