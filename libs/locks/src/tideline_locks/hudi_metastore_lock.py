"""The lock of Hudi's `HiveMetastoreBasedLockProvider`: an exclusive lock on a table's name in a Hive metastore.

The metastore keeps a queue of requests per table, in order of their ids. The first one is granted, if its client asks. It ends when
it is unlocked, or when no heartbeat came for `hive.txn.timeout`. Hudi's provider gives up a request that is not granted at once;
its caller tries again. The table need not exist. Tideline keeps its lease in the request's `agentInfo`, which is only shown.
"""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from tenacity import wait_exponential

from tideline_locks.errors import LockAccessDenied, LockUnreachable, StaleFence
from tideline_locks.hudi_cell import NEVER, hudi_lease
from tideline_locks.hudi_lock_queue import HudiLockQueue
from tideline_locks.lease import Grant, Lease
from tideline_locks.metastore_session import MetastoreSession, QueuedLock
from tideline_locks.port import Held, LeaseRequest, LeaseState, checked_name
from tideline_locks.rules import LeaseRecord, Stale, Standing, decide_acquire, decide_break
from tideline_locks.waiting import RandomSource
from tideline_table.clock import Clock

TRUSTED_S = 30.0
"""How long a holder trusts a lease without a renewal. The metastore ends it after `hive.txn.timeout`, 300 s unless it is set up
otherwise, which must be longer."""
SKEW_ALLOWANCE_S = 0.5
_RACE_ATTEMPTS = 32
_SIGN_OF_LIFE = timedelta(seconds=10)
"""After which a waiter shows that it lives. In between it only reads the queue, which leaves the metastore free for releases."""
_INFO = re.compile(r"tideline ([^ ]+) ([0-9]+) ([0-9.e+-]+)")
_USER_LIMIT = 128
"""Of the metastore's column."""


class MetastoreLockProvider(HudiLockQueue):
    """`LockProvider` on locks of Hudi's writers in a Hive metastore. `place_of` returns database and table of a lock name.

    Waiters decide by the metastore's clock whether a lease of Tideline expired, and remove it.
    A lock that Hudi holds has no lease id and no expiry: the metastore ends it. The fence is kept until the release.
    """

    _backoff = wait_exponential(multiplier=0.02, max=0.5)

    def __init__(
        self,
        session: MetastoreSession,
        place_of: Callable[[str], tuple[str, str]],
        known: Callable[[], Sequence[str]],
        *,
        clock: Clock,
        randomness: RandomSource | None = None,
    ) -> None:
        super().__init__(known, clock=clock, randomness=randomness)
        self._session = session
        self._place_of = place_of
        self._ahead = timedelta(0)
        """How far the clock here is ahead of the metastore's."""

    def read(self, name: str) -> LeaseState | None:
        head = next(iter(self._queue(checked_name(name))), None)
        return _record(head).state(name, expired=self._expired(head)) if head else None

    def break_expired(self, name: str) -> LeaseState | None:
        """See `LockProvider.break_expired`. Two processes that do it at the same moment may both return the state."""
        # A metastore may not say that a lock was gone when it was unlocked, so that one thread after the other looks and unlocks.
        with self._session.breaking:
            head = next(iter(self._queue(checked_name(name))), None)
            if head is None or decide_break(_record(head), expired=self._expired(head)) is None:
                return None
            return _record(head).state(name, expired=True) if self._session.unlock(head.lock_id) else None

    def was_taken(self, name: str) -> bool:  # noqa: ARG002 - the port's
        """See `HudiLocks.was_taken`. Never: a metastore keeps nothing of a lock that ended, so an operator has to vouch."""
        return False

    def renew_grant(self, grant: Grant) -> bool:
        """See `LeaseStore.renew_grant`. The metastore refuses the heartbeat of a lock that it ended."""
        mine = _of_lease(grant.lease_id, self._queue(grant.name))
        return mine is not None and not _record(mine).expired(self._now()) and self._session.heartbeat(mine.lock_id)

    def release_grant(self, grant: Grant) -> bool:
        mine = _of_lease(grant.lease_id, self._queue(grant.name))
        return mine is not None and self._session.unlock(mine.lock_id) and not _record(mine).expired(self._now())

    def _now(self) -> datetime:
        """Return the time of the metastore as far as it is known here; not later than it is."""
        return self._clock.now() - self._ahead

    def _withdraw(self, wish: LeaseRequest) -> None:
        # What cannot be unlocked now goes with its heartbeats.
        with suppress(LockUnreachable, LockAccessDenied):
            mine = _of_lease(wish.lease_id, self._queue(wish.name))
            if mine is not None:
                self._session.unlock(mine.lock_id)

    def _attempt(self, wish: LeaseRequest) -> Lease | Held:
        """Ask once for the lock. A waiter in the middle of the queue only reads it, unless something may be due."""
        for _ in range(_RACE_ATTEMPTS):
            asked_s = self._clock.monotonic_s()
            queue = self._queue(wish.name)
            mine = _of_lease(wish.lease_id, queue)
            is_granted: bool | None = False
            if mine is None or self._may_move(queue[0], mine):
                is_granted = self._session.check(mine.lock_id) if mine else self._join(wish)
                queue = self._queue(wish.name)
                mine = _of_lease(wish.lease_id, queue)
                if mine is None or is_granted is None:
                    continue
                self._ahead = self._clock.now() - mine.seen  # the metastore saw the own request just now
            if is_granted:
                trusted_s = min(wish.ttl_s, TRUSTED_S)
                grant = Grant(wish.name, wish.owner, wish.lease_id, wish.fence, trusted_s, _record(mine).acquired, asked_s)
                return Lease(grant, self, self._clock)
            head = queue[0]
            is_dead = _record(head).expired(mine.seen, SKEW_ALLOWANCE_S)
            decision = decide_acquire(_record(head), wish, now=mine.seen, expired=is_dead)
            if isinstance(decision, Stale):
                raise StaleFence(wish.name, fence=wish.fence, greatest=decision.greatest)
            if isinstance(decision, Held):
                return decision
            if head.lock_id != mine.lock_id:
                self._session.unlock(head.lock_id)
        raise LockUnreachable(f"lock {wish.name!r} changed {_RACE_ATTEMPTS} times during one request", remedy="retry")

    def _may_move(self, head: QueuedLock, mine: QueuedLock) -> bool:
        """Return whether it is time to ask about the own request, which is also its heartbeat."""
        return head.lock_id == mine.lock_id or self._expired(head) or abs(self._now() - mine.seen) > _SIGN_OF_LIFE

    def _join(self, wish: LeaseRequest) -> bool:
        agent = f"tideline {wish.lease_id} {wish.fence} {wish.ttl_s!r}"
        return self._session.request(*self._place_of(wish.name), wish.owner[:_USER_LIMIT], agent)

    def _queue(self, name: str) -> Sequence[QueuedLock]:
        return self._session.queue(*self._place_of(name))

    def _expired(self, lock: QueuedLock) -> bool:
        return _record(lock).expired(self._now(), SKEW_ALLOWANCE_S)


def _of_lease(lease_id: str, queue: Sequence[QueuedLock]) -> QueuedLock | None:
    return next((lock for lock in queue if (said := _INFO.fullmatch(lock.agent)) and said[1] == lease_id), None)


def _record(lock: QueuedLock) -> LeaseRecord:
    """Return the lease that a request stands for."""
    acquired = lock.acquired or lock.seen
    said = _INFO.fullmatch(lock.agent)
    if said is None:
        return hudi_lease(acquired, NEVER)
    ttl_s = float(said[3])
    expires = max(acquired, lock.seen) + timedelta(seconds=ttl_s)
    return LeaseRecord(Standing.HELD, lock.user, said[1], int(said[2]), acquired, expires, ttl_s)
