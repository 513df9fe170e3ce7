"""Fallback to a second lock provider and a second store of file-group reservations while the first one does not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from tideline_locks.errors import LockUnreachable
from tideline_locks.lease import Lease
from tideline_locks.port import LeaseSource, ReadFence
from tideline_table.clock import Clock
from tideline_table.coordination import PostedReservation, Reservation, Reservations

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Outage:
    """The outage of one server, which gets no requests for `pause_s` after a failure, to save timeouts. Thread-safe."""

    def __init__(self, clock: Clock, pause_s: float = 5.0) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._guard = threading.Lock()
        self._until_s = float("-inf")

    def first_reachable(self, ask_primary: Callable[[], T], ask_secondary: Callable[[], T]) -> T:
        """Return the primary's result, or the secondary's while the primary raises `LockUnreachable` and `pause_s` after."""
        with self._guard:
            is_paused = self._clock.monotonic_s() < self._until_s
        if not is_paused:
            try:
                return ask_primary()
            except LockUnreachable as error:
                with self._guard:
                    self._until_s = self._clock.monotonic_s() + self._pause_s
                _log.warning("using the fallback lock provider and its reservations for %s s: %s", self._pause_s, error)
        return ask_secondary()


class FallbackLockProvider:
    """`LeaseSource` on `primary`, or on `secondary` while `primary` raises `LockUnreachable`.

    If only some callers reach the primary, two may hold one lock: that wastes work, but the table log stays correct. A lease stays
    with its provider. `primary` must fail fast, not wait. Instances with one primary share their `outage`.
    """

    def __init__(self, primary: LeaseSource, secondary: LeaseSource, *, clock: Clock, outage: Outage) -> None:
        self._primary = primary
        self._secondary = secondary
        self._clock = clock
        self._outage = outage

    def acquire(self, name: str, *, owner: str, ttl_s: float, wait_s: float, fence: int | ReadFence = 0) -> Lease:
        """See `LeaseSource.acquire`. Time spent on the primary counts towards `wait_s`."""
        deadline_s = self._clock.monotonic_s() + wait_s

        def ask(provider: LeaseSource) -> Lease:
            left_s = min(wait_s, max(0.0, deadline_s - self._clock.monotonic_s()))
            return provider.acquire(name, owner=owner, ttl_s=ttl_s, wait_s=left_s, fence=fence)

        return self._outage.first_reachable(lambda: ask(self._primary), lambda: ask(self._secondary))


class FallbackReservations:
    """`Reservations` that posts to `primary`, or to `secondary` (which may be `NoReservations`) while `primary` is unreachable.

    Writers that post to different stores do not wait for each other, so one of them may lose its attempt.
    """

    def __init__(self, primary: Reservations, secondary: Reservations, outage: Outage) -> None:
        self._primary = primary
        self._secondary = secondary
        self._outage = outage
        self._was_unreachable = False

    def claim(self, reservation: Reservation) -> list[Reservation]:
        """See `Reservations.claim`."""
        return self._outage.first_reachable(lambda: self._primary.claim(reservation), lambda: self._claim_second(reservation))

    def withdraw(self, instant: str) -> None:
        """See `Reservations.withdraw`. If the primary is unreachable, a writer that waits for the reservation removes it later."""
        self._outage.first_reachable(lambda: self._primary.withdraw(instant), lambda: None)
        if self._was_unreachable:
            self._secondary.withdraw(instant)

    def posted(self) -> list[PostedReservation]:
        """See `Reservations.posted`."""
        return self._outage.first_reachable(self._primary.posted, self._secondary.posted)

    def _claim_second(self, reservation: Reservation) -> list[Reservation]:
        self._was_unreachable = True
        return self._secondary.claim(reservation)
