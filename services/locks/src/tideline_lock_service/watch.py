"""What happened to leases between two looks: a pure decision.

Looks see states, not steps: a lease that was acquired and released between two looks was not seen, and one holder after another counts
as taken over unless the times show that the first gave its lease back. Holders that keep their lease renew it every third of its ttl;
one that was seen with less than half of the longest remaining time it ever showed, and was renewed later, had paused.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class SeenLease:
    """A lease as it was last seen. `longest_s` is the longest remaining time it ever showed: at most its ttl."""

    lease: LeaseState
    remaining_s: float
    longest_s: float

    @property
    def is_late(self) -> bool:
        """Whether a living holder would have renewed it before."""
        return self.remaining_s < self.longest_s * PAUSE_FRACTION


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a lease. `previous_owner` is who lost it to the owner."""

    name: str
    kind: Kind
    owner: str
    token: int
    previous_owner: str | None = None


def seen(lease: LeaseState, now: datetime, before: SeenLease | None) -> SeenLease:
    """`lease` as seen at `now`, going on from the look before."""
    remaining_s = (lease.expires - now).total_seconds()
    looked = SeenLease(lease, remaining_s, remaining_s)
    if before is None or before.lease.lease_id != lease.lease_id:
        return looked
    return replace(looked, longest_s=max(remaining_s, before.longest_s))


def changes(before: Mapping[str, SeenLease], now: Mapping[str, LeaseState]) -> list[Change]:
    """Steps from one look to the next, in order of name. `now` holds only leases that have not expired."""
    found: list[Change] = []
    for name in sorted(before.keys() | now.keys()):
        found += _steps(before.get(name), now.get(name))
    return found


def _steps(before: SeenLease | None, now: LeaseState | None) -> list[Change]:
    if now is None:
        return [] if before is None else [_change(Kind.RELEASED, before.lease)]
    if before is None:
        return [_change(Kind.ACQUIRED, now)]
    if before.lease.lease_id == now.lease_id:
        return [_change(Kind.RENEWED_AFTER_PAUSE, now)] if before.is_late and now.expires > before.lease.expires else []
    if now.acquired < before.lease.expires:
        # Nobody gets a lock before its lease ends: the first holder gave it back.
        return [_change(Kind.RELEASED, before.lease), _change(Kind.ACQUIRED, now)]
    return [replace(_change(Kind.TAKEN_OVER, now), previous_owner=before.lease.owner)]


def _change(kind: Kind, lease: LeaseState) -> Change:
    return Change(lease.name, kind, lease.owner, lease.token)
