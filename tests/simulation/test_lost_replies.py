"""The append at the commit point: replies lost, refusals without an object, and others who win the place."""

import contextlib

import pytest
from tests.simulation.faults import FaultyStorage
from tests.simulation.recovery import check_sound, recover
from tests.unit.table.tables import contents, create, instant, open_table, write

from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.errors import CommitUnknown, CorruptMetadata, ObjectExists, StorageError, UnsupportedTable, WriteConflict
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.body import Bare, Published
from tideline_table.log.entry import BODY_FOLDER, INLINE_BODY_BYTES, Entry, entry_path
from tideline_table.log.table_log import HEAL_DEADLINE_S, Draft, TableLog
from tideline_table.storage import MemoryStorage
from tideline_table.writer import Operation

BEGIN = Draft(instant(1), Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare())


class Store(MemoryStorage):
    """`on_put(path, data)` runs in the place of each put-if-absent to the log; calls `super_put` to do it really."""

    def __init__(self, clock):
        super().__init__(clock=clock)
        self.on_put = None
        self.puts = 0

    def put_if_absent(self, path, data):
        if self.on_put is None or not path.startswith(".hoodie/.tideline/log/"):
            super().put_if_absent(path, data)
            return
        self.puts += 1
        self.on_put(path, data)

    def super_put(self, path, data):
        super().put_if_absent(path, data)


@pytest.fixture
def store():
    return Store(ManualClock())


@pytest.fixture
def log(store):
    return TableLog(store, store._clock, "me", WRITTEN)


def test_a_plain_append(log, store):
    entry = log.append(BEGIN, 1)
    assert log.read(1) == entry
    assert list(log.after(0)) == [entry]
    assert log.read(2) is None


@pytest.mark.parametrize("losses", [1, 2, 4])
def test_lost_replies_are_recognised_as_own(log, store, losses):
    def put(path, data):
        if store.puts <= losses:
            with contextlib.suppress(ObjectExists):
                store.super_put(path, data)
            raise StorageError("connection reset")
        store.super_put(path, data)

    store.on_put = put
    entry = log.append(BEGIN, 1)
    assert entry is not None
    assert log.read(1).append_id == entry.append_id


def test_a_refusal_without_an_object_is_tried_again(log, store):
    """Object stores answer 'conflict' to a put that races with a delete or another put, without any object being there."""

    def put(path, data):
        if store.puts < 3:
            raise ObjectExists(path)
        store.super_put(path, data)

    store.on_put = put
    assert log.append(BEGIN, 1) is not None
    assert store.puts == 3


def test_another_writer_wins_the_place(log, store):
    other = TableLog(store, store._clock, "other", WRITTEN)
    won = other.append(BEGIN, 1)
    assert log.append(Draft(instant(2), Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare()), 1) is None
    assert log.read(1) == won


def test_another_writer_wins_between_a_lost_put_and_its_retry(log, store):
    other = TableLog(store, store._clock, "other", WRITTEN)

    def put(path, data):
        store.on_put = None
        assert other.append(BEGIN, 1) is not None
        raise StorageError("it never got there")

    store.on_put = put
    assert log.append(BEGIN, 1) is None


def test_the_same_bytes_of_another_append_are_not_mine(log, store):
    """Equal drafts of one writer at one time differ by their append id."""
    twin = TableLog(store, store._clock, "me", WRITTEN)
    assert twin.append(BEGIN, 1) is not None
    assert log.append(BEGIN, 1) is None


def test_no_answer_at_all_is_unknown_after_a_bounded_wait(log, store):
    clock = store._clock

    def put(path, data):
        raise StorageError("silence")

    store.on_put = put
    with pytest.raises(CommitUnknown, match=r"entry 1.*silence"):
        log.append(BEGIN, 1)
    assert store.puts == 5
    assert clock.monotonic_s() < 60


def test_large_bodies_are_kept_beside_the_log_by_hash(log, store):
    draft = Draft(
        instant(1),
        Action.COMMIT,
        State.INFLIGHT,
        State.COMPLETED,
        "UPSERT",
        Published(CommitMetadata("UPSERT", (), {"x": "y" * INLINE_BODY_BYTES})),
    )
    log.append(draft, 1)
    assert len(store.read(entry_path(1))) < 1000
    assert log.read(1).body == draft.body
    assert log.append(draft, 1) is None, "the place is taken"
    (body,) = store.list_objects(BODY_FOLDER)
    whole = store.read(body.path)
    for broken in (whole[:-1], b"", None):
        if broken is None:
            store.delete(body.path)
        else:
            store.put(body.path, broken)
        with pytest.raises(CorruptMetadata, match=BODY_FOLDER):
            log.read(1)


@pytest.fixture
def table(store):
    create(store, store._clock)
    table = open_table(store, store._clock)
    write(table, [("a", "p", 1, "x")])
    return table


def when_completing(store, act):
    """`act(path, data)` at the next put of a completed commit."""

    def put(path, data):
        entry = Entry.from_bytes(data, path)
        if (entry.action, entry.after) == (Action.COMMIT, State.COMPLETED):
            store.on_put = None
            act(path, data)
        else:
            store.super_put(path, data)

    store.on_put = put


def test_a_commit_whose_reply_got_lost_is_one_commit(table, store):
    def act(path, data):
        store.super_put(path, data)
        raise StorageError("reply lost")

    when_completing(store, act)
    committed = write(table, [("b", "p", 1, "y")])
    assert committed.attempts == 1
    assert contents(table) == [("a", "p", 1, "x"), ("b", "p", 1, "y")]
    check_sound(store, store._clock, [contents(table)])


def test_a_second_writer_between_check_and_append(table, store):
    """The conflict check is done again on what the winner wrote."""
    other = open_table(store, store._clock, "other")

    def act(path, data):
        write(other, [("a", "p", 5, "other")])
        store.super_put(path, data)

    when_completing(store, act)
    committed = write(table, [("a", "p", 3, "older"), ("c", "p", 1, "mine")])
    assert committed.attempts == 2
    assert contents(table) == [("a", "p", 5, "other"), ("c", "p", 1, "mine")]


def test_a_second_writer_without_conflict_costs_no_attempt(table, store):
    other = open_table(store, store._clock, "other")

    def act(path, data):
        write(other, [("o", "q", 1, "other")])
        store.super_put(path, data)

    when_completing(store, act)
    assert write(table, [("a", "p", 3, "mine")]).attempts == 1
    assert contents(table) == [("a", "p", 3, "mine"), ("o", "q", 1, "other")]


def test_both_insert_the_same_key(table, store):
    other = open_table(store, store._clock, "other")

    def act(path, data):
        write(other, [("k", "p", 5, "other")])
        store.super_put(path, data)

    when_completing(store, act)
    write(table, [("k", "p", 3, "mine")])
    assert [r for r in contents(table) if r[0] == "k"] == [("k", "p", 5, "other")]


@pytest.mark.parametrize("arrived", [True, False])
def test_an_unknown_commit_is_what_the_log_says(table, store, arrived):
    """The writer cannot tell; recovery can, and does not undo what is in the log."""

    def act(path, data):
        if arrived:
            store.super_put(path, data)

        def silence(path, data):
            raise StorageError("silence")

        store.on_put = silence
        raise StorageError("silence")

    when_completing(store, act)
    with pytest.raises(CommitUnknown):
        write(table, [("b", "p", 1, "y")])
    store.on_put = None
    recover(store, store._clock)
    expected = [("a", "p", 1, "x")] + ([("b", "p", 1, "y")] if arrived else [])
    assert contents(open_table(store, store._clock)) == expected
    check_sound(store, store._clock, [expected])


@pytest.mark.parametrize("operation", [Operation.INSERT, Operation.BULK_INSERT])
def test_a_blind_insert_of_unknown_outcome_is_not_tried_again(table, store, operation):
    """It looks up no key, so its rows would stand twice; the store answers again before the error reaches the caller."""

    def act(path, data):
        store.super_put(path, data)
        last = store.puts + 4

        def silence(path, data):
            if store.puts == last:
                store.on_put = None
            raise StorageError("silence")

        store.on_put = silence
        raise StorageError("silence")

    when_completing(store, act)
    with pytest.raises(CommitUnknown):
        write(table, [("b", "p", 1, "y")], operation)
    assert store.on_put is None
    recover(store, store._clock)
    assert contents(open_table(store, store._clock)) == [("a", "p", 1, "x"), ("b", "p", 1, "y")]


def test_retries_are_bounded_and_end_in_a_conflict(table, store):
    other = open_table(store, store._clock, "other")
    rounds = []

    def act(path, data):
        rounds.append(1)
        write(other, [("a", "p", len(rounds), "other")])
        when_completing(store, act)
        store.super_put(path, data)

    when_completing(store, act)
    with pytest.raises(WriteConflict):
        write(table, [("a", "p", 99, "mine")], **{"tideline.write.conflict.retries": 2})
    store.on_put = None
    assert len(rounds) == 3
    assert contents(table) == [("a", "p", 3, "other")]
    assert list(table.state.pending()) == []


def begun_and_unseen(table, store):
    """A write that only the log knows, and its entry: its files on the timeline are not there yet."""
    transaction = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    for path in timeline_files_of(store, transaction):
        store.delete(path)
    return transaction, table.timeline.log.read(table.state.sequence)


def timeline_files_of(store, transaction):
    return [o.path for o in store.list_folder(".hoodie").objects if transaction.instant in o.path and "rollback" not in o.path]


def test_a_slow_healer_removes_what_a_rollback_removed_meanwhile(table, store):
    """Create-only healing must not bring back the timeline files of an instant that was undone."""
    transaction, begun = begun_and_unseen(table, store)
    faulty = FaultyStorage(store)

    def slow(number, call, path):
        if call == "put_if_absent" and path.endswith(".requested"):
            faulty.before = lambda number, call, path: None
            transaction.roll_back()
            store._clock.advance(HEAL_DEADLINE_S + 1)

    faulty.before = slow
    TableLog(faulty, store._clock, "slow healer", WRITTEN).materialise(begun)
    assert not timeline_files_of(store, transaction)


def test_a_healer_that_fails_half_way_looks_behind_itself_too(table, store):
    """Found by the simulator: the first file came late and the second one failed, so the first one stayed for ever."""
    transaction, begun = begun_and_unseen(table, store)
    faulty = FaultyStorage(store)

    def fail(number, call, path):
        if call == "put_if_absent" and path.endswith(".requested"):
            transaction.roll_back()
        if call == "put_if_absent" and path.endswith(".inflight"):
            raise StorageError("no space left")

    faulty.before = fail
    with pytest.raises(StorageError):
        TableLog(faulty, store._clock, "healer", WRITTEN).materialise(begun)
    assert not timeline_files_of(store, transaction)


def test_a_newer_log_is_not_written_to(table, store):
    head = table.state.sequence
    store.put(entry_path(head + 1), b'{"log_format": 2}')
    with pytest.raises(UnsupportedTable, match="upgrade"):
        write(table, [("b", "p", 1, "y")])
