from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tideline_locks import (
    LeaseLost,
    LockTimeout,
    OnUnreachable,
    StaleFence,
    StorageLockProvider,
    check_lock_url,
    open_lock_provider,
)
from tideline_locks.hudi_zookeeper_lock import place_in_queue
from tideline_locks.redis import RedisLockProvider
from tideline_table.clock import ManualClock
from tideline_table.errors import InvalidOption, TidelineError, UnsupportedTable
from tideline_table.hudi.formats import format_to_create
from tideline_table.log import HudiLockKind, Sharing

CLOCK = ManualClock()


def test_storage_by_path_and_by_uri_are_one_place(tmp_path: Path) -> None:
    by_path = open_lock_provider(f"storage:{tmp_path}", clock=CLOCK)
    by_uri = open_lock_provider(f"storage:file:{tmp_path}", clock=CLOCK)
    assert isinstance(by_path, StorageLockProvider)
    assert by_path.try_acquire("trips", owner="a", ttl_s=10) is not None
    assert by_uri.try_acquire("trips", owner="b", ttl_s=10) is None
    assert [path.name for path in (tmp_path / ".hoodie/.tideline/locks/trips").iterdir()] == [f"{1:020d}.json"]


def test_memory_spaces_are_shared_by_name() -> None:
    first, same, other = (open_lock_provider(f"memory:{space}", clock=CLOCK) for space in ("test-one", "test-one", "test-two"))
    assert first.try_acquire("trips", owner="a", ttl_s=10) is not None
    assert same.try_acquire("trips", owner="b", ttl_s=10) is None
    assert other.try_acquire("trips", owner="b", ttl_s=10) is not None


def test_redis_connects_only_when_asked_for_a_lock() -> None:
    for url in ("redis://localhost:1/0", "rediss://user:secret@localhost:1/2", "redis://localhost"):
        provider = open_lock_provider(url, clock=CLOCK)
        assert isinstance(provider, RedisLockProvider)
        provider.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "storage:",
        "zookeeper://x",
        "redis:",
        "redis://:secret@host:port",
        "redis://:secret@host/zero",
        "redis://:secret@host/0?db=1",
    ],
)
def test_what_cannot_be_understood_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        open_lock_provider(url, clock=CLOCK)
    assert "secret" not in str(caught.value)
    assert "storage:" in str(caught.value)


@pytest.mark.parametrize("on_unreachable", [OnUnreachable.FAIL, OnUnreachable.STORAGE])
def test_only_redis_can_be_unreachable(on_unreachable: OnUnreachable) -> None:
    with pytest.raises(InvalidOption, match="memory:"):
        open_lock_provider("memory:", clock=CLOCK, on_unreachable=on_unreachable)


def test_unknown_storage_scheme_is_refused() -> None:
    with pytest.raises(UnsupportedTable):
        open_lock_provider("storage:ftp://bucket/x", clock=CLOCK)


@pytest.mark.parametrize(
    "error",
    [
        LockTimeout("trips", waited_s=1.5, holder="a", since=datetime(2026, 1, 1, tzinfo=UTC)),
        LockTimeout("trips", waited_s=1.5, holder=None, since=None),
        LockTimeout("trips", waited_s=1.5, holder=None, since=None, greatest=7),
        StaleFence("trips", fence=1, greatest=2),
        LeaseLost("trips", owner="a", reason="it ran out"),
    ],
)
def test_errors_cross_process_borders_whole(error: TidelineError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


@pytest.mark.parametrize("place", ["", "zk.example:2181", "zk.example:2181/trips", "zk.example/hudi/trips", "a:1/hudi/../trips"])
def test_place_of_a_lock_in_zookeeper_is_servers_base_path_and_key(place: str) -> None:
    with pytest.raises(InvalidOption, match="HOST:PORT"):
        check_lock_url(f"hudi-zookeeper://{place}")
    with pytest.raises(InvalidOption, match="HOST:PORT"):
        Sharing(HudiLockKind.ZOOKEEPER, place=place)
    check_lock_url("hudi-zookeeper://zk1.example:2181,zk2.example:2182/hudi/locks/trips")


def test_shared_table_prints_where_its_lock_in_zookeeper_is() -> None:
    sharing = Sharing(HudiLockKind.ZOOKEEPER, place="zk1.example:2181,zk2.example:2182/hudi/locks/trips")
    assert Sharing.from_json(sharing.to_json()) == sharing
    options = sharing.hudi_options(format_to_create(6))
    assert {key.removeprefix("hoodie.write.lock."): value for key, value in options.items() if ".lock." in key} == {
        "provider": "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
        "zookeeper.url": "zk1.example:2181,zk2.example:2182",
        "zookeeper.port": "2181",
        "zookeeper.base_path": "/hudi/locks",
        "zookeeper.lock_key": "trips",
    }
    with pytest.raises(InvalidOption, match="a place"):
        Sharing(HudiLockKind.STORAGE, place=sharing.place)


@pytest.mark.parametrize("place", ["", "hms.example:9083", "hms.example:9083/lake", "hms.example/lake/trips", "a:1/Lake/trips"])
def test_place_of_a_lock_in_a_metastore_is_servers_database_and_table(place: str) -> None:
    with pytest.raises(InvalidOption, match="HOST:PORT"):
        check_lock_url(f"hudi-metastore://{place}")
    with pytest.raises(InvalidOption, match="HOST:PORT"):
        Sharing(HudiLockKind.METASTORE, place=place)
    check_lock_url("hudi-metastore://hms1.example:9083,hms2.example:9083/lake/trips")


def test_shared_table_prints_where_its_lock_in_a_metastore_is() -> None:
    sharing = Sharing(HudiLockKind.METASTORE, place="hms1.example:9083,hms2.example:9083/lake/trips")
    assert Sharing.from_json(sharing.to_json()) == sharing
    options = sharing.hudi_options(format_to_create(6))
    assert {key.removeprefix("hoodie.write.lock."): value for key, value in options.items() if ".lock." in key} == {
        "provider": "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider",
        "hivemetastore.uris": "thrift://hms1.example:9083,thrift://hms2.example:9083",
        "hivemetastore.database": "lake",
        "hivemetastore.table": "trips",
        "client.num_retries": "1800",
        "client.wait_time_ms_between_retry": "200",
    }


@pytest.mark.parametrize("expire_min", [1, 10])
def test_a_job_waits_longer_than_the_lock_file_of_a_process_that_died_lasts(expire_min: int) -> None:
    """A job waited 20 s, and died if a service had been killed with the lock."""
    options = Sharing(HudiLockKind.FILE_SYSTEM, expire_min).hudi_options(format_to_create(6))
    retries = int(options["hoodie.write.lock.client.num_retries"])
    waits_s = retries * int(options["hoodie.write.lock.client.wait_time_ms_between_retry"]) / 1000
    assert waits_s > 60 * int(options["hoodie.write.lock.filesystem.expire"])


@pytest.mark.parametrize("place", ["", "eu-west-1", "eu-west-1/locks", "eu-west-1/locks/a/b", "ftp://a/eu-west-1/locks/trips"])
def test_place_of_a_lock_in_dynamodb_is_region_table_and_key(place: str) -> None:
    with pytest.raises(InvalidOption, match="REGION/TABLE/KEY"):
        check_lock_url(f"hudi-dynamodb:{place}")
    with pytest.raises(InvalidOption, match="REGION/TABLE/KEY"):
        Sharing(HudiLockKind.DYNAMODB, place=place)
    check_lock_url("hudi-dynamodb:https://dynamodb.example:8000/eu-west-1/hudi_locks/trips")


def test_shared_table_prints_where_its_lock_in_dynamodb_is() -> None:
    sharing = Sharing(HudiLockKind.DYNAMODB, place="eu-west-1/hudi_locks/trips")
    assert Sharing.from_json(sharing.to_json()) == sharing
    options = sharing.hudi_options(format_to_create(6))
    assert {key.removeprefix("hoodie.write.lock."): value for key, value in options.items() if ".lock." in key} == {
        "provider": "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider",
        "dynamodb.region": "eu-west-1",
        "dynamodb.table": "hudi_locks",
        "dynamodb.partition_key": "trips",
    }


def test_nodes_of_a_lock_in_zookeeper_are_ordered_as_curator_orders_them() -> None:
    ours, theirs = "_c_59af55f591d744a4848bcf4f79d6fa4d-lock-0000000002", "_c_f4a1-lock-9d-lock-0000000001"
    assert sorted([ours, theirs, "0000000003"], key=place_in_queue) == [theirs, ours, "0000000003"]
