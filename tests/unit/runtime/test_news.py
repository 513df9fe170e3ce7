"""What other services believe of the mirror's events: only what a living mirror of their fleet tells of an exclusive table."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NoReturn, cast

import pytest

from tideline_events import (
    Event,
    EventLog,
    EventLogUnavailable,
    Heartbeat,
    Record,
    TableIdentity,
    TableRecord,
    encode,
    table_deletion,
)
from tideline_runtime import news as news_module
from tideline_runtime.event_watcher import EventWatcher
from tideline_runtime.news import MISSED_BEATS, News
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.shards import shard_of
from tideline_table.clock import ManualClock

PLACE, UID, OTHER = "s3://lake/trips", "0f6e4f5e-5b0f-4c53-9d4b-0d4f3c7c1a01", "0f6e4f5e-5b0f-4c53-9d4b-0d4f3c7c1a02"
TIME = datetime(2026, 11, 28, tzinfo=UTC)
IDENTITY = TableIdentity(UID, PLACE, "trips")
RECORD = TableRecord(IDENTITY, 7, TIME, sharing="exclusive", fleet="")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(TIME)


@pytest.fixture
def news(clock: ManualClock) -> News:
    return News(ServiceSettings.load(environment={}), clock)


def beat(clock: ManualClock, **more: object) -> Heartbeat:
    now = clock.now()
    told: dict[str, object] = {"fleet": "", "shard": 0, "shard_count": 1, "time": now, "visited_since": now, "interval_s": 60.0}
    return Heartbeat(**{**told, "tables": 1, **more})  # type: ignore[arg-type]


def told(news: News, *events: Event | Record, is_at_end: bool = True) -> None:
    news.take([event if isinstance(event, Record) else encode(event) for event in events], is_at_end=is_at_end)


def test_the_last_step_of_a_table_is_believed_while_its_mirror_beats(news: News, clock: ManualClock) -> None:
    told(news, RECORD)
    assert news.head(PLACE, UID) is None, "no mirror is alive"
    told(news, beat(clock))
    assert news.head(PLACE, UID) == 7
    told(news, replace(RECORD, sequence=8))
    assert news.head(PLACE, UID) == 8
    clock.advance(MISSED_BEATS * 60)
    assert news.head(PLACE, UID) is None
    told(news, beat(clock))
    assert news.head(PLACE, UID) == 8


def test_nothing_is_believed_before_the_topics_are_read_to_their_end(news: News, clock: ManualClock) -> None:
    told(news, RECORD, beat(clock), is_at_end=False)
    assert (news.head(PLACE, UID), news.places()) == (None, None)
    told(news)
    assert (news.head(PLACE, UID), news.places() is None) == (7, False)


@pytest.mark.parametrize(
    "record",
    [
        replace(RECORD, sharing="shared"),
        replace(RECORD, sharing=None),
        replace(RECORD, health="unmanaged"),
        replace(RECORD, fleet="other"),
        table_deletion(UID),
    ],
    ids=["shared", "unknown", "unmanaged", "of another fleet", "deleted"],
)
def test_a_table_that_the_mirror_does_not_see_whole_is_asked(news: News, clock: ManualClock, record: Event | Record) -> None:
    told(news, beat(clock), RECORD)
    before = news.places()
    told(news, record)
    assert news.head(PLACE, UID) is None
    assert news.places() != before, "the search for tables looks again"


@pytest.mark.parametrize("told_of", [{"sharing": "shared"}, {"sharing": "observed"}, {"health": "stuck"}], ids=str)
def test_a_new_table_is_searched_for_although_its_steps_are_not_believed(
    news: News, clock: ManualClock, told_of: dict[str, str]
) -> None:
    told(news, beat(clock), RECORD)
    found = [news.places()]
    record = replace(RECORD, table=replace(IDENTITY, uid=OTHER, base_path="s3://lake/later"), **told_of)  # type: ignore[arg-type]
    told(news, record)
    found.append(news.places())
    told(news, replace(record, sequence=8))
    assert news.places() == found[-1], "a step is no new place"
    told(news, table_deletion(OTHER))
    found.append(news.places())
    assert None not in found
    assert len(set(found)) == len(found)


def test_two_tables_that_are_told_to_be_at_one_place_are_both_asked(news: News, clock: ManualClock) -> None:
    told(news, beat(clock), RECORD, replace(RECORD, table=replace(IDENTITY, uid=OTHER)))
    assert (news.head(PLACE, UID), news.head(PLACE, OTHER)) == (None, None)
    told(news, table_deletion(UID))
    assert (news.head(PLACE, UID), news.head(PLACE, OTHER)) == (None, 7)
    assert news.head("s3://lake/elsewhere", OTHER) is None


@pytest.mark.parametrize(
    "changed",
    [{"fleet": "other"}, {"failing": 1}, {"time": TIME - timedelta(minutes=5), "visited_since": TIME - timedelta(minutes=5)}],
    ids=["of another fleet", "with a table that it cannot read", "read late"],
)
def test_a_heartbeat_that_proves_nothing(news: News, clock: ManualClock, changed: dict[str, object]) -> None:
    told(news, RECORD, beat(clock, **changed))
    assert (news.head(PLACE, UID), news.places()) == (None, None)


def test_each_shard_of_the_mirror_lives_for_its_own_tables(news: News, clock: ManualClock) -> None:
    own = shard_of(PLACE, 2)
    told(news, RECORD, beat(clock, shard=1 - own, shard_count=2))
    assert (news.head(PLACE, UID), news.places()) == (None, None)
    told(news, beat(clock, shard=own, shard_count=2))
    assert news.head(PLACE, UID) == 7
    assert news.places() is not None


def test_a_record_that_cannot_be_read_hides_none_of_the_others(news: News, clock: ManualClock) -> None:
    broken = replace(encode(RECORD), value=b"?")
    assert isinstance(broken, Record)
    events: Iterable[Event | Record] = (broken, RECORD, beat(clock))
    told(news, *events)
    assert news.head(PLACE, UID) == 7


def test_a_service_stops_although_the_event_log_does_not_answer(news: News, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = threading.Event(), threading.Event()
    ended: list[bool] = []

    def silent(*_: object, **__: object) -> EventLog:
        asked.set()
        ended.append(answers.wait(100))
        raise EventLogUnavailable("no answer")

    monkeypatch.setattr(news_module, "open_event_log", silent)
    news.start()
    assert asked.wait(100)
    news.stop()
    assert not ended, "it waited for the answer"
    answers.set()


def test_an_event_log_that_fails_in_another_way_ends_no_service(news: News, monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` is called at each tick; a thread that has ended cannot be started again."""
    tried: list[int] = []

    def broken(*_: object, **__: object) -> EventLog:
        tried.append(1)
        raise RuntimeError("a fault of a client library")

    monkeypatch.setattr(news_module, "open_event_log", broken)
    monkeypatch.setattr(news_module, "_PAUSE_S", 0.01)
    news.start()
    deadline_s = time.monotonic() + 100
    while len(tried) < 2:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    news.start()
    assert (news.head(PLACE, UID), news.places()) == (None, None)
    news.stop()
    news.start()


def test_a_watcher_ends_although_the_event_log_does_not_answer() -> None:
    asked, answers = threading.Event(), threading.Event()
    ended: list[bool] = []

    class Silent:
        def subscribe(self, *_: object, **__: object) -> NoReturn:
            asked.set()
            ended.append(answers.wait(100))
            raise EventLogUnavailable("no answer")

    watcher = EventWatcher(cast(EventLog, Silent()), ["tideline.timeline"], "any", lambda _: None)
    watcher.start()
    assert asked.wait(100)
    watcher.stop()
    assert not ended, "it waited for the answer"
    answers.set()
