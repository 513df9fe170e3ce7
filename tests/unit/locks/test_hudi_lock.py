"""Hudi's locks as our adapters find them: held, left behind, taken away, half made."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from tideline_locks import HudiLockProvider, LeaseLost, hudi_file_lock, hudi_storage_lock, open_lock_provider
from tideline_locks.hudi_cell import HUDI_OWNER
from tideline_locks.hudi_file_lock import LOCK_FILE, SETTLE_S
from tideline_locks.hudi_storage_lock import LOCK_OBJECT
from tideline_table.clock import ManualClock
from tideline_table.errors import InvalidOption
from tideline_table.storage import LocalStorage, MemoryStorage


def touched_by_hudi(folder: Path, clock: ManualClock) -> Path:
    """The lock as Hudi 1.2 leaves it on a local disk: empty."""
    path = folder / LOCK_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    now_ns = int(clock.now().timestamp() * 1e9)
    os.utime(path, ns=(now_ns, now_ns))
    return path


def test_lock_of_hudi_is_held_until_its_minutes_are_over(tmp_path: Path) -> None:
    clock = ManualClock()
    path = touched_by_hudi(tmp_path, clock)
    never = hudi_file_lock(LocalStorage(tmp_path), clock=clock)
    after_two = hudi_file_lock(LocalStorage(tmp_path), clock=clock, expire_min=2)
    clock.advance(119)
    assert after_two.try_acquire("table", owner="a", ttl_s=30) is None
    clock.advance(2)
    assert never.try_acquire("table", owner="a", ttl_s=30) is None
    state = after_two.read("table")
    assert state is not None
    assert (state.owner, state.lease_id, state.expired) == (HUDI_OWNER, "", True)
    lease = after_two.try_acquire("table", owner="a", ttl_s=30)
    assert lease is not None
    assert json.loads(path.read_bytes())["lockThreadName"] == "a"
    assert lease.release()
    assert not path.exists()


def test_lock_that_hudi_deleted_is_lost_at_the_next_look(tmp_path: Path) -> None:
    clock = ManualClock()
    provider = hudi_file_lock(LocalStorage(tmp_path), clock=clock)
    lease = provider.acquire("table", owner="a", ttl_s=30, wait_s=0)
    lease.renew()
    (tmp_path / LOCK_FILE).unlink()
    with pytest.raises(LeaseLost):
        lease.renew()
    theirs = touched_by_hudi(tmp_path, clock)
    assert lease.release() is False
    assert theirs.exists()


def test_lock_that_hudi_emptied_while_it_was_made_is_hudis(tmp_path: Path) -> None:
    class HudiComesBetween(ManualClock):
        def sleep(self, seconds: float) -> None:
            if seconds == SETTLE_S:
                (tmp_path / LOCK_FILE).write_bytes(b"")
            super().sleep(seconds)

    provider = hudi_file_lock(LocalStorage(tmp_path), clock=HudiComesBetween())
    assert provider.try_acquire("table", owner="a", ttl_s=30) is None
    state = provider.read("table")
    assert state is not None
    assert state.owner == HUDI_OWNER


def test_checksum_that_hudi_left_goes_with_its_lock(tmp_path: Path) -> None:
    (tmp_path / ".hoodie").mkdir()
    sibling = tmp_path / ".hoodie/.lock.crc"
    sibling.write_bytes(b"crc")
    assert hudi_file_lock(LocalStorage(tmp_path), clock=ManualClock()).try_acquire("table", owner="a", ttl_s=30) is not None
    assert not sibling.exists()


def test_who_took_the_file_lock_since_our_release_leaves_a_trace(tmp_path: Path) -> None:
    clock = ManualClock()
    provider = hudi_file_lock(LocalStorage(tmp_path), clock=clock)
    lease = provider.acquire("table", owner="a", ttl_s=30, wait_s=0)
    assert not provider.was_taken("table"), "a process of Tideline has it"
    assert lease.release()
    assert not provider.was_taken("table")
    checksums = tmp_path / ".hoodie/.lock.crc"
    assert not checksums.read_bytes().startswith(b"crc"), "Hadoop would check a lock file by it"
    lock = touched_by_hudi(tmp_path, clock)  # with its checksum file, as Hadoop's local file system makes and deletes it
    checksums.write_bytes(b"")  # on a full disk
    assert not provider.was_taken("table")
    checksums.write_bytes(b"crc\x00\x00\x00\x02\x00")
    assert provider.was_taken("table")
    lock.unlink()
    checksums.unlink()
    assert provider.was_taken("table")
    assert provider.acquire("table", owner="a", ttl_s=30, wait_s=0).release()
    assert not provider.was_taken("table")


def test_who_took_the_lock_object_since_our_release_leaves_a_trace() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    provider = hudi_storage_lock(storage, clock=clock)
    assert not provider.was_taken("table")
    lease = provider.acquire("table", owner="a", ttl_s=30, wait_s=0)
    assert not provider.was_taken("table")
    assert lease.release()
    assert not provider.was_taken("table")
    storage.put(LOCK_OBJECT, b'{"expired": true, "validUntil": 1, "owner": "o"}')
    assert provider.was_taken("table")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"expired": false}', b'{"validUntil": "x", "expired": false, "owner": "o"}']
)
def test_storage_lock_that_hudi_cannot_read_stays_alone(content: bytes) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    storage.put(LOCK_OBJECT, content)
    clock.advance(1e6)
    assert hudi_storage_lock(storage, clock=clock).try_acquire("table", owner="a", ttl_s=30) is None
    assert storage.read(LOCK_OBJECT) == content


def test_storage_lock_released_by_hudi_is_free_whatever_its_time(tmp_path: Path) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    later_ms = int((clock.now() + timedelta(hours=1)).timestamp() * 1000)
    storage.put(LOCK_OBJECT, json.dumps({"expired": True, "validUntil": later_ms, "owner": "o"}).encode())
    lease = hudi_storage_lock(storage, clock=clock).try_acquire("table", owner="a", ttl_s=30)
    assert lease is not None
    assert json.loads(storage.read(LOCK_OBJECT))["expired"] is False
    assert lease.release()
    assert json.loads(storage.read(LOCK_OBJECT))["expired"] is True


def test_each_of_the_two_is_for_its_kind_of_storage(tmp_path: Path) -> None:
    assert isinstance(open_lock_provider(f"hudi-filesystem:{tmp_path}", clock=ManualClock()), HudiLockProvider)
    with pytest.raises(InvalidOption, match="hudi-storage"):
        hudi_file_lock(MemoryStorage(), clock=ManualClock())
    with pytest.raises(InvalidOption, match="hudi-filesystem"):
        open_lock_provider(f"hudi-storage:{tmp_path}", clock=ManualClock())
