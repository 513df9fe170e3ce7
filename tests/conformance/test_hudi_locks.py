"""The locks that Apache Hudi takes and ours are one: each waits while the other holds it."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.peer_lock import PeerObjectStoreLock
from tests.real.object_store import ObjectStoreServer, running_object_store

from tideline_locks import LeaseLost, LockProvider, LockTimeout, hudi_file_lock, hudi_storage_lock
from tideline_locks.hudi_cell import HUDI_OWNER
from tideline_locks.hudi_storage_lock import LOCK_OBJECT, lock_bytes
from tideline_locks.rules import LeaseRecord, Standing
from tideline_table.clock import ManualClock, SystemClock
from tideline_table.storage import LocalStorage, MemoryStorage, Storage


def test_file_lock_is_waited_for_in_both_directions(apache_hudi: ApacheHudi, workdir: Path) -> None:
    (workdir / ".hoodie").mkdir()
    provider = hudi_file_lock(LocalStorage(workdir), clock=SystemClock())
    assert apache_hudi.lock(workdir)
    held = provider.read("table")
    assert held is not None
    assert (held.owner, held.expired) == (HUDI_OWNER, False)
    with pytest.raises(LockTimeout) as caught:
        provider.acquire("table", owner="tideline", ttl_s=30, wait_s=0.3)
    assert caught.value.holder == HUDI_OWNER
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(provider.acquire, "table", owner="tideline", ttl_s=30, wait_s=60)
        assert not waiting.done()
        apache_hudi.unlock(workdir)
        lease = waiting.result()
    assert not apache_hudi.lock(workdir, wait_s=0.3)
    lease.renew()
    assert not apache_hudi.lock(workdir)
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(apache_hudi.lock, workdir, wait_s=60)
        assert lease.release()
        assert theirs.result()
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None
    apache_hudi.unlock(workdir)
    assert provider.read("table") is None


def test_hudi_takes_over_a_file_lock_that_is_not_renewed(apache_hudi: ApacheHudi, workdir: Path) -> None:
    clock = ManualClock(datetime.now(UTC) - timedelta(minutes=3))
    (workdir / ".hoodie").mkdir()
    lease = hudi_file_lock(LocalStorage(workdir), clock=clock).acquire("table", owner="dead", ttl_s=30, wait_s=0)
    assert not apache_hudi.lock(workdir, {"hoodie.write.lock.filesystem.expire": "5"})
    assert apache_hudi.lock(workdir, {"hoodie.write.lock.filesystem.expire": "2"})
    assert lease.release() is False
    assert (workdir / ".hoodie/lock").exists()
    apache_hudi.unlock(workdir)


def test_storage_lock_has_the_bytes_of_hudi(apache_hudi: ApacheHudi) -> None:
    since = datetime(2026, 11, 21, 10, tzinfo=UTC)
    record = LeaseRecord(Standing.HELD, "writer", "lease-1", 7, since, since + timedelta(seconds=30), 30.0)
    read = apache_hudi.storage_lock(lock_bytes(record).decode())
    until_ms = int(record.expires.timestamp() * 1000)
    assert (read["owner"], read["expired"], read["valid_until_ms"]) == ("lease-1", False, until_ms)
    assert json.loads(read["bytes"]) == {"expired": False, "validUntil": 1_700_000_000_000, "owner": "hudi-owner"}
    storage, clock = MemoryStorage(), ManualClock(datetime.fromtimestamp(1_699_999_999, UTC))
    storage.put(LOCK_OBJECT, read["bytes"].encode())
    provider = hudi_storage_lock(storage, clock=clock)
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None
    clock.advance(1.6)
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is not None


VALIDITY_S = 10
QUICK = {"hoodie.write.lock.storage.validity.timeout.secs": str(VALIDITY_S), "hoodie.write.lock.storage.renew.interval.secs": "1"}
"""The shortest that Hudi accepts."""
BUCKET = "tables"
COUNTER = "counter"
STEPS = 40
HAND_OVERS = int(os.environ.get("HAND_OVERS", "1"))
"""Of dead holders, of each side."""


@pytest.fixture(scope="module")
def minio() -> Iterator[ObjectStoreServer]:
    with running_object_store("minio") as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture
def both(minio: ObjectStoreServer, apache_hudi: ApacheHudi) -> tuple[LockProvider, PeerObjectStoreLock, Storage]:
    """The lock of one table in a real object store, by our adapter and by Hudi's storage based provider."""
    name = f"table-{uuid.uuid4()}"
    storage = minio.storage(BUCKET, name)
    return (
        hudi_storage_lock(storage, clock=SystemClock(), validity_s=VALIDITY_S),
        apache_hudi.object_store_lock(f"s3://{BUCKET}/{name}", minio.settings, QUICK),
        storage,
    )


def test_object_store_lock_is_waited_for_in_both_directions(both: tuple[LockProvider, PeerObjectStoreLock, Storage]) -> None:
    provider, hudi, _ = both
    assert hudi.take()
    held = provider.read("table")
    assert held is not None
    assert (held.owner, held.expired) == (HUDI_OWNER, False)
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(provider.acquire, "table", owner="tideline", ttl_s=30, wait_s=60)
        assert not waiting.done()
        hudi.give_back()
        lease = waiting.result()
    assert not hudi.take(wait_s=0.3)
    lease.renew()
    assert not hudi.take()
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(hudi.take, wait_s=60)
        assert lease.release()
        assert theirs.result()
    assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None
    hudi.give_back()
    again = provider.acquire("table", owner="tideline", ttl_s=30, wait_s=0)
    assert again.release()


def test_an_object_store_lock_that_hudi_renews_stays_its_own(both: tuple[LockProvider, PeerObjectStoreLock, Storage]) -> None:
    """Then Hudi stands still: whichever process waits has the lock once it is no longer valid, and Hudi stops its writer."""
    provider, hudi, _ = both
    assert hudi.take()
    with pytest.raises(LockTimeout):
        provider.acquire("table", owner="tideline", ttl_s=30, wait_s=VALIDITY_S + 2)
    assert not hudi.interrupted()
    for _ in range(HAND_OVERS):
        hudi.cut_off()
        lease = provider.acquire("table", owner="tideline", ttl_s=120, wait_s=6 * VALIDITY_S)
        hudi.cut_off(False)
        deadline = time.monotonic() + 6 * VALIDITY_S
        while not (stopped := hudi.interrupted()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert stopped, "its heartbeats find that the lock is another's, and stop who took it"
        assert not hudi.take()
        lease.renew()
        assert lease.release()
        assert hudi.take()
    hudi.give_back()


def test_hudi_takes_over_an_object_store_lock_that_is_not_renewed(both: tuple[LockProvider, PeerObjectStoreLock, Storage]) -> None:
    provider, hudi, _ = both
    lasting = provider.acquire("table", owner="alive", ttl_s=60, wait_s=0)
    assert not hudi.take()
    assert lasting.release()
    for _ in range(HAND_OVERS):
        began_s = time.monotonic()
        lease = provider.acquire("table", owner="dead", ttl_s=2, wait_s=0)
        assert hudi.take(wait_s=60)
        assert time.monotonic() - began_s > 2, "Hudi waited until it was no longer valid"
        with pytest.raises(LeaseLost):
            lease.renew()
        assert lease.release() is False
        assert provider.try_acquire("table", owner="tideline", ttl_s=30) is None, "it is Hudi's still"
        hudi.give_back()


def test_one_holder_at_a_time_of_an_object_store_lock(both: tuple[LockProvider, PeerObjectStoreLock, Storage]) -> None:
    """Both read and replace a number in turn, without conditions: two holders at once would lose a step."""
    provider, hudi, storage = both
    storage.put(COUNTER, b"0")
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(hudi.count, STEPS, COUNTER, wait_s=90)
        for _ in range(STEPS):
            lease = provider.acquire("table", owner="tideline", ttl_s=30, wait_s=60)
            storage.put(COUNTER, str(int(storage.read(COUNTER)) + 1).encode())
            assert lease.release()
        assert theirs.result() == STEPS
    assert int(storage.read(COUNTER)) == 2 * STEPS
