"""A MinIO that sends a notification of each object that is made or deleted in a bucket to a topic of Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import boto3
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # its public names are not marked as exported
from tests.real.kafka import KafkaNode
from tests.real.object_store import LOOPBACK, ObjectStoreServer, running_object_store

TOPIC = "notifications"


@contextmanager
def running_notifying_store(kafka: KafkaNode, bucket: str, host: str = LOOPBACK) -> Iterator[ObjectStoreServer]:
    """Run the store inside the `with` block, with the bucket, of which it tells in `TOPIC`."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})  # without a name, it would end before its answer
    (made,) = admin.create_topics([NewTopic(TOPIC, 2, 1)]).values()
    made.result()
    target = {"ENABLE": "on", "BROKERS": kafka.bootstrap_servers, "TOPIC": TOPIC}
    with (
        patch.dict(os.environ, {f"MINIO_NOTIFY_KAFKA_{key}_LAKE": value for key, value in target.items()}),
        running_object_store("minio", host) as store,
    ):
        store.make_bucket(bucket)
        given = store.settings
        client = boto3.client(
            "s3",
            endpoint_url=given["AWS_ENDPOINT_URL"],
            aws_access_key_id=given["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
            region_name=given["AWS_REGION"],
        )
        told = {"QueueArn": "arn:minio:sqs::LAKE:kafka", "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
        client.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [told]})
        yield store
