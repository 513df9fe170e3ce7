"""Who gets a lease: decisions from values to values, shared by the adapters that decide in Python."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from datetime import datetime, timedelta

from tideline_locks.port import Held, LeaseRequest, LeaseState


class Standing(enum.Enum):
    """What became of the last lease of a lock."""

    HELD = "held"
    RELEASED = "released"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The last lease of a lock. It outlives its end: its fence refuses those who come with an older one."""

    standing: Standing
    owner: str
    lease_id: str
    fence: int
    acquired: datetime
    expires: datetime
    ttl_s: float

    def expired(self, now: datetime, grace_s: float = 0.0) -> bool:
        """Whether it is held past its end; others grant the holder's clock `grace_s`."""
        return self.standing is Standing.HELD and now >= self.expires + timedelta(seconds=grace_s)

    def state(self, name: str, *, expired: bool) -> LeaseState | None:
        """As the port shows it."""
        if self.standing is not Standing.HELD:
            return None
        return LeaseState(name, self.owner, self.lease_id, self.fence, self.acquired, self.expires, expired)


@dataclass(frozen=True, slots=True)
class Stale:
    """Refused: a greater fence was granted before."""

    greatest: int


def decide_acquire(last: LeaseRecord | None, wish: LeaseRequest, *, now: datetime, expired: bool) -> LeaseRecord | Held | Stale:
    """What follows from `wish`; `expired` is the provider's judgement on `last`.

    `last` itself comes back when the wish was granted before and only its answer got lost.
    """
    if last is not None and last.standing is Standing.HELD and not expired:
        if last.lease_id == wish.lease_id:
            return last
        return Stale(last.fence) if wish.fence < last.fence else Held(last.owner, last.acquired)
    if last is not None and wish.fence < last.fence:
        return Stale(last.fence)
    expires = now + timedelta(seconds=wish.ttl_s)
    return LeaseRecord(Standing.HELD, wish.owner, wish.lease_id, wish.fence, now, expires, wish.ttl_s)


def decide_renew(last: LeaseRecord | None, lease_id: str, *, now: datetime) -> LeaseRecord | None:
    """The renewed record, or None: not this lease's any more. A lease past its end is not revived, others may be at the door."""
    if last is None or last.standing is not Standing.HELD or last.lease_id != lease_id or last.expired(now):
        return None
    return dataclasses.replace(last, expires=now + timedelta(seconds=last.ttl_s))


def decide_release(last: LeaseRecord | None, lease_id: str, *, now: datetime) -> LeaseRecord | None:
    """The record after the release by `lease_id`; `last` itself when it was released before; None when it is not its to release."""
    if last is None or last.lease_id != lease_id or last.standing is Standing.BROKEN:
        return None
    if last.standing is Standing.RELEASED:
        return last
    return dataclasses.replace(last, standing=Standing.BROKEN if last.expired(now) else Standing.RELEASED)


def decide_break(last: LeaseRecord | None, *, expired: bool) -> LeaseRecord | None:
    """The record after breaking an expired lease; None when there is nothing to break."""
    if last is None or last.standing is not Standing.HELD or not expired:
        return None
    return dataclasses.replace(last, standing=Standing.BROKEN)
