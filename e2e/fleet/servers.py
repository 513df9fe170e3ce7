"""Kafka, Redis and an object store as processes of this machine, at the address where pods reach it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import boto3
from confluent_kafka.admin import AdminClient, NewTopic
from tests.real.kafka import KafkaFailed, KafkaNode, running_kafka
from tests.real.object_store import ObjectStoreFailed, ObjectStoreServer, running_object_store
from tests.real.redis import RedisServer, running_redis

from e2e.cluster.errors import ClusterError

LAKE, INCOMING = "lake", "incoming"
"""Buckets: of the tables, and of the rows that writers read."""


@dataclass(frozen=True)
class Servers:
    """The running servers."""

    kafka: KafkaNode
    redis: RedisServer
    store: ObjectStoreServer

    @property
    def redis_address(self) -> str:
        """Host and port."""
        return f"{self.redis.host}:{self.redis.port}"


@contextmanager
def running_servers(address: str, folder: Path, store: str, *, notifies: str = "") -> Iterator[Servers]:
    """Run the servers at `address` inside the `with` block, with both buckets. Raises ClusterError if one cannot be had.

    `notifies`: a topic of Kafka to which MinIO sends a notification of each object that is created in the bucket of the tables.
    """
    with ExitStack() as stack:
        try:
            kafka = stack.enter_context(running_kafka(folder / "kafka", address))
            with patch.dict(os.environ, _target(kafka, notifies) if notifies else {}):
                running = Servers(
                    kafka, stack.enter_context(running_redis(address)), stack.enter_context(running_object_store(store, address))
                )
        except (KafkaFailed, ObjectStoreFailed, RuntimeError) as error:
            raise ClusterError(f"a server did not start: {error}") from error
        for bucket in (LAKE, INCOMING):
            running.store.make_bucket(bucket)
        if notifies:
            _notify(running.store)
        yield running


def _target(kafka: KafkaNode, topic: str) -> dict[str, str]:
    """Make the topic, and return the variables by which MinIO sends to it."""
    (made,) = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).create_topics([NewTopic(topic, 2, 1)]).values()
    made.result()
    values = {"ENABLE": "on", "BROKERS": kafka.bootstrap_servers, "TOPIC": topic}
    return {f"MINIO_NOTIFY_KAFKA_{key}_LAKE": value for key, value in values.items()}


def _notify(store: ObjectStoreServer) -> None:
    given = store.settings
    client = boto3.client(
        "s3",
        endpoint_url=given["AWS_ENDPOINT_URL"],
        aws_access_key_id=given["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
        region_name=given["AWS_REGION"],
    )
    told = {"QueueArn": "arn:minio:sqs::LAKE:kafka", "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
    client.put_bucket_notification_configuration(Bucket=LAKE, NotificationConfiguration={"QueueConfigurations": [told]})
