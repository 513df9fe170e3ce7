"""The lock of Hudi's `FileSystemBasedLockProvider` on a local disk: the file `.hoodie/lock`, there while the lock is held.

Hudi creates it exclusively, never renews it, and deletes it whoever made it: when it unlocks, again when its client closes, and when it is
older than `hoodie.write.lock.filesystem.expire` minutes. On a local disk it looks first and creates then, so a file that came in between
is emptied. So a lock of ours counts only when it is still ours a moment later, and its holder looks again before what must not be done twice
(`Lease.renew`). What remains is the time between that look and the deed; the holder keeps it short.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tideline_locks.errors import LockUnreachable
from tideline_locks.hudi_cell import NEVER, CellState, lease_fields, lease_in, parsed_lock, peer_lease
from tideline_locks.rules import LeaseRecord, Standing
from tideline_table.clock import Clock

LOCK_FILE = ".hoodie/lock"
GUARD_FILE = ".hoodie/.tideline/lock-guard"
SETTLE_S = 0.005
"""Longer than Hudi takes from looking for the file to creating it."""
_FREE = "free"


class FileLockCell:
    """`LockCell` on lock files. `expire_min` is what Hudi's writers have as `hoodie.write.lock.filesystem.expire`; 0 is never.

    `base_path_of` gives the folder of the table behind a lock name, `known` the names to list. Times of files are set by the injected clock.
    """

    def __init__(
        self, base_path_of: Callable[[str], Path], known: Callable[[], Sequence[str]], *, clock: Clock, expire_min: int = 0
    ) -> None:
        self._base_path_of = base_path_of
        self._known = known
        self._clock = clock
        self._expire_min = expire_min

    def read(self, name: str) -> CellState:
        """See `LockCell.read`."""
        with _translated(name):
            return self._read(self._base_path_of(name) / LOCK_FILE)

    def swap(self, name: str, seen: CellState, record: LeaseRecord) -> bool:
        """See `LockCell.swap`. The guard keeps adapters of ours apart; against Hudi only the creation of the file is exclusive."""
        base = self._base_path_of(name)
        path = base / LOCK_FILE
        with _translated(name), _guarded(base / GUARD_FILE):
            if self._read(path).version != seen.version:
                return False
            if record.standing is not Standing.HELD:
                path.unlink(missing_ok=True)
                _checksum_sibling(path).unlink(missing_ok=True)
                return True
            if seen.record is not None and seen.record.lease_id == record.lease_id:
                return self._touch(path, seen, record)
            if seen.version != _FREE:
                path.unlink(missing_ok=True)
            return self._create(path, record)

    def names(self) -> Sequence[str]:
        """See `LockCell.names`."""
        return self._known()

    def _read(self, path: Path) -> CellState:
        try:
            with path.open("rb") as file:
                content, stat = file.read(), os.fstat(file.fileno())
        except FileNotFoundError:
            return CellState(None, _FREE)
        version = f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}"
        touched = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=stat.st_mtime_ns // 1000)
        ours = lease_in(parsed_lock(content))
        if ours is not None:
            return CellState(replace(ours, expires=touched + timedelta(seconds=ours.ttl_s)), version)
        expires = touched + timedelta(minutes=self._expire_min) if self._expire_min else NEVER
        return CellState(peer_lease(touched, expires), version)

    def _create(self, path: Path, record: LeaseRecord) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of a lock that Hudi left behind: it would make Hudi fail to read ours.
        _checksum_sibling(path).unlink(missing_ok=True)
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            told = {"lockCreateTime": record.acquired.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3], "lockThreadName": record.owner}
            file.write(json.dumps({**told, **lease_fields(record)}).encode())
            file.flush()
            _set_time(file.fileno(), record)
        self._clock.sleep(SETTLE_S)
        found = self._read(path).record
        return found is not None and found.lease_id == record.lease_id

    def _touch(self, path: Path, seen: CellState, record: LeaseRecord) -> bool:
        # By the open file: what was opened is what was seen, whatever has that name by now.
        try:
            with path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}" != seen.version:
                    return False
                _set_time(file.fileno(), record)
        except FileNotFoundError:
            return False
        found = self._read(path).record
        return found is not None and found.lease_id == record.lease_id


def _set_time(descriptor: int, record: LeaseRecord) -> None:
    since = record.expires - timedelta(seconds=record.ttl_s) - datetime.fromtimestamp(0, UTC)
    nanoseconds = (since // timedelta(microseconds=1)) * 1000
    os.utime(descriptor, ns=(nanoseconds, nanoseconds))


def _checksum_sibling(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


@contextmanager
def _guarded(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LockUnreachable(
            f"lock file of {name!r}: {error.strerror or error}", remedy="check the disk and its rights, then retry"
        ) from error
