"""Settings of topics and formats of values, on the embedded log and on Kafka; with a real schema registry."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.contract.events.conftest import Deployment
from tests.contract.events.samples import hint, new_uid, table_record, transitions
from tests.real.kafka import KafkaNode
from tests.real.schema_registry import RegistryServer, running_registry

from tideline_events import (
    DECISIONS,
    HINTS,
    TIMELINE,
    TOPICS,
    DeadLetter,
    EventConsumer,
    Record,
    SchemaRefused,
    SchemaRegistryUnavailable,
    decode,
    encode,
    open_event_log,
    read_envelope,
)
from tideline_events.schema import revisions
from tideline_events.wire import AVRO, JSON, REGISTERED


@pytest.fixture
def client(registry: RegistryServer) -> Iterator[SchemaRegistryClient]:
    with closing(SchemaRegistryClient({"url": registry.url})) as opened:
        yield opened


def publish(url: str, uid: str, first: int, last: int) -> None:
    with closing(open_event_log(url)) as log:
        log.ensure_topics()
        with closing(log.publisher(f"shard-{uid}")) as publisher:
            publisher.publish_transitions(uid, transitions(uid, first, last), table_record(uid, last))


def test_a_topic_changes_its_format_while_it_is_read(among_processes: Deployment) -> None:
    uid = new_uid()
    subscription = among_processes.subscription([TIMELINE.name], from_beginning=False)
    for sequence, query in enumerate(("", "?format=json", "?format=avro"), start=1):
        publish(f"{among_processes.url}{query}", uid, sequence, sequence)
    records = among_processes.drain(subscription, uid, 3)
    assert [decode(record) for record in records] == transitions(uid, 1, 3)
    assert [read_envelope(record).content_type for record in records] == [AVRO, JSON, AVRO]
    value = json.loads(records[1].value or b"")
    assert (value["table"]["uid"], value["sequence"]) == (uid, 2)
    assert among_processes.log().cursor(uid) == table_record(uid, 3)


def test_the_state_of_a_table_is_read_from_json(among_processes: Deployment) -> None:
    uid = new_uid()
    publish(f"{among_processes.url}?format=json", uid, 1, 2)
    assert among_processes.log().cursor(uid) == table_record(uid, 2)


@pytest.mark.real
def test_deployments_with_different_prefixes_do_not_see_each_other(kafka_node: KafkaNode) -> None:
    """They have the same writer id, the same group and the same table."""
    uid, group = new_uid(), f"group-{new_uid()}"
    urls = [f"{kafka_node.url}?prefix={prefix}&partitions=2&replication=1&retention_hours=5" for prefix in ("acme.", "emca-")]
    logs = [open_event_log(url) for url in urls]
    assert [log.ensure_topics() for log in logs] == [{topic.name for topic in TOPICS}] * 2
    publishers = [log.publisher("shard") for log in logs]
    consumers = [EventConsumer(log, group, backfill=lambda *_: [], member="member") for log in logs]
    for count, publisher in enumerate(publishers, start=1):
        publisher.publish_transitions(uid, transitions(uid, 1, count), table_record(uid, count))
    for count, (log, consumer) in enumerate(zip(logs, consumers, strict=True), start=1):
        found: list[object] = []
        while len(found) < count:
            found += consumer.poll(30)
        consumer.commit()
        assert found == transitions(uid, 1, count)
        assert consumer.poll(0) == []
        assert log.cursor(uid) == table_record(uid, count)
        assert log.positions(group) == {uid: count}
    for opened in (*consumers, *publishers):
        opened.close()
    admin = AdminClient({"bootstrap.servers": kafka_node.bootstrap_servers})
    assert len(admin.list_topics("acme.timeline", timeout=10).topics["acme.timeline"].partitions) == 2
    resources = [ConfigResource(ResourceType.TOPIC, f"acme.{name}") for name in ("timeline", "hints")]
    kept = [future.result()["retention.ms"].value for future in admin.describe_configs(resources).values()]
    assert kept == [str(5 * 3_600_000), str(HINTS.retention_s * 1000)]


@pytest.mark.real
def test_another_reader_reads_what_is_published_with_a_registry(
    registry: RegistryServer, client: SchemaRegistryClient, kafka_node: KafkaNode
) -> None:
    """Confluent's deserializer, which knows nothing of Tideline."""
    uid = new_uid()
    publish(f"{kafka_node.url}?prefix=registered.&registry={registry.url}", uid, 1, 2)
    options = {"bootstrap.servers": kafka_node.bootstrap_servers, "group.id": uid, "auto.offset.reset": "earliest"}
    with closing(Consumer(options)) as consumer:
        consumer.subscribe(["registered.timeline"])
        (message, _) = consumer.consume(2, timeout=300)
    fields = AvroDeserializer(client)(message.value(), SerializationContext("registered.timeline", MessageField.VALUE))
    assert fields is not None
    assert (fields["table"]["uid"], fields["sequence"], fields["time"]) == (uid, 1, transitions(uid, 1, 1)[0].time)
    location = dict(message.headers())["ce_dataschema"].decode()
    with urllib.request.urlopen(location) as answer:
        registered = json.loads(json.load(answer)["schema"])
    assert registered == json.loads(revisions("tideline.timeline.transition.v1")[-1].source)
    subject = "registered.timeline-tideline.timeline.v1.Transition"
    assert client.get_config(subject).compatibility_level == "FULL_TRANSITIVE"
    assert {subject, f"registered.{DECISIONS.name.partition('.')[2]}-tideline.decisions.v1.FindingEvent"} <= set(
        client.get_subjects()
    )


@pytest.mark.real
def test_known_ids_outlive_the_registry(among_processes: Deployment, tmp_path: Path) -> None:
    uid = new_uid()
    subscription = among_processes.subscription([TIMELINE.name], from_beginning=False)
    with running_registry(tmp_path / "registry") as server:
        url = f"{among_processes.url}?registry={server.url}"
        log = among_processes.stack.enter_context(closing(open_event_log(url)))
        log.ensure_topics()
        publisher = among_processes.stack.enter_context(closing(log.publisher(f"shard-{uid}")))
        publisher.publish_transitions(uid, transitions(uid, 1, 1), table_record(uid, 1))
        server.stop()
        publisher.publish_transitions(uid, transitions(uid, 2, 2), table_record(uid, 2))
        publisher.publish(encode(hint(uid)))
        assert log.ensure_topics() == frozenset()
        with closing(open_event_log(url)) as late, pytest.raises(SchemaRegistryUnavailable):
            late.ensure_topics()
    records = among_processes.drain(subscription, uid, 2)
    assert [decode(record) for record in records] == transitions(uid, 1, 2)
    assert {read_envelope(record).content_type for record in records} == {REGISTERED}
    assert among_processes.log().cursor(uid) == table_record(uid, 2)


@pytest.mark.real
def test_a_subject_that_another_program_took_is_refused(
    registry: RegistryServer, client: SchemaRegistryClient, kafka_node: KafkaNode
) -> None:
    other = {"type": "record", "name": "Transition", "namespace": "tideline.timeline.v1", "fields": [{"name": "a", "type": "int"}]}
    subject = "taken.timeline-tideline.timeline.v1.Transition"
    client.register_schema(subject, Schema(json.dumps(other), "AVRO"))
    client.set_compatibility(subject, "FULL_TRANSITIVE")
    url = f"{kafka_node.url}?prefix=taken.&registry={registry.url}"
    with closing(open_event_log(url)) as log, pytest.raises(SchemaRefused, match=r"taken\.timeline"):
        log.ensure_topics()


def test_bytes_and_headers_survive_json(embedded: Deployment) -> None:
    letter = DeadLetter(
        "t", 1, 2, "g", "why", hint(new_uid()).time, b"\xff\0", b"\x80value", False, (("h", b"\xfe"), ("none", None))
    )
    with closing(open_event_log(f"{embedded.url}?format=json").publisher("g")) as publisher:
        publisher.publish(encode(letter))
    (record,) = embedded.subscription(["tideline.dead-letter"]).poll(1)
    assert decode(record) == letter
    assert isinstance(record, Record)
    assert urlsplit(read_envelope(record).dataschema).scheme == "urn"
