"""What can go wrong with a lock, by what the caller can do about it."""

from __future__ import annotations

from datetime import datetime

from tideline_table.errors import Recovery, TidelineError


class LockTimeout(TidelineError):
    """Somebody else held the lock for all of `wait_s`.

    `holder` and `since` (UTC) name who and for how long; both are None when the lock was free but other waiters came first.
    """

    recovery = Recovery.RETRY

    def __init__(self, name: str, *, waited_s: float, holder: str | None, since: datetime | None) -> None:
        by = (
            f"held by {holder!r} since {since:%Y-%m-%dT%H:%M:%S.%fZ}"
            if holder is not None and since
            else "promised to other waiters"
        )
        super().__init__(
            f"lock {name!r} is {by}",
            expected=f"to get it within {waited_s:g} s",
            remedy="retry, wait longer, or look at its holder",
        )
        self.name = name
        self.waited_s = waited_s
        self.holder = holder
        self.since = since


class LockUnreachable(TidelineError):
    """The place where leases are kept does not answer, or answers with a failure that may pass.

    Whether the last request took effect is unknown; a lease granted by it runs out by itself.
    """

    recovery = Recovery.RETRY


class LockAccessDenied(TidelineError):
    """The place where leases are kept refuses these credentials."""


class StaleFence(TidelineError):
    """The caller saw an older head of the table log than somebody who was granted this lock before it.

    `fence` is the caller's, `greatest` the greatest granted one. Read the log, then come again.
    """

    recovery = Recovery.REFRESH

    def __init__(self, name: str, *, fence: int, greatest: int) -> None:
        super().__init__(
            f"fence {fence} for lock {name!r}",
            expected=f"{greatest} or greater, which was granted before",
            remedy="read the table log again and retry",
        )
        self.name = name
        self.fence = fence
        self.greatest = greatest


class LeaseLost(TidelineError):
    """The lease is no longer its holder's: it ran out, was taken over, or was forgotten by the place where it was kept."""

    recovery = Recovery.REFRESH

    def __init__(self, name: str, *, owner: str, why: str) -> None:
        super().__init__(
            f"lease of {owner!r} on lock {name!r} is lost: {why}",
            remedy="stop work that relies on it, acquire again and read the table log",
        )
        self.name = name
        self.owner = owner


class InvalidLease(TidelineError):
    """A lock name, owner, duration or fence that no provider accepts."""
