import contextlib

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.faults import FaultyStorage, SimulatedCrash
from tests.unit.table.archives import seen_by_others
from tests.unit.table.tables import DEATH_S, cluster, contents, new_table, open_table, rows_of, write

from tideline_table.action import roll_back_dead, run_clean, write_rows
from tideline_table.action.clustering.run import _begin_clustering
from tideline_table.action.write import executor
from tideline_table.action.write.run import write_context
from tideline_table.action.write.transaction import LookUp, WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.coordination import roll_back
from tideline_table.errors import (
    IllegalTransition,
    InstantNotFound,
    StorageError,
    TransactionRolledBack,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.file_names import base_file_name
from tideline_table.hudi.instant import Action, State
from tideline_table.index import KeyScope
from tideline_table.log.body import Bare
from tideline_table.log.entry import LOG_FOLDER
from tideline_table.log.table_log import Draft, TableLog
from tideline_table.storage import MemoryStorage
from tideline_table.table import summarise
from tideline_table.writer import FileGroupTask, Operation, prepare_input, write_file_group
from tideline_table.writer.marker import MarkerType, create_marker

ODD_PARTITIONS = ["p", "year=2026/month=01", " ", " p", "p ", "\u2028p"]
"""Of a space alone, a rollback never ended; in those that begin with one, files stayed behind it."""


@pytest.fixture
def place():
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x")])
    return table, storage, clock


def begin(table):
    table.clock.advance(1)
    return WriteTransaction.begin(table.timeline, table.lock, "UPSERT")


def stage(table, transaction, rows, group="new-0", attempt=0, base=None, partition="p"):
    """What a task of this transaction writes."""
    definition = table.definition
    prepared = prepare_input(rows_of(rows), table.schema, definition.keygen, definition.merging, Operation.UPSERT, combine=True)
    context = write_context(table, transaction.instant, Operation.UPSERT, table.options)
    return write_file_group(
        context, FileGroupTask(0, partition, base.group.file_id if base else group, base, attempt), prepared.rows, table.storage
    )


def commit(table, transaction, results):
    return transaction.commit(results, table.schema_json, {}, LookUp(KeyScope.PARTITION, lambda slices: None))


def files(storage):
    return {o.path for o in storage.list_objects("") if o.path.endswith(".parquet")}


def timeline(storage):
    return {o.path.removeprefix(".hoodie/") for o in storage.list_folder(".hoodie").objects if o.path[8:9].isdigit()}


def test_begin_stage_commit(place):
    table, storage, _ = place
    transaction = begin(table)
    at = transaction.instant
    assert {f"{at}.commit.requested", f"{at}.inflight"} <= timeline(storage)
    assert storage.read(f".hoodie/.heartbeat/{at}") == b""
    result = stage(table, transaction, [("n", "p", 1, "x")])
    assert len(list(storage.list_objects(f".hoodie/.temp/{at}"))) == 1
    assert len(contents(table)) == 1
    committed = commit(table, transaction, [result])
    assert committed.sequence == table.state.sequence
    assert f"{at}.commit" in timeline(storage)
    assert [o.path for o in storage.list_objects(".hoodie/.temp")] == []
    assert [o.path for o in storage.list_objects(".hoodie/.heartbeat")] == []
    assert len(contents(table)) == 2


@pytest.mark.parametrize("partition", ODD_PARTITIONS)
def test_files_of_attempts_that_lost_are_removed_before_the_commit(place, partition):
    table, storage, _ = place
    transaction = begin(table)
    stage(table, transaction, [("n", partition, 1, "x")], attempt=0, partition=partition)
    result = stage(table, transaction, [("n", partition, 1, "x")], attempt=1, partition=partition)
    commit(table, transaction, [result])
    assert {p for p in files(storage) if transaction.instant in p} == {result.stat.path}


@pytest.mark.parametrize("partition", ODD_PARTITIONS)
def test_rollback_leaves_nothing_of_the_write(place, partition):
    table, storage, _ = place
    before = files(storage), contents(table)
    transaction = begin(table)
    stage(table, transaction, [("n", partition, 1, "x")], partition=partition)
    transaction.roll_back()
    assert (files(storage), contents(table)) == before
    at = transaction.instant
    assert not {n for n in timeline(storage) if n.startswith(at)}
    assert [o.path for o in storage.list_objects(".hoodie/.temp")] == []
    assert [o.path for o in storage.list_objects(".hoodie/.heartbeat")] == []
    assert table.state.actions[at].state is State.ROLLED_BACK
    (rollback,) = [a for a in table.state.actions.values() if a.action is Action.ROLLBACK]
    assert {
        f"{rollback.instant}.rollback.requested",
        f"{rollback.instant}.rollback.inflight",
        f"{rollback.instant}.rollback",
    } <= timeline(storage)
    plan = decode_document(storage.read(f".hoodie/{rollback.instant}.rollback.requested"), "plan")
    assert [r["partitionPath"] for r in plan["RollbackRequests"]] == [partition]
    done = decode_document(storage.read(f".hoodie/{rollback.instant}.rollback"), "metadata")
    assert list(done["partitionMetadata"]) == [partition]
    assert roll_back(table.timeline, at) is None


def test_rollback_leaves_committed_files_that_its_target_announced_once_more(place):
    """Where files can be appended to, Hudi's writers announce the file that they append to."""
    table, storage, _ = place
    write_rows(table, rows_of([("deep", "year=2026/month=01", 1, "x")]), Operation.UPSERT)
    committed, before = sorted(files(storage)), contents(table)
    assert len(committed) == 2
    transaction = begin(table)
    own = stage(table, transaction, [("n", "p", 1, "x")])
    for path in committed:
        create_marker(storage, transaction.instant, path, MarkerType.APPEND)
    transaction.roll_back()
    assert sorted(files(storage)) == committed
    assert own.stat.path not in committed
    assert contents(table) == before


def test_rollback_finds_stray_files_without_listing_a_partition(place):
    """However many files the table has: what was announced says where they are."""
    table, storage, clock = place
    transaction = begin(table)
    stage(table, transaction, [("n", "p", 1, "x")])
    transaction.abandon()
    clock.advance(DEATH_S)
    counted = FaultyStorage(storage)
    assert roll_back_dead(open_table(counted, clock, "other")) == [transaction.instant]
    listed = {path for call, path in counted.calls if call in ("list_folder", "list_objects")}
    assert listed
    assert not [path for path in listed if not path.startswith(".hoodie")]
    assert not [path for path in files(storage) if transaction.instant in path]


@pytest.mark.parametrize("dies", [False, True])
def test_rollback_deletes_what_was_announced_behind_its_plan(place, dies):
    """A task that runs on writes one more file between the plan and the fence. Another process may continue the rollback."""
    table, storage, clock = place
    before, expected = files(storage), contents(table)
    transaction = begin(table)
    stage(table, transaction, [("n", "p", 1, "x")])
    transaction.abandon()
    clock.advance(DEATH_S)
    slow, late = FaultyStorage(storage), []

    def write_late(_, call, path):
        if call == "put_if_absent" and path.startswith(LOG_FOLDER) and not late:
            late.append(stage(table, transaction, [("m", "p", 1, "x")], group="late-0").stat.path)

    def die(_, call, path):
        if dies and late:
            raise SimulatedCrash

    slow.before, slow.after = write_late, die
    with pytest.raises(SimulatedCrash) if dies else contextlib.nullcontext():
        roll_back_dead(open_table(slow, clock, "other"))
    if dies:
        clock.advance(DEATH_S)
        roll_back_dead(open_table(storage, clock, "next"))
    assert files(storage) == before
    (rollback,) = (a.instant for a in table.refresh().actions.values() if a.action is Action.ROLLBACK)
    plan = decode_document(storage.read(f".hoodie/{rollback}.rollback.requested"), "plan")
    assert late[0] not in str(plan["RollbackRequests"])
    assert contents(table) == expected == seen_by_others(storage, clock)


def test_a_living_writer_is_left_alone_and_a_dead_one_is_undone_once(place):
    table, storage, clock = place
    transaction = begin(table)
    stage(table, transaction, [("n", "p", 1, "x")])
    other = open_table(storage, clock, "other")
    assert roll_back_dead(other) == []
    assert summarise(other).health.is_healthy
    clock.advance(DEATH_S)
    other.refresh()
    assert not summarise(other).health.is_healthy
    assert roll_back_dead(other) == [transaction.instant]
    assert roll_back_dead(other) == []
    assert len(files(storage)) == 1
    assert summarise(other).health.is_healthy
    transaction.abandon()


def test_a_heartbeat_keeps_a_writer_alive(place):
    table, storage, clock = place
    transaction = begin(table)
    clock.advance(DEATH_S)
    storage.put(f".hoodie/.heartbeat/{transaction.instant}", b"")
    clock.advance(DEATH_S / 3)
    assert roll_back_dead(open_table(storage, clock)) == []
    transaction.abandon()
    assert roll_back_dead(open_table(storage, clock)) == [transaction.instant]


def test_a_stalled_writer_finds_out_at_its_commit(place):
    table, storage, clock = place
    transaction = begin(table)
    result = stage(table, transaction, [("n", "p", 1, "x")])
    clock.advance(DEATH_S)
    assert roll_back_dead(open_table(storage, clock)) == [transaction.instant]
    with pytest.raises(TransactionRolledBack, match=transaction.instant):
        commit(table, transaction, [result])
    transaction.roll_back()
    assert len(contents(table)) == 1


def test_the_fence_holds_before_the_rollback_is_done(place, monkeypatch):
    """Between `rollback requested` and its end the target can no longer complete."""
    table, storage, clock = place
    transaction = begin(table)
    result = stage(table, transaction, [("n", "p", 1, "x")])
    clock.advance(DEATH_S)
    other = open_table(storage, clock)
    monkeypatch.setattr(storage, "delete", _raise(StorageError("gone for a moment")))
    with pytest.raises(StorageError):
        roll_back(other.timeline, transaction.instant)
    monkeypatch.undo()
    with pytest.raises(TransactionRolledBack, match="was rolled back by"):
        commit(table, transaction, [result])
    assert roll_back(other.timeline, transaction.instant) is None, "its rollback looks alive still"
    clock.advance(DEATH_S)
    assert roll_back_dead(other) == [transaction.instant]
    assert list(other.state.pending()) == []
    assert len(files(storage)) == 1
    transaction.abandon()


def _raise(error):
    def call(*args, **kwargs):
        raise error

    return call


def test_late_files_of_an_undone_write_stay_invisible(place):
    table, storage, clock = place
    transaction = begin(table)
    transaction.roll_back()
    stage(table, transaction, [("late", "p", 1, "x")])
    storage.put(f"p/{base_file_name('zombie-0', '9-0-9', transaction.instant, 'parquet')}", b"no parquet even")
    assert len(contents(open_table(storage, clock))) == 1
    write(table, [("b", "p", 1, "x")])
    assert len(contents(open_table(storage, clock))) == 2


def test_what_cannot_be_rolled_back(place):
    table, _, _ = place
    with pytest.raises(InstantNotFound):
        roll_back(table.timeline, "20200101000000000")
    (done,) = table.state.completed_writes()
    with pytest.raises(UnsupportedTable, match="completed"):
        roll_back(table.timeline, done.instant, force=True)


def test_conflicting_updates_one_wins(place):
    table, storage, clock = place
    other = open_table(storage, clock, "other")
    (base,) = table.slices()
    one, two = begin(table), begin(other)
    commit(other, two, [stage(other, two, [("a", "p", 2, "y")], base=base)])
    with pytest.raises(WriteConflict, match="was written by"):
        commit(table, one, [stage(table, one, [("a", "p", 3, "z")], base=base)])
    one.roll_back()
    assert contents(table) == [("a", "p", 2, "y")]


def test_the_same_key_inserted_twice_one_wins(place):
    table, storage, clock = place
    other = open_table(storage, clock, "other")
    one, two = begin(table), begin(other)
    mine = stage(table, one, [("n", "p", 1, "mine"), ("m", "p", 1, "mine")], "one-0")
    theirs = stage(other, two, [("n", "p", 1, "theirs")], "two-0")
    commit(other, two, [theirs])
    with pytest.raises(WriteConflict, match="record keys were inserted"):
        commit(table, one, [mine])
    one.roll_back()
    assert contents(table) == [("a", "p", 1, "x"), ("n", "p", 1, "theirs")]


def test_a_write_that_lost_is_done_again_and_reports_it(place):
    table, storage, clock = place
    other, heard = open_table(storage, clock, "other"), []

    original = executor.write_file_group
    raced = []

    def race(*args, **kwargs):
        if not raced:
            raced.append(1)
            write(other, [("a", "p", 2, "other"), ("n", "p", 2, "other")])
        return original(*args, **kwargs)

    executor.write_file_group = race
    try:
        committed = write_rows(
            table,
            rows_of([("a", "p", 3, "mine"), ("n", "p", 1, "mine")]),
            Operation.UPSERT,
            on_conflict=lambda error, attempt: heard.append((error.with_instant, attempt)),
            parallelism=1,
        )
    finally:
        executor.write_file_group = original
    assert committed.attempts == 2
    assert [a for _, a in heard] == [1]
    assert contents(table) == [("a", "p", 3, "mine"), ("n", "p", 2, "other")]
    assert list(table.state.pending()) == []


class Flaky(MemoryStorage):
    """Calls that `fails` names raise `StorageError`."""

    def __init__(self, clock):
        super().__init__(clock=clock)
        self.fails = lambda call, path: False

    def delete_below(self, folder):
        self._check("delete_below", folder)
        super().delete_below(folder)

    def delete(self, path):
        self._check("delete", path)
        return super().delete(path)

    def put_if_absent(self, path, data):
        self._check("put_if_absent", path)
        super().put_if_absent(path, data)

    def put(self, path, data):
        self._check("put", path)
        super().put(path, data)

    def _check(self, call, path):
        if self.fails(call, path):
            raise StorageError(f"{call} {path}")


@pytest.fixture
def flaky():

    clock = ManualClock()
    table, storage, _ = new_table(clock, Flaky(clock))
    write(table, [("a", "p", 1, "x")])
    return table, storage, clock


@pytest.mark.parametrize(
    "fails",
    [
        lambda call, path: call == "delete_below",
        lambda call, path: call == "delete" and ".heartbeat/" in path,
        lambda call, path: call == "put_if_absent" and path.endswith(".commit"),
        lambda call, path: call == "put" and "/checkpoint/" in path,
    ],
    ids=["markers stay", "heartbeat stays", "timeline file is late", "checkpoint fails"],
)
def test_failures_after_the_commit_point_are_warnings(flaky, fails, caplog):
    table, storage, clock = flaky
    table = open_table(storage, clock, **{"tideline.log.checkpoint.interval": 2})
    storage.fails = fails
    committed = write(table, [("b", "p", 1, "y")])
    storage.fails = lambda call, path: False
    assert caplog.records
    assert all(r.levelname == "WARNING" for r in caplog.records)
    assert table.state.actions[committed.instant].state is State.COMPLETED
    assert len(contents(open_table(storage, clock))) == 2
    write(table, [("c", "p", 1, "y")])
    assert f"{committed.instant}.commit" in timeline(storage), "the next writer heals the head"


def test_clustering_whose_markers_stay_is_committed(flaky):
    table, storage, _ = flaky
    write(table, [("b", "p", 1, "y")])
    schedule_clustering(table)
    storage.fails = lambda call, path: call == "delete_below"
    assert cluster(table) is not None
    assert len(contents(table)) == 2


def test_a_write_whose_rollback_fails_stays_recoverable(flaky):
    """Its heartbeat ends all the same, or nobody could ever undo it while this process lives."""
    table, storage, clock = flaky
    transaction = begin(table)
    stage(table, transaction, [("n", "p", 1, "x")])
    storage.fails = lambda call, path: call == "put_if_absent"
    with pytest.raises(Exception, match="did not confirm"):
        transaction.roll_back()
    storage.fails = lambda call, path: False
    assert [o.path for o in storage.list_objects(".hoodie/.heartbeat")] == []
    clock.advance(DEATH_S)
    assert roll_back_dead(open_table(storage, clock)) == [transaction.instant]
    assert len(files(storage)) == 1


def test_the_log_refuses_a_step_that_would_lock_readers_out(place):
    """An illegal entry could never be folded: it must not get into the log."""

    table, storage, clock = place
    (done,) = table.state.completed_writes()
    with pytest.raises(IllegalTransition):
        table.timeline.append(lambda state: Draft(done.instant, Action.COMMIT, State.COMPLETED, State.COMPLETED, "UPSERT", Bare()))
    assert open_table(storage, clock).state == table.state


def test_clustering_by_two_runners(place):
    table, storage, clock = place
    write(table, [("b", "p", 1, "x")])
    at = schedule_clustering(table)

    begun = _begin_clustering(table, at, table.options)
    assert begun.instant == at
    other = open_table(storage, clock, "other")
    with pytest.raises(WriteConflict, match="is being run by w"):
        cluster(other)
    clock.advance(DEATH_S)
    assert cluster(other).instant == at
    with pytest.raises(UnsupportedTable, match="completed"):
        cluster(table, at)
    with pytest.raises(InstantNotFound):
        cluster(table, "20200101000000000")
    assert len(contents(table)) == 2


def test_clean_by_two_runners(place):
    table, storage, clock = place
    for n in range(2, 5):
        write(table, [("a", "p", n, "x")])
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    other = open_table(storage, clock, "other")
    assert run_clean(other) == 2
    assert run_clean(table) is None
    assert contents(table) == [("a", "p", 4, "x")]


def test_an_interrupt_behind_the_commit_point_completes_the_timeline(monkeypatch):
    table, storage, _ = new_table()
    materialise, late = TableLog.materialise, []

    def interrupted(self, entry, *more):
        if entry.after is State.COMPLETED and not late:
            late.append(entry.instant)
            raise KeyboardInterrupt
        materialise(self, entry, *more)

    monkeypatch.setattr(TableLog, "materialise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(table, [("a", "p", 1, "x")])
    assert contents(table) == [("a", "p", 1, "x")]
    assert storage.read(f".hoodie/{late[0]}.commit"), "readers that know only the timeline see it too"
