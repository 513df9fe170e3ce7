"""A process that follows a log that is trimmed never stays behind, whatever its options say and wherever it was stopped.

And asks for little.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.simulation.faults import FaultyStorage, SimulatedCrash
from tests.unit.table.tables import contents, new_table, open_table, write

from tideline_table.clock import ManualClock
from tideline_table.config import LOG_RETENTION_S
from tideline_table.coordination.replica import UNPROVEN_S, LogEnd
from tideline_table.errors import CorruptMetadata, InvalidOption
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.body import Bare, Published
from tideline_table.log.checkpoint import CHECKPOINT_FOLDER
from tideline_table.log.entry import BODY_FOLDER, INLINE_BODY_BYTES, LOG_FOLDER, Entry, entry_path
from tideline_table.log.retention import trim
from tideline_table.log.table_log import Draft, TableLog

HOUR_S = 3600
DAY_S = 24 * HOUR_S
SHORT = {"tideline.log.retained.entries": 10, "tideline.log.checkpoint.interval": 2}


class Stopped(FaultyStorage):
    """The next GET below `start` takes as long as `meanwhile`, before it is answered or behind that."""

    def __init__(self, inner):
        super().__init__(inner)
        self.meanwhile = None
        self.is_answered_first = False
        self.start = LOG_FOLDER

    def read(self, path):
        if self.meanwhile is None or not path.startswith(self.start):
            return super().read(path)
        meanwhile, self.meanwhile = self.meanwhile, None
        if self.is_answered_first:
            try:
                return super().read(path)
            finally:
                meanwhile()
        meanwhile()
        return super().read(path)


def live_on(table, clock, step_s, writes=30):
    for n in range(writes):
        clock.advance(step_s)
        write(table, [(f"k{n % 3}", "p", table.state.sequence, "x")])


def trimming(table, clock):
    def meanwhile():
        head = table.refresh().sequence
        live_on(table, clock, DAY_S)
        assert table.timeline.log.trimmed_to() > head + 1

    return meanwhile


def test_the_options_of_the_trimming_process_count():
    """Found by review: a reader that keeps a week itself took what another process trimmed after an hour for the end."""
    _, storage, clock = new_table()
    table = open_table(storage, clock, "writer", **SHORT, **{LOG_RETENTION_S.key: HOUR_S})
    reader = open_table(storage, clock, "reader")
    before = reader.state.sequence
    live_on(table, clock, 360)
    assert table.timeline.log.trimmed_to() > before + 1
    clock.advance(HOUR_S)
    assert reader.refresh() == table.state
    assert contents(reader) == contents(table)
    write(reader, [("new", "p", 1, "x")])
    table.refresh()
    assert ("new", "p", 1, "x") in contents(table)


@pytest.mark.parametrize("is_answered_first", [False, True])
def test_a_reader_that_is_stopped_in_the_middle_of_a_get(is_answered_first):
    _, storage, clock = new_table()
    table = open_table(storage, clock, "writer", **SHORT)
    write(table, [("a", "p", 1, "x")])
    stopped = Stopped(storage)
    reader = open_table(stopped, clock, "reader", **SHORT)
    stopped.meanwhile, stopped.is_answered_first = trimming(table, clock), is_answered_first
    assert reader.refresh() == table.state
    assert stopped.meanwhile is None
    assert contents(reader) == contents(table)


@pytest.mark.parametrize("start", [LOG_FOLDER, f"{CHECKPOINT_FOLDER}/0"])
@pytest.mark.parametrize("is_answered_first", [False, True])
def test_a_process_that_is_stopped_while_it_opens_the_table(start, is_answered_first):
    _, storage, clock = new_table()
    table = open_table(storage, clock, "writer", **SHORT)
    write(table, [("a", "p", 1, "x")])
    stopped = Stopped(storage)
    stopped.meanwhile, stopped.is_answered_first, stopped.start = trimming(table, clock), is_answered_first, start
    assert open_table(stopped, clock, "opener", **SHORT).state == table.state
    assert stopped.meanwhile is None


def test_a_writer_that_is_stopped_in_the_middle_of_a_get_finds_no_strangers():
    _, storage, clock = new_table()
    table = open_table(storage, clock, "writer", **SHORT)
    write(table, [("a", "p", 1, "x")])
    stopped = Stopped(storage)
    slow = open_table(stopped, clock, "slow", **SHORT)
    stopped.meanwhile = trimming(table, clock)
    write(slow, [("slow", "p", 1, "x")])
    table.refresh()
    assert ("slow", "p", 1, "x") in contents(table)


def die_at_the_look(number, call, path):
    if call == "list_folder":
        raise SimulatedCrash


@pytest.mark.parametrize("has_body", [False, True])
def test_a_void_entry_is_met_in_the_middle_of_reading_on(has_body):
    """Of a writer that slept and died between its void win and taking it back. Its body went with a later trim."""
    clock = ManualClock()
    _, storage, _ = new_table(clock)
    table = open_table(storage, clock, "writer", **SHORT)
    write(table, [("a", "p", 1, "x")])
    stopped = Stopped(storage)
    reader = open_table(stopped, clock, "reader")
    place = reader.state.sequence + 1

    def meanwhile():
        trimming(table, clock)()
        content = Published(CommitMetadata("UPSERT", (), {"x": "y" * INLINE_BODY_BYTES} if has_body else {}))
        draft = Draft("20990101000000000", Action.COMMIT, State.INFLIGHT, State.COMPLETED, "UPSERT", content)
        dying = FaultyStorage(storage)
        dying.before = die_at_the_look
        with pytest.raises(SimulatedCrash):
            TableLog(dying, clock, "dead", WRITTEN).append(draft, place)
        live_on(table, clock, DAY_S, writes=5)
        assert not list(storage.list_objects(BODY_FOLDER))

    stopped.meanwhile = meanwhile
    assert reader.refresh() == table.state
    assert "20990101000000000" not in reader.state.actions
    assert Entry.from_bytes(storage.read(entry_path(place)), "").instant == "20990101000000000"


def test_a_body_with_other_content_is_refused():
    """Also one of the same length that parses."""
    _, storage, clock = new_table()
    log = TableLog(storage, clock, "w", WRITTEN)
    body = Published(CommitMetadata("UPSERT", (), {"x": "y" * INLINE_BODY_BYTES}))
    entry = log.append(Draft("x", Action.COMMIT, State.INFLIGHT, State.COMPLETED, "UPSERT", body), 1)
    assert entry is not None
    assert log.read(1) is not None
    (stored,) = storage.list_objects(BODY_FOLDER)
    content = storage.read(stored.path)
    storage.put(stored.path, content.replace(b"yy", b"yz", 1))
    with pytest.raises(CorruptMetadata, match="does not have the hash"):
        log.read(1)


def test_a_body_that_is_missing_behind_the_marker_is_trouble():
    _, storage, clock = new_table()
    log = TableLog(storage, clock, "w", WRITTEN)
    log.append(
        Draft(
            "x",
            Action.COMMIT,
            State.INFLIGHT,
            State.COMPLETED,
            "UPSERT",
            Published(CommitMetadata("UPSERT", (), {"x": "y" * INLINE_BODY_BYTES})),
        ),
        1,
    )
    storage.delete(next(o.path for o in storage.list_objects(BODY_FOLDER)))
    with pytest.raises(CorruptMetadata, match="is missing"):
        LogEnd(log, clock).read_on(0, 10)


def test_an_end_that_is_proven_by_entries_lists_nothing():
    _, storage, clock = new_table()
    table = open_table(storage, clock, "writer", **SHORT)
    faulty = FaultyStorage(storage)
    reader = open_table(faulty, clock, "reader")
    faulty.calls.clear()
    for _ in range(10):
        live_on(table, clock, UNPROVEN_S / 2, writes=1)
        reader.refresh()
    assert {call for call, _ in faulty.calls} == {"read"}
    assert len(faulty.calls) == 30


def test_an_idle_reader_looks_for_the_marker_once_a_minute():
    _, storage, clock = new_table()
    faulty = FaultyStorage(storage)
    reader = open_table(faulty, clock, "reader")
    faulty.calls.clear()
    for _ in range(600):
        clock.advance(1)
        reader.refresh()
    assert [path for call, path in faulty.calls if call != "read"] == [CHECKPOINT_FOLDER] * 10
    assert len(faulty.calls) == 610


def test_entries_go_no_sooner_than_readers_rely_on():
    """The rule has no room for an option below what counts as proven."""
    _, storage, clock = new_table()
    assert LOG_RETENTION_S.minimum > UNPROVEN_S
    with pytest.raises(InvalidOption):
        open_table(storage, clock, "writer", **{LOG_RETENTION_S.key: UNPROVEN_S})


class TwoClocks(ManualClock):
    """The time of day and the running time, moved one by one."""

    def set(self, by_s):
        self._now += timedelta(seconds=by_s)

    def run(self, by_s):
        self._monotonic_s += by_s


@pytest.mark.parametrize(("set_by_s", "run_by_s"), [(UNPROVEN_S, 0), (-DAY_S, UNPROVEN_S)])
def test_of_the_two_clocks_the_one_that_went_further_counts(set_by_s, run_by_s):
    """A suspended machine stops the running time, and who corrects the time of day may set it back."""
    clock = TwoClocks()
    _, storage, _ = new_table(clock)
    log = TableLog(storage, clock, "w", WRITTEN)
    for n in range(1, 4):
        log.append(Draft(f"{n}", Action.COMMIT, State.NONE, State.INFLIGHT, "UPSERT", Bare()), n)
    end = LogEnd(log, clock)
    trim(storage, 3)
    assert end.read_on(2, 10) == []
    clock.set(set_by_s)
    clock.run(run_by_s)
    assert end.read_on(2, 10) is None
