"""What users of such systems suffered from, each named after the threads that tell of it (docs/field-notes.md has the table)."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from tests.contract.locks.conftest import opened_place
from tests.plans import schedule_clean, schedule_clustering, schedule_compaction
from tests.regression.place import Place
from tests.simulation.faults import FaultyStorage
from tests.unit.table.archives import TASK_S, seen_by_others
from tests.unit.table.tables import DEATH_S, QUIET, cluster, contents, open_table, write

from tideline_locks.port import MAX_FENCE
from tideline_locks.table_lock import ProviderLock
from tideline_table.action import archive, roll_back_dead, run_clean, run_clustering, run_compaction
from tideline_table.action.archival.plan import held_back
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.action.write import executor
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination import roll_back
from tideline_table.errors import ObjectExists, StorageError, UnsupportedTable, VerificationFailed, WriteConflict
from tideline_table.hudi.instant import WRITE_ACTIONS, State
from tideline_table.table import Table, TableType
from tideline_table.table.health import health_of
from tideline_table.writer import Operation

AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}
LOG = ".hoodie/.tideline/log/"
FAST = {"hoodie.client.heartbeat.interval_in_ms": 100}
WAIT_S = 120.0
FEW = {"hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 2, "hoodie.cleaner.commits.retained": 1, **AT_ONCE}


EMBEDDED_LOCKS = ("in_process", "storage_memory", "storage_local", "hudi_filesystem", "hudi_storage")


def no_server(kind):
    raise AssertionError("embedded locks need no server")


@pytest.fixture
def cow():
    return Place(TableType.COW)


@pytest.fixture
def mor():
    place = Place(TableType.MOR)
    write(place.other, [("a", "p", 1, "first"), ("b", "p", 1, "first")])
    write(place.other, [("a", "p", 2, "second")])
    return place


@pytest.mark.parametrize("kind", [TableType.COW, TableType.MOR])
def test_hudi_9831_7745_19720_concurrent_inserts_of_one_key(kind):
    place = Place(kind)
    slow = place.interrupted(lambda: write(place.other, [("new", "p", 1, "other")]))
    committed = write(slow, [("new", "p", 2, "slow")])
    assert committed.attempts == 2
    assert contents(slow) == [("new", "p", 2, "slow")]


def test_hudi_7507_11580_13269_3824_19587_two_writers_mint_at_one_time(cow):
    writers = [cow.open("one"), cow.open("two")]
    begun = [WriteTransaction.begin(w.timeline, w.lock, "upsert") for _ in range(5) for w in writers]
    instants = [t.instant for t in begun]
    assert instants == sorted(set(instants))
    assert [t.begin_sequence for t in begun] == list(range(1, 11))
    for transaction in begun:
        transaction.roll_back()


def test_hudi_19686_10791_a_compaction_is_planned_while_a_delta_commit_is_inflight(mor):
    slow = mor.interrupted(lambda: schedule_compaction(mor.other, AT_ONCE))
    assert write(slow, [("a", "p", 3, "late")]).attempts == 2, "into the slice that the compaction will make"
    mor.compact()
    assert contents(mor.open("reader")) == [("a", "p", 3, "late"), ("b", "p", 1, "first")]


def test_hudi_13347_a_compaction_moves_the_base_under_a_delta_commit(mor):
    def compaction():
        schedule_compaction(mor.other, AT_ONCE)
        mor.compact()

    committed = write(mor.interrupted(compaction), [("a", "p", 3, "late")])
    assert committed.attempts == 2
    assert contents(mor.open("reader")) == [("a", "p", 3, "late"), ("b", "p", 1, "first")]


def test_hudi_13255_9472_18830_an_update_under_an_inflight_clustering(cow):
    write(cow.other, [("a", "p", 1, "first")])
    write(cow.other, [("b", "p", 1, "first")])
    schedule_clustering(cow.other)
    writer = cow.open("writer")

    def run(tasks):
        results = [cluster_group(task, cow.storage) for task in tasks]
        write(writer, [("a", "p", 2, "during")])
        return results

    with pytest.raises(WriteConflict):
        run_clustering(cow.other, run=run)
    assert contents(cow.other) == [("a", "p", 2, "during"), ("b", "p", 1, "first")]
    schedule_clustering(cow.other)
    cluster(cow.other)
    assert contents(cow.other) == [("a", "p", 2, "during"), ("b", "p", 1, "first")]


def test_hudi_3956_7826_18089_a_living_or_completed_write_is_not_rolled_back(cow):
    living = WriteTransaction.begin(cow.other.timeline, cow.other.lock, "upsert")
    cleaner = cow.open("cleaner")
    assert roll_back_dead(cleaner) == []
    living.roll_back()
    done = write(cow.other, [("a", "p", 1, "x")])
    cow.clock.advance(DEATH_S)
    assert roll_back_dead(cleaner) == []
    with pytest.raises(UnsupportedTable):
        roll_back(cleaner.timeline, done.instant)
    assert contents(cleaner) == [("a", "p", 1, "x")]


def test_hudi_7469_18050_8849_two_rollbacks_of_one_instant_and_a_crash_inside_one(cow):
    dead = WriteTransaction.begin(cow.other.timeline, cow.other.lock, "upsert")
    cow.clock.advance(DEATH_S)
    failing = FaultyStorage(cow.storage)
    first = open_table(failing, cow.clock, "first")

    def before(number, call, path):
        if call == "list_objects" and path.startswith(".hoodie/.temp") and any(a.fenced_by for a in first.state.pending()):
            raise StorageError("the cleaner's machine is gone")

    failing.before = before
    with pytest.raises(StorageError):
        roll_back_dead(first)
    second = cow.open("second")
    assert roll_back_dead(second) == []
    cow.clock.advance(DEATH_S)
    assert roll_back_dead(second) == [dead.instant]
    assert roll_back_dead(cow.open("third")) == []
    assert list(second.state.pending()) == []
    dead.abandon()


@pytest.mark.parametrize("kind", [TableType.COW, TableType.MOR])
def test_hudi_9545_11187_12568_a_retried_task_leaves_nothing_that_counts(kind, monkeypatch):
    place = Place(kind)
    write(place.other, [("a", "p", 1, "first")])
    once = executor.write_file_group

    def twice(context, task, incoming, storage):
        once(context, task, incoming, storage)
        return once(context, replace(task, attempt=task.attempt + 1), incoming, storage)

    monkeypatch.setattr(executor, "write_file_group", twice)
    write(place.other, [("a", "p", 2, "second"), ("b", "p", 2, "second")])
    assert contents(place.other) == [("a", "p", 2, "second"), ("b", "p", 2, "second")]
    assert place.data_files() == {path for s in place.other.state.every_slice() for path in s.paths}


def test_hudi_5020_8584_9674_19290_6022_cleaning_leaves_what_a_pending_compaction_and_readers_need(mor):
    schedule_compaction(mor.other, AT_ONCE)
    for number in range(3, 8):
        write(mor.other, [("a", "p", number, f"v{number}"), (f"k{number}", "q", number, "x")])
    expected = contents(mor.other)
    schedule_clean(mor.other, {"hoodie.cleaner.commits.retained": 1})
    run_clean(mor.other)
    assert contents(mor.other) == expected
    slow_reader = open_table(mor.storage, mor.clock, "reader").snapshot()
    mor.compact()
    assert contents(mor.other) == expected
    write(mor.other, [("a", "p", 8, "v8")])
    assert schedule_clean(mor.other, {"hoodie.cleaner.commits.retained": 2}) is None, "the plan is old, the compaction is not"
    read = slow_reader.read(["id", "part", "ts", "v"]).to_pylist()
    assert sorted((tuple(row.values()) for row in read), key=repr) == expected
    write(mor.other, [("a", "p", 9, "v9")])
    schedule_clean(mor.other, {"hoodie.cleaner.commits.retained": 2})
    assert run_clean(mor.other), "files of slices that were compacted"


def test_hudi_5020_8584_9674_19290_6022_cleaning_leaves_what_a_slow_writer_reads(cow):
    write(cow.other, [("a", "p", 1, "v1"), ("b", "p", 1, "v1")])

    def meanwhile():
        for number in range(2, 5):
            write(cow.other, [("a", "p", number, f"v{number}")])
        assert schedule_clean(cow.other, {"hoodie.cleaner.commits.retained": 1}) is None

    write(cow.interrupted(meanwhile), [("b", "p", 9, "late")])
    cow.other.refresh()
    assert contents(cow.other) == [("a", "p", 4, "v4"), ("b", "p", 9, "late")]
    schedule_clean(cow.other, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(cow.other)


@pytest.mark.parametrize("kind", [TableType.COW, TableType.MOR])
def test_hudi_7160_4163_10258_7839_2818_6167_a_commit_that_finishes_late_is_read_once(kind):
    place = Place(kind)
    read: list[int] = []

    def meanwhile():
        write(place.other, [("early", "q", 1, "x")])
        read.append(place.other.refresh().sequence)

    slow = place.interrupted(meanwhile)
    late = write(slow, [("late", "p", 1, "x")])
    first = min(a.instant for a in slow.state.completed_writes())
    assert late.attempts == 1
    assert late.instant == first, "begun first, completed last"
    place.other.refresh()
    assert place.other.incremental(read[0]).read(["id"]).column("id").to_pylist() == ["late"]
    end = place.other.refresh().sequence
    schedule_clustering(place.other, {"tideline.clustering.min.input.files": 1})
    cluster(place.other)
    assert place.other.incremental(end).read(["id"]).num_rows == 0


def test_hudi_18904_18903_19867_a_durable_commit_is_not_reported_as_failed(cow):
    lossy = FaultyStorage(cow.storage)
    lost = []

    def after(number, call, path):
        if call == "put_if_absent" and path.startswith(LOG):
            lost.append(path)
            raise StorageError("the answer got lost")

    lossy.after = after
    committed = write(open_table(lossy, cow.clock, "w"), [("a", "p", 1, "x")])
    assert committed.attempts == 1
    assert len(lost) >= 2
    assert cow.other.refresh().actions[committed.instant].state is State.COMPLETED
    assert contents(cow.other) == [("a", "p", 1, "x")]


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "is slow"])
def test_hudi_18904_a_renewal_that_fails_or_is_slow_does_not_end_a_heartbeat(cow, fails):
    """A write is alive as long as its renewals go on, whatever became of one of them."""
    faulty, puts = FaultyStorage(cow.storage), []
    has_begun, goes_on, was_renewed = threading.Event(), threading.Event(), threading.Event()

    def before(number, call, path):
        if call == "put" and path.startswith(".hoodie/.heartbeat/"):
            puts.append(path)
            if len(puts) == 2:
                has_begun.set()
                assert goes_on.wait(WAIT_S)
                if fails:
                    raise OSError("the disk is gone")
        elif call == "open_output" and not path.startswith(".hoodie"):
            assert has_begun.wait(WAIT_S)
            cow.clock.advance(10)
            goes_on.set()
            assert was_renewed.wait(WAIT_S), "the heartbeat has ended"
            assert roll_back_dead(open_table(cow.storage, cow.clock, "cleaner", **FAST)) == []

    def after(number, call, path):
        if len(puts) > 2 and (call, path) == ("put", puts[0]):
            was_renewed.set()

    faulty.before, faulty.after = before, after
    committed = write(open_table(faulty, cow.clock, "w", **FAST), [("a", "p", 1, "x")])
    assert committed.attempts == 1
    assert contents(cow.open("reader")) == [("a", "p", 1, "x")]


def test_hudi_rfc91_14286_20027_10412_6474_a_retried_conditional_put_is_not_somebody_elses(cow):
    class Retrying(FaultyStorage):
        """A client that sends a conditional put again when the first answer got lost."""

        def put_if_absent(self, path, data):
            super().put_if_absent(path, data)
            if path.startswith(LOG):
                with pytest.raises(ObjectExists):
                    super().put_if_absent(path, data)
                raise ObjectExists(path)

    committed = write(open_table(Retrying(cow.storage), cow.clock, "w"), [("a", "p", 1, "x")])
    assert committed.attempts == 1
    writes = [a for a in cow.other.refresh().actions.values() if a.action in WRITE_ACTIONS]
    assert [a.instant for a in writes] == [committed.instant]


def test_hudi_9139_a_compaction_with_a_failed_task_does_not_commit(mor):
    expected = contents(mor.other)
    at = schedule_compaction(mor.other, AT_ONCE)

    def failing(tasks):
        for task in tasks:
            compact_slice(task, mor.storage)
        raise StorageError("a task could not write its file")

    with pytest.raises(StorageError):
        run_compaction(mor.other, run=failing)
    assert mor.other.refresh().actions[at].state is State.INFLIGHT
    assert contents(mor.other) == expected
    mor.clock.advance(DEATH_S)
    mor.compact()
    assert contents(mor.other) == expected
    assert mor.data_files() == {path for s in mor.other.state.every_slice() for path in s.paths}


@pytest.mark.parametrize("kind", EMBEDDED_LOCKS)
def test_hudi_rfc91_10412_who_lost_the_lock_does_not_release_anothers(cow, kind, tmp_path):
    """A writer is so slow at its commit point that its lease runs out and another process gets the lock: the log decides, the
    lock stays theirs."""
    with opened_place(kind, folder=tmp_path, clock=cow.clock, server=no_server) as place:
        lossy, taken, held = FaultyStorage(cow.storage), place.provider(), []

        def before(number, call, path):
            if call == "put_if_absent" and path.startswith(LOG) and not held and taken.read("trips") is not None:
                place.let_expire(taken, "trips")
                held.append(taken.acquire("trips", owner="slow", ttl_s=60, wait_s=0, fence=MAX_FENCE))

        lossy.before = before
        lock = ProviderLock(place.provider(), "trips", "slow", ttl_s=place.short_ttl_s)
        slow = Table.open(lossy.root, options=QUIET, clock=cow.clock, writer_id="slow", storage=lossy, lock=lock)
        assert write(slow, [("a", "p", 1, "x")]).attempts == 1
        assert contents(cow.open("reader")) == [("a", "p", 1, "x")]
        standing = place.provider().read("trips")
        assert (standing.lease_id, standing.expired) == (held[0].lease_id, False)
        assert place.provider().try_acquire("trips", owner="third", ttl_s=60, fence=MAX_FENCE) is None
        held[0].renew()
        assert held[0].release() is True


@pytest.mark.parametrize("kind", [TableType.COW, TableType.MOR])
def test_hudi_9139_a_table_service_that_lost_a_result_does_not_commit(kind):
    """A runner hears of one task only: with that the rows of the other partition were gone, or its log files had no slice any
    more."""
    place = Place(kind)
    for ts in (1, 2):
        write(place.other, [(key, part, ts, "x") for part in "pq" for key in "ab"])
    expected = contents(place.other)
    if kind is TableType.MOR:
        at = schedule_compaction(place.other, AT_ONCE)
        with pytest.raises(VerificationFailed, match="no result of task 1"):
            run_compaction(place.other, run=lambda tasks: [compact_slice(tasks[0], place.storage)])
        assert place.other.refresh().actions[at].state is State.INFLIGHT
        assert contents(place.other) == expected
        place.clock.advance(DEATH_S)
        place.compact()
    at = schedule_clustering(place.other, {"tideline.clustering.min.input.files": 1})
    with pytest.raises(VerificationFailed, match="no result of task 1"):
        run_clustering(place.other, run=lambda tasks: [cluster_group(tasks[0], place.storage)])
    assert place.other.refresh().actions[at].state is State.ROLLED_BACK
    assert contents(place.other) == expected
    schedule_clean(place.other, {"hoodie.cleaner.commits.retained": 1})
    run_clean(place.other)
    assert contents(place.open("reader")) == expected


def test_hudi_6938_7401_11440_archival_waits_for_the_cleaning_of_what_was_replaced(cow):
    """Once the replacement is forgotten, files that it replaced and nobody deleted would come back as duplicates."""
    write(cow.other, [("n", "p", 1, "x")])
    replacing = schedule_clustering(cow.other, {"tideline.clustering.min.input.files": 1})
    cluster(cow.other)
    for n in range(4):
        write(cow.other, [("z", "q", n, "x")])
    expected = contents(cow.other)
    cow.clock.advance(TASK_S)
    archive(cow.other, FEW)
    assert replacing in cow.other.state.actions
    assert seen_by_others(cow.storage, cow.clock) == expected
    assert schedule_clean(cow.other, FEW)
    run_clean(cow.other)
    done, *_ = archive(cow.other, FEW)
    assert done is not None
    assert replacing in done.instants
    assert seen_by_others(cow.storage, cow.clock) == expected


def test_hudi_10964_17879_8567_a_stuck_inflight_instant_is_named_repaired_and_passed(cow):
    stuck = WriteTransaction.begin(cow.other.timeline, cow.other.lock, "UPSERT")
    stuck.abandon()
    for n in range(4):
        write(cow.other, [("z", "q", n, "x")])
    cow.clock.advance(TASK_S)
    done, *_ = archive(cow.other, FEW)
    assert done is None or max(done.instants) < stuck.instant
    options = cow.other.options.merged(FEW)
    assert f"{stuck.instant} is inflight" in held_back(cow.other.state, options, cow.clock.now()).reason
    assert any(stuck.instant in problem for problem in health_of(cow.other).problems)
    assert roll_back_dead(cow.other) == [stuck.instant]
    cow.clock.advance(TASK_S)
    done, *_ = archive(cow.other, FEW)
    assert done is not None
    assert stuck.instant in done.instants
    assert seen_by_others(cow.storage, cow.clock) == contents(cow.other)


def test_a_key_deleted_before_a_compaction_and_written_during_it_stands_once(mor):
    write(mor.other, [("a", "p", 3, "")], Operation.DELETE)
    schedule_compaction(mor.other, AT_ONCE)
    write(mor.other, [("a", "p", 4, "again")])
    mor.compact()
    write(mor.other, [("a", "p", 5, "last")])
    assert contents(mor.other) == [("a", "p", 5, "last"), ("b", "p", 1, "first")]
