"""Locks in one process, for tests, simulations and embedded runs in a single process."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime, timedelta

from tenacity import wait_exponential

from tideline_locks.record_lock import RecordLockProvider, Seen
from tideline_locks.rules import LeaseRecord
from tideline_locks.waiting import RandomSource
from tideline_table.clock import Clock


class LeaseTable:
    """The records and time that the providers of one process share: the wall clock at creation, advanced by the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self.guard = threading.Lock()
        self.records: dict[str, LeaseRecord] = {}
        self._clock = clock
        self._origin = clock.now() - timedelta(seconds=clock.monotonic_s())

    def now(self) -> datetime:
        """Return the time in UTC. A jump of the wall clock does not change it."""
        return self._origin + timedelta(seconds=self._clock.monotonic_s())


class InProcessLockProvider(RecordLockProvider):
    """`LockProvider` on a `LeaseTable`."""

    backoff = wait_exponential(multiplier=0.001, max=0.02)

    def __init__(self, *, clock: Clock, table: LeaseTable | None = None, randomness: RandomSource | None = None) -> None:
        super().__init__(clock, randomness)
        self._table = table or LeaseTable(clock)

    def _now(self) -> datetime:
        return self._table.now()

    def _read(self, name: str) -> Seen:
        with self._table.guard:
            return Seen(self._table.records.get(name), "")

    def _swap(self, name: str, seen: Seen, record: LeaseRecord) -> bool:
        with self._table.guard:
            if self._table.records.get(name) is not seen.record:
                return False
            self._table.records[name] = record
            return True

    def _names(self) -> Iterable[str]:
        with self._table.guard:
            return list(self._table.records)
