"""What the locks of Hudi's writers that a server keeps as a queue have in common: a request waits at its place in the queue."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from tenacity import wait_exponential

from tideline_locks.lease import Grant, Lease
from tideline_locks.port import Held, LeaseRequest, LeaseState, ReadFence, checked_request, with_fence
from tideline_locks.waiting import RandomSource, attempt_until, wait_for
from tideline_table.clock import Clock


class HudiLockQueue(ABC):
    """The part of a `LockProvider` that waits. Waiters, Hudi's and Tideline's, are served in order of arrival.

    `known` returns the names to list. An adapter attempts (`_attempt`) and gives up its place (`_withdraw`).
    """

    _backoff: wait_exponential
    """Pauses between two attempts of a waiter."""

    def __init__(self, known: Callable[[], Sequence[str]], *, clock: Clock, randomness: RandomSource | None = None) -> None:
        self._known = known
        self._clock = clock
        self._randomness = randomness or RandomSource.system()

    def acquire(self, name: str, *, owner: str, ttl_s: float, wait_s: float, fence: int | ReadFence = 0) -> Lease:
        """See `LockProvider.acquire`. The request keeps its place in the queue while it waits."""
        lease_id, jitter = self._randomness.new_id(), self._randomness.jitter
        wish = checked_request(name, owner=owner, lease_id=lease_id, ttl_s=ttl_s, wait_s=wait_s)

        def wait(deadline_s: float) -> Lease | Held:
            fenced = with_fence(wish, fence if isinstance(fence, int) else fence())
            return self._in_queue(
                fenced,
                lambda: attempt_until(
                    lambda: self._attempt(fenced), clock=self._clock, deadline_s=deadline_s, backoff=self._backoff, jitter=jitter
                ),
            )

        return wait_for(name, wait, may_read=not isinstance(fence, int), wait_s=wait_s, clock=self._clock, jitter=jitter)

    def try_acquire(self, name: str, *, owner: str, ttl_s: float, fence: int = 0) -> Lease | None:
        wish = checked_request(name, owner=owner, lease_id=self._randomness.new_id(), ttl_s=ttl_s, wait_s=0)
        fenced = with_fence(wish, fence)
        outcome = self._in_queue(fenced, lambda: self._attempt(fenced))
        return None if isinstance(outcome, Held) else outcome

    def list(self, prefix: str = "") -> list[LeaseState]:
        """See `LockProvider.list`. Reads each lock."""
        names = sorted(name for name in self._known() if name.startswith(prefix))
        return [state for name in names if (state := self.read(name)) is not None]

    def close(self) -> None:  # noqa: B027 - nothing is to be closed
        """See `LockProvider.close`. The connection is the process's: other locks need it, and a lease outlives its provider."""

    @abstractmethod
    def read(self, name: str) -> LeaseState | None: ...

    @abstractmethod
    def renew_grant(self, grant: Grant) -> bool: ...

    @abstractmethod
    def release_grant(self, grant: Grant) -> bool: ...

    @abstractmethod
    def _attempt(self, wish: LeaseRequest) -> Lease | Held:
        """Ask once for the lock; queue first, if the request does not wait yet."""

    @abstractmethod
    def _withdraw(self, wish: LeaseRequest) -> None:
        """Give up the place of a request. Raises nothing: what cannot be given up now ends by itself."""

    def _in_queue(self, wish: LeaseRequest, wait: Callable[[], Lease | Held]) -> Lease | Held:
        """Return the outcome of `wait`. Unless that is a lease, the place of the request in the queue is given up."""
        granted = False
        try:
            outcome = wait()
            granted = isinstance(outcome, Lease)
            return outcome
        finally:
            if not granted:
                self._withdraw(wish)
