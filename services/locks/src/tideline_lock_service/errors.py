"""What the lease API refuses for reasons of its own, beside the errors of `tideline_locks`."""

from __future__ import annotations

from tideline_table.errors import Recovery, TidelineError


class InvalidRequest(TidelineError):
    """A body or query that the API does not understand."""


class RequestTooLarge(TidelineError):
    """A body beyond the bound."""


class UnknownLock(TidelineError):
    """No table of this shard has a lock of that name."""


class NotTheHolder(TidelineError):
    """The lease is held by another owner."""


class ServiceBusy(TidelineError):
    """The service cannot take the request now: it starts, stops, or has as many waiting requests as it may."""

    recovery = Recovery.RETRY
