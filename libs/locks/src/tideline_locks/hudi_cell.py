"""The lock that Apache Hudi's writers also use: one cell with the state of the lock, read and replaced as a whole.

Hudi has one lock per table, without names, fencing tokens or a queue. Tideline writes the content that Hudi expects, plus the
fields that a lease needs. Hudi overwrites or deletes these fields when it next takes the lock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from tideline_locks.record_lock import Seen
from tideline_locks.rules import LeaseRecord, Standing

HUDI_OWNER = "apache-hudi"
"""The owner of a lock that Tideline did not take."""
NEVER = datetime(9999, 12, 31, tzinfo=UTC)
OBJECT_LIMIT_BYTES = 256 * 1024
"""Large enough for the stack trace of its thread that Hudi writes into some locks."""
_OURS = "tideline"


class LockCell(Protocol):
    """The location of the lock. Errors: `LockUnreachable`."""

    def read(self, name: str) -> Seen:
        """Return the current state of the lock."""

    def swap(self, name: str, seen: Seen, record: LeaseRecord) -> bool:
        """Write `record` if the cell is unchanged since `seen`. Otherwise return False and change nothing."""

    def names(self) -> Sequence[str]:
        """Return the names of the locks that this cell knows."""

    def was_taken(self, name: str) -> bool:
        """Return whether a client of Hudi took the lock after the last process of Tideline released it."""


def lease_fields(record: LeaseRecord) -> dict[str, Any]:
    """Return the fields that a Tideline lease needs and Hudi ignores."""
    return {_OURS: record.to_json()}


def parsed_lock(content: bytes) -> dict[str, Any]:
    """Return the JSON object in a lock, empty for any other content, which is treated as written by Hudi."""
    if len(content) > OBJECT_LIMIT_BYTES:
        return {}
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def lease_in(document: dict[str, Any]) -> LeaseRecord | None:
    """Return the lease that Tideline wrote, None if another writer wrote the lock."""
    try:
        return LeaseRecord.from_json(document[_OURS])
    except (TypeError, KeyError, ValueError, OverflowError):
        return None


def hudi_lease(acquired: datetime, expires: datetime) -> LeaseRecord:
    """Return the record of a lock that Hudi holds."""
    return LeaseRecord(Standing.HELD, HUDI_OWNER, "", 0, acquired, expires, max(0.0, (expires - acquired).total_seconds()))
