"""The lock of a table shared with Apache Hudi: `HudiTableLock` on Hudi's own locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tideline_locks.errors import LeaseLost, LockUnreachable
from tideline_locks.lease import Lease
from tideline_locks.location import hudi_file_lock, hudi_lock_at, hudi_storage_lock
from tideline_locks.port import HudiLocks
from tideline_locks.renewal import KeptLease
from tideline_table.clock import Clock
from tideline_table.config import LOCK_TTL_S, LOCK_WAIT_S, Options
from tideline_table.coordination import HeldHudiTableLock
from tideline_table.log import HudiLockKind, Sharing
from tideline_table.storage import Storage

LOCK_NAME = "table"


class HeldLease:
    """`HeldHudiTableLock` on a lease."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def is_held(self) -> bool:
        """See `HeldHudiTableLock.is_held`."""
        try:
            self._lease.renew()
        except (LeaseLost, LockUnreachable):
            return False
        # The reply may have used up most of the lease, and the following step needs time too.
        return self._lease.remaining_s > self._lease.ttl_s / 2


class ProviderHudiLock:
    """`HudiTableLock` on a provider. The lease is renewed while it is held."""

    def __init__(self, provider: HudiLocks, owner: str, *, ttl_s: float, wait_s: float) -> None:
        self._provider = provider
        self._owner = owner
        self._ttl_s = ttl_s
        self._wait_s = wait_s

    def was_taken(self) -> bool:
        """See `HudiTableLock.was_taken`. Raises `LockUnreachable`."""
        return self._provider.was_taken(LOCK_NAME)

    @contextmanager
    def hold(self) -> Iterator[HeldHudiTableLock]:
        """See `HudiTableLock.hold`. Raises `LockTimeout` and `LockUnreachable`."""
        lease = self._provider.acquire(LOCK_NAME, owner=self._owner, ttl_s=self._ttl_s, wait_s=self._wait_s)
        with KeptLease(lease):
            yield HeldLease(lease)


def open_hudi_lock(storage: Storage, sharing: Sharing, owner: str, clock: Clock, options: Options) -> ProviderHudiLock:
    """Open the lock of Hudi's writers for the shared table in `storage`, with `tideline.lock.wait` and `tideline.lock.ttl`.

    Raises `InvalidOption` for a lock that this kind of storage does not support.
    """
    provider: HudiLocks
    if sharing.place:
        provider = hudi_lock_at(sharing.lock, sharing.place, clock=clock)
    elif sharing.lock is HudiLockKind.FILE_SYSTEM:
        provider = hudi_file_lock(storage, clock=clock, expire_min=sharing.expire_min)
    else:
        provider = hudi_storage_lock(storage, clock=clock)
    ttl_s = min(options[LOCK_TTL_S], sharing.expire_min * 60.0)
    return ProviderHudiLock(provider, owner, ttl_s=ttl_s, wait_s=options[LOCK_WAIT_S])
