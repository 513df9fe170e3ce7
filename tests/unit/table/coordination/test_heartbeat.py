"""Who is dead, as of when the question was asked; and that a heartbeat outlives what goes wrong with one renewal."""

import logging
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.table.tables import DEATH_S, QUIET

from tideline_table.clock import ManualClock
from tideline_table.config import Options
from tideline_table.coordination.heartbeat import (
    Heartbeat,
    beats,
    forget_silent,
    heartbeat_path,
    is_alive,
    is_dead,
    is_given_up,
)
from tideline_table.errors import ObjectNotFound, StorageError
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action, State
from tideline_table.log.action import ActionRecord
from tideline_table.log.entry import entry_path
from tideline_table.log.sharing import HUDI_WRITER
from tideline_table.storage import MemoryStorage

INSTANT = "20260101000000000"


class SlowStorage(MemoryStorage):
    """Answers with what was when it was asked, long after."""

    delay_s = 0.0

    def stat(self, path):
        found = super().stat(path)
        self.clock.advance(self.delay_s)
        return found


@pytest.fixture
def place():
    clock = ManualClock()
    storage = SlowStorage(clock=clock)
    storage.clock = clock
    record = ActionRecord(INSTANT, Action.COMMIT, State.INFLIGHT, "UPSERT", 1, 1, "w", clock.now().isoformat())
    storage.put(heartbeat_path(INSTANT), b"")
    return storage, record, clock


@pytest.mark.parametrize("delay_s", [0, 10 * DEATH_S])
@pytest.mark.parametrize(("silent_s", "alive"), [(DEATH_S / 2, True), (DEATH_S + 1, False)])
@pytest.mark.parametrize("by_file", [True, False])
def test_a_slow_answer_makes_nobody_dead(place, delay_s, silent_s, alive, by_file):
    storage, record, clock = place
    clock.advance(silent_s)
    storage.delay_s = delay_s
    found = beats(storage, INSTANT, clock, Options(QUIET)) if by_file else is_alive(storage, record, clock, Options(QUIET))
    assert found is alive


@pytest.mark.parametrize(("silent_s", "dead"), [(0, False), (DEATH_S + 1, True)])
@pytest.mark.parametrize("by_transition", [True, False], ids=["transition", "heartbeat"])
def test_a_machine_whose_clock_is_ahead_takes_nobody_for_dead(place, silent_s, dead, by_transition):
    storage, record, clock = place
    if by_transition:
        storage.delete(heartbeat_path(INSTANT))
    clock.advance(silent_s)
    ahead = ManualClock(clock.now())
    ahead.advance(2 * DEATH_S)
    assert not is_alive(storage, record, ahead, Options(QUIET))
    assert is_dead(storage, record, ahead, Options(QUIET)) is dead
    assert is_dead(storage, record, clock, Options(QUIET)) is dead


@pytest.mark.parametrize(("silent_s", "dead"), [(0, False), (DEATH_S / 2, False), (DEATH_S + 1, True)])
@pytest.mark.parametrize("by_transition", [True, False], ids=["transition", "heartbeat"])
def test_a_machine_whose_clock_is_behind_finds_the_dead(place, silent_s, dead, by_transition):
    storage, record, clock = place
    if by_transition:
        storage.delete(heartbeat_path(INSTANT))
        storage.put(entry_path(record.sequence), b"")
    behind = ManualClock(clock.now() - timedelta(seconds=20 * DEATH_S))
    clock.advance(silent_s)
    behind.advance(silent_s)
    assert is_alive(storage, record, behind, Options(QUIET)) is not dead
    assert is_dead(storage, record, behind, Options(QUIET)) is dead


@pytest.mark.parametrize("skew_s", [-20 * DEATH_S, 20 * DEATH_S])
def test_a_wrong_clock_judges_heartbeats_and_plans_of_peers_by_the_store(place, skew_s):
    storage, record, clock = place
    wrong, plan = ManualClock(clock.now() + timedelta(seconds=skew_s)), replace(record, writer_id="")
    assert beats(storage, INSTANT, wrong, Options(QUIET))
    assert not is_given_up(storage, plan, wrong, Options(QUIET), WRITTEN)
    clock.advance(DEATH_S + 1)
    wrong.advance(DEATH_S + 1)
    assert not beats(storage, INSTANT, wrong, Options(QUIET))
    assert is_given_up(storage, plan, wrong, Options(QUIET), WRITTEN)
    forget_silent(storage, {INSTANT}, wrong, Options(QUIET))
    assert storage.stat(heartbeat_path(INSTANT))
    forget_silent(storage, set(), wrong, Options(QUIET))
    with pytest.raises(ObjectNotFound):
        storage.stat(heartbeat_path(INSTANT))


def test_whoever_beats_while_the_store_is_asked_for_its_time_is_alive(place):
    storage, record, clock = place
    clock.advance(DEATH_S + 1)
    put = storage.put

    def wakes(path, data):
        put(path, data)
        put(heartbeat_path(INSTANT), b"")
        clock.advance(DEATH_S + 1)  # the answer comes late, too

    storage.put = wakes
    assert not is_dead(storage, record, clock, Options(QUIET))


class OnceStorage(MemoryStorage):
    """Something happens to the second put, which is the first renewal. `renewed` is set by the second renewal after it."""

    def __init__(self, happens):
        super().__init__()
        self.happens, self.puts, self.renewed = happens, 0, threading.Event()

    def put(self, path, data):
        self.puts += 1
        if self.puts == 2:
            self.happens()
        super().put(path, data)
        if self.puts >= 4:
            self.renewed.set()


def failing_with(error):
    def fail():
        raise error

    return fail


FAST = Options({"hoodie.client.heartbeat.interval_in_ms": 100})
WAIT_S = 120.0


@pytest.mark.parametrize(
    "error", [StorageError("the store is busy"), OSError("the disk is gone"), RuntimeError("no error of ours")]
)
def test_a_renewal_that_fails_does_not_end_the_heartbeat(error, caplog):
    storage = OnceStorage(failing_with(error))
    with caplog.at_level(logging.WARNING), Heartbeat(storage, INSTANT, FAST):
        assert storage.renewed.wait(WAIT_S), "no renewal came after the one that failed"
    assert [record.getMessage() for record in caplog.records] == [
        f"heartbeat {heartbeat_path(INSTANT)} was not renewed: {error}; trying again"
    ]
    with pytest.raises(ObjectNotFound):
        storage.stat(heartbeat_path(INSTANT))


def test_a_renewal_that_is_slow_does_not_end_the_heartbeat():
    is_slow, goes_on = threading.Event(), threading.Event()

    def slow():
        is_slow.set()
        assert goes_on.wait(WAIT_S)

    storage = OnceStorage(slow)
    with Heartbeat(storage, INSTANT, FAST):
        assert is_slow.wait(WAIT_S)
        assert not storage.renewed.wait(0.3), "three intervals pass without a renewal"
        goes_on.set()
        assert storage.renewed.wait(WAIT_S), "no renewal came after the slow one"


def test_a_heartbeat_that_cannot_be_removed_fails_nobody(caplog, monkeypatch):
    storage = MemoryStorage()
    monkeypatch.setattr(storage, "delete", lambda path: failing_with(OSError("the disk is gone"))())
    with caplog.at_level(logging.WARNING), Heartbeat(storage, INSTANT, Options(QUIET)):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        f"heartbeat {heartbeat_path(INSTANT)} stays behind: the disk is gone"
    ]


def test_heartbeats_of_those_who_are_gone_go_and_no_others(place):
    storage, _, clock = place
    pending, ended, fresh = (f"2026010100000000{n}" for n in (1, 2, 3))
    storage.put(heartbeat_path(pending), b"")
    storage.put(heartbeat_path(ended), b"")
    clock.advance(DEATH_S + 1)
    storage.put(heartbeat_path(fresh), b"")
    forget_silent(storage, {pending, INSTANT}, clock, Options(QUIET))
    assert sorted(o.path for o in storage.list_folder(".hoodie/.heartbeat").objects) == sorted(
        map(heartbeat_path, (INSTANT, pending, fresh))
    )


def test_without_anybody_silent_the_store_is_not_asked_for_its_time(place):
    storage, _, clock = place
    forget_silent(storage, set(), clock, Options(QUIET))
    assert [o.path for o in storage.list_objects("")] == [heartbeat_path(INSTANT)]


def test_no_file_is_written_to_a_table_of_apache_hudi_whose_instants_are_ahead():
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    record = ActionRecord("20260102000000000", Action.COMMIT, State.INFLIGHT, "UPSERT", 1, 1, HUDI_WRITER)
    assert is_alive(storage, record, clock, Options(QUIET))
    assert list(storage.list_objects("")) == []
