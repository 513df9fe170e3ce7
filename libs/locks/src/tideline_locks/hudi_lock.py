"""Leases on the lock that Apache Hudi's writers take: `LockProvider` on a `LockCell`."""

from __future__ import annotations

from collections.abc import Callable

from tideline_locks.attempting import AttemptingProvider
from tideline_locks.errors import LockUnreachable, StaleFence
from tideline_locks.hudi_cell import CellState, LockCell
from tideline_locks.lease import Grant, Lease
from tideline_locks.port import Held, LeaseRequest, LeaseState, checked_name
from tideline_locks.rules import LeaseRecord, Stale, Standing, decide_acquire, decide_break, decide_release, decide_renew
from tideline_locks.waiting import Backoff, Chance
from tideline_table.clock import Clock

SKEW_ALLOWANCE_S = 0.5
"""What Hudi grants the clock of another holder."""
RACE_ATTEMPTS = 32
BACKOFF = Backoff(first_s=0.01, cap_s=0.25)


class HudiLockProvider(AttemptingProvider):
    """`LockProvider` on the very lock of Hudi's file-system or storage based lock provider.

    What it lacks: waiters are not served in order of arrival; fences are kept only as far as the cell keeps them (a file not beyond
    its release, an object until Hudi takes the lock); a lock that Hudi holds has no lease id; and Hudi's file lock can be taken away by Hudi.
    """

    def __init__(self, cell: LockCell, *, clock: Clock, chance: Chance | None = None) -> None:
        super().__init__(clock, chance, BACKOFF)
        self._cell = cell

    def read(self, name: str) -> LeaseState | None:
        """See `LockProvider.read`."""
        record = self._cell.read(checked_name(name)).record
        return record.state(name, expired=self._expired(record)) if record else None

    def list(self, prefix: str = "") -> list[LeaseState]:
        """See `LockProvider.list`."""
        names = sorted(name for name in self._cell.names() if name.startswith(prefix))
        return [state for name in names if (state := self.read(name)) is not None]

    def break_expired(self, name: str) -> LeaseState | None:
        """See `LockProvider.break_expired`."""
        checked_name(name)

        def decide(seen: CellState) -> LeaseRecord | None:
            return decide_break(seen.record, expired=self._expired(seen.record))

        before = self._change(name, decide)
        return before.state(name, expired=True) if before is not None else None

    def close(self) -> None:
        """See `LockProvider.close`; there is nothing to give back."""

    def renew_grant(self, grant: Grant) -> bool:
        """See `LeaseStore.renew_grant`."""
        return self._change(grant.name, lambda seen: decide_renew(seen.record, grant.lease_id, now=self._clock.now())) is not None

    def release_grant(self, grant: Grant) -> bool:
        """See `LeaseStore.release_grant`."""
        after: list[LeaseRecord] = []

        def decide(seen: CellState) -> LeaseRecord | None:
            decision = decide_release(seen.record, grant.lease_id, now=self._clock.now())
            after[:] = [decision] if decision is not None else []
            return decision

        return self._change(grant.name, decide) is not None and after[0].standing is Standing.RELEASED

    def _attempt(self, wish: LeaseRequest) -> Lease | Held:
        for _ in range(RACE_ATTEMPTS):
            asked_s, now = self._clock.monotonic_s(), self._clock.now()
            seen = self._cell.read(wish.name)
            decision = decide_acquire(seen.record, wish, now=now, expired=self._expired(seen.record))
            if isinstance(decision, Stale):
                raise StaleFence(wish.name, fence=wish.fence, greatest=decision.greatest)
            if isinstance(decision, Held):
                return decision
            if decision is seen.record:
                asked_s -= max(0.0, (now - decision.acquired).total_seconds())
            elif not self._cell.swap(wish.name, seen, decision):
                continue
            grant = Grant(wish.name, wish.owner, wish.lease_id, wish.fence, wish.ttl_s, decision.acquired, asked_s)
            return Lease(grant, self, self._clock)
        raise _too_busy(wish.name)

    def _change(self, name: str, decide: Callable[[CellState], LeaseRecord | None]) -> LeaseRecord | None:
        """Put what `decide` makes of the state; the record that it was made of, None when `decide` refuses."""
        for _ in range(RACE_ATTEMPTS):
            seen = self._cell.read(name)
            record = decide(seen)
            if record is None or seen.record is None:
                return None
            if record is seen.record or self._cell.swap(name, seen, record):
                return seen.record
        raise _too_busy(name)

    def _expired(self, record: LeaseRecord | None) -> bool:
        return record is not None and record.expired(self._clock.now(), SKEW_ALLOWANCE_S)


def _too_busy(name: str) -> LockUnreachable:
    return LockUnreachable(f"lock {name!r} changed {RACE_ATTEMPTS} times while it was being changed", remedy="retry")
