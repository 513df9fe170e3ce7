from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.events.samples import hint, new_uid, table_record, transition, transitions

from tideline_events import (
    DeadLetter,
    Deduplicator,
    EventConsumer,
    EventLogUnavailable,
    PublisherFenced,
    Record,
    TableRecord,
    Transition,
    TransitionConsumer,
    decode,
    encode,
)
from tideline_events.consumer import Missing
from tideline_table.clock import ManualClock
from tideline_table.errors import TableNotFound, TidelineError


class ScriptedSubscription:
    """Gives out one prepared batch per poll and counts commits."""

    def __init__(self, *batches: list[Record]) -> None:
        self.batches = list(batches)
        self.commits = 0
        self.closed = False

    def poll(self, timeout_s: float) -> list[Record]:
        return self.batches.pop(0) if self.batches else []

    def commit(self) -> None:
        self.commits += 1

    def close(self) -> None:
        self.closed = True


class KeptLetters:
    """Keeps what is published; fails first, once per prepared error."""

    def __init__(self, *errors: TidelineError) -> None:
        self.errors = list(errors)
        self.records: list[Record] = []

    def publish_transitions(
        self, table_uid: str, transitions: Iterable[Transition], table_record: TableRecord, *, traceparent: str | None = None
    ) -> None:
        raise AssertionError("a consumer publishes no transitions")

    def publish(self, *records: Record) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.records += records

    def close(self) -> None:
        raise AssertionError("the publisher belongs to the caller")


class TableLog:
    """Answers backfills from a list; fails first, once per prepared error."""

    def __init__(self, entries: list[Transition], *errors: TidelineError) -> None:
        self.entries = entries
        self.errors = list(errors)
        self.asked: list[tuple[str, int, int]] = []

    def __call__(self, table_uid: str, first: int, last: int) -> list[Transition]:
        self.asked.append((table_uid, first, last))
        if self.errors:
            raise self.errors.pop(0)
        return [entry for entry in self.entries if first <= entry.sequence <= last]


def consumer(
    subscription: ScriptedSubscription,
    log: TableLog | None = None,
    letters: KeptLetters | None = None,
    seen: dict[str, int] | None = None,
) -> EventConsumer:
    return EventConsumer(
        subscription, group="g", backfill=log or TableLog([]), dead_letters=letters or KeptLetters(), clock=ManualClock(), seen=seen
    )


def records(events: Iterable[Transition]) -> list[Record]:
    return [encode(event) for event in events]


POISON = Record("tideline.timeline", b"k", b"garbage", partition=2, offset=7)


def test_a_table_begins_with_whatever_comes_first() -> None:
    uid, log = new_uid(), TableLog([])
    assert consumer(ScriptedSubscription(records(transitions(uid, 5, 6))), log).poll(0) == transitions(uid, 5, 6)
    assert log.asked == []


def test_with_what_was_seen_before_the_restart_the_gap_is_found() -> None:
    uid = new_uid()
    log = TableLog(transitions(uid, 0, 9))
    events = consumer(ScriptedSubscription(records(transitions(uid, 5, 6))), log, seen={uid: 2})
    assert events.poll(0) == transitions(uid, 3, 6)
    assert log.asked == [(uid, 3, 4)]


def test_tables_do_not_disturb_each_other() -> None:
    one, two = new_uid(), new_uid()
    log = TableLog([])
    mixed = records([transition(one, 1), transition(two, 8), transition(one, 2), transition(two, 9), transition(one, 1)])
    events = consumer(ScriptedSubscription(mixed), log)
    assert [(e.table_uid, e.sequence) for e in TransitionConsumer(events).poll(0)] == [(one, 1), (two, 8), (one, 2), (two, 9)]
    assert (log.asked, events.counts.duplicates) == ([], 1)


def test_what_even_the_table_log_lost_is_counted_and_blocks_nothing() -> None:
    uid = new_uid()
    events = consumer(ScriptedSubscription(records([transition(uid, 0), transition(uid, 5)])), TableLog([transition(uid, 3)]))
    assert events.poll(0) == [transition(uid, 0), transition(uid, 3), transition(uid, 5)]
    assert (events.counts.backfilled, events.counts.missing) == (1, 3)


def test_a_backfill_may_answer_too_much_and_in_disorder() -> None:
    uid = new_uid()

    def answer(table_uid: str, first: int, last: int) -> list[Transition]:
        return [*reversed(transitions(uid, 0, 9)), transition(new_uid(), 2)]

    events = EventConsumer(
        ScriptedSubscription(records([transition(uid, 0), transition(uid, 4)])),
        group="g",
        backfill=answer,
        dead_letters=KeptLetters(),
        clock=ManualClock(),
    )
    assert events.poll(0) == transitions(uid, 0, 4)


def test_a_backfill_that_fails_for_now_is_tried_again_and_nothing_is_lost_or_committed() -> None:
    uid = new_uid()
    subscription = ScriptedSubscription(records([transition(uid, 0), transition(uid, 3), transition(uid, 4)]))
    log = TableLog(transitions(uid, 0, 4), EventLogUnavailable("no storage"), EventLogUnavailable("no storage"))
    events = consumer(subscription, log)
    assert events.poll(0) == [transition(uid, 0)]
    events.commit()
    with pytest.raises(EventLogUnavailable):
        events.poll(0)
    events.commit()
    assert subscription.commits == 0
    assert events.poll(0) == transitions(uid, 1, 4)
    events.commit()
    assert subscription.commits == 1


def test_a_backfill_that_will_never_succeed_sends_the_record_to_the_dead_letters() -> None:
    uid, other = new_uid(), new_uid()
    subscription = ScriptedSubscription(records([transition(uid, 0), transition(uid, 3), transition(other, 0)]))
    letters = KeptLetters()
    events = consumer(subscription, TableLog([], TableNotFound("no table")), letters)
    assert events.poll(0) == [transition(uid, 0), transition(other, 0)]
    (letter,) = map(decode, letters.records)
    assert isinstance(letter, DeadLetter)
    assert letter.reason == "backfill failed: no table"
    assert letter.value == encode(transition(uid, 3)).value


def test_poison_waits_until_it_could_be_set_aside() -> None:
    uid = new_uid()
    subscription = ScriptedSubscription([encode(transition(uid, 0)), POISON, encode(transition(uid, 1))])
    letters = KeptLetters(EventLogUnavailable("no broker"), PublisherFenced("w"))
    events = consumer(subscription, letters=letters)
    assert events.poll(0) == [transition(uid, 0)]
    with pytest.raises(PublisherFenced):
        events.poll(0)
    events.commit()
    assert subscription.commits == 0
    assert events.poll(0) == [transition(uid, 1)]
    (letter,) = map(decode, letters.records)
    assert isinstance(letter, DeadLetter)
    assert (letter.partition, letter.offset, letter.key, letter.group) == (2, 7, b"k", "g")


def test_other_events_pass_and_unknown_types_are_ignored() -> None:
    uid = new_uid()
    unknown = encode(hint(uid))
    unknown = Record(
        unknown.topic,
        unknown.key,
        unknown.value,
        tuple((n, b"tideline.new.v9" if n == "ce_type" else v) for n, v in unknown.headers),
    )
    letters = KeptLetters()
    events = consumer(
        ScriptedSubscription([encode(hint(uid)), unknown, encode(table_record(uid, 1)), encode(hint(uid))]), letters=letters
    )
    assert events.poll(0) == [hint(uid), table_record(uid, 1), hint(uid)]
    assert (events.counts.unknown, letters.records) == (1, [])


def test_closing_closes_the_subscription_only() -> None:
    subscription = ScriptedSubscription()
    TransitionConsumer(consumer(subscription)).close()
    assert subscription.closed


def test_the_deduplicator_knows_gaps_and_repetitions() -> None:
    known = Deduplicator({"t": 4})
    assert known.is_duplicate("t", 4)
    assert not known.is_duplicate("t", 5)
    assert not known.is_duplicate("u", 0)
    assert known.missing_before("t", 5) is None
    assert known.missing_before("t", 6) == Missing(5, 5)
    assert known.missing_before("u", 6) is None
    known.mark("t", 2)
    assert known.seen == {"t": 4}


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12)), max_size=40))
def test_whatever_comes_every_table_is_delivered_once_and_in_order(arrivals: list[tuple[int, int]]) -> None:
    uids = ["00000000-0000-4000-8000-000000000000", "00000000-0000-4000-8000-000000000001"]
    logs = {uid: transitions(uid, 0, 12) for uid in uids}
    events = EventConsumer(
        ScriptedSubscription([encode(logs[uids[table]][sequence]) for table, sequence in arrivals]),
        group="g",
        backfill=lambda uid, first, last: logs[uid][first : last + 1],
        dead_letters=KeptLetters(),
        clock=ManualClock(),
        seen=dict.fromkeys(uids, -1),
    )
    delivered = TransitionConsumer(events).poll(0)
    for number, uid in enumerate(uids):
        newest = max((sequence for table, sequence in arrivals if table == number), default=-1)
        assert [event.sequence for event in delivered if event.table_uid == uid] == list(range(newest + 1))
