"""The lock port: what writers and services ask of a lock, wherever it is kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol
from urllib.parse import quote

from tideline_locks.errors import InvalidLease
from tideline_locks.lease import Lease

LOCK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@=+~-]*", re.ASCII)
"""No braces (Redis hash tags), no glob characters, no leading dot: one name is safe in every adapter."""

ENCODED_NAME_LIMIT = 200
"""Characters of a percent-encoded name: it becomes one folder name on storage."""

OWNER_LIMIT = 512
MIN_TTL_S = 0.01
MAX_FENCE = 2**53
"""Redis scripts compute in doubles."""


ReadFence = Callable[[], int]
"""Reads the table log and returns its head sequence."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A lease as the provider knows it. Times are UTC on the provider's clock.

    `token` is the head sequence of the table log that the holder had seen when it was granted. `expired` is the provider's own
    judgement at the time of reading: such a lease may be taken over or broken.
    """

    name: str
    owner: str
    lease_id: str
    token: int
    acquired: datetime
    expires: datetime
    expired: bool


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A checked wish for a lease. `lease_id` is random: it tells a retry of this wish from anybody else's."""

    name: str
    owner: str
    lease_id: str
    ttl_s: float
    fence: int


@dataclass(frozen=True, slots=True)
class Held:
    """Not granted: by whom the lock is held and since when (both None: free, but other waiters come first)."""

    owner: str | None
    since: datetime | None


class LockProvider(Protocol):
    """Leases by name (design: architecture, principle 3 and "A commit").

    `fence` is the head sequence of the table log that the caller saw. The provider keeps the greatest one granted per name, across
    releases, and refuses an older one with `StaleFence`; the lease's `token` is that fence. A provider may forget what it knows
    (Redis flushed): then two may believe that they hold a lock until the first one's next renewal. The table log stays safe.

    Leases are not re-entrant: the same owner asking twice waits for itself.

    Errors: `LockUnreachable`, `StaleFence`, `InvalidLease`, `LockAccessDenied`.
    """

    def acquire(self, name: str, *, owner: str, ttl_s: float, wait_s: float, fence: int | ReadFence = 0) -> Lease:
        """A lease for `ttl_s` seconds, waiting at most `wait_s` for it. `LockTimeout` names the holder.

        A `fence` that can be read is read when it matters, and again when it was refused as old; the caller keeps its place meanwhile
        where the provider queues waiters. What reading it raises is passed on.
        """
        ...

    def try_acquire(self, name: str, *, owner: str, ttl_s: float, fence: int = 0) -> Lease | None:
        """A lease if it can be had now, without overtaking waiters where the provider queues them; else None."""
        ...

    def read(self, name: str) -> LeaseState | None:
        """The lease on `name`, also one that expired and was neither taken over nor broken; None if it is free."""
        ...

    def list(self, prefix: str = "") -> list[LeaseState]:
        """The leases on all names that start with `prefix`, as `read` shows them, in order of name."""
        ...

    def break_expired(self, name: str) -> LeaseState | None:
        """End the lease on `name` if it has expired. The ended lease, or None; of many racing callers one gets it."""
        ...

    def close(self) -> None:
        """Give connections back. Leases live on until they are released or run out."""
        ...


def checked_name(name: str) -> str:
    """`name` if every adapter can keep it, otherwise `InvalidLease`."""
    if not LOCK_NAME.fullmatch(name) or len(quote(name, safe="")) > ENCODED_NAME_LIMIT:
        raise InvalidLease(
            f"lock name {name!r}",
            expected=f"letters, digits and ._:/@=+~- after a letter or digit, at most {ENCODED_NAME_LIMIT} characters percent-encoded",
        )
    return name


def checked_request(name: str, *, owner: str, lease_id: str, ttl_s: float, wait_s: float) -> LeaseRequest:
    """The wish as a value, or `InvalidLease`. It has seen nothing yet."""
    checked_name(name)
    if not owner or len(owner) > OWNER_LIMIT:
        raise InvalidLease(f"owner {owner[:OWNER_LIMIT]!r}", expected=f"1 to {OWNER_LIMIT} characters")
    # Written so that NaN fails too.
    if not MIN_TTL_S <= ttl_s < float("inf"):
        raise InvalidLease(f"ttl of {ttl_s} s", expected=f"at least {MIN_TTL_S} s")
    if not 0 <= wait_s < float("inf"):
        raise InvalidLease(f"wait of {wait_s} s", expected="0 s or more")
    return LeaseRequest(name, owner, lease_id, ttl_s, 0)


def with_fence(wish: LeaseRequest, fence: int) -> LeaseRequest:
    """The same wish with another fence, or `InvalidLease`."""
    if not 0 <= fence <= MAX_FENCE:
        raise InvalidLease(f"fence {fence}", expected=f"a sequence from 0 to {MAX_FENCE}")
    return replace(wish, fence=fence)
