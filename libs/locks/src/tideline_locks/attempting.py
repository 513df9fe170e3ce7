"""Waiting by asking again: what all providers share whose lock does not wake its waiters."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tideline_locks.lease import Lease
from tideline_locks.port import Held, LeaseRequest, ReadFence, checked_request, with_fence
from tideline_locks.waiting import Backoff, Chance, attempt_until, wait_for
from tideline_table.clock import Clock


class AttemptingProvider(ABC):
    """`acquire` and `try_acquire` of a `LockProvider` by attempts, `backoff` apart; it waits by `clock.sleep` alone."""

    def __init__(self, clock: Clock, chance: Chance | None, backoff: Backoff) -> None:
        self._clock = clock
        self._chance = chance or Chance.system()
        self._backoff = backoff

    def acquire(self, name: str, *, owner: str, ttl_s: float, wait_s: float, fence: int | ReadFence = 0) -> Lease:
        """See `LockProvider.acquire`. What does not answer is tried again until `wait_s` is over."""
        wish = checked_request(name, owner=owner, lease_id=self._chance.new_id(), ttl_s=ttl_s, wait_s=wait_s)

        def wait(deadline_s: float) -> Lease | Held:
            return self._wait(with_fence(wish, fence if isinstance(fence, int) else fence()), deadline_s)

        may_read = not isinstance(fence, int)
        return wait_for(name, wait, may_read=may_read, wait_s=wait_s, clock=self._clock, jitter=self._chance.jitter)

    def try_acquire(self, name: str, *, owner: str, ttl_s: float, fence: int = 0) -> Lease | None:
        """See `LockProvider.try_acquire`."""
        wish = checked_request(name, owner=owner, lease_id=self._chance.new_id(), ttl_s=ttl_s, wait_s=0)
        outcome = self._attempt(with_fence(wish, fence))
        return None if isinstance(outcome, Held) else outcome

    def _wait(self, wish: LeaseRequest, deadline_s: float) -> Lease | Held:
        return attempt_until(
            lambda: self._attempt(wish),
            clock=self._clock,
            deadline_s=deadline_s,
            backoff=self._backoff,
            jitter=self._chance.jitter,
        )

    @abstractmethod
    def _attempt(self, wish: LeaseRequest) -> Lease | Held:
        """Ask once."""
