"""Steps of a table on MinIO, told by MinIO through a topic of Kafka."""

from __future__ import annotations

from contextlib import closing

import boto3
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.contract.events.samples import new_uid
from tests.real.kafka import KafkaNode
from tests.real.object_store import running_object_store

import tideline
from tideline_mirror.notification_source import open_source
from tideline_mirror.object_messages import changed_objects, table_of

POLLS = 60


@pytest.mark.real
@pytest.mark.parametrize("name", ["trips", "city tours+more"])
def test_minio_tells_of_the_steps_of_a_table(kafka_node: KafkaNode, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    topic = f"notifications-{new_uid()}"
    admin = AdminClient({"bootstrap.servers": kafka_node.bootstrap_servers})
    (created,) = admin.create_topics([NewTopic(topic, 2, 1)]).values()
    created.result()
    for key, value in {"ENABLE": "on", "BROKERS": kafka_node.bootstrap_servers, "TOPIC": topic}.items():
        monkeypatch.setenv(f"MINIO_NOTIFY_KAFKA_{key}_LAKE", value)
    with (
        running_object_store("minio") as store,
        closing(open_source(f"kafka://{kafka_node.bootstrap_servers}/{topic}", {})) as source,
    ):
        for key, value in store.settings.items():
            monkeypatch.setenv(key, value)
        store.make_bucket("lake")
        boto3.client("s3").put_bucket_notification_configuration(
            Bucket="lake",
            NotificationConfiguration={
                "QueueConfigurations": [{"QueueArn": "arn:minio:sqs::LAKE:kafka", "Events": ["s3:ObjectCreated:*"]}]
            },
        )
        table = tideline.create(f"s3://lake/sales/{name}", schema=pa.schema([("id", pa.int64())]), key=["id"])
        written = table.upsert(pa.table({"id": [1]}))
        told: set[tuple[str, str] | None] = set()
        wanted = (f"s3://lake/sales/{name}", f"{written.instant}.commit")
        for _ in range(POLLS):
            told |= {table_of(place) for message in source.receive(1) for place in changed_objects(message)}
            if wanted in told:
                break
        assert wanted in told
        assert {found[0] for found in told if found is not None} == {wanted[0]}
