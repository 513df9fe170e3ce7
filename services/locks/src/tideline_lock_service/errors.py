"""Errors of the lease API that are not errors of `tideline_locks`."""

from __future__ import annotations

from tideline_table.errors import Recovery, TidelineError


class InvalidRequest(TidelineError):
    """The body or query of a request is invalid."""


class RequestTooLarge(TidelineError):
    """The body of a request is larger than the limit."""


class UnknownLock(TidelineError):
    """No table of this shard has a lock with that name."""


class NotTheHolder(TidelineError):
    """The lease is held by another owner."""


class ServiceBusy(TidelineError):
    """The service cannot accept the request now: it starts, stops, or has too many waiting requests."""

    recovery = Recovery.RETRY
