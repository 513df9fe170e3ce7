"""The lock of a table that Apache Hudi's writers honour too: one cell that holds the state of the lock, read and swapped whole.

Hudi has one lock per table, no names, no fencing tokens and no queue. Whoever takes it here writes what Hudi expects, with what a lease
needs beside it; Hudi overwrites or deletes that when it takes the lock next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from tideline_locks.rules import LeaseRecord, Standing

PEER = "apache-hudi"
"""The owner of a lock that was not taken by an adapter of ours."""
NEVER = datetime(9999, 12, 31, tzinfo=UTC)
OBJECT_LIMIT_BYTES = 256 * 1024
"""Hudi writes the stack trace of its thread into some locks."""
_OURS = "tideline"


@dataclass(frozen=True, slots=True)
class CellState:
    """What is in a cell: the record (None: nobody's), and what a swap has to find unchanged."""

    record: LeaseRecord | None
    version: str


class LockCell(Protocol):
    """Where the lock lies. Errors: `LockUnreachable`."""

    def read(self, name: str) -> CellState:
        """The state of the lock now."""
        ...

    def swap(self, name: str, seen: CellState, record: LeaseRecord) -> bool:
        """Put `record` if the cell still is as `seen`; False when it is not, and nothing was changed."""
        ...

    def names(self) -> Sequence[str]:
        """Locks that this cell knows."""
        ...


def lease_fields(record: LeaseRecord) -> dict[str, Any]:
    """What Hudi ignores in its lock and a lease of ours needs."""
    return {
        _OURS: {
            "standing": record.standing.value,
            "owner": record.owner,
            "lease_id": record.lease_id,
            "fence": record.fence,
            "acquired": record.acquired.isoformat(),
            "expires": record.expires.isoformat(),
            "ttl_s": record.ttl_s,
        }
    }


def parsed_lock(content: bytes) -> dict[str, Any]:
    """The JSON object in a lock, empty for anything else: what others wrote there is theirs."""
    if len(content) > OBJECT_LIMIT_BYTES:
        return {}
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def lease_in(document: dict[str, Any]) -> LeaseRecord | None:
    """The lease that an adapter of ours wrote, None when somebody else wrote the lock."""
    fields: Any = document.get(_OURS)
    try:
        return LeaseRecord(
            Standing(fields["standing"]),
            str(fields["owner"]),
            str(fields["lease_id"]),
            int(fields["fence"]),
            datetime.fromisoformat(fields["acquired"]),
            datetime.fromisoformat(fields["expires"]),
            float(fields["ttl_s"]),
        )
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


def peer_lease(acquired: datetime, expires: datetime) -> LeaseRecord:
    """A lock that Hudi holds."""
    return LeaseRecord(Standing.HELD, PEER, "", 0, acquired, expires, max(0.0, (expires - acquired).total_seconds()))
