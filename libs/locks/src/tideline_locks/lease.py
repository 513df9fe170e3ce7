"""Leases, as their holders use them."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Protocol

from tideline_locks.errors import LeaseLost, LockUnreachable
from tideline_table.clock import Clock

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease that a provider granted. It cannot end before `asked_s` (the holder's monotonic clock before the request) + ttl."""

    name: str
    owner: str
    lease_id: str
    token: int
    ttl_s: float
    acquired: datetime
    asked_s: float


class LeaseStore(Protocol):
    """The operations that a lease needs from the provider that granted it."""

    def renew_grant(self, grant: Grant) -> bool:
        """Extend the lease by its ttl from now. Return False if this grant does not hold it. May raise `LockUnreachable`."""

    def release_grant(self, grant: Grant) -> bool:
        """End the lease of this grant. Return True only if it was held and unexpired until now. May raise `LockUnreachable`."""


class Lease:
    """A lock that is held until `remaining_s` reaches 0, unless renewed. Safe to share between threads.

    As a context manager it releases the lock at the end and never raises an error: the work under the lock already has an outcome
    (a durable commit must not be reported as failed), and an unreleased lease expires by itself.
    """

    def __init__(self, grant: Grant, store: LeaseStore, clock: Clock) -> None:
        self._grant = grant
        self._store = store
        self._clock = clock
        self._state = threading.Lock()
        self._deadline_s = grant.asked_s + grant.ttl_s
        self._lost = False
        self._releasing = False
        self._outcome: bool | None = None

    def __repr__(self) -> str:
        return f"Lease({self.name!r}, owner={self.owner!r}, token={self.token}, lease_id={self.lease_id!r})"

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release_quietly()

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._grant.name

    @property
    def owner(self) -> str:
        """The holder, as a text for people."""
        return self._grant.owner

    @property
    def lease_id(self) -> str:
        """The id that distinguishes this lease from other leases of the same owner."""
        return self._grant.lease_id

    @property
    def token(self) -> int:
        """The fencing token: the head sequence of the table log that the holder saw."""
        return self._grant.token

    @property
    def acquired(self) -> datetime:
        """When the lease was granted, in UTC on the provider's clock."""
        return self._grant.acquired

    @property
    def ttl_s(self) -> float:
        """The seconds by which each renewal extends the lease."""
        return self._grant.ttl_s

    @property
    def released(self) -> bool:
        """Whether the holder released the lease, even if it was lost by then."""
        with self._state:
            return self._outcome is not None

    @property
    def remaining_s(self) -> float:
        """Seconds for which no other owner can hold the lock, on the holder's monotonic clock; 0 if lost or released."""
        with self._state:
            if self._lost or self._outcome is not None:
                return 0.0
            return max(0.0, self._deadline_s - self._clock.monotonic_s())

    @property
    def lost(self) -> bool:
        """Whether another owner may hold the lock although this lease was not released. Once True, it stays True."""
        with self._state:
            return self._is_lost()

    def renew(self) -> None:
        """Extend the lease by `ttl_s` from now.

        Raises `LeaseLost` if the lease is lost or has expired (an expired lease is never revived), and `LockUnreachable` if the
        provider does not answer. Then the lease is still held for `remaining_s`, and the caller may renew again.
        """
        with self._state:
            self._check_usable()
        asked_s = self._clock.monotonic_s()
        renewed = self._store.renew_grant(self._grant)
        with self._state:
            if not renewed and self._releasing:
                raise LeaseLost(self.name, owner=self.owner, reason="the holder released it")
            if not renewed:
                self._lost = True
            # Another thread may have seen `lost` and acted on it before the reply arrived. A late reply does not undo that.
            self._check_usable(latched_only=renewed)
            self._deadline_s = max(self._deadline_s, asked_s + self._grant.ttl_s)

    def release(self) -> bool:
        """Release the lease. Return True if it was held until now, False if it had been lost; other leases are never changed.

        Further calls return the first result. Raises `LockUnreachable` if the provider does not answer; the caller may try again.
        """
        with self._state:
            if self._outcome is not None:
                return self._outcome
            lost = self._is_lost()
            # A concurrent renewal will find the lease released. That is no loss.
            self._releasing = True
        try:
            held = self._store.release_grant(self._grant) and not lost
        except BaseException:
            with self._state:
                self._releasing = False
            raise
        with self._state:
            self._outcome = held
            self._lost = self._lost or not held
        return held

    def release_quietly(self) -> bool:
        """Release the lease, but log an unreachable provider instead of raising: the lease expires by itself."""
        try:
            return self.release()
        except LockUnreachable as error:
            _log.warning(
                "lease %r of %r could not be released; it expires within %s s: %s", self.name, self.owner, self.ttl_s, error
            )
            return False

    def _is_lost(self) -> bool:
        if self._outcome is None and self._clock.monotonic_s() >= self._deadline_s:
            self._lost = True
        return self._lost

    def _check_usable(self, *, latched_only: bool = False) -> None:
        if self._outcome is not None:
            raise LeaseLost(self.name, owner=self.owner, reason="the holder released it")
        if self._lost or (not latched_only and self._is_lost()):
            raise LeaseLost(self.name, owner=self.owner, reason="it expired, was taken over, or the lock store lost it")
