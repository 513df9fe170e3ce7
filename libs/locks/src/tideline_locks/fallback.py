"""Going on with a second lock provider, and a second intent board, while the first one does not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from tideline_locks.errors import LockUnreachable
from tideline_locks.lease import Lease
from tideline_locks.port import LeaseState, LockProvider, ReadFence
from tideline_table.clock import Clock
from tideline_table.transaction.intents import Intent, IntentBoard, PostedIntent

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Outage:
    """What is known of one server's failure: it is left alone for `pause_s`, so that not every call pays for its timeouts. Thread-safe."""

    def __init__(self, clock: Clock, pause_s: float = 5.0) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._guard = threading.Lock()
        self._until_s = float("-inf")

    def first_reachable(self, ask_primary: Callable[[], T], ask_secondary: Callable[[], T]) -> T:
        """What the primary answers; what the secondary answers while the primary raises `LockUnreachable`, and for `pause_s` after."""
        with self._guard:
            is_paused = self._clock.monotonic_s() < self._until_s
        if not is_paused:
            try:
                return ask_primary()
            except LockUnreachable as error:
                with self._guard:
                    self._until_s = self._clock.monotonic_s() + self._pause_s
                _log.warning("going on without the first lock provider and its intents for %s s: %s", self._pause_s, error)
        return ask_secondary()


class FallbackLockProvider:
    """`LockProvider` that asks `primary`, and `secondary` while `primary` raises `LockUnreachable`.

    While some callers reach the primary and others do not, two may hold one lock: they waste work, the table log keeps it safe. A lease
    stays with the provider that granted it. `primary` must fail fast, not wait. Several with one primary share their `outage`.
    """

    def __init__(self, primary: LockProvider, secondary: LockProvider, *, clock: Clock, outage: Outage | None = None) -> None:
        self._primary = primary
        self._secondary = secondary
        self._clock = clock
        self._outage = outage or Outage(clock)

    def acquire(self, name: str, *, owner: str, ttl_s: float, wait_s: float, fence: int | ReadFence = 0) -> Lease:
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
        return self._outage.first_reachable(lambda: ask(self._primary), lambda: ask(self._secondary))

    def _if_reachable(self, ask: Callable[[LockProvider], T | None]) -> T | None:
        return self._outage.first_reachable(lambda: ask(self._primary), lambda: None)


class FallbackIntents:
    """`IntentBoard` that posts at `primary`, and at `secondary`, which may be `NoIntents`, while `primary` is not reached.

    Writers that see different boards do not wait for each other: that costs one of them its attempt.
    """

    def __init__(self, primary: IntentBoard, secondary: IntentBoard, outage: Outage) -> None:
        self._primary = primary
        self._secondary = secondary
        self._outage = outage
        self._was_unreachable = False

    def claim(self, intent: Intent) -> list[Intent]:
        """See `IntentBoard.claim`."""
        return self._outage.first_reachable(lambda: self._primary.claim(intent), lambda: self._claim_second(intent))

    def withdraw(self, instant: str) -> None:
        """See `IntentBoard.withdraw`. What stays at a primary that is away is taken off by whoever waits for it."""
        self._outage.first_reachable(lambda: self._primary.withdraw(instant), lambda: None)
        if self._was_unreachable:
            self._secondary.withdraw(instant)

    def posted(self) -> list[PostedIntent]:
        """See `IntentBoard.posted`."""
        return self._outage.first_reachable(self._primary.posted, self._secondary.posted)

    def _claim_second(self, intent: Intent) -> list[Intent]:
        self._was_unreachable = True
        return self._secondary.claim(intent)
