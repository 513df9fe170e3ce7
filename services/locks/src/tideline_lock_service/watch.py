"""Lease changes between two polls: a pure function.

Polls see states, not transitions: a lease that was acquired and released between two polls is not seen. A new holder counts as
having taken over, unless the times show that the previous holder released its lease. A live holder renews every third of its ttl,
so a lease that was below half of its longest observed remaining time, and was renewed later, counts as renewed after a pause.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from datetime import datetime

from tideline_locks import LeaseState

PAUSE_FRACTION = 0.5


class Kind(enum.StrEnum):
    """Kinds of `LockEvent`."""

    ACQUIRED = "acquired"
    RENEWED_AFTER_PAUSE = "renewed_after_pause"
    EXPIRED = "expired"
    RELEASED = "released"
    TAKEN_OVER = "taken_over"
    HEARTBEAT_LOST = "heartbeat_lost"
    FORCE_RELEASED = "force_released"


@dataclass(frozen=True, slots=True)
class SeenLease:
    """A lease as of the last poll.

    `longest_s` is the longest remaining time observed, which is at most its ttl. Times are in seconds.
    """

    lease: LeaseState
    remaining_s: float
    longest_s: float

    @property
    def is_late(self) -> bool:
        """Whether a live holder would already have renewed the lease."""
        return self.remaining_s < self.longest_s * PAUSE_FRACTION


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a lease. `previous_owner` is the owner that lost the lease to `owner`."""

    kind: Kind
    owner: str
    token: int
    previous_owner: str | None = None


def seen(lease: LeaseState, now: datetime, before: SeenLease | None) -> SeenLease:
    """Return `lease` as seen at `now`, continuing from the previous poll."""
    remaining_s = (lease.expires - now).total_seconds()
    found = SeenLease(lease, remaining_s, remaining_s)
    if before is None or before.lease.lease_id != lease.lease_id:
        return found
    return replace(found, longest_s=max(remaining_s, before.longest_s))


def changes(before: SeenLease | None, now: LeaseState | None) -> list[Change]:
    """Return the changes of one lease between two polls. `now` is None unless it is held and has not expired."""
    if now is None:
        return [] if before is None else [_change(Kind.RELEASED, before.lease)]
    if before is None:
        return [_change(Kind.ACQUIRED, now)]
    if before.lease.lease_id == now.lease_id:
        return [_change(Kind.RENEWED_AFTER_PAUSE, now)] if before.is_late and now.expires > before.lease.expires else []
    if now.acquired < before.lease.expires:
        # A lock is not granted before the previous lease ends, so the previous holder released it.
        return [_change(Kind.RELEASED, before.lease), _change(Kind.ACQUIRED, now)]
    return [replace(_change(Kind.TAKEN_OVER, now), previous_owner=before.lease.owner)]


def _change(kind: Kind, lease: LeaseState) -> Change:
    return Change(kind, lease.owner, lease.token)
