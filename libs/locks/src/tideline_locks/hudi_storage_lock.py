"""The lock of Hudi's `StorageBasedLockProvider` in an object store: `.hoodie/.locks/table_lock.json`, replaced by conditional puts.

The object is `{"expired", "validUntil", "owner"}`, with `validUntil` in milliseconds since 1970. The lock is free if the object is
missing, is `expired`, or was valid until more than 500 ms ago. Hudi ignores further keys, so a Tideline lease keeps its fence there
until Hudi takes the lock and overwrites it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from tideline_locks.errors import LockUnreachable
from tideline_locks.hudi_cell import NEVER, hudi_lease, lease_fields, lease_in, parsed_lock
from tideline_locks.record_lock import Seen
from tideline_locks.rules import LeaseRecord, Standing
from tideline_table.errors import ObjectNotFound, StorageError
from tideline_table.storage import Storage

LOCK_OBJECT = ".hoodie/.locks/table_lock.json"
_EPOCH = datetime.fromtimestamp(0, UTC)
_ABSENT = ""


class StorageLockCell:
    """`LockCell` on lock objects of one storage. `path_of` returns the object path of a lock name, `known` the names to list."""

    def __init__(
        self, storage: Storage, path_of: Callable[[str], str], known: Callable[[], Sequence[str]], *, validity_s: float
    ) -> None:
        self._storage = storage
        self._path_of = path_of
        self._known = known
        self._validity_s = validity_s

    def read(self, name: str) -> Seen:
        """See `LockCell.read`."""
        with _translated(f"reading lock {name!r}"):
            try:
                content, version = self._storage.read_versioned(self._path_of(name))
            except ObjectNotFound:
                return Seen(None, _ABSENT)
        return Seen(_record(content, self._validity_s), version)

    def swap(self, name: str, seen: Seen, record: LeaseRecord) -> bool:
        """See `LockCell.swap`. A put without a reply is read back; the lease id shows whether it took effect."""
        path, content = self._path_of(name), lock_bytes(record)
        try:
            return self._storage.put_if_version(path, content, seen.version)
        except StorageError as error:
            with _translated(f"changing lock {name!r}"):
                if self._storage.read_versioned(path)[0] == content:
                    return True
            raise LockUnreachable(f"changing lock {name!r}: {error.found}", remedy="check the storage, then retry") from error

    def was_taken(self, name: str) -> bool:
        """See `LockCell.was_taken`: Hudi overwrites the lease that Tideline leaves in the object."""
        with _translated(f"reading lock {name!r}"):
            try:
                return lease_in(parsed_lock(self._storage.read(self._path_of(name)))) is None
            except ObjectNotFound:
                return False

    def names(self) -> Sequence[str]:
        """See `LockCell.names`."""
        with _translated("listing locks"):
            return self._known()


def lock_bytes(record: LeaseRecord) -> bytes:
    """Return the object in Hudi's format. `owner` is the lease id; Hudi also writes a random id, to recognize its own renewals."""
    document = {
        "expired": record.standing is not Standing.HELD,
        "validUntil": (record.expires - _EPOCH) // timedelta(milliseconds=1),
        "owner": record.lease_id or record.owner,
    }
    return json.dumps({**document, **lease_fields(record)}).encode()


def _record(content: bytes, validity_s: float) -> LeaseRecord | None:
    document = parsed_lock(content)
    ours = lease_in(document)
    if ours is not None:
        return ours
    if document.get("expired") is True:
        return None
    try:
        expires = _EPOCH + timedelta(milliseconds=int(document["validUntil"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        # Hudi cannot read such an object either and does not take the lock.
        return hudi_lease(_EPOCH, NEVER)
    return hudi_lease(expires - timedelta(seconds=validity_s), expires)


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except (StorageError, ObjectNotFound) as error:
        raise LockUnreachable(f"{doing}: {error.found}", remedy=error.remedy or "check the storage, then retry") from error
