"""The thread that publishes decisions: order, bounds, errors and the end. On a real event log in a file."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
import structlog.testing

from tideline_events import DECISIONS, EventLogUnavailable, InvalidEvent, VerdictEvent, decode
from tideline_runtime import event_outbox
from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_link import EventLink
from tideline_runtime.event_outbox import EventOutbox
from tideline_runtime.health import Health
from tideline_runtime.loop import Backoff
from tideline_runtime.metrics import Metrics
from tideline_runtime.settings import ServiceSettings
from tideline_table.clock import SystemClock

CLOCK = SystemClock()
UID = "5f0c1f3e-7a51-4d5e-9b55-0a1b2c3d4e5f"


class Settings(ServiceSettings):
    section = "planner"


def verdict(number: int) -> VerdictEvent:
    return VerdictEvent(UID, "base", "clustering", f"verdict {number}", CLOCK.now())


@pytest.fixture
def link(tmp_path):
    settings = Settings.load(environment={}, state_folder=str(tmp_path), tables=(str(tmp_path / "*"),))
    link = EventLink(settings, ServiceContext("planner", CLOCK, Metrics("planner"), Health(CLOCK, 300)), publishes=True)
    link.open()
    yield link
    link.close()


@pytest.fixture
def outbox(link):
    outbox = EventOutbox(link, Backoff(0.001, 0.01))
    yield outbox
    assert outbox.close(60)


def published(link) -> list[str]:
    with closing(link.log.subscribe([DECISIONS.name], "test")) as subscription:
        found = []
        while records := subscription.poll(0):
            found += [decode(record).verdict for record in records]
        return found


def failing(link, monkeypatch, *errors: Exception) -> None:
    """Let the next publications end with these errors."""
    real, left = link.flush, list(errors)

    def flush() -> None:
        if left:
            raise left.pop(0)
        real()

    monkeypatch.setattr(link, "flush", flush)


def test_events_keep_their_order_through_failures(link, outbox, monkeypatch):
    failing(link, monkeypatch, *[EventLogUnavailable("no broker answers")] * 3)
    outbox.put(verdict(0), verdict(1))
    outbox.start()
    outbox.put(verdict(2))
    assert outbox.drained(60)
    assert published(link) == ["verdict 0", "verdict 1", "verdict 2"]
    outbox.check()


def test_the_oldest_events_are_dropped(link, outbox, monkeypatch):
    monkeypatch.setattr(event_outbox, "QUEUE_LIMIT", 3)
    outbox.put(*map(verdict, range(5)))
    outbox.start()
    assert outbox.drained(60)
    assert published(link) == ["verdict 2", "verdict 3", "verdict 4"]


def test_errors_that_no_wait_cures_reach_the_service(link, outbox, monkeypatch):
    broken = InvalidEvent("a topic with other settings", expected="those of the contract")
    failing(link, monkeypatch, broken)
    outbox.put(verdict(0))
    outbox.start()
    assert outbox.drained(60)
    with pytest.raises(InvalidEvent):
        outbox.check()
    outbox.check()
    assert published(link) == ["verdict 0"]


def test_an_error_that_stays_has_one_traceback(link, outbox, monkeypatch):
    failing(link, monkeypatch, *(ValueError("no such topic") for _ in range(3)))
    with structlog.testing.capture_logs() as logged:
        outbox.start()
        outbox.put(verdict(1))
        assert outbox.drained(60)
    said = [line for line in logged if line["event"] == "events cannot be published"]
    assert [line["log_level"] for line in said] == ["error", "warning", "warning"]
    assert ["exc_info" in line for line in said] == [True, False, False]
    with pytest.raises(ValueError, match="no such topic"):
        outbox.check()


def test_the_end_publishes_what_waits_and_does_not_wait_for_ever(link, monkeypatch):
    outbox, asked, answer = EventOutbox(link, Backoff(0.001, 0.01)), threading.Event(), threading.Event()
    real = link.flush

    def slow() -> None:
        asked.set()
        assert answer.wait(60)
        real()

    monkeypatch.setattr(link, "flush", slow)
    outbox.start()
    outbox.put(verdict(0))
    assert asked.wait(60)
    outbox.put(verdict(1))
    assert not outbox.close(0.01)
    answer.set()
    assert outbox.close(60)
    assert published(link) == ["verdict 0", "verdict 1"]


def test_an_outbox_that_never_started_closes(link):
    assert EventOutbox(link, Backoff()).close(0.01)
