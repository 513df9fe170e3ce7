"""Going on with a second lock provider while the first one does not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from tideline_locks.errors import LockUnreachable
from tideline_locks.lease import Lease
from tideline_locks.port import LeaseState, LockProvider
from tideline_table.clock import Clock

_log = logging.getLogger(__name__)

T = TypeVar("T")


class FallbackLockProvider:
    """`LockProvider` that asks `primary`, and `secondary` while `primary` raises `LockUnreachable`.

    While some callers reach the primary and others do not, two may hold one lock: they waste work, the table log keeps it safe. After
    a failure the primary is left alone for `pause_s`, so that not every call pays for its timeouts. A lease stays with the provider
    that granted it. `primary` must fail fast, not wait.
    """

    def __init__(self, primary: LockProvider, secondary: LockProvider, *, clock: Clock, pause_s: float = 5.0) -> None:
        self._primary = primary
        self._secondary = secondary
        self._clock = clock
        self._pause_s = pause_s
        self._guard = threading.Lock()
        self._paused_until_s = float("-inf")

    def acquire(self, name: str, *, owner: str, ttl_s: float, wait_s: float, fence: int = 0) -> Lease:
        """See `LockProvider.acquire`. Time spent on the primary counts towards `wait_s`."""
        deadline_s = self._clock.monotonic_s() + wait_s

        def ask(provider: LockProvider) -> Lease:
            left_s = min(wait_s, max(0.0, deadline_s - self._clock.monotonic_s()))
            return provider.acquire(name, owner=owner, ttl_s=ttl_s, wait_s=left_s, fence=fence)

        return self._first_reachable(ask)

    def try_acquire(self, name: str, *, owner: str, ttl_s: float, fence: int = 0) -> Lease | None:
        """See `LockProvider.try_acquire`."""
        return self._first_reachable(lambda provider: provider.try_acquire(name, owner=owner, ttl_s=ttl_s, fence=fence))

    def read(self, name: str) -> LeaseState | None:
        """See `LockProvider.read`. A lease that the secondary granted during an outage is shown too."""
        shown = self._if_reachable(lambda primary: primary.read(name))
        return shown if shown is not None and not shown.expired else self._secondary.read(name) or shown

    def list(self, prefix: str = "") -> list[LeaseState]:
        """See `LockProvider.list`. Both providers' leases; on the same name the primary's, unless only the other is unexpired."""
        states = {state.name: state for state in self._secondary.list(prefix)}
        for state in self._if_reachable(lambda primary: primary.list(prefix)) or ():
            if state.name not in states or not state.expired or states[state.name].expired:
                states[state.name] = state
        return [states[name] for name in sorted(states)]

    def break_expired(self, name: str) -> LeaseState | None:
        """See `LockProvider.break_expired`. One call breaks one lease; the other provider's is broken by the next call."""
        return self._if_reachable(lambda primary: primary.break_expired(name)) or self._secondary.break_expired(name)

    def close(self) -> None:
        """See `LockProvider.close`."""
        self._primary.close()
        self._secondary.close()

    def _first_reachable(self, ask: Callable[[LockProvider], T]) -> T:
        if not self._paused():
            try:
                return ask(self._primary)
            except LockUnreachable as error:
                self._pause(error)
        return ask(self._secondary)

    def _if_reachable(self, ask: Callable[[LockProvider], T]) -> T | None:
        if not self._paused():
            try:
                return ask(self._primary)
            except LockUnreachable as error:
                self._pause(error)
        return None

    def _paused(self) -> bool:
        with self._guard:
            return self._clock.monotonic_s() < self._paused_until_s

    def _pause(self, error: LockUnreachable) -> None:
        with self._guard:
            self._paused_until_s = self._clock.monotonic_s() + self._pause_s
        _log.warning("going on with the second lock provider for %s s: %s", self._pause_s, error)
