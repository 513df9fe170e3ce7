"""The lock port: the operations that writers and services need from a lock, independent of its store."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol
from urllib.parse import quote

from tideline_locks.errors import InvalidLease
from tideline_locks.lease import Lease, LeaseStore

LOCK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@=+~-]*", re.ASCII)
"""No braces (Redis hash tags), glob characters or leading dot, so that a name is safe in every adapter."""

ENCODED_NAME_LIMIT = 200
"""Maximum characters of a percent-encoded name, because it becomes one folder name on storage."""

TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "TIDELINE_LOCKS_TOKEN", "TIDELINE_LOCKS_TOKEN_FILE"
"""Environment variables: the bearer token of the lock service, or a file with it. A file may change while the process runs."""
OWNER_LIMIT = 512
MIN_TTL_S = 0.01
MAX_FENCE = 2**53
"""Redis scripts compute with doubles."""


class OnUnreachable(enum.Enum):
    """What `acquire` does while Redis does not answer."""

    WAIT = "wait"
    """Try again until `wait_s` has passed."""
    FAIL = "fail"
    """Raise `LockUnreachable` at once."""
    STORAGE = "storage"
    """Use the storage lock instead (`FallbackLockProvider`; the Redis part then works as FAIL)."""


ReadFence = Callable[[], int]
"""Reads the table log and returns its head sequence."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A lease as the provider knows it. Times are in UTC on the provider's clock.

    `token` is the head sequence of the table log that the holder had seen when the lease was granted. `expired` is the provider's
    decision at the time of the read: an expired lease may be taken over or broken.
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
    """A validated request for a lease. `lease_id` is random and distinguishes a retry of this request from other requests."""

    name: str
    owner: str
    lease_id: str
    ttl_s: float
    fence: int


@dataclass(frozen=True, slots=True)
class Held:
    """Not granted: the holder of the lock and since when (both None: the lock is free, but other waiters are first)."""

    owner: str | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class LogWanted:
    """Not granted yet: the request is next, and has to bring the head of the table log."""


class LeaseSource(Protocol):
    """Grants leases: all that a writer needs of a lock provider."""

    def acquire(self, name: str, *, owner: str, ttl_s: float, wait_s: float, fence: int | ReadFence = 0) -> Lease:
        """Acquire a lease for `ttl_s` seconds, waiting at most `wait_s`. Raises `LockTimeout`, which names the holder.

        A callable `fence` is read when it is needed, and again when the provider rejected it as old. The caller keeps its place in
        the queue, if the provider has one. Errors of reading the fence are raised unchanged. A store that may forget the holder
        earlier (the session of ZooKeeper) grants less than `ttl_s`: see `Lease.ttl_s`.
        """


class LockProvider(LeaseSource, Protocol):
    """Leases by name (docs/architecture.md).

    `fence` is the head sequence of the table log that the caller saw. The provider keeps the greatest granted fence per name,
    across releases, and rejects older ones with `StaleFence`. The lease's `token` is that fence. A provider may lose its state
    (Redis flushed): then two owners may believe that they hold a lock until the first one's next renewal. The table log stays safe.

    Leases are not re-entrant: a second request of the same owner waits for the first lease.

    Errors: `LockUnreachable`, `StaleFence`, `InvalidLease`, `LockAccessDenied`.
    """

    def try_acquire(self, name: str, *, owner: str, ttl_s: float, fence: int = 0) -> Lease | None:
        """Return a lease if it is available now and no waiter is queued before, else None."""

    def read(self, name: str) -> LeaseState | None:
        """Return the lease on `name`, None if it is free. An expired lease is returned until it is taken over or broken."""

    def list(self, prefix: str = "") -> list[LeaseState]:
        """Return the leases on all names that start with `prefix`, as `read` does, in order of name."""

    def break_expired(self, name: str) -> LeaseState | None:
        """End the lease on `name` if it has expired. Return it, or None. Only one of several concurrent callers gets it."""

    def close(self) -> None:
        """Close the connections. Leases stay until they are released or expire."""


class HudiLocks(LockProvider, Protocol):
    """A provider on locks that Apache Hudi's writers take, too."""

    def was_taken(self, name: str) -> bool:
        """Return whether a client of Hudi took the lock after the last process of Tideline released it.

        A trace, not a history: it does not say which client, or how often.
        """


class RemoteLeases(LockProvider, LeaseStore, Protocol):
    """A provider whose leases another process can hold: it renews and releases by lease id alone, and answers a waiter in parts.

    The lock service uses it for its clients.
    """

    def stand(self, wish: LeaseRequest, *, fence: int | None, wait_s: float) -> Lease | Held | LogWanted:
        """Wait at most `wait_s` for `wish`, and let the caller ask again with the same lease id.

        The caller keeps its place in the queue, if the provider has one, for some seconds. `fence` None: the caller has not
        read the log; the answer is `LogWanted` when it is next. Raises `StaleFence` if the fence is old, and `LockUnreachable`
        at once.
        """

    def withdraw(self, wish: LeaseRequest) -> None:
        """Give up the place of `wish`, and a lease that it was granted without a reply. Raises `LockUnreachable`."""

    def force_break(self, name: str) -> LeaseState | None:
        """End the lease on `name`, expired or not. Return it, or None if there was none. Its holder finds out when it renews."""


def checked_name(name: str) -> str:
    """Return `name` if every adapter supports it. Otherwise raise `InvalidLease`."""
    if not LOCK_NAME.fullmatch(name) or len(quote(name, safe="")) > ENCODED_NAME_LIMIT:
        raise InvalidLease(
            f"lock name {name!r}",
            expected=f"letters, digits and ._:/@=+~- after a letter or digit, at most {ENCODED_NAME_LIMIT} characters "
            "percent-encoded",
        )
    return name


def checked_request(name: str, *, owner: str, lease_id: str, ttl_s: float, wait_s: float) -> LeaseRequest:
    """Return the validated request, with fence 0, or raise `InvalidLease`."""
    checked_name(name)
    if not owner or len(owner) > OWNER_LIMIT:
        raise InvalidLease(f"owner {owner[:OWNER_LIMIT]!r}", expected=f"1 to {OWNER_LIMIT} characters")
    # The comparison also rejects NaN.
    if not MIN_TTL_S <= ttl_s < float("inf"):
        raise InvalidLease(f"ttl of {ttl_s} s", expected=f"at least {MIN_TTL_S} s")
    if not 0 <= wait_s < float("inf"):
        raise InvalidLease(f"wait of {wait_s} s", expected="0 s or more")
    return LeaseRequest(name, owner, lease_id, ttl_s, 0)


def with_fence(wish: LeaseRequest, fence: int) -> LeaseRequest:
    """Return the request with another fence, or raise `InvalidLease`."""
    if not 0 <= fence <= MAX_FENCE:
        raise InvalidLease(f"fence {fence}", expected=f"a sequence from 0 to {MAX_FENCE}")
    return replace(wish, fence=fence)
