from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from tideline_locks import InProcessLockProvider
from tideline_locks.in_process import LeaseTable
from tideline_locks.rules import LeaseRecord
from tideline_table.clock import ManualClock, SystemClock


class SlowRecords(dict[str, LeaseRecord]):
    """Reading yields to other threads, so that a decision on what was read is late unless the table is guarded."""

    def get(self, key: str, default: LeaseRecord | None = None) -> LeaseRecord | None:  # type: ignore[override]
        found = super().get(key, default)
        time.sleep(0.005)
        return found


def test_reading_deciding_and_writing_are_one_step() -> None:
    clock = SystemClock()
    table = LeaseTable(clock)
    table.records = SlowRecords()
    barrier = threading.Barrier(4)

    def attempt(number: int) -> bool:
        barrier.wait()
        return InProcessLockProvider(clock=clock, table=table).try_acquire("trips", owner=f"t{number}", ttl_s=60) is not None

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(attempt, range(4))) == 1


def test_jump_of_the_wall_clock_ends_no_lease() -> None:
    clock = ManualClock()
    provider = InProcessLockProvider(clock=clock)
    lease = provider.acquire("trips", owner="a", ttl_s=10, wait_s=0)
    clock._now += timedelta(hours=1)
    assert provider.try_acquire("trips", owner="b", ttl_s=10) is None
    lease.renew()
    assert lease.release() is True
