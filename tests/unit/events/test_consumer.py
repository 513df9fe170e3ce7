from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.events.samples import hint, new_uid, table_record, transition, transitions

from tideline_events import (
    POSITIONS,
    CommitLost,
    DeadLetter,
    EventConsumer,
    EventLogUnavailable,
    PublisherFenced,
    Record,
    TableChange,
    TableIdentity,
    TableRecord,
    Topic,
    Transition,
    decode,
    encode,
)
from tideline_events.positions import positions_in
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

    generation = 1

    def owns(self, table_uid: str) -> bool:
        return True

    def commit(self) -> None:
        self.commits += 1

    def close(self) -> None:
        self.closed = True


class KeptLetters:
    """Keeps what is published; fails first, once per prepared error."""

    def __init__(self, *errors: TidelineError) -> None:
        self.errors = list(errors)
        self.records: list[Record] = []
        self.closed = 0

    def publish_transitions(
        self,
        table_uid: str,
        transitions: Iterable[Transition],
        table_record: TableRecord,
        changes: Iterable[TableChange] = (),
        *,
        traceparent: str | None = None,
    ) -> None:
        raise AssertionError("a consumer publishes no transitions")

    def publish(self, *records: Record, reader: object = None) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.records += records

    def close(self) -> None:
        self.closed += 1


class ScriptedLog:
    """What a consumer uses of an event log. Positions and states stay over its lives."""

    def __init__(self, subscription: ScriptedSubscription, letters: KeptLetters | None = None) -> None:
        self.subscription = subscription
        self.letters = letters or KeptLetters()
        self.states: list[TableRecord] = []
        self.beginning = KeptLetters()
        self.writers: list[str] = []

    def subscribe(self, *_: object, **__: object) -> ScriptedSubscription:
        return self.subscription

    def publisher(self, writer_id: str) -> KeptLetters:
        if writer_id == "g-begin":
            return self.beginning
        self.writers.append(writer_id)
        return self.letters

    def positions(self, group: str) -> dict[str, int]:
        return positions_in(self.last_records(POSITIONS).values(), group)

    def last_records(self, topic: Topic) -> dict[bytes, Record]:
        return {r.key or b"": r for r in self.letters.records + self.beginning.records if r.topic == topic.name}

    def table_records(self) -> list[TableRecord]:
        return self.states


class TableLog:
    """Answers backfills from a list; fails first, once per prepared error."""

    def __init__(self, entries: list[Transition], *errors: TidelineError) -> None:
        self.entries = entries
        self.errors = list(errors)
        self.asked: list[tuple[str, int, int]] = []

    def __call__(self, table: TableIdentity, first: int, last: int) -> list[Transition]:
        self.asked.append((table.uid, first, last))
        if self.errors:
            raise self.errors.pop(0)
        return [entry for entry in self.entries if first <= entry.sequence <= last]


def consumer(
    subscription: ScriptedSubscription,
    log: TableLog | None = None,
    letters: KeptLetters | None = None,
    seen: dict[str, int] | None = None,
) -> EventConsumer:
    event_log: Any = ScriptedLog(subscription, letters)
    known = None if seen is None else lambda: seen
    return EventConsumer(event_log, "g", backfill=log or TableLog([]), clock=ManualClock(), seen=known)


def records(events: Iterable[Transition]) -> list[Record]:
    return [encode(event) for event in events]


POISON = Record("tideline.timeline", b"k", b"garbage", partition=2, offset=7)


def test_a_new_group_begins_with_the_oldest_event_of_a_table() -> None:
    uid, tables, log = new_uid(), TableLog([]), ScriptedLog(ScriptedSubscription())
    log.states = [table_record(uid, 6)]
    assert again(log, tables, records(transitions(uid, 5, 6))).poll(0) == transitions(uid, 5, 6)
    assert tables.asked == []


def test_with_what_was_seen_before_the_restart_the_gap_is_found() -> None:
    uid = new_uid()
    log = TableLog(transitions(uid, 0, 9))
    events = consumer(ScriptedSubscription(records(transitions(uid, 5, 6))), log, seen={uid: 2})
    assert events.poll(0) == transitions(uid, 3, 6)
    assert log.asked == [(uid, 3, 4)]


def test_tables_do_not_disturb_each_other() -> None:
    one, two = new_uid(), new_uid()
    log = TableLog([])
    mixed = records([transition(one, 1), transition(two, 1), transition(one, 2), transition(two, 2), transition(one, 1)])
    events = consumer(ScriptedSubscription(mixed), log)
    assert [(e.table_uid, e.sequence) for e in events.poll(0)] == [(one, 1), (two, 1), (one, 2), (two, 2)]
    assert (log.asked, events.counts.duplicates) == ([], 1)


def test_what_even_the_table_log_lost_is_counted_and_blocks_nothing() -> None:
    uid = new_uid()
    events = consumer(ScriptedSubscription(records([transition(uid, 0), transition(uid, 5)])), TableLog([transition(uid, 3)]))
    assert events.poll(0) == [transition(uid, 0), transition(uid, 3), transition(uid, 5)]
    assert (events.counts.backfilled, events.counts.missing) == (1, 3)


def test_a_backfill_may_answer_too_much_and_in_disorder() -> None:
    uid = new_uid()

    def answer(table: TableIdentity, first: int, last: int) -> list[Transition]:
        return [*reversed(transitions(uid, 0, 9)), transition(new_uid(), 2)]

    log: Any = ScriptedLog(ScriptedSubscription(records([transition(uid, 0), transition(uid, 4)])))
    events = EventConsumer(log, "g", backfill=answer, clock=ManualClock())
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


@pytest.mark.parametrize("error", [TableNotFound("no table"), KeyError("unknown uid")])
def test_a_backfill_that_will_never_succeed_hides_no_later_event(error: Exception) -> None:
    """A key that a dictionary lacks ended the delivery of all tables; each later event of the table became a dead letter."""
    uid, other = new_uid(), new_uid()

    def fail(*_: object) -> list[Transition]:
        raise error

    letters = KeptLetters()
    log: Any = ScriptedLog(ScriptedSubscription(records([transition(uid, 0), transition(uid, 3), transition(other, 0)])), letters)
    events = EventConsumer(log, "g", backfill=fail, clock=ManualClock())
    assert events.poll(0) == [transition(uid, 0), transition(uid, 3), transition(other, 0)]
    assert (events.counts.missing, letters.records) == (2, [])


def again(log: ScriptedLog, table_log: TableLog, *batches: list[Record], **how: Any) -> EventConsumer:
    """The consumer in its next life, which finds these batches."""
    log.subscription = ScriptedSubscription(*batches)
    given: Any = log
    return EventConsumer(given, "g", backfill=table_log, **{"clock": ManualClock(), **how})


def test_events_that_left_the_topic_while_the_consumer_was_down_come_from_the_table_log() -> None:
    """They were lost, and none was counted as missing: the position was kept in memory."""
    uid, quiet = new_uid(), new_uid()
    log, tables = ScriptedLog(ScriptedSubscription()), TableLog(transitions(uid, 1, 9))
    first = again(log, tables, records([*transitions(uid, 1, 3), transition(quiet, 1)]))
    assert len(first.poll(0)) == 4
    first.commit()
    second = again(log, tables, records([transition(uid, 8)]))
    assert second.poll(0) == transitions(uid, 4, 8)
    second.commit()
    assert log.positions("g") == {uid: 8, quiet: 1}


def test_a_quiet_table_is_not_left_behind() -> None:
    """Nothing arrives that would show the gap."""
    uid = new_uid()
    log, tables = ScriptedLog(ScriptedSubscription()), TableLog(transitions(uid, 1, 9))
    first = again(log, tables, records(transitions(uid, 1, 3)))
    first.poll(0)
    first.commit()
    log.states = [table_record(uid, 9)]
    second = again(log, tables)
    assert second.poll(0) == transitions(uid, 4, 9)
    second.commit()
    assert again(log, tables).poll(0) == []


def test_a_new_group_does_not_read_the_history_of_quiet_tables() -> None:
    uid = new_uid()
    log, tables = ScriptedLog(ScriptedSubscription()), TableLog(transitions(uid, 1, 9))
    log.states = [table_record(uid, 7)]
    events = again(log, tables, [], [], records([transition(uid, 9)]))
    assert events.poll(0) == []
    log.states = [table_record(uid, 9)]
    assert (events.poll(0), events.poll(0)) == ([], transitions(uid, 8, 9))


def test_a_new_group_whose_member_dies_before_it_commits_begins_where_it_began() -> None:
    """It was new again: what had been published meanwhile, and was in the topics no longer, was in nobody's range."""
    uid, quiet, later = new_uid(), new_uid(), new_uid()
    log = ScriptedLog(ScriptedSubscription())
    tables = TableLog([*transitions(uid, 1, 9), *transitions(quiet, 1, 9), *transitions(later, 1, 4)])
    log.states = [table_record(uid, 3), table_record(quiet, 5)]
    assert again(log, tables, records(transitions(uid, 2, 3))).poll(0) == transitions(uid, 2, 3)
    log.states = [table_record(uid, 9), table_record(quiet, 7), table_record(later, 4)]
    events = again(log, tables, records([transition(uid, 9), transition(later, 4)]))
    assert events.poll(0) == [*transitions(uid, 4, 9), *transitions(later, 1, 4)]
    assert events.poll(0) == transitions(quiet, 6, 7)


def test_a_group_reads_the_history_of_quiet_tables_in_no_later_life_either() -> None:
    """The member that came after the first one knew no beginning, and told all that these tables had ever done."""
    uid, quiet = new_uid(), new_uid()
    log, tables = ScriptedLog(ScriptedSubscription()), TableLog([*transitions(uid, 1, 9), *transitions(quiet, 1, 9)])
    log.states = [table_record(uid, 5), table_record(quiet, 9)]
    first = again(log, tables, records([transition(uid, 5)]))
    assert first.poll(0) == [transition(uid, 5)]
    first.commit()
    second = again(log, tables, [], records([transition(uid, 6)]))
    assert (second.poll(0), second.lag()) == ([], {uid: 0, quiet: 0})
    assert second.poll(0) == [transition(uid, 6)]


def test_after_a_rebalance_nothing_comes_again_that_another_member_committed() -> None:
    uid = new_uid()
    log, tables = ScriptedLog(ScriptedSubscription()), TableLog(transitions(uid, 1, 9))
    events = again(log, tables, records(transitions(uid, 1, 2)), records([transition(uid, 6)]))
    events.poll(0)
    events.commit()
    other = again(log, tables, records(transitions(uid, 3, 5)))
    other.poll(0)
    other.commit()
    events._subscription.generation += 1  # type: ignore[misc] # the partition is back
    assert events.poll(0) == [transition(uid, 6)]


def test_a_member_that_gets_a_table_back_stores_no_older_position() -> None:
    """It stored what it had processed before it lost the partition, if the read that brought the partition back failed."""
    uid = new_uid()
    log, tables = ScriptedLog(ScriptedSubscription()), TableLog(transitions(uid, 1, 9))
    events = again(log, tables, records(transitions(uid, 1, 2)))
    events.poll(0)
    mine = log.subscription
    other = again(log, tables, records(transitions(uid, 1, 5)))
    other.poll(0)
    other.commit()
    mine.generation += 1  # type: ignore[misc] # the partition is back
    events.commit()
    assert log.positions("g") == {uid: 5}


@pytest.mark.parametrize("error", [None, TableNotFound("no table")])
@pytest.mark.parametrize("ahead", [5, 100_000, 100_000_000])
def test_a_sequence_that_the_table_never_had_is_a_dead_letter(ahead: int, error: TidelineError | None) -> None:
    """All later events of the table were dropped as duplicates, of a table that cannot be read after smaller jumps, too."""
    uid = new_uid()
    log, tables = ScriptedLog(ScriptedSubscription()), TableLog([], *[error] if error else [])
    log.states = [table_record(uid, 2)]
    wrong = dataclasses.replace(transition(uid, 2), sequence=ahead)
    events = again(log, tables, records([transition(uid, 1), wrong, transition(uid, 2)]))
    assert events.poll(0) == transitions(uid, 1, 2)
    assert events.counts.dead == 1


def test_a_group_that_meets_many_tables_does_not_read_all_states_for_each() -> None:
    class Counted(ScriptedLog):
        reads = 0

        def table_records(self) -> list[TableRecord]:
            self.reads += 1
            return self.states

    found = [transition(new_uid(), 7) for _ in range(20)]
    log = Counted(ScriptedSubscription())
    log.states = [table_record(event.table_uid, 7) for event in found]
    events = again(log, TableLog([]), records(found))
    assert events.poll(0) == found
    assert log.reads == 1


@pytest.mark.parametrize("ahead", [5, 100_000])
def test_a_first_step_that_its_table_never_had_hides_none(ahead: int) -> None:
    """A group without a position of the table took any sequence up to 100,000, and all real steps for duplicates."""
    uid = new_uid()
    log = ScriptedLog(ScriptedSubscription())
    log.states = [table_record(uid, 3)]
    wrong = dataclasses.replace(transition(uid, 2), sequence=ahead)
    events = again(log, TableLog([]), records([wrong, *transitions(uid, 2, 3)]))
    assert events.poll(0) == transitions(uid, 2, 3)
    assert (events.counts.dead, events.counts.duplicates) == (1, 0)


def test_a_state_that_becomes_visible_after_its_steps_delays_a_gap_and_loses_nothing() -> None:
    """A broker ends a transaction in one topic after the other."""

    class Later(ScriptedLog):
        def table_records(self) -> list[TableRecord]:
            found, self.states = self.states, [table_record(uid, 9)]
            return found

    uid = new_uid()
    log, tables = Later(ScriptedSubscription()), TableLog([], TableNotFound("no table"), TableNotFound("no table"))
    log.states = [table_record(uid, 2)]
    events = again(log, tables, records([transition(uid, 1), transition(uid, 9)]))
    assert events.poll(0) == [transition(uid, 1), transition(uid, 9)]
    assert (events.counts.dead, events.counts.missing) == (0, 7)


def test_a_snapshot_comes_before_the_stream_and_only_once() -> None:
    uid, quiet, later = new_uid(), new_uid(), new_uid()
    log, tables = ScriptedLog(ScriptedSubscription()), TableLog(transitions(uid, 1, 9))
    log.states = [table_record(uid, 7), table_record(quiet, 4)]
    first = again(log, tables, records(transitions(uid, 5, 8)), snapshot=True)
    assert first.poll(0) == log.states
    first.commit()
    assert (log.positions("g"), log.subscription.commits) == ({uid: 7, quiet: 4}, 1)
    assert first.poll(0) == [transition(uid, 8)]
    first.commit()
    assert (first.counts.duplicates, log.positions("g")) == (3, {uid: 8, quiet: 4})
    log.states += [table_record(later, 2)]
    second = again(log, TableLog(transitions(later, 1, 2)), records([transition(quiet, 5), transition(later, 2)]), snapshot=True)
    assert (second.poll(0), second.poll(0)) == ([table_record(later, 2)], [transition(quiet, 5)])


def test_a_table_that_a_group_with_a_snapshot_meets_later_starts_with_its_first_transition() -> None:
    uid = new_uid()
    events = again(
        ScriptedLog(ScriptedSubscription()), TableLog(transitions(uid, 1, 9)), records([transition(uid, 3)]), snapshot=True
    )
    assert events.poll(0) == transitions(uid, 1, 3)


def test_lag_is_what_was_published_and_not_delivered() -> None:
    class Counted(ScriptedLog):
        reads = 0

        def table_records(self) -> list[TableRecord]:
            self.reads += 1
            return self.states

    uid, fresh, clock = new_uid(), new_uid(), ManualClock()
    log = Counted(ScriptedSubscription())
    log.states = [table_record(uid, 9), table_record(fresh, 5)]
    events = again(log, TableLog(transitions(uid, 1, 9)), records(transitions(uid, 1, 3)), clock=clock, seen=lambda: {uid: 1})
    events.poll(0)
    assert events.lag() == {uid: 6, fresh: 5}
    log.states = [table_record(uid, 9)]
    assert (events.lag(), log.reads) == ({uid: 6, fresh: 5}, 1)
    clock.advance(31)
    assert (events.lag(), log.reads) == ({uid: 6}, 2)
    events.poll(0)
    assert events.lag() == {uid: 0}


def test_changes_are_committed_when_the_next_one_is_asked_for() -> None:
    uid = new_uid()
    log = ScriptedLog(ScriptedSubscription())
    quiet = dataclasses.replace(transition(uid, 2), datachange=False)
    batch = records([transition(uid, 1), quiet, transition(uid, 3)])
    with again(log, TableLog([]), batch) as events:
        assert next(events.changes()).sequence == 1
        found = events.changes()
        assert [next(found).sequence for _ in range(2)] == [1, 3], "who leaves the loop loses nothing"
    assert log.positions("g") == {}
    with again(log, TableLog([]), batch) as events:
        assert [event.sequence for event in events.changes(wait_s=0)] == [1, 3]
    assert (log.positions("g"), log.subscription.closed) == ({uid: 3}, True)


def test_what_is_dropped_does_not_end_the_loop() -> None:
    """Nothing came for no time at all, but a duplicate or a dead letter ended a loop that was to wait."""
    uid = new_uid()
    wrong = dataclasses.replace(transition(uid, 1), sequence=100_000_000)
    arrivals = [records([found]) for found in (transition(uid, 1), transition(uid, 1), wrong, transition(uid, 2))]
    events = consumer(ScriptedSubscription(*arrivals))
    assert list(events.events(wait_s=1)) == transitions(uid, 1, 2)


def test_an_outage_does_not_end_the_loop() -> None:
    uid = new_uid()
    outages = [EventLogUnavailable("no storage"), EventLogUnavailable("no storage")]
    log, gap = ScriptedLog(ScriptedSubscription()), records([transition(uid, 0), transition(uid, 2)])
    found = again(log, TableLog(transitions(uid, 0, 2), *outages), gap).changes()
    assert [next(found).sequence for _ in range(3)] == [0, 1, 2]
    with pytest.raises(EventLogUnavailable):
        list(again(ScriptedLog(ScriptedSubscription()), TableLog([], *outages), gap).changes(wait_s=0))


def test_a_lost_commit_does_not_end_the_loop() -> None:
    class Rebalanced(ScriptedSubscription):
        def commit(self) -> None:
            raise CommitLost("rebalanced")

    events = consumer(Rebalanced(records(transitions(new_uid(), 1, 2))))
    assert len(events.poll(0)) == 2
    events.commit()


def test_each_member_publishes_under_a_writer_id_of_its_own() -> None:
    """The documented publisher had one for all members, each of which fenced the one before."""
    log = ScriptedLog(ScriptedSubscription())
    for _ in range(2):
        events = again(log, TableLog([]), [POISON])
        events.poll(0)
    assert len(set(log.writers)) == 2


def test_poison_waits_until_it_could_be_set_aside() -> None:
    uid = new_uid()
    subscription = ScriptedSubscription([encode(transition(uid, 0)), POISON, encode(transition(uid, 1))])
    letters = KeptLetters(EventLogUnavailable("no broker"), PublisherFenced("w"))
    events = consumer(subscription, letters=letters)
    assert events.poll(0) == [transition(uid, 0)]
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
    consumer(subscription).close()
    assert subscription.closed


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12)), max_size=40))
def test_whatever_comes_every_table_is_delivered_once_and_in_order(arrivals: list[tuple[int, int]]) -> None:
    uids = ["00000000-0000-4000-8000-000000000000", "00000000-0000-4000-8000-000000000001"]
    logs = {uid: transitions(uid, 0, 12) for uid in uids}
    log: Any = ScriptedLog(ScriptedSubscription([encode(logs[uids[table]][sequence]) for table, sequence in arrivals]))
    events = EventConsumer(
        log,
        "g",
        backfill=lambda table, first, last: logs[table.uid][first : last + 1],
        clock=ManualClock(),
        seen=lambda: dict.fromkeys(uids, -1),
    )
    delivered = events.poll(0)
    for number, uid in enumerate(uids):
        newest = max((sequence for table, sequence in arrivals if table == number), default=-1)
        assert [event.sequence for event in delivered if event.table_uid == uid] == list(range(newest + 1))
