"""Locks on storage only: lease epochs as objects, created put-if-absent.

`<prefix>/<name>/<20-digit epoch>.json`: the object of the highest epoch is the state of the lock. To change the state, a process
reads the highest epoch e, decides, and creates e + 1; one of several concurrent processes succeeds. Old epochs are deleted, but
never the newest `KEPT_EPOCHS`. So a put may recreate an epoch that was deleted. Therefore the process lists the epochs again after
its put, which counts only if the highest epoch is less than `KEPT_EPOCHS` ahead: then the epoch cannot have been deleted before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime

from tenacity import wait_exponential

from tideline_locks.errors import LockUnreachable
from tideline_locks.lease_object import LeaseObject, epoch_of, epoch_path, folder_path, lock_name
from tideline_locks.port import LOCK_NAME
from tideline_locks.record_lock import RACE_ATTEMPTS, RecordLockProvider, Seen
from tideline_locks.rules import LeaseRecord, Standing
from tideline_locks.waiting import RandomSource
from tideline_table.clock import Clock
from tideline_table.errors import ObjectExists, ObjectNotFound, StorageError
from tideline_table.storage import Storage

_log = logging.getLogger(__name__)

LOCKS_PREFIX = ".hoodie/.tideline/locks"
"""A folder that every Hudi reader ignores, so that locks can be below the base path of a table."""

KEPT_EPOCHS = 16
PUT_ATTEMPTS = 3


class StorageLockProvider(RecordLockProvider):
    """`LockProvider` on a `Storage`. Waiters are not served in order of arrival.

    The injected wall clock decides about expiry, and other processes allow a holder's clock `skew_allowance_s`. An epoch that this
    provider saw unchanged for its whole ttl + allowance has expired, independent of the holder's clock.
    """

    backoff = wait_exponential(multiplier=0.02, max=1.0)

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock,
        prefix: str = LOCKS_PREFIX,
        skew_allowance_s: float = 2.0,
        randomness: RandomSource | None = None,
    ) -> None:
        super().__init__(clock, randomness, skew_allowance_s)
        self._storage = storage
        self._prefix = prefix
        self._guard = threading.Lock()
        self._first_seen: dict[str, tuple[str, float]] = {}

    def _read(self, name: str) -> Seen:
        with _translated(f"reading lock {name!r}"):
            for _ in range(RACE_ATTEMPTS):
                epoch = max(self._epochs(name), default=0)
                if not epoch:
                    return Seen(None, "0")
                found = self._read_object(epoch_path(self._prefix, name, epoch))
                # Absent: the lock advanced by `KEPT_EPOCHS` between the listing and the read.
                if found is not None:
                    return Seen(found.record, str(epoch))
        raise LockUnreachable(
            f"the objects of lock {name!r} are deleted as soon as they are listed", remedy="check the storage, then retry"
        )

    def _swap(self, name: str, seen: Seen, record: LeaseRecord) -> bool:
        with _translated(f"changing lock {name!r}"):
            return self._append(name, int(seen.version) + 1, record)

    def _names(self) -> Iterable[str]:
        with _translated("listing locks"):
            folders = self._storage.list_folder(self._prefix).folders
        return [name for name in map(lock_name, folders) if LOCK_NAME.fullmatch(name)]

    def _append(self, name: str, epoch: int, record: LeaseRecord) -> bool:
        """Return whether this put created `epoch` and no other process can have created it before."""
        path = epoch_path(self._prefix, name, epoch)
        mine = LeaseObject(self._randomness.new_id(), record)
        body = mine.to_bytes()
        failure: Exception | None = None
        for _ in range(PUT_ATTEMPTS):
            try:
                self._storage.put_if_absent(path, body)
            except (ObjectExists, ObjectNotFound, StorageError) as error:
                # Neither a rejection nor a missing reply shows who won: a retried put may meet its own object. Read it.
                failure = error
                there = self._read_object(path)
                if there is None:
                    continue
                if there.append_id != mine.append_id:
                    return False
            return self._confirmed(name, epoch)
        raise LockUnreachable(
            f"{PUT_ATTEMPTS} puts of {path!r} created no object ({failure})", remedy="check the storage, then retry"
        ) from failure

    def _confirmed(self, name: str, epoch: int) -> bool:
        epochs = self._epochs(name)
        highest = max(epochs, default=0)
        if highest >= epoch + KEPT_EPOCHS:
            return False
        for old in epochs:
            if old <= highest - KEPT_EPOCHS:
                self._delete_quietly(epoch_path(self._prefix, name, old))
        return True

    def _delete_quietly(self, path: str) -> None:
        # The lock has changed already, so report no failure. A later change deletes the remaining object.
        try:
            self._storage.delete(path)
        except StorageError as error:
            _log.warning("old lease object %r could not be deleted: %s", path, error)

    def _epochs(self, name: str) -> tuple[int, ...]:
        listing = self._storage.list_folder(folder_path(self._prefix, name))
        return tuple(epoch for stat in listing.objects if (epoch := epoch_of(stat.path)) is not None)

    def _read_object(self, path: str) -> LeaseObject | None:
        try:
            return LeaseObject.from_bytes(self._storage.read(path), path)
        except ObjectNotFound:
            return None

    def _expired(self, name: str, seen: Seen, now: datetime) -> bool:
        if seen.record is None or seen.record.standing is not Standing.HELD:
            return False
        now_s = self._clock.monotonic_s()
        with self._guard:
            version, since_s = self._first_seen.get(name, ("", now_s))
            if version != seen.version:
                since_s = now_s
                self._first_seen[name] = (seen.version, since_s)
        unchanged_long_enough = now_s - since_s >= seen.record.ttl_s + self._skew_allowance_s
        return unchanged_long_enough or super()._expired(name, seen, now)


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise LockUnreachable(f"{doing}: {error.found}", remedy=error.remedy or "check the storage, then retry") from error
