"""The contract of the event-log port, held by the embedded log, the simulator's and a real Kafka alike."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import timedelta

import pytest
from tests.contract.events.conftest import Deployment
from tests.contract.events.samples import START, hint, new_uid, table, table_record, transition, transitions

from tideline_events import (
    CATALOG,
    CHANGES,
    CHANGES_POSITIONS,
    DEAD_LETTER,
    HINTS,
    MIRRORS,
    TABLES,
    TIMELINE,
    DeadLetter,
    EventConsumer,
    Heartbeat,
    InvalidEvent,
    PublisherFenced,
    Record,
    TableChange,
    TableDeleted,
    TableIdentity,
    TableRecord,
    Transition,
    decode,
    encode,
    read_envelope,
    table_deletion,
)
from tideline_table.errors import InvalidOption

SHORT_S = 0.1
"""A tail of the embedded log knows its end only when it has waited in vain, unless its newest record is in its topics."""

# The publisher dies, as by kill -9, after its records were sent and before its transaction ended.
DIE_IN_TRANSACTION = """
publisher, uid = log.publisher(sys.argv[2]), sys.argv[3]
if sys.argv[1].startswith("kafka"):
    publisher._commit = lambda: (publisher._producer.flush(20), os._exit(9))
else:
    publisher._expire = lambda *_: os._exit(9)
publisher.publish_transitions(uid, transitions(uid, 4, 5), table_record(uid, 5))
"""

APPEND = """
publisher = log.publisher(sys.argv[2])
for number in range(int(sys.argv[4])):
    publisher.publish(encode(hint(sys.argv[3], number), traceparent=sys.argv[2]))
"""


def sequences(records: list[Record]) -> list[int]:
    return [event.sequence for event in map(decode, records) if isinstance(event, Transition)]


def test_transitions_of_a_table_come_in_order(deployment: Deployment) -> None:
    uids = [new_uid() for _ in range(4)]
    publisher = deployment.publisher(f"shard-{new_uid()}")
    for start in range(0, 20, 5):
        for uid in uids:
            publisher.publish_transitions(uid, transitions(uid, start, start + 4), table_record(uid, start + 4))
    for uid in uids:
        assert sequences(deployment.drain(deployment.subscription([TIMELINE.name]), uid, 20)) == list(range(20))


def test_an_event_comes_back_as_it_was(deployment: Deployment) -> None:
    uid = new_uid()
    event = transition(uid, 7, partitions=("day=2026-03-01",), checkpoint={"offset": "4711"}, rows_inserted=6)
    deployment.publisher(f"shard-{uid}").publish_transitions(uid, [event], table_record(uid, 7), traceparent="00-ab-cd-01")
    (record,) = deployment.drain(deployment.subscription([TIMELINE.name]), uid, 1)
    assert decode(record) == event
    envelope = read_envelope(record)
    assert envelope.traceparent == "00-ab-cd-01"
    assert envelope.recorded_time is not None
    assert abs(envelope.recorded_time - deployment.clock.now()) < timedelta(minutes=2)


def test_transitions_and_cursor_become_visible_together(deployment: Deployment) -> None:
    uid = new_uid()
    deployment.publisher(f"shard-{uid}").publish_transitions(uid, transitions(uid, 0, 3), table_record(uid, 3))
    assert deployment.log().cursor(uid) == table_record(uid, 3)
    assert sequences(deployment.drain(deployment.subscription([TIMELINE.name]), uid, 4)) == [0, 1, 2, 3]


def test_changes_of_a_table_become_visible_with_its_state(deployment: Deployment) -> None:
    uid = new_uid()
    change = TableChange(table(uid), "renamed", START, 3, previous="rides", fleet="north")
    deployment.publisher(f"shard-{uid}").publish_transitions(uid, [], table_record(uid, 3), [change])
    assert deployment.log().cursor(uid) == table_record(uid, 3)
    (record,) = deployment.drain(deployment.subscription([CATALOG.name]), uid, 1)
    assert decode(record) == change


def test_a_tail_reads_what_is_there_and_then_what_comes_and_leaves_no_position(deployment: Deployment) -> None:
    uid = new_uid()
    publisher = deployment.publisher(f"shard-{uid}")
    publisher.publish_transitions(uid, transitions(uid, 0, 3), table_record(uid, 3))
    found: list[Record] = []
    with closing(deployment.log().tail([TIMELINE.name])) as tail:
        while not tail.is_at_end():
            found += [record for record in tail.poll(SHORT_S) if record.key == uid.encode()]
        assert sequences(found) == [0, 1, 2, 3]
        publisher.publish_transitions(uid, transitions(uid, 4, 5), table_record(uid, 5))
        while len(found) < 6:
            found += [record for record in tail.poll(SHORT_S) if record.key == uid.encode()]
    assert sequences(found) == [0, 1, 2, 3, 4, 5]
    with closing(deployment.log().tail([TIMELINE.name])) as again:
        assert again.poll(5)


def test_a_tail_may_begin_at_a_time(deployment: Deployment) -> None:
    uid = new_uid()
    publisher = deployment.publisher(f"shard-{uid}")
    publisher.publish_transitions(uid, transitions(uid, 0, 3), table_record(uid, 3))
    with closing(deployment.log().tail([TIMELINE.name], deployment.clock.now() + timedelta(hours=1))) as tail:
        while not tail.is_at_end():
            assert tail.poll(SHORT_S) == []
    found: list[Record] = []
    with closing(deployment.log().tail([TIMELINE.name], deployment.clock.now() - timedelta(hours=1))) as tail:
        while not tail.is_at_end():
            found += [record for record in tail.poll(SHORT_S) if record.key == uid.encode()]
    assert sequences(found) == [0, 1, 2, 3]


def test_only_the_last_heartbeat_of_a_shard_is_kept_by_the_embedded_log(embedded: Deployment) -> None:
    publisher = embedded.publisher("mirror-0-of-1")
    beats = [Heartbeat("", 0, 1, START + timedelta(minutes=n), START, 60.0, 10) for n in range(3)]
    for beat in beats:
        publisher.publish(encode(beat))
    with closing(embedded.log().tail([MIRRORS.name])) as tail:
        assert [decode(record) for record in tail.poll(SHORT_S)] == beats[-1:]


def test_a_transaction_cut_off_by_death_stays_invisible(among_processes: Deployment) -> None:
    uid, shard = new_uid(), f"shard-{new_uid()}"
    among_processes.publisher(shard).publish_transitions(uid, transitions(uid, 0, 3), table_record(uid, 3))
    died = among_processes.run(DIE_IN_TRANSACTION, shard, uid)
    assert died.returncode == 9, died.stderr
    successor = among_processes.publisher(shard)
    assert among_processes.log().cursor(uid) == table_record(uid, 3)
    successor.publish_transitions(uid, transitions(uid, 4, 6), table_record(uid, 6))
    records = among_processes.drain(among_processes.subscription([TIMELINE.name]), uid, 7)
    assert sequences(records) == [0, 1, 2, 3, 4, 5, 6]
    tables = among_processes.drain(among_processes.subscription([TABLES.name]), uid, 1)
    assert all(decode(record) != table_record(uid, 5) for record in tables)


def test_a_batch_that_breaks_the_contract_leaves_nothing(deployment: Deployment) -> None:
    uid, other = new_uid(), new_uid()
    publisher = deployment.publisher(f"shard-{uid}")
    with pytest.raises(InvalidEvent, match="without gaps"):
        publisher.publish_transitions(uid, [transition(uid, 1), transition(uid, 3)], table_record(uid, 3))
    with pytest.raises(InvalidEvent, match="table record at sequence 2"):
        publisher.publish_transitions(uid, [transition(uid, 1)], table_record(uid, 2))
    with pytest.raises(InvalidEvent, match=other):
        publisher.publish_transitions(uid, [transition(other, 1)], table_record(uid, 1))
    with pytest.raises(InvalidEvent, match="topic"):
        publisher.publish(encode(hint(uid)), Record("elsewhere", b"k", b"v"))
    with pytest.raises(InvalidEvent, match="bytes"):
        publisher.publish(encode(hint(uid)), Record(HINTS.name, uid.encode(), bytes(2_000_000)))
    assert deployment.log().cursor(uid) is None
    publisher.publish_transitions(uid, [transition(uid, 9)], table_record(uid, 9))
    (first,) = deployment.drain(deployment.subscription([TIMELINE.name, HINTS.name]), uid, 1)
    assert decode(first) == transition(uid, 9)


def test_a_newer_publisher_fences_the_older_one(deployment: Deployment) -> None:
    uid, shard = new_uid(), f"shard-{new_uid()}"
    old = deployment.publisher(shard)
    old.publish_transitions(uid, transitions(uid, 0, 1), table_record(uid, 1))
    new = deployment.publisher(shard)
    for _ in range(2):
        with pytest.raises(PublisherFenced) as refused:
            old.publish_transitions(uid, transitions(uid, 2, 3), table_record(uid, 3))
        assert refused.value.writer_id == shard
    with pytest.raises(PublisherFenced):
        old.publish(encode(hint(uid)))
    assert deployment.log().cursor(uid) == table_record(uid, 1)
    new.publish_transitions(uid, transitions(uid, 2, 2), table_record(uid, 2))
    assert sequences(deployment.drain(deployment.subscription([TIMELINE.name, HINTS.name]), uid, 3)) == [0, 1, 2]


def test_publishers_of_different_writers_do_not_fence_each_other(deployment: Deployment) -> None:
    uid = new_uid()
    publishers = [deployment.publisher(f"{name}-{uid}") for name in ("one", "two")]
    for number in range(4):
        publishers[number % 2].publish(encode(hint(uid, number)))
    assert len(deployment.drain(deployment.subscription([HINTS.name]), uid, 4)) == 4


def test_a_publisher_serves_several_threads(deployment: Deployment) -> None:
    uid = new_uid()
    publisher = deployment.publisher(f"threads-{uid}")
    threads = [
        threading.Thread(target=lambda start=start: [publisher.publish(encode(hint(uid, start + n))) for n in range(5)])
        for start in (0, 100, 200)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(deployment.drain(deployment.subscription([HINTS.name]), uid, 15)) == 15


def test_the_cursor_outlives_a_restart_and_is_the_last_one(deployment: Deployment) -> None:
    uid, other = new_uid(), new_uid()
    publisher = deployment.publisher(f"shard-{uid}")
    for sequence in range(5):
        publisher.publish_transitions(uid, [transition(uid, sequence)], table_record(uid, sequence))
    publisher.publish_transitions(other, [], table_record(other, 40))
    publisher.close()
    restarted = deployment.log()
    assert restarted.cursor(uid) == table_record(uid, 4)
    assert restarted.cursor(new_uid()) is None
    known = {record.table_uid: record for record in restarted.table_records()}
    assert known[uid] == table_record(uid, 4)
    assert known[other] == table_record(other, 40)


def test_a_deleted_table_has_no_cursor(deployment: Deployment) -> None:
    uid = new_uid()
    publisher = deployment.publisher(f"shard-{uid}")
    publisher.publish(encode(table_record(uid, 3)))
    subscription = deployment.subscription([TABLES.name])
    assert [decode(record) for record in deployment.drain(subscription, uid, 1)] == [table_record(uid, 3)]
    publisher.publish(table_deletion(uid))
    log = deployment.log()
    assert log.cursor(uid) is None
    assert uid not in {record.table_uid for record in log.table_records()}
    assert [decode(record) for record in deployment.drain(subscription, uid, 1)] == [TableDeleted(uid)]


def test_a_table_record_that_cannot_be_read_is_left_out(deployment: Deployment) -> None:
    uid, other = new_uid(), new_uid()
    deployment.publisher(f"shard-{uid}").publish(Record(TABLES.name, uid.encode(), b"garbage"), encode(table_record(other, 1)))
    log = deployment.log()
    assert log.cursor(uid) is None
    known = {record.table_uid: record for record in log.table_records()}
    assert uid not in known
    assert known[other] == table_record(other, 1)


def test_what_was_not_committed_comes_again(deployment: Deployment) -> None:
    uid, group = new_uid(), f"group-{new_uid()}"
    publisher = deployment.publisher(f"shard-{uid}")
    publisher.publish_transitions(uid, transitions(uid, 0, 4), table_record(uid, 4))
    first = deployment.subscription([TIMELINE.name], group)
    assert sequences(deployment.drain(first, uid, 5)) == [0, 1, 2, 3, 4]
    first.close()
    second = deployment.subscription([TIMELINE.name], group)
    assert sequences(deployment.drain(second, uid, 5)) == [0, 1, 2, 3, 4]
    second.commit()
    publisher.publish_transitions(uid, transitions(uid, 5, 6), table_record(uid, 6))
    assert sequences(deployment.drain(second, uid, 2)) == [5, 6]
    second.close()
    third = deployment.subscription([TIMELINE.name], group)
    assert sequences(deployment.drain(third, uid, 2)) == [5, 6]


def test_every_group_has_its_own_offsets(deployment: Deployment) -> None:
    uid, group = new_uid(), f"group-{new_uid()}"
    publisher = deployment.publisher(f"shard-{uid}")
    publisher.publish(encode(hint(uid, 1)))
    reader = deployment.subscription([HINTS.name], group)
    deployment.drain(reader, uid, 1)
    reader.commit()
    reader.commit()
    reader.close()
    publisher.publish(encode(hint(uid, 2)))
    assert [decode(r) for r in deployment.drain(deployment.subscription([HINTS.name], group), uid, 1)] == [hint(uid, 2)]
    fresh = deployment.subscription([HINTS.name])
    assert [decode(r) for r in deployment.drain(fresh, uid, 2)] == [hint(uid, 1), hint(uid, 2)]


def test_a_group_may_start_after_the_newest_record(deployment: Deployment) -> None:
    uid, group = new_uid(), f"group-{new_uid()}"
    publisher = deployment.publisher(f"shard-{uid}")
    publisher.publish(encode(hint(uid, 1)))
    # This member dies before it polls: what is published now must reach the one after it.
    deployment.subscription([HINTS.name], group, from_beginning=False).close()
    publisher.publish(encode(hint(uid, 2)))
    successor = deployment.subscription([HINTS.name], group, from_beginning=False)
    assert [decode(r) for r in deployment.drain(successor, uid, 1)] == [hint(uid, 2)]


def test_poll_wakes_up_for_a_new_record(deployment: Deployment) -> None:
    uid = new_uid()
    publisher = deployment.publisher(f"shard-{uid}")
    subscription = deployment.subscription([HINTS.name], from_beginning=False)
    assert subscription.poll(0.2) == []
    found: list[Record] = []
    reader = threading.Thread(target=lambda: found.extend(subscription.poll(120)))
    reader.start()
    publisher.publish(encode(hint(uid)))
    reader.join(60)
    assert not reader.is_alive()
    assert [decode(record) for record in found] == [hint(uid)]


def test_a_subscription_names_topics_of_the_contract(deployment: Deployment) -> None:
    with pytest.raises(InvalidOption, match="elsewhere"):
        deployment.log().subscribe(["elsewhere"], "group")
    with pytest.raises(InvalidOption):
        deployment.log().subscribe([HINTS.name], "")


def test_two_processes_append_at_once(among_processes: Deployment) -> None:
    uid, count = new_uid(), 60
    subscription = among_processes.subscription([HINTS.name], from_beginning=False)
    writers = [among_processes.spawn(APPEND, f"{name}-{uid}", uid, str(count)) for name in ("one", "two")]
    records = among_processes.drain(subscription, uid, 2 * count)
    for writer in writers:
        _, errors = writer.communicate(timeout=240)
        assert writer.returncode == 0, errors
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    for name in ("one", "two"):
        mine = [decode(record) for record in records if read_envelope(record).traceparent == f"{name}-{uid}"]
        assert mine == [hint(uid, number) for number in range(count)]


def test_ensure_topics_may_be_repeated(deployment: Deployment) -> None:
    uid = new_uid()
    deployment.publisher(f"shard-{uid}").publish(encode(table_record(uid, 1)))
    deployment.log().ensure_topics()
    assert deployment.log().cursor(uid) == table_record(uid, 1)


def consumer(deployment: Deployment, group: str, log_of_table: list[Transition], uid: str) -> EventConsumer:
    """A consumer of all topics that were written by these tests; events of other tests' tables pass through."""

    def backfill(table: TableIdentity, first: int, last: int) -> list[Transition]:
        assert table.uid == uid
        return [event for event in log_of_table if first <= event.sequence <= last]

    events = EventConsumer(deployment.log(), group, backfill=backfill, from_beginning=False, clock=deployment.clock)
    return deployment.stack.enter_context(closing(events))


def deliver(deployment: Deployment, reader: EventConsumer, count: int) -> list[int]:
    found: list[int] = []
    deadline_s = deployment.clock.monotonic_s() + 60
    while len(found) < count and deployment.clock.monotonic_s() < deadline_s:
        found += [event.sequence for event in reader.poll(1.0)]
    return found


def test_a_gap_is_filled_from_the_table_log_in_order(deployment: Deployment) -> None:
    uid = new_uid()
    events = consumer(deployment, f"group-{uid}", transitions(uid, 0, 9), uid)
    publisher = deployment.publisher(f"shard-{uid}")
    publisher.publish_transitions(uid, transitions(uid, 2, 3), table_record(uid, 3))
    publisher.publish_transitions(uid, transitions(uid, 7, 8), table_record(uid, 8))
    # The group was there before the table: its first step, which the topic lacks, is in the group's range.
    assert deliver(deployment, events, 8) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (events.counts.delivered, events.counts.backfilled, events.counts.missing) == (8, 4, 0)
    assert events.seen == {uid: 8}


def test_what_was_seen_is_dropped(deployment: Deployment) -> None:
    uid = new_uid()
    events = consumer(deployment, f"group-{uid}", [], uid)
    publisher = deployment.publisher(f"shard-{uid}")
    publisher.publish_transitions(uid, transitions(uid, 0, 3), table_record(uid, 3))
    # As a mirror does that lost its cursor.
    publisher.publish_transitions(uid, transitions(uid, 1, 5), table_record(uid, 5))
    assert deliver(deployment, events, 6) == [0, 1, 2, 3, 4, 5]
    assert events.counts.duplicates == 3


@pytest.mark.parametrize("has_committed", [False, True])
def test_a_member_that_was_replaced_moves_no_position_of_its_group_back(deployment: Deployment, has_committed: bool) -> None:
    """The slow member stored where it was before it heard that it was replaced: what the other one had processed came again."""
    uid, group = new_uid(), f"group-{new_uid()}"
    publisher = deployment.publisher(f"shard-{uid}")
    publisher.publish_transitions(uid, transitions(uid, 0, 2), table_record(uid, 2))

    def member() -> EventConsumer:
        events = EventConsumer(deployment.log(), group, backfill=lambda *_: [], member="one", clock=deployment.clock)
        return deployment.stack.enter_context(closing(events))

    def read(events: EventConsumer, upto: int) -> None:
        while events.seen.get(uid, -1) < upto:
            events.poll(1.0)

    slow = member()
    read(slow, 2)
    if has_committed:
        slow.commit()
        publisher.publish_transitions(uid, transitions(uid, 3, 3), table_record(uid, 3))
        read(slow, 3)
    quick = member()
    publisher.publish_transitions(uid, transitions(uid, 4, 5), table_record(uid, 5))
    read(quick, 5)
    quick.commit()
    assert deployment.log().positions(group)[uid] == 5
    slow.commit()
    assert deployment.log().positions(group)[uid] == 5
    publisher.publish_transitions(uid, transitions(uid, 6, 6), table_record(uid, 6))
    read(quick, 6)
    assert quick.commit()
    assert deployment.log().positions(group)[uid] == 6


def test_poison_goes_to_the_dead_letters_and_blocks_nothing(deployment: Deployment) -> None:
    uid, group = new_uid(), f"group-{new_uid()}"
    events = consumer(deployment, group, [], uid)
    publisher = deployment.publisher(f"shard-{uid}")
    good = encode(transition(uid, 0))
    bad = Record(TIMELINE.name, uid.encode(), b"\xff\x00garbage", good.headers)
    bare = Record(TIMELINE.name, uid.encode(), None)
    publisher.publish(good, bad, bare, encode(transition(uid, 1)))
    assert deliver(deployment, events, 2) == [0, 1]
    assert events.counts.dead == 2
    events.commit()
    letters = [decode(record) for record in deployment.drain(deployment.subscription([DEAD_LETTER.name]), uid, 2)]
    assert all(isinstance(letter, DeadLetter) for letter in letters)
    first, second = (letter for letter in letters if isinstance(letter, DeadLetter))
    assert (first.topic, first.group, first.key, first.value) == (TIMELINE.name, group, uid.encode(), b"\xff\x00garbage")
    assert {header for header in first.headers if header[0] != "ce_recordedtime"} == set(good.headers)
    assert "urn:tideline:schema:tideline.timeline.transition.v1:1" in first.reason
    assert "without a value" in second.reason
    assert second.offset > first.offset


def test_several_topics_come_through_one_subscription(deployment: Deployment) -> None:
    uid = new_uid()
    publisher = deployment.publisher(f"shard-{uid}")
    subscription = deployment.subscription([TIMELINE.name, TABLES.name, HINTS.name], from_beginning=False)
    publisher.publish_transitions(uid, [transition(uid, 0)], table_record(uid, 0))
    publisher.publish(encode(hint(uid)))
    kinds = {type(decode(record)) for record in deployment.drain(subscription, uid, 3)}
    assert kinds == {Transition, TableRecord, type(hint(uid))}


def test_topics_of_a_family_are_created_and_read_by_name(deployment: Deployment) -> None:
    """Their order counts as a whole, so they have one partition. Position and rows become visible together."""
    uid = new_uid()
    topic, key = f"{CHANGES.name}{uid}", uid.encode()
    log = deployment.log()
    assert log.ensure_topics([topic]) <= {topic}
    assert log.ensure_topics([topic]) == frozenset()
    publisher = deployment.publisher(f"shard-{uid}")
    rows = [Record(topic, f"{uid}-{n}".encode(), b"{}") for n in range(50)]
    publisher.publish(*rows, Record(topic, None, b"{}"), Record(CHANGES_POSITIONS.name, key, b"1"))
    publisher.publish(Record(CHANGES_POSITIONS.name, key, b"2"))
    assert log.last_records(CHANGES_POSITIONS)[key].value == b"2"
    found: list[Record] = []
    with closing(log.tail([topic])) as tail:
        while not tail.is_at_end():
            found += tail.poll(SHORT_S)
    assert [record.key for record in found] == [*(row.key for row in rows), None]
    assert {record.partition for record in found} == {0}
    publisher.publish(Record(CHANGES_POSITIONS.name, key, None))
    assert key not in log.last_records(CHANGES_POSITIONS)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 151])
def test_names_that_no_topic_of_a_family_can_have_are_refused(deployment: Deployment, name: str) -> None:
    with pytest.raises(InvalidEvent):
        deployment.publisher(f"shard-{new_uid()}").publish(Record(CHANGES.name + name, b"k", b"{}"))
    with pytest.raises(InvalidOption):
        deployment.log().tail([CHANGES.name + name])
