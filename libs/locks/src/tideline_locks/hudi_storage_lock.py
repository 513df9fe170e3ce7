"""The lock of Hudi's `StorageBasedLockProvider` in an object store: `.hoodie/.locks/table_lock.json`, replaced by conditional puts.

The object is `{"expired", "validUntil", "owner"}`, `validUntil` in milliseconds since 1970. A lock is free when the object is missing, says
`expired`, or was valid until more than 500 ms ago. Hudi passes over further keys, so a lease of ours keeps its fence there until Hudi takes the
lock and forgets it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from tideline_locks.errors import LockUnreachable
from tideline_locks.hudi_cell import NEVER, CellState, lease_fields, lease_in, parsed_lock, peer_lease
from tideline_locks.rules import LeaseRecord, Standing
from tideline_table.errors import ObjectNotFound, StorageError
from tideline_table.storage import ConditionalStorage

LOCK_OBJECT = ".hoodie/.locks/table_lock.json"
_EPOCH = datetime.fromtimestamp(0, UTC)
_ABSENT = ""


class StorageLockCell:
    """`LockCell` on lock objects of one storage. `path_of` gives the object of a lock name, `known` the names to list."""

    def __init__(
        self, storage: ConditionalStorage, path_of: Callable[[str], str], known: Callable[[], Sequence[str]], *, validity_s: float
    ) -> None:
        self._storage = storage
        self._path_of = path_of
        self._known = known
        self._validity_s = validity_s

    def read(self, name: str) -> CellState:
        """See `LockCell.read`."""
        with _translated(f"reading lock {name!r}"):
            try:
                content, version = self._storage.read_versioned(self._path_of(name))
            except ObjectNotFound:
                return CellState(None, _ABSENT)
        return CellState(_record(content, self._validity_s), version)

    def swap(self, name: str, seen: CellState, record: LeaseRecord) -> bool:
        """See `LockCell.swap`. A put whose answer got lost is read back: the lease id tells whose it is."""
        path, content = self._path_of(name), lock_bytes(record)
        try:
            return self._storage.put_if_version(path, content, seen.version)
        except StorageError as error:
            with _translated(f"changing lock {name!r}"):
                if self._storage.read_versioned(path)[0] == content:
                    return True
            raise LockUnreachable(f"changing lock {name!r}: {error.found}", remedy="check the storage, then retry") from error

    def names(self) -> Sequence[str]:
        """See `LockCell.names`."""
        with _translated("listing locks"):
            return self._known()


def lock_bytes(record: LeaseRecord) -> bytes:
    """The object as Hudi reads it. `owner` is the lease's id: Hudi's is a random one, too, and tells its renewals from anybody else's."""
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
        # Hudi cannot read such an object either, and does not take the lock.
        return peer_lease(_EPOCH, NEVER)
    return peer_lease(expires - timedelta(seconds=validity_s), expires)


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except (StorageError, ObjectNotFound) as error:
        raise LockUnreachable(f"{doing}: {error.found}", remedy=error.remedy or "check the storage, then retry") from error
