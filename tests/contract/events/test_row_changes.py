"""`tideline-changes` on a real Kafka: chunks of a commit, a second instance, a deleted topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import tenacity
from confluent_kafka.admin import AdminClient, NewTopic
from tests.contract.events.samples import new_uid
from tests.real.kafka import KafkaNode
from tests.unit.changes.conftest import Changes
from tests.unit.changes.conftest import settle as settle_once
from tests.unit.changes.test_row_changes import upsert

from tideline_changes.streaming import ChangesService
from tideline_changes.topics import CHECK_EVERY_S
from tideline_events import EventLogUnavailable, PublisherFenced
from tideline_table.table import TableType

pytestmark = pytest.mark.real


@pytest.fixture
def prefix() -> str:
    return f"{new_uid()}."


@pytest.fixture
def fleet(kafka_node: KafkaNode, prefix: str, tmp_path: Path) -> Iterator[Changes]:
    with closing(Changes(tmp_path, f"{kafka_node.url}?prefix={prefix}&partitions=4")) as made:
        yield made


def settle(service: ChangesService) -> None:
    """A broker may refuse what concerns a topic that it has just created: services try again."""
    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(EventLogUnavailable),
        wait=tenacity.wait_fixed(0.05),
        stop=tenacity.stop_after_delay(300),
        reraise=True,
    )
    again(settle_once, service)


def test_the_topic_equals_the_table(fleet: Changes) -> None:
    table = fleet.create(type=TableType.MOR)
    upsert(table, 0, 10)
    service = fleet.run(batch_rows=3)
    settle(service)
    assert fleet.check(table).ops == ["t"] + ["r"] * 10
    upsert(table, 5, 10, fare=2.0)
    settle(service)
    fleet.check(table)
    newer = fleet.run(batch_rows=3)
    settle(newer)
    upsert(table, 0, 10, fare=3.0)
    with pytest.raises(PublisherFenced):
        settle(service)
    settle(newer)
    replica = fleet.check(table)
    assert replica.truncations == 1
    assert len(set(replica.places)) == len(replica.places), "none twice"


def deleted(kafka_node: KafkaNode, topic: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": kafka_node.url.removeprefix("kafka://")})
    for future in admin.delete_topics([topic]).values():
        future.result()
    # The broker names a topic for a moment after it deleted it.
    tenacity.Retrying(retry=tenacity.retry_if_result(bool), wait=tenacity.wait_fixed(0.05), stop=tenacity.stop_after_delay(300))(
        lambda: topic in admin.list_topics(timeout=10).topics
    )
    return admin


def test_a_deleted_topic_begins_anew(fleet: Changes, kafka_node: KafkaNode, prefix: str) -> None:
    """Also if somebody else, or a service that died before it published anything, created it again."""
    table = fleet.create()
    upsert(table, 0)
    service = fleet.run()
    settle(service)
    topic = f"{prefix}changes.trips"
    deleted(kafka_node, topic)
    fleet.clock.advance(CHECK_EVERY_S)
    settle(service)
    assert fleet.check(table).ops == ["t", *"rrrrr"]
    for is_running in (True, False):
        if not is_running:
            fleet.stop(service)
        admin = deleted(kafka_node, topic)
        for future in admin.create_topics([NewTopic(topic, 1)]).values():
            future.result()
        if is_running:
            fleet.clock.advance(CHECK_EVERY_S)
        else:
            service = fleet.run()
        upsert(table, 3)
        settle(service)
        assert fleet.check(table).ops == ["t", *"rrrrrrrr"]
