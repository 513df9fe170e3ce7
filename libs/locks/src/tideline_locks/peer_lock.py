"""The lock of a shared table for the engine: `PeerLock` on Hudi's own locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from tideline_locks.errors import LeaseLost, LockUnreachable
from tideline_locks.hudi_lock import HudiLockProvider
from tideline_locks.lease import Lease
from tideline_locks.location import hudi_file_lock, hudi_storage_lock
from tideline_locks.renewal import KeptLease
from tideline_table.clock import Clock
from tideline_table.config import LOCK_TTL_S, LOCK_WAIT_S, Options
from tideline_table.storage import Storage
from tideline_table.timeline.sharing import PeerLockKind, Sharing
from tideline_table.transaction.lock import HeldPeerLock

LOCK_NAME = "table"


class HeldLease:
    """`HeldPeerLock` on a lease."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def is_held(self) -> bool:
        """See `HeldPeerLock.is_held`."""
        try:
            self._lease.renew()
        except (LeaseLost, LockUnreachable):
            return False
        # The answer may have taken as long as the lease lasts: what follows needs time, too.
        return self._lease.remaining_s > self._lease.ttl_s / 2


class HudiPeerLock:
    """`PeerLock` on a provider: renewed while it is held."""

    def __init__(self, provider: HudiLockProvider, owner: str, *, ttl_s: float, wait_s: float) -> None:
        self._provider = provider
        self._owner = owner
        self._ttl_s = ttl_s
        self._wait_s = wait_s

    def hold(self) -> AbstractContextManager[HeldPeerLock]:
        """See `PeerLock.hold`. Raises `LockTimeout` and `LockUnreachable`."""
        return self._held()

    @contextmanager
    def _held(self) -> Iterator[HeldPeerLock]:
        lease = self._provider.acquire(LOCK_NAME, owner=self._owner, ttl_s=self._ttl_s, wait_s=self._wait_s)
        with KeptLease(lease):
            yield HeldLease(lease)


def open_peer_lock(storage: Storage, sharing: Sharing, owner: str, clock: Clock, options: Options) -> HudiPeerLock:
    """The lock that Hudi's writers of the shared table in `storage` take. `tideline.lock.wait` and `tideline.lock.ttl` hold for it.

    Raises `InvalidOption` for a lock that this kind of storage does not have.
    """
    if sharing.lock is PeerLockKind.FILE_SYSTEM:
        provider = hudi_file_lock(storage, clock=clock, expire_min=sharing.expire_min)
    else:
        provider = hudi_storage_lock(storage, clock=clock)
    ttl_s = min(options[LOCK_TTL_S], sharing.expire_min * 60.0)
    return HudiPeerLock(provider, owner, ttl_s=ttl_s, wait_s=options[LOCK_WAIT_S])
