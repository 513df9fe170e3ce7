"""Errors of locks, by what the caller can do about them."""

from __future__ import annotations

from datetime import datetime

from tideline_table.errors import Conflict, InvalidInput, Recovery, Unavailable


class LockTimeout(Unavailable):
    """The lock could not be acquired within `wait_s`.

    `holder` has held it since `since` (UTC). Both are None if the lock was free but other waiters were first, or if the caller's
    view of the table was older than `greatest`, the greatest granted head of the table log. Otherwise `greatest` is None.
    """

    def __init__(
        self, name: str, *, waited_s: float, holder: str | None, since: datetime | None, greatest: int | None = None
    ) -> None:
        remedy = "retry, wait longer, or check the holder"
        if holder is not None and since:
            why = f"held by {holder!r} since {since:%Y-%m-%dT%H:%M:%S.%fZ}"
        elif greatest is not None:
            why = f"reserved for writers that read entry {greatest} of the table log, which does not exist"
            remedy = (
                "retry; if the error remains, the table was replaced by an older copy: stop its writers and delete the state of "
                "this lock in the lock store"
            )
        else:
            why = "reserved for waiters that are first in the queue"
        super().__init__(f"lock {name!r} is {why}", expected=f"a lease within {waited_s:g} s", remedy=remedy)
        self.name = name
        self.waited_s = waited_s
        self.holder = holder
        self.since = since
        self.greatest = greatest


class LockUnreachable(Unavailable):
    """The store of the leases does not answer, or reports a failure that may be temporary.

    The last request may have taken effect. A lease that it granted expires without a request.
    """


class LockAccessDenied(Unavailable):
    """The store of the leases rejects these credentials."""

    recovery = Recovery.STOP


class StaleFence(Conflict):
    """The caller saw an older head of the table log than an earlier holder of this lock.

    `fence` is the fence of the caller, `greatest` the greatest granted one. Read the log, then try again.
    """

    def __init__(self, name: str, *, fence: int, greatest: int) -> None:
        super().__init__(
            f"fence {fence} for lock {name!r}",
            expected=f"{greatest} or greater, which was granted before",
            remedy="read the table log again and retry",
        )
        self.name = name
        self.fence = fence
        self.greatest = greatest


class LeaseLost(Conflict):
    """The holder lost the lease: it expired, another owner took it over, or its store forgot it."""

    def __init__(self, name: str, *, owner: str, reason: str) -> None:
        super().__init__(
            f"lease of {owner!r} on lock {name!r} is lost: {reason}",
            remedy="stop the work under this lease, acquire it again and read the table log",
        )
        self.name = name
        self.owner = owner


class InvalidLease(InvalidInput):
    """A lock name, owner, duration or fence that every provider rejects."""
