"""The locks that Apache Hudi takes and ours are one: each waits while the other holds it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.conformance.peers.apache_hudi import ApacheHudi

from tideline_locks import LockTimeout, hudi_file_lock, hudi_storage_lock
from tideline_locks.hudi_cell import PEER
from tideline_locks.hudi_storage_lock import LOCK_OBJECT, lock_bytes
from tideline_locks.rules import LeaseRecord, Standing
from tideline_table.clock import ManualClock, SystemClock
from tideline_table.storage import LocalStorage, MemoryStorage


def test_file_lock_is_waited_for_in_both_directions(apache_hudi: ApacheHudi, workdir: Path) -> None:
    (workdir / ".hoodie").mkdir()
    provider = hudi_file_lock(LocalStorage(workdir), clock=SystemClock())
    assert apache_hudi.lock(workdir)
    held = provider.read("table")
    assert held is not None
    assert (held.owner, held.expired) == (PEER, False)
    with pytest.raises(LockTimeout) as caught:
        provider.acquire("table", owner="tideline", ttl_s=30, wait_s=0.3)
    assert caught.value.holder == PEER
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(provider.acquire, "table", owner="tideline", ttl_s=30, wait_s=60)
        assert not waiting.done()
        apache_hudi.unlock(workdir)
        lease = waiting.result(60)
    assert not apache_hudi.lock(workdir, wait_s=0.3)
    lease.renew()
    assert not apache_hudi.lock(workdir)
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(apache_hudi.lock, workdir, wait_s=60)
        assert lease.release()
        assert theirs.result(60)
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
    """Its client for S3 is not in Hudi's Spark bundle, so what is compared is the object that both write and read."""
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
