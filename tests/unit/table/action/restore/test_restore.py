"""Restore: the table is what it was at the savepoint, whichever process writes meanwhile is told, and nothing newer is left."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.unit.table.tables import (
    DEATH_S,
    QUIET,
    SCHEMA,
    History,
    base_stat,
    cluster,
    compact,
    contents,
    instant,
    listing,
    log_stat,
    new_table,
    open_table,
    rows_of,
    write,
)

from tideline_table.action import (
    create_savepoint,
    delete_partitions,
    preview_restore,
    restore_to_savepoint,
    roll_back_dead,
    run_clean,
    write_rows,
)
from tideline_table.action.restore.plan import plan_restore
from tideline_table.action.restore.steps import finish_restore, request_restore
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.conflict import check_not_restoring
from tideline_table.errors import (
    CorruptMetadata,
    HistoryRewritten,
    HistoryUnavailable,
    IllegalTransition,
    InstantNotFound,
    RestoredMeanwhile,
    RestorePending,
    TransactionRolledBack,
    WriteConflict,
)
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.log.checkpoint import read_opening, write_checkpoint
from tideline_table.log.plan import RollbackStep
from tideline_table.log.progress import ProgressStep
from tideline_table.log.savepoint import Savepoint
from tideline_table.log.table_log import Draft
from tideline_table.log.timeline_files import timeline_files
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType, summarise
from tideline_table.table.changes import newest_write
from tideline_table.writer import Operation

A = [("a", "p", 1, "x"), ("b", "q", 1, "x")]
RETAIN_1 = {"hoodie.cleaner.commits.retained": 1}
SMALL = {"tideline.clustering.min.input.files": 1}


def data_files(storage):
    return {p for p in listing(storage) if not p.startswith(".hoodie") and "partition_metadata" not in p}


def known_files(table):
    return {path for s in table.state.every_slice() for path in s.paths}


def requested(table, at):
    return request_restore(table.timeline, lambda state: state.savepoints[at])


def many_things(table):
    """What a busy table does: every operation and service."""
    write(table, [("b", "q", 1, "over")], Operation.INSERT_OVERWRITE)
    write(table, [("a", "p", 2, "y"), ("n", "p", 1, "new"), ("z", "r", 1, "new")])
    write(table, [("b", "q", 9, "")], Operation.DELETE)
    delete_partitions(table, ["r"])
    if table.definition.has_logs:
        compact(table)
        write(table, [("a", "p", 3, "z")])
        schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
        write(table, [("a", "p", 4, "behind the plan")])
    else:
        schedule_clustering(table, SMALL)
        cluster(table)
        schedule_clustering(table, SMALL)


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("kind", TableType)
def test_everything_newer_is_gone(kind, cleaned):
    table, storage, clock = new_table(type=kind)
    write(table, A)
    write(table, [("a", "p", 2, "saved"), ("c", "p", 1, "x")])
    saved, slices = contents(table), table.slices()
    at = create_savepoint(table).instant
    many_things(table)
    if cleaned:
        for number in range(1, 4):
            write(table, [("further", "s", number, "x")])
        cluster(table)
        assert schedule_clean(table, RETAIN_1)
    preview = preview_restore(table, at)
    done = restore_to_savepoint(table, at)
    assert (preview.savepoint, tuple(i for i, _ in preview.undone)) == (at, done.undone)
    assert list(done.undone) == sorted(done.undone, reverse=True)
    assert done.files_deleted > 0

    fresh = open_table(storage, clock, "fresh")
    assert contents(fresh) == contents(table) == saved
    assert [s.paths for s in fresh.slices()] == [s.paths for s in slices]
    assert list(fresh.state.pending()) == []
    assert data_files(storage) == known_files(fresh)
    assert set(fresh.state.savepoints) == {at}
    names = {p.rsplit("/", 1)[-1] for p in listing(storage) if p.startswith(".hoodie/2")}
    newer = {n for n in names if n[:17] > at}
    assert all("restore" in n or "clean" in n for n in newer), newer
    write(fresh, [("a", "p", 9, "on"), ("new", "s", 1, "on")])
    assert contents(open_table(storage, clock)) == sorted(
        [r for r in saved if r[0] != "a"] + [("a", "p", 9, "on"), ("new", "s", 1, "on")]
    )
    again = restore_to_savepoint(fresh, at)
    assert len(again.undone) == 1
    assert contents(open_table(storage, clock)) == saved


def test_the_documents_are_hudis():
    table, storage, _ = new_table()
    write(table, A)
    at = create_savepoint(table).instant
    undone = [write(table, [("a", "p", n, "y")]).instant for n in (2, 3)]
    done = restore_to_savepoint(table, at)
    plan = decode_document(storage.read(f".hoodie/{done.instant}.restore.requested"), "plan")
    assert [i["commitTime"] for i in plan["instantsToRollback"]] == undone[::-1]
    assert (plan["savepointToRestoreTimestamp"], plan["version"]) == (at, 2)
    assert storage.read(f".hoodie/{done.instant}.restore.inflight") == b""
    result = decode_document(storage.read(f".hoodie/{done.instant}.restore"), "restore")
    assert (result["startRestoreTime"], result["instantsToRollback"]) == (done.instant, undone[::-1])
    (newest,) = result["hoodieRestoreMetadata"][undone[1]]
    assert newest["commitsRollback"] == [undone[1]]
    assert newest["totalFilesDeleted"] == 1
    assert (
        sum(
            len(p["successDeleteFiles"])
            for m in result["hoodieRestoreMetadata"].values()
            for p in m[0]["partitionMetadata"].values()
        )
        == 2
    )


def test_schema_and_progress_go_back():
    table, storage, clock = new_table()

    def fed(before, value, row):
        clock.advance(1)
        write_rows(table, rows_of([row]), Operation.UPSERT, progress=ProgressStep("k", before, value))

    fed(None, "1", ("a", "p", 1, "x"))
    at = create_savepoint(table).instant
    schema = table.schema_json
    fed("1", "2", ("a", "p", 2, "y"))
    clock.advance(1)
    wider = rows_of([("w", "p", 1, "x")]).append_column("more", pa.array([1]))
    write_rows(table, wider, Operation.UPSERT, options={"tideline.write.schema.evolution": "evolve"})
    write_rows(
        table,
        rows_of([("j", "p", 1, "x")]),
        Operation.UPSERT,
        options={"hoodie.write.set.null.for.missing.columns": True},
        progress=ProgressStep("j", None, "new key"),
    )
    assert "more" in table.schema.names
    restore_to_savepoint(table, at)
    for opened in (table, open_table(storage, clock)):
        assert opened.schema_json == schema
        assert opened.schema.equals(SCHEMA)
        assert {key: held.value for key, held in opened.state.progress.items()} == {"k": "1"}
    fed("1", "2", ("a", "p", 2, "again"))
    assert contents(table) == [("a", "p", 2, "again")]


@pytest.mark.parametrize("kind", TableType)
def test_a_write_under_way_is_told(kind):
    table, storage, clock = new_table(type=kind)
    write(table, A)
    at = create_savepoint(table).instant
    other = open_table(storage, clock, "other")
    real = WriteTransaction.commit

    def late(self, *arguments, **named):
        restore_to_savepoint(table, at)
        return real(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WriteTransaction, "commit", late)
        with pytest.raises(RestoredMeanwhile) as told:
            write(other, [("a", "p", 2, "late"), ("m", "p", 1, "late")])
    assert isinstance(told.value, TransactionRolledBack)
    assert "read it again" in told.value.remedy
    fresh = open_table(storage, clock)
    assert contents(fresh) == A
    assert data_files(storage) == known_files(fresh)
    assert not [p for p in listing(storage) if p.startswith((".hoodie/.temp", ".hoodie/.heartbeat"))]
    write(other, [("a", "p", 2, "on")])
    assert ("a", "p", 2, "on") in contents(open_table(storage, clock))


def test_nothing_begins_while_it_is_pending_and_whoever_comes_by_finishes_it():
    table, storage, clock = new_table()
    write(table, A)
    at = create_savepoint(table).instant
    write(table, [("a", "p", 2, "y")])
    begun = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    pending = requested(table, at)
    other = open_table(storage, clock, "other", **{"tideline.write.conflict.retries": 0})
    for refused in (
        lambda: write(other, [("n", "p", 1, "x")]),
        lambda: create_savepoint(other),
        lambda: requested(other, at),
    ):
        with pytest.raises(RestorePending) as told:
            refused()
        assert (told.value.with_instant, "tideline run rollback" in told.value.remedy) == (pending, True)
    for schedule in (schedule_clustering, schedule_clean):
        assert schedule(other) is None
    with pytest.raises(RestoredMeanwhile):
        begun.commit([], table.schema_json, {}, None)
    begun.roll_back()
    assert roll_back_dead(other) == [], "it is alive"
    with pytest.raises(RestorePending):
        restore_to_savepoint(other, at)
    assert summarise(other).health.is_healthy
    clock.advance(DEATH_S)
    fresh = open_table(storage, clock, "fresh")
    (problem,) = [p for p in summarise(fresh).health.problems if f"restore {pending} is requested" in p]
    assert "tideline run rollback" in problem
    assert begun.instant in roll_back_dead(fresh)
    assert contents(fresh) == A
    assert list(fresh.state.pending()) == []
    assert fresh.state.actions[pending].state is State.COMPLETED
    write(other, [("n", "p", 1, "x")])


def test_asked_again_it_takes_the_dead_one_to_its_end():
    table, storage, clock = new_table()
    write(table, A)
    at = create_savepoint(table).instant
    write(table, [("a", "p", 2, "y")])
    pending = requested(table, at)
    clock.advance(DEATH_S)
    assert restore_to_savepoint(open_table(storage, clock), at).instant == pending
    assert contents(open_table(storage, clock)) == A


def test_savepoints_newer_than_it_go_with_it():
    table, storage, _ = new_table()
    first = write(table, A).instant
    create_savepoint(table)
    second = write(table, [("a", "p", 2, "y")]).instant
    create_savepoint(table)
    assert restore_to_savepoint(table, first).savepoints == (second,)
    assert set(table.state.savepoints) == {first}
    assert not storage.list_folder(f".hoodie/{second}").objects
    assert not [p for p in listing(storage) if p.startswith(f".hoodie/{second}.")]
    with pytest.raises(InstantNotFound):
        restore_to_savepoint(table, second)


def test_older_savepoints_stay():
    table, *_ = new_table()
    first = write(table, A).instant
    create_savepoint(table)
    second = write(table, [("a", "p", 2, "y")]).instant
    create_savepoint(table)
    write(table, [("a", "p", 3, "z")])
    restore_to_savepoint(table, second)
    assert set(table.state.savepoints) == {first, second}
    restore_to_savepoint(table, first)
    assert contents(table) == A


def test_a_write_that_began_before_and_ended_after_the_savepoint_goes():
    table, storage, clock = new_table()
    write(table, A)
    real = WriteTransaction.commit
    made = []

    def late(self, *arguments, **named):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(WriteTransaction, "commit", real)
            write(open_table(storage, clock, "quick"), [("quick", "q", 1, "x")])
        made.append(create_savepoint(open_table(storage, clock, "saver")).instant)
        return real(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WriteTransaction, "commit", late)
        slow = write(table, [("slow", "p", 1, "x")]).instant
    assert slow < made[0]
    assert ("slow", "p", 1, "x") in contents(table)
    assert restore_to_savepoint(table, made[0]).undone == (slow,)
    assert contents(table) == sorted([*A, ("quick", "q", 1, "x")])


def test_a_compaction_planned_before_the_savepoint_can_still_be_run():
    table, storage, clock = new_table(type=TableType.MOR)
    write(table, A)
    write(table, [("a", "p", 2, "y")])
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    write(table, [("a", "p", 3, "behind the plan")])
    saved = contents(table)
    at = create_savepoint(table).instant
    write(table, [("a", "p", 4, "newer")])
    restore_to_savepoint(table, at)
    assert contents(open_table(storage, clock)) == saved
    assert len(list(table.state.pending())) == 1
    assert compact(table) is not None
    assert contents(open_table(storage, clock)) == saved


def test_a_compaction_that_completed_since_but_was_planned_before_stays():
    table, storage, clock = new_table(type=TableType.MOR)
    write(table, A)
    write(table, [("a", "p", 2, "y")])
    planned = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    write(table, [("a", "p", 3, "behind the plan")])
    saved = contents(table)
    at = create_savepoint(table).instant
    assert compact(table).instant == planned
    write(table, [("a", "p", 4, "newer")])
    restore_to_savepoint(table, at)
    assert contents(open_table(storage, clock)) == saved
    assert data_files(storage) == known_files(table)


def test_a_running_rollback_ends_with_it():
    table, storage, _ = new_table()
    write(table, A)
    at = create_savepoint(table).instant
    begun = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    storage.put(f".hoodie/.temp/{begun.instant}/p/x-0_0-0-0_{begun.instant}.parquet.marker.CREATE", b"")
    storage.put(f"p/x-0_0-0-0_{begun.instant}.parquet", b"")
    body = RollbackStep(begun.instant, "commit", plan={"RollbackRequests": []})
    fence = table.timeline.append(
        lambda state: Draft(table.timeline.mint(state), Action.ROLLBACK, State.NONE, State.INFLIGHT, "ROLLBACK", body)
    )
    done = restore_to_savepoint(table, at)
    assert set(done.fenced) == {begun.instant, fence.instant}
    begun.roll_back()
    assert list(table.state.pending()) == []
    assert data_files(storage) == known_files(table)


def test_readers_of_changes_are_told():
    table, *_ = new_table()
    write(table, A)
    at = create_savepoint(table).instant
    kept = newest_write(table.state)
    undone = write(table, [("a", "p", 2, "y")])
    seen = newest_write(table.state)
    restore_to_savepoint(table, at)
    for point in (seen, undone.instant, seen + 1):
        for ask in (table.incremental, table.changes):
            with pytest.raises(HistoryRewritten) as told:
                ask(point)
            assert "snapshot" in told.value.remedy
            assert isinstance(told.value, HistoryUnavailable)
    with pytest.raises(HistoryRewritten):
        table.incremental("", seen)
    # A reader that saw nothing of it goes on, and so does one that begins again.
    assert table.incremental(kept).read().num_rows == 0
    begun_anew = newest_write(table.state)
    write(table, [("c", "p", 1, "on")])
    for point in (kept, begun_anew):
        assert table.incremental(point).read(["id"]).to_pylist() == [{"id": "c"}]
    assert table.incremental().read().num_rows == 3


def test_a_reader_of_older_files_is_told_by_type():
    table, *_ = new_table()
    write(table, A)
    at = create_savepoint(table).instant
    write(table, [("a", "p", 2, "y")])
    held = table.snapshot()
    restore_to_savepoint(table, at)
    with pytest.raises(HistoryUnavailable):
        held.read()


def test_a_timeline_file_that_comes_late_is_taken_away_again():
    table, storage, clock = new_table()
    write(table, A)
    at = create_savepoint(table).instant
    undone = write(table, [("a", "p", 2, "y")])
    entry = table.timeline.log.read(undone.sequence)
    restore_to_savepoint(table, at)
    for path, content in timeline_files(entry, WRITTEN).create:
        storage.put(path, content)
    write(open_table(storage, clock), [("c", "p", 1, "x")])
    assert not [p for p in listing(storage) if undone.instant in p and p.startswith(".hoodie/2")]


def test_it_survives_checkpoints():
    table, _, clock = new_table()
    write(table, A)
    at = create_savepoint(table).instant
    write(table, [("a", "p", 2, "y")])
    requested(table, at)
    again = MemoryStorage("memory:again", clock)
    write_checkpoint(again, table.state)
    assert read_opening(again).state == table.state
    assert read_opening(again).state.restoring
    finish_restore(table.timeline, table.state.restoring, force=True)
    write_checkpoint(again, table.state)
    assert read_opening(again).state == table.state
    assert read_opening(again).state.rewritten


def test_a_pending_clean_is_run_first_and_one_that_is_not_conflicts():
    table, storage, _ = new_table()
    write(table, A)
    at = create_savepoint(table).instant
    for number in range(2, 6):
        write(table, [("a", "p", number, "y")])
    planned = schedule_clean(table, RETAIN_1)
    with pytest.raises(WriteConflict) as told:
        requested(table, at)
    assert told.value.with_instant == planned
    restore_to_savepoint(table, at)
    assert table.state.actions[planned].state is State.COMPLETED
    assert contents(table) == A
    assert data_files(storage) == known_files(table)
    assert run_clean(table) is None


# --- pure -----------------------------------------------------------------------------------------------------------------------

G = FileGroupId("p", "g-0")
SAVED = Savepoint(instant(3), 7, "2026-01-01T00:00:00+00:00")


def history_of_everything():
    """Savepoint of 3; what was pending at it, and newer of each kind."""
    history = History()
    history.commit(instant(1), base_stat("g-0", instant(1)))
    history.plan_compaction(instant(2), [G])
    history.begin(instant(3), Action.DELTA_COMMIT)
    history.complete(instant(3), log_stat("g-0", instant(2)))
    history.begin(instant(0), Action.DELTA_COMMIT)
    history.state.savepoints[instant(3)] = SAVED
    history.state.sequence = 7
    history.begin(instant(4), Action.DELTA_COMMIT)
    history.complete(instant(4), log_stat("g-0", instant(2), 2), base_stat("h-0", instant(4)))
    history.plan_compaction(instant(5), [FileGroupId("p", "h-0")])
    history.plan_clustering(instant(6), [FileGroupId("p", "x-0")])
    history.complete(instant(0), base_stat("slow-0", instant(0)))
    history.begin(instant(7))
    return history


def test_the_plan_names_what_is_newer_newest_first():
    plan = plan_restore(history_of_everything().state, SAVED)
    assert [i for i, _ in plan.rewind.undone] == [instant(4), instant(0)]
    assert [i for i, _ in plan.rewind.fenced] == [instant(7), instant(6), instant(5)]
    assert plan.files == {
        instant(4): (log_stat("g-0", instant(2), 2).path, base_stat("h-0", instant(4)).path),
        instant(0): (base_stat("slow-0", instant(0)).path,),
    }
    files = plan.rewind.timeline_files(WRITTEN)
    assert [f for f in files if instant(4) in f] == [
        f".hoodie/{instant(4)}.deltacommit",
        f".hoodie/{instant(4)}.deltacommit.inflight",
        f".hoodie/{instant(4)}.deltacommit.requested",
    ]
    assert [f[8:25] for f in files] == sorted((f[8:25] for f in files), reverse=True)
    assert type(plan.rewind).from_json(plan.rewind.to_json()) == plan.rewind


def restored(history, upto):
    body = plan_restore(history.state, SAVED).to_body().to_json()
    steps = [
        (State.NONE, State.REQUESTED, body),
        (State.REQUESTED, State.INFLIGHT, {"rewind": body["rewind"]}),
        (State.INFLIGHT, State.INFLIGHT, {}),
        (State.INFLIGHT, State.COMPLETED, {"metadata": {}}),
    ]
    for before, after, content in steps[:upto]:
        history.step(instant(20), Action.RESTORE, before, after, content, "RESTORE")
    return history.state


@pytest.mark.parametrize("upto", [1, 2, 3, 4])
def test_the_fold_step_by_step(upto):
    history = history_of_everything()
    state = restored(history, upto)
    gone = upto > 1
    assert state.actions[instant(7)].fenced_by == instant(20)
    assert state.actions[instant(4)].state is (State.ROLLED_BACK if gone else State.COMPLETED)
    assert state.actions[instant(2)].is_pending, "log files of the savepoint are named after it"
    assert (instant(5) in state.plans) is not gone
    assert (FileGroupId("p", "h-0") in state.slices) is not gone
    assert [len(s.log_files) for s in state.slices[G].values()] == [0, 1 if gone else 2]
    assert bool(state.restoring) is (upto < 4)
    assert bool(state.rewritten) is gone
    if state.restoring:
        with pytest.raises(IllegalTransition, match=r"while restore .* is pending"):
            history.begin(instant(30))
    else:
        history.begin(instant(30))


@pytest.mark.parametrize("spoiled", ["savepoint", "undone", "fenced", "shape"])
def test_a_restore_of_what_is_not_there_is_refused_whole(spoiled):
    history = history_of_everything()
    body = plan_restore(history.state, SAVED).to_body().to_json()
    wrong = {"savepoint": instant(9), "undone": [[instant(7), "commit"]], "fenced": [[instant(4), "deltacommit"]], "shape": None}
    document = {**body["rewind"], spoiled: wrong[spoiled]} if spoiled != "shape" else {"savepoint": instant(3)}
    before = history.state.sequence
    with pytest.raises((IllegalTransition, CorruptMetadata)):
        history.step(instant(20), Action.RESTORE, State.NONE, State.REQUESTED, {**body, "rewind": document}, "RESTORE")
    assert history.state.sequence == before
    assert not history.state.restoring


@pytest.mark.parametrize(
    ("at", "begins", "expected"),
    [
        (7, False, RestoredMeanwhile),
        (6, False, RestoredMeanwhile),
        (5, False, RestoredMeanwhile),
        (2, False, RestorePending),
        (30, True, RestorePending),
        (3, True, RestorePending),
        (20, False, None),
    ],
)
def test_the_rows_of_restore_in_the_matrix(at, begins, expected):
    state = restored(history_of_everything(), 1)
    if expected is None:
        check_not_restoring(state, instant(at), begins=begins)
        return
    with pytest.raises(expected):
        check_not_restoring(state, instant(at), begins=begins)
    state = restored(history_of_everything(), 4)
    check_not_restoring(state, instant(at), begins=begins)


def test_options_do_not_matter_to_what_is_open():
    """A table opened before the restore goes on after it without being opened again."""
    table, storage, clock = new_table()
    write(table, A)
    at = create_savepoint(table).instant
    other = Table.open(storage.root, options=QUIET, clock=clock, storage=storage)
    write(table, [("a", "p", 2, "y")])
    restore_to_savepoint(table, at)
    other.refresh()
    assert contents(other) == A
