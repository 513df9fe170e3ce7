"""Leases on the lock of Apache Hudi's writers: `LockProvider` on a `LockCell`."""

from __future__ import annotations

from collections.abc import Iterable

from tenacity import wait_exponential

from tideline_locks.hudi_cell import LockCell
from tideline_locks.record_lock import RecordLockProvider, Seen
from tideline_locks.rules import LeaseRecord
from tideline_locks.waiting import RandomSource
from tideline_table.clock import Clock

SKEW_ALLOWANCE_S = 0.5
"""The clock skew that Hudi allows another holder."""


class HudiLockProvider(RecordLockProvider):
    """`LockProvider` on the lock of Hudi's file-system or storage based lock provider.

    Limits: waiters are not served in order of arrival; the cell limits how long a fence is kept (a file: until its release, an
    object: until Hudi takes the lock); a lock that Hudi holds has no lease id; Hudi can take its file lock away.
    """

    backoff = wait_exponential(multiplier=0.01, max=0.25)

    def __init__(self, cell: LockCell, *, clock: Clock, randomness: RandomSource | None = None) -> None:
        super().__init__(clock, randomness, SKEW_ALLOWANCE_S)
        self._cell = cell

    def was_taken(self, name: str) -> bool:
        """See `LockCell.was_taken`."""
        return self._cell.was_taken(name)

    def _read(self, name: str) -> Seen:
        return self._cell.read(name)

    def _swap(self, name: str, seen: Seen, record: LeaseRecord) -> bool:
        return self._cell.swap(name, seen, record)

    def _names(self) -> Iterable[str]:
        return self._cell.names()
