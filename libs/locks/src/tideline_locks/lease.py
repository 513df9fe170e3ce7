"""A lease in the hands of its holder."""

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
    """What a provider granted. `asked_s` is the holder's monotonic clock before it asked: the lease cannot end before that + ttl."""

    name: str
    owner: str
    lease_id: str
    token: int
    ttl_s: float
    acquired: datetime
    asked_s: float


class LeaseStore(Protocol):
    """What a lease asks of the provider that granted it."""

    def renew_grant(self, grant: Grant) -> bool:
        """Extend by the grant's ttl from now; False if it is not (or no longer) this grant's. May raise `LockUnreachable`."""
        ...

    def release_grant(self, grant: Grant) -> bool:
        """End it if it is this grant's; True only if it was held, unexpired, until now. May raise `LockUnreachable`."""
        ...


class Lease:
    """A lock held until `remaining_s` runs out, unless renewed. Safe to share between threads.

    As a context manager it releases at the end. That never raises: by then the work under the lock has an outcome of its own (a
    durable commit must not be reported as failed), and an unreleased lease runs out by itself.
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
        """The lock."""
        return self._grant.name

    @property
    def owner(self) -> str:
        """Who holds it, in words for people."""
        return self._grant.owner

    @property
    def lease_id(self) -> str:
        """What tells this lease from any other of the same owner."""
        return self._grant.lease_id

    @property
    def token(self) -> int:
        """The fencing token: the head sequence of the table log that the holder came with."""
        return self._grant.token

    @property
    def acquired(self) -> datetime:
        """When it was granted, UTC, on the provider's clock."""
        return self._grant.acquired

    @property
    def ttl_s(self) -> float:
        """For how many seconds each renewal extends it."""
        return self._grant.ttl_s

    @property
    def released(self) -> bool:
        """Whether the holder gave it back, or tried to."""
        with self._state:
            return self._outcome is not None

    @property
    def remaining_s(self) -> float:
        """Seconds for which nobody else can hold the lock, on the holder's monotonic clock; 0 when lost or released."""
        with self._state:
            if self._lost or self._outcome is not None:
                return 0.0
            return max(0.0, self._deadline_s - self._clock.monotonic_s())

    @property
    def lost(self) -> bool:
        """Whether somebody else may hold the lock by now although it was not released. Once True it stays True."""
        with self._state:
            return self._is_lost()

    def renew(self) -> None:
        """Extend the lease by `ttl_s` from now.

        `LeaseLost` if it is gone or has run out (a lease past its end is never revived); `LockUnreachable` if the provider does not
        answer: then it lasts for what is left of `remaining_s`, and renewing may be tried again.
        """
        with self._state:
            self._check_usable()
        asked_s = self._clock.monotonic_s()
        renewed = self._store.renew_grant(self._grant)
        with self._state:
            if not renewed and self._releasing:
                raise LeaseLost(self.name, owner=self.owner, why="its holder released it")
            if not renewed:
                self._lost = True
            # Somebody may have seen `lost` while the answer was on its way, and acted on it: the late answer does not undo that.
            self._check_usable(latched_only=renewed)
            self._deadline_s = max(self._deadline_s, asked_s + self._grant.ttl_s)

    def release(self) -> bool:
        """Give the lease back. True if it was held until now; False if it had been lost: then nothing of another's is touched.

        Asking again gives the first answer. `LockUnreachable` if the provider does not answer; it may be tried again.
        """
        with self._state:
            if self._outcome is not None:
                return self._outcome
            lost = self._is_lost()
            # A renewal under way will find the lease gone: that is no loss.
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
        """`release`, where an unreachable provider is logged instead of raised: the lease runs out by itself."""
        try:
            return self.release()
        except LockUnreachable as error:
            _log.warning(
                "lease %r of %r could not be released, it runs out within %s s: %s", self.name, self.owner, self.ttl_s, error
            )
            return False

    def _is_lost(self) -> bool:
        if self._outcome is None and self._clock.monotonic_s() >= self._deadline_s:
            self._lost = True
        return self._lost

    def _check_usable(self, *, latched_only: bool = False) -> None:
        if self._outcome is not None:
            raise LeaseLost(self.name, owner=self.owner, why="its holder released it")
        if self._lost or (not latched_only and self._is_lost()):
            raise LeaseLost(self.name, owner=self.owner, why="it ran out, was taken over or was forgotten")
