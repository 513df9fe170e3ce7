"""Old entries of the table log go; nobody who slept meanwhile can win a freed place or read a hole as the end."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.simulation.faults import FaultyStorage, SimulatedCrash
from tests.unit.table.tables import contents, create, open_table, write

from tideline_events.errors import PoisonEvent
from tideline_events.transitions import backfill
from tideline_table.action import roll_back_dead
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.config import Options
from tideline_table.coordination.replica import LogMaintenance
from tideline_table.errors import CommitUnknown, CorruptMetadata, StorageError, StorageRefused, TransactionRolledBack
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.action import ActionRecord
from tideline_table.log.body import Bare, Published
from tideline_table.log.checkpoint import (
    CHECKPOINT_FOLDER,
    MARKS_KEPT,
    POINTER,
    Checkpoint,
    read_opening,
    write_checkpoint,
    write_tail,
)
from tideline_table.log.entry import BODY_FOLDER, INLINE_BODY_BYTES, LOG_FOLDER, Entry, entry_path
from tideline_table.log.retention import MOST_TRIMMED, Mark, Retention, trim, trim_floor, trimmed_to
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft, PlaceTrimmed, TableLog
from tideline_table.storage import MemoryStorage

DAY_S = 24 * 3600
SHORT = {"tideline.log.checkpoint.interval": 4, "tideline.log.retained.entries": 10, "tideline.log.retention": 7.0 * DAY_S}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def storage(clock):
    storage = MemoryStorage(clock=clock)
    create(storage, clock)
    return storage


@pytest.fixture
def table(storage, clock):
    return open_table(storage, clock, **SHORT)


def kept_entries(storage):
    return [int(o.path.rpartition("/")[2][:20]) for o in storage.list_objects(LOG_FOLDER)]


def live_on(table, writes, clock, step_s=DAY_S):
    for n in range(writes):
        clock.advance(step_s)
        write(table, [(f"k{n % 3}", "p", table.state.sequence, "x")])


# --- the decision ----------------------------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 31, tzinfo=UTC)
MARKS = [Mark(n * 50, (NOW - timedelta(days=10 - n)).isoformat()) for n in range(1, 10)]


@pytest.mark.parametrize(
    ("retention", "head", "needed", "floor"),
    [
        (Retention(10, 7 * DAY_S), 500, 451, 150),
        (Retention(10, 7 * DAY_S), 500, 101, 100),
        (Retention(10, 7 * DAY_S), 500, 150, 100),
        (Retention(10, 0), 500, 451, 450),
        (Retention(400, 0), 500, 451, 100),
        (Retention(451, 0), 500, 451, 0),
        (Retention(10, 9.5 * DAY_S), 500, 451, 0),
        (Retention(10, 0), 500, 1, 0),
    ],
)
def test_the_floor(retention, head, needed, floor):
    assert trim_floor(MARKS, retention, head, needed, NOW) == floor


def test_no_marks_no_floor():
    assert trim_floor([], Retention(1, 0), 1000, 1000, NOW) == 0


# --- a table that lives ----------------------------------------------------------------------------------------------------


def test_old_entries_go_and_the_table_stays(table, storage, clock):
    live_on(table, 60, clock)
    kept = kept_entries(storage)
    assert kept[-1] == table.state.sequence == 120
    assert kept == list(range(kept[0], 121))
    assert 14 <= len(kept) <= 30
    assert trimmed_to(storage) == kept[0] - 1
    opened = open_table(storage, clock)
    assert opened.state == table.state
    assert contents(opened) == contents(table)
    assert len(opened.state.completed_writes()) == 60


def test_what_is_young_stays_however_much_there_is(table, storage, clock):
    live_on(table, 60, clock, step_s=60)
    assert kept_entries(storage) == list(range(1, 121))
    clock.advance(8 * DAY_S)
    live_on(table, 2, clock, step_s=60)
    assert kept_entries(storage)[0] > 100


def test_few_entries_stay_however_old_they_are(storage, clock):
    table = open_table(storage, clock, **{**SHORT, "tideline.log.retained.entries": 100})
    live_on(table, 50, clock)
    assert kept_entries(storage) == list(range(1, 101))


def test_the_defaults_keep_a_week_and_a_thousand(storage, clock):
    table = open_table(storage, clock, **{"tideline.log.checkpoint.interval": 4})
    live_on(table, 40, clock)
    assert len(kept_entries(storage)) == 80


def test_a_pending_action_holds_back_everything_since_its_begin(table, storage, clock):
    live_on(table, 3, clock)
    held = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    live_on(table, 30, clock)
    assert kept_entries(storage)[0] <= held.begin_sequence
    held.roll_back()
    live_on(table, 30, clock)
    assert kept_entries(storage)[0] > held.begin_sequence


@pytest.mark.parametrize(("begun", "kept_from"), [(None, 21), (15, 15), (30, 21)])
def test_no_entry_is_trimmed_that_a_checkpoint_or_a_pending_action_needs(clock, begun, kept_from):
    """Readers of the oldest checkpoint read on behind it, and a transaction reads on from its begin, with a mark at each entry."""
    storage = filled(60)
    for sequence in (20, 40):
        write_checkpoint(storage, TableState(sequence=sequence))
    options = Options({"tideline.log.checkpoint.interval": 20, "tideline.log.retained.entries": 10, "tideline.log.retention": 90.0})
    maintenance = LogMaintenance(storage, clock, options, lambda _: None)
    maintenance.start(Checkpoint(40, 0, tuple(Mark(n, clock.now().isoformat()) for n in range(1, 41))))
    clock.advance(DAY_S)
    state = TableState(sequence=60)
    if begun is not None:
        state.actions["1"] = ActionRecord("1", Action.COMMIT, State.INFLIGHT, "UPSERT", begun, begun, "w", "")
    recorded = clock.now().isoformat()
    maintenance.keep(Entry(60, "a60", recorded, "w", "2", Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT"), state)
    assert kept_entries(storage) == list(range(kept_from, 61))


def test_an_entry_that_came_late_is_as_young_as_its_arrival(table, storage, clock):
    """Found by the simulator: it was trimmed by the time at which it was recorded, and who looked before it came saw no end of
    the log ever after."""
    live_on(table, 1, clock, step_s=60)
    slow = FaultyStorage(storage)
    reader = open_table(storage, clock, "reader", **SHORT)

    def take_days(number, call, path):
        if call == "put_if_absent" and path == entry_path(4):
            clock.advance(8 * DAY_S)
            reader.refresh()

    slow.before = take_days
    write(open_table(slow, clock, "slow", **SHORT), [("k0", "p", 1, "late")])
    assert reader.state.sequence == 3
    live_on(table, 10, clock, step_s=60)
    reader.refresh()
    assert reader.state == table.state


def test_bodies_go_with_their_entries(table, storage, clock):
    live_on(table, 1, clock)
    log = table.timeline.log
    draft = Draft(
        "x",
        Action.COMMIT,
        State.INFLIGHT,
        State.COMPLETED,
        "UPSERT",
        Published(CommitMetadata("UPSERT", (), {"x": "y" * INLINE_BODY_BYTES})),
    )
    for n in range(100, 104):
        assert log.append(draft, n) is not None
    storage.put(f"{BODY_FOLDER}/of-another-make.json", b"{}")
    assert trim(storage, 101) == 101
    left = [o.path.rpartition("/")[2][:20] for o in storage.list_objects(BODY_FOLDER)]
    assert left == [f"{102:020d}", f"{103:020d}", "of-another-make.json"]


def test_marks_are_few_and_cover_the_time():
    storage = MemoryStorage()
    checkpoint = Checkpoint(0, 0, ())
    clock = ManualClock()
    create(storage, clock)
    table = open_table(storage, clock, **{**SHORT, "tideline.log.checkpoint.interval": 2, "tideline.log.retention": 1e9})
    live_on(table, 80, clock)
    marks = read_opening(storage).checkpoint.marks
    assert MARKS_KEPT / 2 <= len(marks) <= MARKS_KEPT
    assert marks[0].sequence == 2
    assert marks[-1].sequence > 150
    assert checkpoint.sequence == 0


# --- trimming --------------------------------------------------------------------------------------------------------------


def filled(count):
    storage = MemoryStorage()
    for n in range(1, count + 1):
        storage.put(entry_path(n), b"{}")
    return storage


def test_one_call_takes_a_bounded_number():
    storage = filled(MOST_TRIMMED + 20)
    assert trim(storage, MOST_TRIMMED + 10) == MOST_TRIMMED
    assert kept_entries(storage)[0] == MOST_TRIMMED + 1
    assert trim(storage, MOST_TRIMMED + 10) == MOST_TRIMMED + 10
    assert kept_entries(storage) == list(range(MOST_TRIMMED + 11, MOST_TRIMMED + 21))


def test_nothing_to_do_changes_nothing():
    storage = filled(10)
    assert trim(storage, 0) == 0
    assert trim(storage, 5) == 5
    before = dict(storage._objects)
    assert trim(storage, 5) == trim(storage, 3) == 5
    assert storage._objects == before


def test_the_marker_comes_before_the_first_deletion():
    storage = FaultyStorage(filled(10))
    seen = []

    def before(_, call, path):
        if call == "delete" and path.startswith(LOG_FOLDER):
            seen.append(trimmed_to(storage.inner))

    storage.before = before
    trim(storage, 6)
    assert seen == [6] * 6


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("floor", [6, 8])
def test_a_trim_that_died_is_finished_by_the_next(number, floor):
    inner = filled(10)
    trim(inner, 2)
    storage = FaultyStorage(inner)
    calls = []

    def before(_, call, path):
        if call in ("put", "delete"):
            calls.append(call)
            if len(calls) > number:
                raise SimulatedCrash

    storage.before = before
    with contextlib.suppress(SimulatedCrash):
        trim(storage, 6)
    assert [n for n in range(trimmed_to(inner) + 1, 11) if n not in kept_entries(inner)] == [], "no hole without a marker"
    trim(inner, floor)
    assert kept_entries(inner) == list(range(floor + 1, 11))
    assert trimmed_to(inner) == floor
    assert [o.path for o in inner.list_objects(CHECKPOINT_FOLDER)] == [f"{CHECKPOINT_FOLDER}/trimmed-{floor:020d}"]


def test_racing_trims():
    storage = filled(400)
    gate = threading.Barrier(4)

    def run(floor):
        gate.wait()
        trim(storage, floor)

    threads = [threading.Thread(target=run, args=(floor,)) for floor in (100, 200, 300, 350)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trim(storage, 350)
    assert trimmed_to(storage) == 350
    assert kept_entries(storage) == list(range(351, 401))


def test_a_failing_trim_does_not_fail_the_commit(table, storage, clock, monkeypatch):
    def fail(path):
        raise StorageError("not today")

    live_on(table, 20, clock)
    monkeypatch.setattr(storage, "delete", fail)
    live_on(table, 20, clock)
    monkeypatch.undo()
    live_on(table, 20, clock)
    assert kept_entries(storage)[0] > 90
    assert open_table(storage, clock).state == table.state


# --- the processes that slept
# -------------------------------------------------------------------------------------------------------


def test_a_writer_that_slept_decides_on_fresh_state(table, storage, clock):
    sleeper = open_table(storage, clock, "sleeper", **SHORT)
    live_on(table, 60, clock)
    assert kept_entries(storage)[0] > sleeper.timeline.state.sequence + 1
    committed = write(sleeper, [("k0", "p", 10**6, "mine"), ("new", "p", 1, "mine")])
    assert committed.sequence == 122
    table.refresh()
    assert table.state == sleeper.state == open_table(storage, clock).state
    assert ("new", "p", 1, "mine") in contents(table)
    assert len(contents(table)) == 4


@pytest.mark.parametrize("below", [1, 3])
def test_a_win_at_a_freed_place_is_none(table, storage, clock, below):
    """The put of a writer that slept between looking at the head and putting goes through: there is no object any more."""
    live_on(table, 60, clock)
    place = kept_entries(storage)[0] - below
    log = TableLog(storage, clock, "sleeper", WRITTEN)
    draft = Draft("20260101000000000", Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare())
    with pytest.raises(PlaceTrimmed):
        log.append(draft, place)
    assert place not in kept_entries(storage)
    with pytest.raises(PlaceTrimmed):
        log.append(
            Draft(
                "x",
                Action.COMMIT,
                State.INFLIGHT,
                State.COMPLETED,
                "UPSERT",
                Published(CommitMetadata("UPSERT", (), {"x": "y" * INLINE_BODY_BYTES})),
            ),
            place,
        )
    assert list(storage.list_objects(BODY_FOLDER)) == []


def test_a_sleeper_in_the_middle_of_its_append(table, storage, clock):
    """It has read the head, then sleeps for two months; its instant is rolled back meanwhile and it has to notice."""

    class Sleeping(FaultyStorage):
        nap = None

        def put_if_absent(self, path, data):
            if self.nap is not None and path.startswith(LOG_FOLDER):
                nap, self.nap = self.nap, None
                nap()
            super().put_if_absent(path, data)

    slow = Sleeping(storage)
    sleeper = open_table(slow, clock, "sleeper", **SHORT)
    live_on(table, 5, clock)

    def while_it_sleeps():
        clock.advance(60 * DAY_S)
        table.refresh()
        roll_back_dead(table)
        live_on(table, 40, clock)

    transaction = WriteTransaction.begin(sleeper.timeline, sleeper.lock, "UPSERT")
    slow.nap = while_it_sleeps
    with pytest.raises(TransactionRolledBack):
        transaction.commit([], sleeper.schema_json, {}, None)
    transaction.abandon()
    assert table.refresh().actions[transaction.instant].state is State.ROLLED_BACK
    assert open_table(storage, clock).state == table.state == sleeper.refresh()
    assert kept_entries(storage) == list(range(kept_entries(storage)[0], table.state.sequence + 1))


def test_an_entry_that_counted_is_acknowledged_even_when_its_writer_slept_behind_the_put(table, storage, clock):
    """The put was at the head; only then the writer slept, until its entry was trimmed: the checkpoint knows it."""

    class Sleeping(FaultyStorage):
        nap = None

        def put_if_absent(self, path, data):
            super().put_if_absent(path, data)
            if self.nap is not None and path.startswith(LOG_FOLDER) and Entry.from_bytes(data, path).after is State.COMPLETED:
                nap, self.nap = self.nap, None
                nap()

    slow = Sleeping(storage)
    sleeper = open_table(slow, clock, "sleeper", **SHORT)

    def while_it_sleeps():
        clock.advance(60 * DAY_S)
        live_on(table, 40, clock)

    slow.nap = while_it_sleeps
    committed = write(sleeper, [("slow", "q", 1, "mine")])
    assert committed.sequence < kept_entries(storage)[0]
    assert committed.attempts == 1
    assert ("slow", "q", 1, "mine") in contents(open_table(storage, clock))
    assert sleeper.refresh() == table.refresh()


def test_an_unanswered_look_for_markers_is_an_unknown_outcome(storage, clock):
    class NoListing(FaultyStorage):
        kind = StorageError

        def list_folder(self, path):
            raise self.kind("silence")

    for number, kind in enumerate((StorageError, StorageRefused)):
        faulty = NoListing(storage)
        faulty.kind = kind
        with pytest.raises(CommitUnknown):
            TableLog(faulty, clock, "w", WRITTEN).append(
                Draft("x", Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare()), 1 + number
            )


def test_a_refused_put_is_no_unknown_outcome(storage, clock):
    class ReadOnly(FaultyStorage):
        def put_if_absent(self, path, data):
            raise StorageRefused("no rights")

    with pytest.raises(StorageRefused):
        TableLog(ReadOnly(storage), clock, "w", WRITTEN).append(
            Draft("x", Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare()), 1
        )


def test_a_refusal_after_silence_is_an_unknown_outcome(storage, clock):
    class Revoked(FaultyStorage):
        puts = 0

        def put_if_absent(self, path, data):
            self.puts += 1
            raise StorageError("silence") if self.puts == 1 else StorageRefused("no rights any more")

    with pytest.raises(CommitUnknown):
        TableLog(Revoked(storage), clock, "w", WRITTEN).append(
            Draft("x", Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare()), 1
        )


def test_a_reader_that_slept_goes_on_from_the_checkpoint(table, storage, clock):
    sleeper = open_table(storage, clock, "sleeper", **SHORT)
    live_on(table, 60, clock)
    assert sleeper.refresh() == table.state
    assert contents(sleeper) == contents(table)


def test_a_reader_that_slept_does_not_take_a_void_entry_for_news(table, storage, clock):
    """A writer that died between its void win and taking it back leaves an entry right where the sleeper reads on."""
    live_on(table, 2, clock)
    sleeper = open_table(storage, clock, "sleeper", **SHORT)
    head = sleeper.state.sequence
    live_on(table, 60, clock)
    void = Entry(
        head + 1, "void", clock.now().isoformat(), "x", "20990101000000000", Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT"
    )
    storage.put(void.path, void.to_bytes())
    assert sleeper.refresh() == table.state
    assert "20990101000000000" not in sleeper.state.actions


# --- what a trimmed log needs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["all checkpoints", "checkpoints behind the floor"])
def test_a_trimmed_log_without_a_checkpoint_is_not_an_empty_table(table, storage, clock, damage):
    live_on(table, 60, clock)
    old = storage.read(next(o.path for o in storage.list_objects(CHECKPOINT_FOLDER) if o.path.endswith(".json")))
    for found in list(storage.list_objects(CHECKPOINT_FOLDER)):
        if found.path.endswith(".json"):
            storage.delete(found.path)
    if damage == "checkpoints behind the floor":
        below = trimmed_to(storage) - 1
        storage.put(f"{CHECKPOINT_FOLDER}/{below:020d}.json", json.dumps({**json.loads(old), "sequence": below}).encode())
    with pytest.raises(CorruptMetadata, match="no checkpoint can be read"):
        open_table(storage, clock)
    storage.delete(POINTER)
    with pytest.raises(CorruptMetadata, match="no checkpoint can be read"):
        open_table(storage, clock)


def test_an_early_tail_does_not_hide_that_the_log_was_trimmed(table, storage, clock):
    live_on(table, 60, clock)
    write_tail(storage, Checkpoint(), ())
    assert open_table(storage, clock).state == table.state


def test_backfill_leaves_out_what_is_gone(table, storage, clock):
    live_on(table, 60, clock)
    first = kept_entries(storage)[0]
    found = [t.sequence for t in backfill(table, 1, 120)]
    assert found == list(range(first, 121))
    assert [t.sequence for t in backfill(table, 118, 120)] == [118, 119, 120]
    with pytest.raises(PoisonEvent, match="at most 120"):
        next(backfill(table, 118, 130))


def test_backfill_goes_on_where_the_log_was_trimmed_meanwhile(table, storage, clock):
    """It takes nothing from freed places, where another process that slept left an entry, and finds what is behind them."""
    live_on(table, 10, clock, step_s=1)
    void = Entry.from_bytes(storage.read(entry_path(7)), "")
    watched = FaultyStorage(storage)
    reader = open_table(watched, clock)
    assert table.state.sequence == 20

    def trimmed_at_5(_, call, path):
        if (call, path) == ("read", entry_path(5)) and trimmed_to(storage) == 0:
            write_checkpoint(storage, table.state)
            trim(storage, 8)
            for number in (5, 6):
                storage.put(entry_path(number), replace(void, sequence=number).to_bytes())

    watched.before = trimmed_at_5
    assert [t.sequence for t in backfill(reader, 1, 15)] == list(range(9, 16))
