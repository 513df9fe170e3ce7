import math
import threading

from tideline_runtime.health import PROBE_EVERY_S, Health, Verdict
from tideline_table.clock import ManualClock
from tideline_table.errors import StorageError


def test_live_while_beats_come_within_the_deadline():
    clock = ManualClock()
    health = Health(clock, live_deadline_s=10)
    clock.advance(10)
    assert health.live().is_ok
    clock.advance(0.1)
    assert not health.live().is_ok
    health.beat()
    assert health.live().is_ok


def test_ready_when_started_and_unobstructed():
    health = Health(ManualClock(), 10)
    assert health.ready().reasons == ("start: not started yet",)
    health.started()
    assert health.ready().is_ok
    health.obstruct("tick", "failed")
    assert health.ready().reasons == ("tick: failed",)
    health.clear("tick")
    health.stopping()
    assert health.ready().reasons == ("stop: stopping",)


def test_an_obstacle_is_a_condition_until_it_has_lasted():
    clock = ManualClock()
    health = Health(clock, 10)
    health.started()
    health.obstruct("tables", "at s3://u:pw@h", after_s=5)
    health.obstruct("more", "for ever", after_s=math.inf)
    clock.advance(4)
    health.obstruct("tables", "another cause", after_s=5)
    assert health.ready() == Verdict((), {"tables": "another cause", "more": "for ever"})
    clock.advance(1)
    assert health.ready() == Verdict(("tables: another cause",), {"more": "for ever"})
    health.clear("tables")
    health.obstruct("tables", "again", after_s=5)
    assert health.ready().is_ok
    clock.advance(1e9)
    assert health.ready().conditions == {"more": "for ever"}


def test_ready_needs_what_is_required_and_asks_at_most_once_a_second():
    clock = ManualClock()
    health = Health(clock, 10)
    health.started()
    answers = [None, StorageError("at kafka://u:pw@h"), None]
    asked = []

    def probe():
        answer = answers[len(asked)]
        asked.append(answer)
        if answer:
            raise answer

    health.require("event log", probe)
    assert health.ready().is_ok
    clock.advance(PROBE_EVERY_S / 2)
    assert health.ready().is_ok
    assert len(asked) == 1
    clock.advance(PROBE_EVERY_S)
    assert health.ready().reasons == ("event log is not reachable: StorageError: at kafka://u:**********@h",)
    clock.advance(PROBE_EVERY_S)
    assert health.ready().is_ok


def test_a_slow_probe_holds_up_only_who_started_it():
    clock = ManualClock()
    health = Health(clock, 10)
    health.started()
    entered, release = threading.Event(), threading.Event()
    calls = []

    def probe():
        calls.append(1)
        if len(calls) == 2:
            entered.set()
            assert release.wait(120)

    health.require("slow", probe)
    assert health.ready().is_ok
    clock.advance(5)
    waiting = threading.Thread(target=health.ready)
    waiting.start()
    assert entered.wait(120)
    assert health.ready().is_ok
    assert len(calls) == 2
    release.set()
    waiting.join()
