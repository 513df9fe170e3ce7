import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline_runtime.contract import ServiceContext
from tideline_runtime.errors import InputRefused, TooManyFailures
from tideline_runtime.health import Health
from tideline_runtime.loop import Backoff, TickLoop, may_be_cured
from tideline_runtime.metrics import CONSECUTIVE_FAILURES, READY, TICKS, Metrics
from tideline_table.clock import ManualClock, SystemClock
from tideline_table.errors import InvalidOption, ObjectExists, StorageError


class Scripted:
    """Does one step of a script per tick, then asks to stop."""

    def __init__(self, context, *script):
        self.context, self.script, self.ticks = context, list(script), 0

    def start(self):
        pass

    def tick(self):
        self.ticks += 1
        step = self.script.pop(0)
        if not self.script:
            self.context.request_stop()
        if isinstance(step, Exception):
            raise step
        return step() if callable(step) else step

    def stop(self):
        pass


def context():
    return ServiceContext("probe", SystemClock(), Metrics("probe"), Health(SystemClock(), 10))


def run(service, context, **options):
    settings = {"poll_interval_s": 3600, "backoff": Backoff(0.001, 0.002), "max_consecutive_failures": 3, "live_deadline_s": 9}
    TickLoop(service, context, **(settings | options)).run()


def test_waits_as_long_as_the_tick_wants():
    given_context = context()
    service = Scripted(given_context, 0, 0.01, -1, None)
    run(service, given_context)
    assert service.ticks == 4
    assert given_context.metrics.value(TICKS, outcome="done") == 4


def test_an_idle_loop_stays_live():
    clock = ManualClock()
    health = Health(clock, 9)
    verdicts = []

    class Passing(threading.Event):
        """Nobody sets it: waiting lets the time pass."""

        def wait(self, timeout=None):
            clock.advance(timeout)
            verdicts.append(health.live().is_ok)
            return self.is_set()

    given_context = ServiceContext("probe", clock, Metrics("probe"), health, wakeup=Passing())
    run(Scripted(given_context, None, None), given_context, poll_interval_s=3600, live_deadline_s=9)
    assert clock.monotonic_s() >= 3600
    assert all(verdicts)


def test_a_wake_during_a_tick_brings_another():
    given_context = context()
    service = Scripted(given_context, given_context.wake, None)
    run(service, given_context)
    assert service.ticks == 2


def test_a_wake_counts_once():
    given_context = context()
    began = SystemClock().monotonic_s()
    run(Scripted(given_context, given_context.wake, 0.3, None), given_context)
    assert SystemClock().monotonic_s() - began >= 0.3


def test_a_wake_from_another_thread_ends_the_wait():
    given_context = context()
    first = threading.Event()
    service = Scripted(given_context, first.set, None)
    waker = threading.Thread(target=lambda: first.wait(120) and given_context.wake())
    waker.start()
    run(service, given_context)
    waker.join()
    assert service.ticks == 2


def test_wakes_do_not_shorten_the_pause_after_a_failure():
    given_context = context()

    def fail():
        given_context.wake()
        raise StorageError("x")

    began = SystemClock().monotonic_s()
    run(Scripted(given_context, fail, None), given_context, backoff=Backoff(0.4, 0.4), draw=lambda: 0.0)
    assert SystemClock().monotonic_s() - began >= 0.4


def test_success_forgets_failures():
    given_context = context()
    broken = [ValueError("x"), ValueError("x"), 0]
    service = Scripted(given_context, *broken, *broken, 0)
    run(service, given_context)
    assert service.ticks == 7
    assert given_context.health.ready().is_ok
    assert given_context.metrics.value(CONSECUTIVE_FAILURES) == 0
    assert given_context.metrics.value(READY) == 1


def test_incurable_failures_count_in_a_row():
    given_context = context()
    service = Scripted(given_context, ValueError("a"), InvalidOption("b"), ValueError("c"), 0)
    with pytest.raises(TooManyFailures) as caught:
        run(service, given_context)
    assert service.ticks == 3
    assert "ValueError: c" in caught.value.found
    assert given_context.metrics.value(READY) == 0


def test_a_refused_input_ends_the_loop_at_the_first_tick():
    given_context = context()
    service = Scripted(given_context, InputRefused("record 5 cannot be ingested"), 0)
    with pytest.raises(InputRefused, match="record 5"):
        run(service, given_context)
    assert service.ticks == 1
    assert given_context.metrics.value(READY) == 0


def test_curable_failures_have_no_bound_and_one_is_no_obstacle():
    given_context = context()
    seen = []

    def look():
        seen.append(given_context.health.ready().reasons)
        raise ObjectExists("x")

    service = Scripted(given_context, *[look] * 10, 0)
    run(service, given_context)
    assert service.ticks == 11
    assert seen[:3] == [(), (), ()]
    assert all("ObjectExists" in reasons[0] for reasons in seen[3:])
    assert given_context.metrics.value(TICKS, outcome="retry") == 10


def test_a_stop_before_the_start_starts_nothing():
    given_context = context()
    given_context.request_stop()
    service = Scripted(given_context, None)
    run(service, given_context)
    assert service.ticks == 0


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True), st.floats(0.001, 10), st.floats(10, 1000))
def test_pauses_grow_to_their_bound(failures, fraction, initial_s, max_s):
    backoff = Backoff(initial_s, max_s)
    pause_s = backoff.pause_s(failures, fraction)
    assert 0 < pause_s <= max_s
    assert pause_s <= backoff.pause_s(failures + 1, fraction)
    assert backoff.pause_s(failures, 0.0) / 2 <= pause_s


def test_what_may_be_cured():
    assert may_be_cured(StorageError("x"))
    assert may_be_cured(ObjectExists("x"))
    assert not may_be_cured(InvalidOption("x"))
    assert not may_be_cured(OSError("x"))


def test_readiness_is_gone_when_the_failure_is_logged(monkeypatch):
    """Who reads of an incurable failure in the log and asks for the readiness at once is told of it."""
    given_context = context()
    given_context.health.clear("start")
    at_logging = []
    monkeypatch.setattr("tideline_runtime.loop._log", Listening(lambda: at_logging.append(given_context.health.ready().is_ok)))
    run(Scripted(given_context, ValueError("a defect"), None), given_context)
    assert at_logging == [False]


class Listening:
    def __init__(self, hear):
        self.error = lambda *_, **__: hear()
        self.info = self.warning = lambda *_, **__: None
