"""What only Kafka has: partitions, shared groups, other people's transactions, brokers that die."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import tenacity
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.contract.events.conftest import AGAIN, PARTITION_COUNT, Deployment
from tests.contract.events.samples import hint, new_uid, table_record, transition, transitions
from tests.real.kafka import KafkaNode, running_kafka

from tideline_events import (
    HINTS,
    TABLES,
    TIMELINE,
    TOPICS,
    EventConsumer,
    EventLogUnavailable,
    PublisherFenced,
    PublishUnknown,
    Record,
    Subscription,
    TopicMismatch,
    Transition,
    decode,
    encode,
    kafka_subscription,
    open_event_log,
)
from tideline_events.kafka import KafkaEventLog, KafkaSettings
from tideline_events.partitioner import partition_of
from tideline_table.clock import SystemClock

pytestmark = pytest.mark.real


NAMED_MEMBER = """
import time
reader = log.subscribe([TIMELINE.name], sys.argv[2], member="named")
while not reader.generation:
    reader.poll(0.2)
print("reads", flush=True)
time.sleep(600)
"""


def test_partitions_of_a_member_that_dies_while_they_are_divided_find_a_reader(
    on_kafka: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back to the others by its name; those that it had to give up stayed without a reader."""
    monkeypatch.setattr(kafka_subscription, "CHECK_EVERY_S", 1.0)
    group, log = f"group-{new_uid()}", on_kafka.log()
    assert isinstance(log, KafkaEventLog)

    def read_by_all() -> int:
        return len(set().union(*log._readers(group).values()))

    def poll_until(condition: Callable[[], bool], *readers: Subscription) -> None:
        deadline_s = on_kafka.clock.monotonic_s() + 120
        while not condition():
            assert on_kafka.clock.monotonic_s() < deadline_s, log._readers(group)
            for reader in readers:
                reader.poll(0.2)

    named = on_kafka.spawn(NAMED_MEMBER, group)
    assert named.stdout is not None
    assert named.stdout.readline() == "reads\n"
    other = on_kafka.subscription([TIMELINE.name], group)
    poll_until(lambda: 0 < read_by_all() < PARTITION_COUNT, other)
    named.kill()
    named.communicate()
    with closing(log.subscribe([TIMELINE.name], group, member="named")) as again:
        poll_until(lambda: again.generation > 0 and other.generation > 0 and read_by_all() == PARTITION_COUNT, again, other)


def test_partitions_agree_with_javas(on_kafka: Deployment) -> None:
    uids = [new_uid() for _ in range(200)]
    subscription = on_kafka.subscription([HINTS.name], from_beginning=False)
    on_kafka.publisher(f"shard-{uids[0]}").publish(*(encode(hint(uid)) for uid in uids))
    records: list[Record] = []
    while len(records) < len(uids):
        polled = subscription.poll(30)
        assert polled
        records += [record for record in polled if record.key is not None and record.key.decode() in uids]
    assert {record.key: record.partition for record in records} == {
        uid.encode(): partition_of(uid.encode(), PARTITION_COUNT) for uid in uids
    }
    assert len({record.partition for record in records}) == PARTITION_COUNT


def test_members_of_a_group_share_the_partitions(on_kafka: Deployment) -> None:
    group, shard = f"group-{new_uid()}", f"shard-{new_uid()}"
    members = [on_kafka.subscription([HINTS.name], group, from_beginning=False) for _ in range(2)]
    publisher = on_kafka.publisher(shard)
    deadline_s = on_kafka.clock.monotonic_s() + 60
    while True:
        assert on_kafka.clock.monotonic_s() < deadline_s, "one member got everything"
        uids = {new_uid().encode() for _ in range(40)}
        publisher.publish(*(encode(hint(uid.decode())) for uid in uids))
        got: list[set[bytes | None]] = [set(), set()]
        while not uids <= got[0] | got[1]:
            assert on_kafka.clock.monotonic_s() < deadline_s, "a record reached nobody"
            for member, keys in zip(members, got, strict=True):
                keys |= {record.key for record in member.poll(0.2)} & uids
        if got[0] and got[1] and not got[0] & got[1]:
            break
    for member in members:
        member.commit()
    # Everything is committed, by whichever process has the partition now.
    for member in members:
        member.close()
    assert on_kafka.subscription([HINTS.name], group).poll(3) == []


def test_a_cursor_behind_somebody_elses_open_transaction_is_not_missed(on_kafka: Deployment) -> None:
    uid = new_uid()
    blocker = Producer(
        {
            "bootstrap.servers": on_kafka.url.removeprefix("kafka://"),
            "transactional.id": f"blocker-{uid}",
            "transaction.timeout.ms": 3000,
            "partitioner": "murmur2_random",
        }
    )
    blocker.init_transactions(30)
    blocker.begin_transaction()
    blocker.produce(TABLES.name, key=uid.encode(), value=b"never committed")
    assert blocker.flush(30) == 0
    on_kafka.publisher(f"shard-{uid}").publish_transitions(uid, [transition(uid, 5)], table_record(uid, 5))
    assert on_kafka.log().cursor(uid) == table_record(uid, 5)


def test_a_transaction_that_the_broker_timed_out_is_not_continued(kafka_node: KafkaNode) -> None:
    uid = new_uid()
    settings = KafkaSettings(kafka_node.bootstrap_servers, transaction_timeout_s=2)
    log = KafkaEventLog(settings, SystemClock())
    publisher = log.publisher(f"slow-{uid}")
    commit = publisher._commit

    def late_commit() -> None:
        publisher._producer.flush(30)
        # Until the broker has ended the transaction nobody reads beyond it: the cursor comes back when it has.
        assert log.cursor(uid) is None
        commit()

    publisher._commit = late_commit  # type: ignore[method-assign]
    with pytest.raises(PublisherFenced):
        publisher.publish_transitions(uid, [transition(uid, 0)], table_record(uid, 0))
    assert log.cursor(uid) is None


def test_topics_have_the_settings_of_the_contract(on_kafka: Deployment) -> None:
    admin = AdminClient({"bootstrap.servers": on_kafka.url.removeprefix("kafka://")})
    names = [TIMELINE.name, TABLES.name, HINTS.name]
    answers = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
    found = {resource.name: future.result() for resource, future in answers.items()}
    assert found[TABLES.name]["cleanup.policy"].value == "compact"
    assert found[TIMELINE.name]["cleanup.policy"].value == "delete"
    assert found[HINTS.name]["retention.ms"].value == str(HINTS.retention_s * 1000)
    assert {len(admin.list_topics(name, timeout=10).topics[name].partitions) for name in names} == {PARTITION_COUNT}


def test_a_cursor_topic_that_is_not_compacted_is_refused(kafka_node: KafkaNode) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_node.bootstrap_servers})

    def alter(policy: str) -> None:
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        for future in admin.incremental_alter_configs(
            [ConfigResource(ResourceType.TOPIC, TABLES.name, incremental_configs=[entry])]
        ).values():
            future.result()

    log = open_event_log(kafka_node.url)
    alter("delete")
    try:
        with pytest.raises(TopicMismatch, match=TABLES.name):
            log.ensure_topics()
    finally:
        alter("compact")
    log.ensure_topics()


def test_a_deleted_topic_is_created_again_and_named(tmp_path: Path) -> None:
    """It was created at the start of a process only."""
    uid = new_uid()
    with running_kafka(tmp_path / "kafka") as node:
        log = KafkaEventLog(KafkaSettings(node.bootstrap_servers, partition_count=2), SystemClock())
        assert log.ensure_topics() == {topic.name for topic in TOPICS}
        assert log.ensure_topics() == frozenset()
        with closing(log.publisher(f"shard-{uid}")) as publisher:
            publisher.publish_transitions(uid, transitions(uid, 1, 2), table_record(uid, 2))
            admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
            for future in admin.delete_topics([TABLES.name], operation_timeout=30).values():
                future.result()
            created: frozenset[str] = frozenset()
            for attempt in tenacity.Retrying(wait=tenacity.wait_fixed(0.2), stop=tenacity.stop_after_delay(300)):
                with attempt:
                    # The broker may still know the topic for a moment.
                    created = created | log.ensure_topics()
                    assert created == {TABLES.name}
            assert log.cursor(uid) is None
            for attempt in tenacity.Retrying(wait=tenacity.wait_fixed(0.2), stop=tenacity.stop_after_delay(300)):
                with attempt:
                    publisher.publish_transitions(uid, transitions(uid, 1, 2), table_record(uid, 2))
            assert log.cursor(uid) == table_record(uid, 2)


def test_a_killed_broker_loses_nothing_that_was_published(tmp_path: Path) -> None:
    uid, shard = new_uid(), f"shard-{new_uid()}"
    with running_kafka(tmp_path / "kafka") as node:
        settings = KafkaSettings(node.bootstrap_servers, partition_count=2, transaction_timeout_s=5)
        log = KafkaEventLog(settings, SystemClock())
        hasty = KafkaEventLog(replace(settings, timeout_s=3), SystemClock())
        with pytest.raises(EventLogUnavailable, match=r"no topic|tideline\.tables"):
            log.cursor(uid)
        log.ensure_topics()
        with closing(AGAIN(log.subscribe, [TIMELINE.name], "group")) as subscription:
            publisher = log.publisher(shard)
            publisher.publish_transitions(uid, transitions(uid, 0, 2), table_record(uid, 2))
            assert len(subscription.poll(30)) > 0
            node.kill()
            publisher._timeout_s = 3.0
            with pytest.raises((EventLogUnavailable, PublishUnknown)):
                publisher.publish_transitions(uid, transitions(uid, 3, 4), table_record(uid, 4))
            assert subscription.poll(1.0) == []
            with pytest.raises(EventLogUnavailable):
                hasty.cursor(uid)
            node.start()
            with closing(KafkaEventLog(KafkaSettings(node.bootstrap_servers), SystemClock()).publisher(shard)) as successor:
                recovered = log.cursor(uid)
                # The publication that was cut off is there as a whole or not at all.
                assert recovered in {table_record(uid, 2), table_record(uid, 4)}
                assert recovered is not None
                successor.publish_transitions(uid, transitions(uid, recovered.sequence + 1, 5), table_record(uid, 5))
        with closing(log.subscribe([TIMELINE.name], "another")) as fresh:
            found: list[int] = []
            while len(found) < 6:
                records = fresh.poll(60)
                assert records, found
                found += [decode(record).sequence for record in records]
    assert found == [0, 1, 2, 3, 4, 5]


def test_members_that_are_killed_and_replaced_deliver_everything_and_nothing_committed_twice(on_kafka: Deployment) -> None:
    """The second member fenced the dead-letter publisher of the first; a rebalance delivered again what was committed."""
    group, uids = f"group-{new_uid()}", [new_uid() for _ in range(8)]
    logs = {uid: transitions(uid, 1, 60) for uid in uids}
    publisher, log = on_kafka.publisher(f"shard-{uids[0]}"), on_kafka.log()
    received: dict[str, list[int]] = {uid: [] for uid in uids}

    def member(name: str) -> EventConsumer:
        return EventConsumer(
            on_kafka.log(), group, backfill=lambda table, first, last: logs[table.uid][first - 1 : last], member=name
        )

    def read(consumer: EventConsumer) -> None:
        # A commit that a rebalance makes void is no commit: what was delivered before it comes again. So ask the event log.
        committed = log.positions(group)
        for event in consumer.poll(0.2):
            if isinstance(event, Transition) and event.table_uid in logs:
                assert event.sequence > committed.get(event.table_uid, 0), f"{event.table_uid}: {committed} delivered again"
                received[event.table_uid].append(event.sequence)
        consumer.commit()

    members = [member("a"), member("b")]
    deadline_s = on_kafka.clock.monotonic_s() + 120
    for upto in range(20, 61, 20):
        for uid in uids:
            publisher.publish_transitions(uid, logs[uid][upto - 20 : upto], table_record(uid, upto))
        while any(len(set(sequences)) < upto for sequences in received.values()):
            assert on_kafka.clock.monotonic_s() < deadline_s, {uid: len(set(found)) for uid, found in received.items()}
            for consumer in members:
                read(consumer)
        # The second member ends and comes back, so that partitions move to the other one and return.
        members.pop().close()
        members.append(member("b" if upto == 20 else f"c-{upto}"))
    for consumer in members:
        consumer.close()
    assert all(sorted(set(sequences)) == [*range(1, 61)] for sequences in received.values())
