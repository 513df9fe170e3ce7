"""Topics that are deleted and made again, by whomever, while services run: who reads or fills them notices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import tenacity
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from tests.contract.events.samples import new_uid, table_record
from tests.real.kafka import KafkaNode
from tests.unit.services.fleet import Fleet, ShiftedClock, write

from tideline_events import (
    TABLES,
    TIMELINE,
    EventLog,
    EventLogUnavailable,
    Heartbeat,
    Transition,
    decode,
    encode,
    open_event_log,
)
from tideline_events.kafka_subscription import CHECK_EVERY_S as TAIL_EVERY_S
from tideline_mirror.mirroring import CHECK_EVERY_S, MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_runtime.news import News
from tideline_runtime.settings import ServiceSettings

pytestmark = pytest.mark.real
WAIT_S = 300


class Topics:
    """The topics of one test, with one partition each, so that new records get the offsets of old ones."""

    def __init__(self, node: KafkaNode) -> None:
        self._node = node
        self.prefix = f"lost{new_uid()[:8]}."
        self.url = f"{node.url}?prefix={self.prefix}&partitions=1"
        self.clock = ShiftedClock()
        self.log: EventLog = open_event_log(self.url, clock=self.clock)
        self.log.ensure_topics()

    def remake(self, of_contract: str) -> None:
        """Delete a topic and create it again, as another process would."""
        admin = AdminClient({"bootstrap.servers": self._node.bootstrap_servers})
        (before,) = self.log.topic_ids([of_contract]).values()
        for future in admin.delete_topics([of_contract.replace("tideline.", self.prefix)], operation_timeout=30).values():
            future.result()

        def is_another() -> bool:
            self.log.ensure_topics()
            return self.log.topic_ids([of_contract]) != {of_contract: before}

        until(is_another)


def until(met: Callable[[], bool]) -> None:
    """Ask until the answer is true; the event log may be away meanwhile."""
    for attempt in tenacity.Retrying(wait=tenacity.wait_fixed(0.2), stop=tenacity.stop_after_delay(WAIT_S), reraise=True):
        with attempt:
            assert met()


@pytest.fixture
def topics(kafka_node: KafkaNode) -> Iterator[Topics]:
    made = Topics(kafka_node)
    with closing(made.log):
        yield made


def test_a_tail_of_a_topic_that_is_there_again_says_so(topics: Topics) -> None:
    """It went on at the offset where it was in the deleted topic, and never saw what the new one has before it."""
    uids = [new_uid(), new_uid()]
    with closing(topics.log.publisher("one")) as publisher, closing(topics.log.tail([TABLES.name])) as tail:
        publisher.publish(encode(table_record(uids[0], 1)))
        until(lambda: bool(tail.poll(1)))
        topics.remake(TABLES.name)
        with closing(topics.log.publisher("two")) as again:
            again.publish(encode(table_record(uids[1], 1)))
        topics.clock.advance(TAIL_EVERY_S + 1)
        with pytest.raises(EventLogUnavailable, match="deleted"):
            tail.poll(1)
    with closing(topics.log.tail([TABLES.name])) as tail:
        found = []
        until(lambda: bool(found.extend(map(decode, tail.poll(1))) or found))
    assert found == [table_record(uids[1], 1)]


def test_a_member_of_a_group_reads_a_topic_that_is_there_again_from_its_start(topics: Topics, kafka_node: KafkaNode) -> None:
    """Each new topic holds as many records as were read of the one before, so that Kafka says nothing.

    What a member commits late is the start of the next one, which then waited for ever.
    """
    uids = [new_uid() for _ in range(6)]
    found: list[object] = []
    group = f"group-{new_uid()}"

    def publish(writer_id: str, *own: str) -> None:
        with closing(topics.log.publisher(writer_id)) as publisher:
            publisher.publish(*(encode(table_record(uid, 1)) for uid in own))

    def has_read(count: int) -> bool:
        found.extend(decode(record).table.uid for record in member.poll(1))
        return len(found) >= count

    with closing(topics.log.subscribe([TABLES.name], group)) as member:
        publish("one", *uids[:2])
        until(lambda: has_read(2))
        member.commit()
        topics.remake(TABLES.name)
        publish("two", *uids[2:4])
        topics.clock.advance(TAIL_EVERY_S + 1)
        until(lambda: has_read(4))
        member.commit()
    admin = AdminClient({"bootstrap.servers": kafka_node.bootstrap_servers})
    name = f"{topics.prefix}{group}"
    (committed,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]).values()
    late = committed.result()
    topics.remake(TABLES.name)
    publish("three", *uids[4:])
    (done,) = admin.alter_consumer_group_offsets([late]).values()
    done.result()
    with closing(topics.log.subscribe([TABLES.name], group)) as member:
        until(lambda: has_read(6))
        member.commit()
    assert found == uids


def test_the_news_of_the_mirror_go_on_in_the_new_topic(topics: Topics) -> None:
    uid = new_uid()
    record = replace(table_record(uid, 7), sharing="exclusive", fleet="", health="healthy")
    place, now = record.table.base_path, topics.clock.now()
    beat = Heartbeat("", 0, 1, now, now, 600.0, 1, 0, 0, "mirror-0")
    news = News(ServiceSettings.load(environment={}, event_log=topics.url), topics.clock)
    with closing(topics.log.publisher("mirror")) as publisher:
        publisher.publish(encode(record), encode(beat))
    news.start()
    try:
        until(lambda: news.head(place, uid) == 7)
        topics.remake(TABLES.name)
        with closing(topics.log.publisher("mirror")) as publisher:
            publisher.publish(encode(replace(record, sequence=8)))
        topics.clock.advance(TAIL_EVERY_S + 1)
        until(lambda: news.head(place, uid) == 8)
    finally:
        news.stop()


@pytest.mark.parametrize("lost", [TABLES, TIMELINE], ids=["states", "transitions"])
def test_the_mirror_fills_a_topic_that_another_process_made_again(topics: Topics, tmp_path: Path, lost: object) -> None:
    """It asked only whether it created the topic itself; a lost topic of transitions was not filled at all."""
    assert lost in (TABLES, TIMELINE)
    name = TABLES.name if lost is TABLES else TIMELINE.name
    with closing(Fleet(tmp_path)) as fleet:
        fleet.clock = topics.clock
        tables = [fleet.create("one"), fleet.create("two")]
        for table in tables:
            write(table, 0)
        service, _ = fleet.service(MirrorService, MirrorSettings, "mirror", event_log=topics.url)
        service.tick()
        topics.remake(name)
        topics.clock.advance(CHECK_EVERY_S + 1)

        def is_filled() -> bool:
            service.tick()
            heads = {record.table_uid: record.sequence for record in topics.log.table_records()}
            return heads == {table.uid: 2 for table in tables}

        until(is_filled)
        expected = [1, 2, 1, 2] if lost is TABLES else [1, 2]
        for table in tables:
            assert [event.sequence for event in transitions(topics.log) if event.table_uid == table.uid] == expected


def transitions(log: EventLog) -> list[Transition]:
    """All transitions so far."""
    found: list[Transition] = []
    with closing(log.tail([TIMELINE.name])) as tail:
        deadline_s = time.monotonic() + WAIT_S
        while not tail.is_at_end():
            assert time.monotonic() < deadline_s
            found += [event for event in map(decode, tail.poll(1)) if isinstance(event, Transition)]
    return found
