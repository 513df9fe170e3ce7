"""Kafka, Redis and an object store as processes of this machine, at the address where pods reach it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.real.kafka import KafkaFailed, KafkaNode, running_kafka
from tests.real.notifications import running_notifying_store
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
def running_servers(address: str, folder: Path, store: str, *, notifies: bool = False) -> Iterator[Servers]:
    """Run the servers at `address` inside the `with` block, with both buckets. Raises ClusterError if one cannot be had.

    `notifies`: the store is a MinIO that tells a topic of Kafka of the objects in the bucket of the tables.
    """
    with ExitStack() as stack:
        try:
            kafka = stack.enter_context(running_kafka(folder / "kafka", address))
            redis = stack.enter_context(running_redis(address))
            opened = running_notifying_store(kafka, LAKE, address) if notifies else running_object_store(store, address)
            running = Servers(kafka, redis, stack.enter_context(opened))
        except (KafkaFailed, ObjectStoreFailed, RuntimeError) as error:
            raise ClusterError(f"a server did not start: {error}") from error
        for bucket in (INCOMING,) if notifies else (LAKE, INCOMING):
            running.store.make_bucket(bucket)
        yield running
