"""Shards by lease on a real Redis and in a real object store: instances with connections and threads of their own."""

from __future__ import annotations

import pytest
import redis
from tests.contract.locks.conftest import BUCKET, wait_until
from tests.real.object_store import ObjectStoreServer
from tests.real.redis import RedisServer

from tideline_locks import open_lock_provider
from tideline_runtime.metrics import Metrics
from tideline_runtime.shard_leases import LeasedShards
from tideline_table.clock import SystemClock

pytestmark = pytest.mark.real

COUNT, TTL_S = 6, 6.0


@pytest.fixture(params=["redis", "minio"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "minio":
        server: ObjectStoreServer = request.getfixturevalue("object_store")
        for name, value in {**server.settings, "AWS_ALLOW_HTTP": "true"}.items():
            monkeypatch.setenv(name, value)
        return f"storage:s3://{BUCKET}/shard-leases"
    found: RedisServer = request.getfixturevalue("shared_redis")
    with redis.Redis.from_url(found.url) as client:
        client.flushall()
    return found.url


def instance(url: str, name: str, *, renews: bool = True) -> LeasedShards:
    clock = SystemClock()
    return LeasedShards(
        open_lock_provider(url, clock=clock),
        clock,
        group="fleet.example:mirror",
        count=COUNT,
        instance=name,
        ttl_s=TTL_S,
        metrics=Metrics(name),
        renews=renews,
    )


def is_divided(*instances: LeasedShards) -> bool:
    for shards in instances:
        shards.balance()
    held = [shards.held() for shards in instances]
    assert len({shard for own in held for shard in own}) == sum(map(len, held))
    parts = [len(own) for own in held]
    return sum(parts) == COUNT and max(parts) - min(parts) <= 1


def test_instances_join_leave_and_die(url: str) -> None:
    first, second = instance(url, "first"), instance(url, "second")
    # Nothing renews the third one: it is as if its process died after its last tick.
    third = instance(url, "third", renews=False)
    wait_until(lambda: is_divided(first))
    wait_until(lambda: is_divided(first, second))
    wait_until(lambda: is_divided(first, second, third))
    assert len(third.held()) == 2
    wait_until(lambda: is_divided(first, second))
    assert third.held() == ()
    first.close()
    wait_until(lambda: is_divided(second))
    second.close()
    third.close()
