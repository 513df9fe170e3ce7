"""What can go wrong with a lock, by what the caller can do about it."""

from __future__ import annotations

from datetime import datetime

from tideline_table.errors import Recovery, TidelineError


class LockTimeout(TidelineError):
    """It was not to be had for all of `wait_s`.

    `holder` and `since` (UTC) name who held it and for how long; both are None when the lock was free but other waiters came first, or when the
    caller's view of the table was older than `greatest`, the greatest head of the table log that was granted; otherwise that is None.
    """

    recovery = Recovery.RETRY

    def __init__(
        self, name: str, *, waited_s: float, holder: str | None, since: datetime | None, greatest: int | None = None
    ) -> None:
        remedy = "retry, wait longer, or look at its holder"
        if holder is not None and since:
            why = f"held by {holder!r} since {since:%Y-%m-%dT%H:%M:%S.%fZ}"
        elif greatest is not None:
            why = f"kept for those who saw entry {greatest} of the table log, which is not there"
            remedy = (
                "retry; where it stays so, the log went back (a backup took the table's place): stop its writers, and delete what the place "
                "of the locks remembers of this one"
            )
        else:
            why = "promised to other waiters"
        super().__init__(f"lock {name!r} is {why}", expected=f"to get it within {waited_s:g} s", remedy=remedy)
        self.name = name
        self.waited_s = waited_s
        self.holder = holder
        self.since = since
        self.greatest = greatest


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
