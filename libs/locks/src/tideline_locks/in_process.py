"""Locks inside one process: for tests, for simulations, and for an embedded run in a single process."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from tideline_locks.attempting import AttemptingProvider
from tideline_locks.errors import StaleFence
from tideline_locks.lease import Grant, Lease
from tideline_locks.port import Held, LeaseRequest, LeaseState, checked_name
from tideline_locks.rules import LeaseRecord, Stale, Standing, decide_acquire, decide_break, decide_release, decide_renew
from tideline_locks.waiting import Backoff, Chance
from tideline_table.clock import Clock

BACKOFF = Backoff(first_s=0.001, cap_s=0.02)


class LeaseTable:
    """The records that providers of one process share, and their time: the wall clock at creation, moved on by the monotonic one."""

    def __init__(self, clock: Clock) -> None:
        self.guard = threading.Lock()
        self.records: dict[str, LeaseRecord] = {}
        self._clock = clock
        self._origin = clock.now() - timedelta(seconds=clock.monotonic_s())

    def now(self) -> datetime:
        """UTC; a jump of the wall clock does not move it."""
        return self._origin + timedelta(seconds=self._clock.monotonic_s())


class InProcessLockProvider(AttemptingProvider):
    """`LockProvider` on a `LeaseTable`.

    It waits by `clock.sleep` alone, so that a simulated clock stays in charge.
    """

    def __init__(self, *, clock: Clock, table: LeaseTable | None = None, chance: Chance | None = None) -> None:
        super().__init__(clock, chance, BACKOFF)
        self._table = table or LeaseTable(clock)

    def read(self, name: str) -> LeaseState | None:
        """See `LockProvider.read`."""
        checked_name(name)
        with self._table.guard:
            record = self._table.records.get(name)
            return record.state(name, expired=record.expired(self._table.now())) if record else None

    def list(self, prefix: str = "") -> list[LeaseState]:
        """See `LockProvider.list`."""
        now = self._table.now()
        with self._table.guard:
            chosen = sorted((n, r) for n, r in self._table.records.items() if n.startswith(prefix) and r.standing is Standing.HELD)
        return [s for name, record in chosen if (s := record.state(name, expired=record.expired(now))) is not None]

    def break_expired(self, name: str) -> LeaseState | None:
        """See `LockProvider.break_expired`."""
        checked_name(name)
        with self._table.guard:
            last = self._table.records.get(name)
            broken = decide_break(last, expired=last is not None and last.expired(self._table.now()))
            if last is None or broken is None:
                return None
            self._table.records[name] = broken
            return last.state(name, expired=True)

    def close(self) -> None:
        """See `LockProvider.close`; there is nothing to give back."""

    def renew_grant(self, grant: Grant) -> bool:
        """See `LeaseStore.renew_grant`."""
        with self._table.guard:
            renewed = decide_renew(self._table.records.get(grant.name), grant.lease_id, now=self._table.now())
            if renewed is not None:
                self._table.records[grant.name] = renewed
            return renewed is not None

    def release_grant(self, grant: Grant) -> bool:
        """See `LeaseStore.release_grant`."""
        with self._table.guard:
            released = decide_release(self._table.records.get(grant.name), grant.lease_id, now=self._table.now())
            if released is None:
                return False
            self._table.records[grant.name] = released
            return released.standing is Standing.RELEASED

    def _attempt(self, wish: LeaseRequest) -> Lease | Held:
        asked_s = self._clock.monotonic_s()
        with self._table.guard:
            now = self._table.now()
            last = self._table.records.get(wish.name)
            decision = decide_acquire(last, wish, now=now, expired=last is not None and last.expired(now))
            if isinstance(decision, LeaseRecord):
                self._table.records[wish.name] = decision
        if isinstance(decision, Stale):
            raise StaleFence(wish.name, fence=wish.fence, greatest=decision.greatest)
        if isinstance(decision, Held):
            return decision
        grant = Grant(wish.name, wish.owner, wish.lease_id, wish.fence, wish.ttl_s, decision.acquired, asked_s)
        return Lease(grant, self, self._clock)
