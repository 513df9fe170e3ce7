"""Decisions about leases, as pure functions that the adapters in Python share."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from tideline_locks.port import Held, LeaseRequest, LeaseState

_V = TypeVar("_V", str, int)


class Standing(enum.Enum):
    """The state of the last lease of a lock."""

    HELD = "held"
    RELEASED = "released"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The last lease of a lock. The record is kept after the lease ends, because its fence rejects older fences."""

    standing: Standing
    owner: str
    lease_id: str
    fence: int
    acquired: datetime
    expires: datetime
    ttl_s: float

    def expired(self, now: datetime, grace_s: float = 0.0) -> bool:
        """Return whether it is held past its end plus `grace_s`, which other processes allow for clock skew."""
        return self.standing is Standing.HELD and now >= self.expires + timedelta(seconds=grace_s)

    def state(self, name: str, *, expired: bool) -> LeaseState | None:
        """Return the lease as the port shows it, None unless it is held."""
        if self.standing is not Standing.HELD:
            return None
        return LeaseState(name, self.owner, self.lease_id, self.fence, self.acquired, self.expires, expired)

    def to_json(self) -> dict[str, Any]:
        """Return the record as fields of a JSON object."""
        return {
            "standing": self.standing.value,
            "owner": self.owner,
            "lease_id": self.lease_id,
            "fence": self.fence,
            "acquired": self.acquired.isoformat(),
            "expires": self.expires.isoformat(),
            "ttl_s": self.ttl_s,
        }

    @classmethod
    def from_json(cls, fields: Any) -> LeaseRecord:
        """Parse what `to_json` wrote. Raises `TypeError`, `KeyError`, `ValueError` or `OverflowError` for anything else."""
        return cls(
            Standing(fields["standing"]),
            typed(fields["owner"], str),
            typed(fields["lease_id"], str),
            typed(fields["fence"], int),
            _instant(fields["acquired"]),
            _instant(fields["expires"]),
            float(fields["ttl_s"]),
        )


def typed(value: object, kind: type[_V]) -> _V:
    """Return `value` if it is of that type. Raises `TypeError`."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _instant(value: object) -> datetime:
    instant = datetime.fromisoformat(typed(value, str))
    if instant.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    return instant


@dataclass(frozen=True, slots=True)
class Stale:
    """Rejected: a greater fence was granted before."""

    greatest: int


def decide_acquire(last: LeaseRecord | None, wish: LeaseRequest, *, now: datetime, expired: bool) -> LeaseRecord | Held | Stale:
    """Return the decision on `wish`; `expired` is the provider's decision on `last`.

    Returns `last` itself if the request was granted before and only its reply was lost.
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
    """Return the renewed record, None if `lease_id` does not hold the lock. An expired lease is never revived."""
    if last is None or last.standing is not Standing.HELD or last.lease_id != lease_id or last.expired(now):
        return None
    return dataclasses.replace(last, expires=now + timedelta(seconds=last.ttl_s))


def decide_release(last: LeaseRecord | None, lease_id: str, *, now: datetime) -> LeaseRecord | None:
    """Return the record after the release by `lease_id`, `last` itself if already released, None if there is nothing to release."""
    if last is None or last.lease_id != lease_id or last.standing is Standing.BROKEN:
        return None
    if last.standing is Standing.RELEASED:
        return last
    return dataclasses.replace(last, standing=Standing.BROKEN if last.expired(now) else Standing.RELEASED)


def decide_break(last: LeaseRecord | None, *, expired: bool) -> LeaseRecord | None:
    """Return the record after breaking an expired lease, None if there is nothing to break."""
    if last is None or last.standing is not Standing.HELD or not expired:
        return None
    return dataclasses.replace(last, standing=Standing.BROKEN)
