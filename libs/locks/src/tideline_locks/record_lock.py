"""Locks in stores that keep one record per lock and do not wake waiters: read the record, decide, replace it if it is unchanged."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from tenacity import wait_exponential

from tideline_locks.errors import LockUnreachable, StaleFence
from tideline_locks.lease import Grant, Lease
from tideline_locks.port import Held, LeaseRequest, LeaseState, LogWanted, ReadFence, checked_name, checked_request, with_fence
from tideline_locks.rules import LeaseRecord, Stale, Standing, decide_acquire, decide_break, decide_release, decide_renew
from tideline_locks.waiting import RandomSource, attempt_until, wait_for
from tideline_table.clock import Clock

RACE_ATTEMPTS = 32


@dataclass(frozen=True, slots=True)
class Seen:
    """The record of a lock as it was read (None: no lease yet), and the version that a swap must find unchanged."""

    record: LeaseRecord | None
    version: str


class RecordLockProvider(ABC):
    """`LockProvider` on one record per lock. Waiters repeat their attempt with `backoff` and wait only by `clock.sleep`."""

    backoff: ClassVar[wait_exponential]

    def __init__(self, clock: Clock, randomness: RandomSource | None, skew_allowance_s: float = 0.0) -> None:
        self._clock = clock
        self._randomness = randomness or RandomSource.system()
        self._skew_allowance_s = skew_allowance_s

    def acquire(self, name: str, *, owner: str, ttl_s: float, wait_s: float, fence: int | ReadFence = 0) -> Lease:
        """See `LockProvider.acquire`. An unreachable provider is retried until `wait_s` has passed."""
        wish = checked_request(name, owner=owner, lease_id=self._randomness.new_id(), ttl_s=ttl_s, wait_s=wait_s)
        jitter = self._randomness.jitter

        def wait(deadline_s: float) -> Lease | Held:
            fenced = with_fence(wish, fence if isinstance(fence, int) else fence())
            return attempt_until(
                lambda: self._attempt(fenced), clock=self._clock, deadline_s=deadline_s, backoff=self.backoff, jitter=jitter
            )

        return wait_for(name, wait, may_read=not isinstance(fence, int), wait_s=wait_s, clock=self._clock, jitter=jitter)

    def stand(self, wish: LeaseRequest, *, fence: int | None, wait_s: float) -> Lease | Held | LogWanted:
        """See `RemoteLeases.stand`. There is no queue: the first request after a release gets the lock."""
        if fence is None:
            return LogWanted()
        fenced = with_fence(wish, fence)
        return attempt_until(
            lambda: self._attempt(fenced),
            clock=self._clock,
            deadline_s=self._clock.monotonic_s() + wait_s,
            backoff=self.backoff,
            jitter=self._randomness.jitter,
            through_outages=False,
        )

    def withdraw(self, wish: LeaseRequest) -> None:
        self._change(wish.name, lambda seen, now: decide_release(seen.record, wish.lease_id, now=now))

    def force_break(self, name: str) -> LeaseState | None:
        changed = self._change(checked_name(name), lambda seen, _: decide_break(seen.record, expired=True))
        return changed[0].state(name, expired=False) if changed else None

    def try_acquire(self, name: str, *, owner: str, ttl_s: float, fence: int = 0) -> Lease | None:
        wish = checked_request(name, owner=owner, lease_id=self._randomness.new_id(), ttl_s=ttl_s, wait_s=0)
        outcome = self._attempt(with_fence(wish, fence))
        return None if isinstance(outcome, Held) else outcome

    def read(self, name: str) -> LeaseState | None:
        seen = self._read(checked_name(name))
        return seen.record.state(name, expired=self._expired(name, seen, self._now())) if seen.record else None

    def list(self, prefix: str = "") -> list[LeaseState]:
        """See `LockProvider.list`. Reads one record per lock."""
        names = sorted(name for name in self._names() if name.startswith(prefix))
        return [state for name in names if (state := self.read(name)) is not None]

    def break_expired(self, name: str) -> LeaseState | None:
        def decide(seen: Seen, now: datetime) -> LeaseRecord | None:
            return decide_break(seen.record, expired=self._expired(name, seen, now))

        changed = self._change(checked_name(name), decide)
        return changed[0].state(name, expired=True) if changed else None

    def close(self) -> None:  # noqa: B027 - for all providers with a record per lock
        """See `LockProvider.close`. There is nothing to close: the caller that opened the storage closes it."""

    def renew_grant(self, grant: Grant) -> bool:
        return self._change(grant.name, lambda seen, now: decide_renew(seen.record, grant.lease_id, now=now)) is not None

    def release_grant(self, grant: Grant) -> bool:
        changed = self._change(grant.name, lambda seen, now: decide_release(seen.record, grant.lease_id, now=now))
        return changed is not None and changed[1].standing is Standing.RELEASED

    def _attempt(self, wish: LeaseRequest) -> Lease | Held:
        for _ in range(RACE_ATTEMPTS):
            seen = self._read(wish.name)
            asked_s, now = self._clock.monotonic_s(), self._now()
            decision = decide_acquire(seen.record, wish, now=now, expired=self._expired(wish.name, seen, now))
            if isinstance(decision, Stale):
                raise StaleFence(wish.name, fence=wish.fence, greatest=decision.greatest)
            if isinstance(decision, Held):
                return decision
            if decision is seen.record:
                # An earlier attempt, whose reply was lost, was granted: the lease started then.
                asked_s -= max(0.0, (now - decision.acquired).total_seconds())
            elif not self._swap(wish.name, seen, decision):
                continue
            grant = Grant(wish.name, wish.owner, wish.lease_id, wish.fence, wish.ttl_s, decision.acquired, asked_s)
            return Lease(grant, self, self._clock)
        raise _too_busy(wish.name)

    def _change(self, name: str, decide: Callable[[Seen, datetime], LeaseRecord | None]) -> tuple[LeaseRecord, LeaseRecord] | None:
        """Replace the record by the result of `decide`; repeat after lost races. Return the replaced and the new record.

        Returns None if `decide` returns None. If `decide` returns the current record, nothing is written.
        """
        for _ in range(RACE_ATTEMPTS):
            seen = self._read(name)
            record = decide(seen, self._now())
            if record is None or seen.record is None:
                return None
            if record is seen.record or self._swap(name, seen, record):
                return seen.record, record
        raise _too_busy(name)

    def _now(self) -> datetime:
        """Return the time by which leases expire, in UTC."""
        return self._clock.now()

    def _expired(self, name: str, seen: Seen, now: datetime) -> bool:  # noqa: ARG002 - the storage lock needs the name
        """Return whether the lease may be taken over at `now`."""
        return seen.record is not None and seen.record.expired(now, self._skew_allowance_s)

    @abstractmethod
    def _read(self, name: str) -> Seen:
        """Return the current record of the lock. Raises `LockUnreachable`."""

    @abstractmethod
    def _swap(self, name: str, seen: Seen, record: LeaseRecord) -> bool:
        """Write `record` if the lock is unchanged since `seen`. Otherwise return False and change nothing."""

    @abstractmethod
    def _names(self) -> Iterable[str]:
        """Return the names of the locks that may have a lease."""


def _too_busy(name: str) -> LockUnreachable:
    return LockUnreachable(f"lock {name!r} changed {RACE_ATTEMPTS} times during one request", remedy="retry")
