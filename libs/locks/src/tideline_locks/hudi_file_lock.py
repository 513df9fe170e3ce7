"""The lock of Hudi's `FileSystemBasedLockProvider` on a local disk: the file `.hoodie/lock` exists while the lock is held.

Hudi creates it exclusively and never renews it. Hudi deletes it, whichever process created it: when it unlocks, when its client
closes, and when the file is older than `hoodie.write.lock.filesystem.expire` minutes. On a local disk it checks for the file and
then creates it, so it truncates a file created in between. So Tideline holds the lock only if the file is still its own a moment
later, and the holder checks again (`Lease.renew`) shortly before a step that must not happen twice. A short gap remains.

A lock file leaves no trace of its own, but Hadoop's local file system replaces and deletes a checksum file with it. So Tideline
leaves such a file behind each of its releases, with content that no reader takes for checksums: who takes the lock removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tideline_locks.errors import LockUnreachable
from tideline_locks.hudi_cell import NEVER, hudi_lease, lease_fields, lease_in, parsed_lock
from tideline_locks.record_lock import Seen
from tideline_locks.rules import LeaseRecord, Standing
from tideline_table.clock import Clock
from tideline_table.errors import StorageFull
from tideline_table.log import LOCK_GUARD_PATH
from tideline_table.storage import refused_write

LOCK_FILE = ".hoodie/lock"
SETTLE_S = 0.005
"""Longer than Hudi needs from its check for the file to the creation of the file."""
_FREE = "free"
_MARK = b"tideline"
_CHECKSUMS = b"crc"
"""How each checksum file of Hadoop begins."""


class FileLockCell:
    """`LockCell` on lock files. `expire_min` is `hoodie.write.lock.filesystem.expire` of Hudi's writers; 0 means never.

    `base_path_of` returns the table folder of a lock name, `known` the names to list. The injected clock sets the times of files.
    """

    def __init__(
        self, base_path_of: Callable[[str], Path], known: Callable[[], Sequence[str]], *, clock: Clock, expire_min: int = 0
    ) -> None:
        self._base_path_of = base_path_of
        self._known = known
        self._clock = clock
        self._expire_min = expire_min

    def read(self, name: str) -> Seen:
        """See `LockCell.read`."""
        with _translated(name):
            return self._read(self._base_path_of(name) / LOCK_FILE)

    def swap(self, name: str, seen: Seen, record: LeaseRecord) -> bool:
        """See `LockCell.swap`. The guard file excludes Tideline processes only; against Hudi, only creation is exclusive."""
        base = self._base_path_of(name)
        path = base / LOCK_FILE
        with _translated(name), _guarded(base / LOCK_GUARD_PATH):
            if self._read(path).version != seen.version:
                return False
            if record.standing is not Standing.HELD:
                path.unlink(missing_ok=True)
                with suppress(OSError):  # the lock is free; a full disk leaves an empty file, which is a mark, too
                    _checksum_sibling(path).write_bytes(_MARK)
                return True
            if seen.record is not None and seen.record.lease_id == record.lease_id:
                return self._touch(path, seen, record)
            if seen.version != _FREE:
                path.unlink(missing_ok=True)
            return self._create(path, record)

    def was_taken(self, name: str) -> bool:
        """See `LockCell.was_taken`: who took the lock removed the mark of the last release."""
        base = self._base_path_of(name)
        path = base / LOCK_FILE
        with _translated(name), _guarded(base / LOCK_GUARD_PATH):
            try:
                if not _checksum_sibling(path).read_bytes().startswith(_CHECKSUMS):
                    return False
            except FileNotFoundError:
                pass
            held = self._read(path).record
            return held is None or not held.lease_id  # no process of Tideline holds it now

    def names(self) -> Sequence[str]:
        """See `LockCell.names`."""
        return self._known()

    def _read(self, path: Path) -> Seen:
        try:
            with path.open("rb") as file:
                content, stat = file.read(), os.fstat(file.fileno())
        except FileNotFoundError:
            return Seen(None, _FREE)
        version = f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}"
        touched = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=stat.st_mtime_ns // 1000)
        ours = lease_in(parsed_lock(content))
        if ours is not None:
            return Seen(replace(ours, expires=touched + timedelta(seconds=ours.ttl_s)), version)
        expires = touched + timedelta(minutes=self._expire_min) if self._expire_min else NEVER
        return Seen(hudi_lease(touched, expires), version)

    def _create(self, path: Path, record: LeaseRecord) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Delete the checksum file of an earlier lock of Hudi: it would make Hudi fail to read the new lock.
        _checksum_sibling(path).unlink(missing_ok=True)
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        details = {"lockCreateTime": record.acquired.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3], "lockThreadName": record.owner}
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps({**details, **lease_fields(record)}).encode())
                file.flush()
                _set_time(file.fileno(), record)
        except OSError:
            path.unlink(missing_ok=True)  # without its content it would block every writer until it expires
            raise
        self._clock.sleep(SETTLE_S)
        found = self._read(path).record
        return found is not None and found.lease_id == record.lease_id

    def _touch(self, path: Path, seen: Seen, record: LeaseRecord) -> bool:
        # Use the open file: it is the one that was checked, even if the name now belongs to another file.
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
        if isinstance(full := refused_write(error, f"the lock file of {name!r}"), StorageFull):
            raise full from error  # waiting for the lock does not help
        raise LockUnreachable(
            f"lock file of {name!r}: {error.strerror or error}", remedy="check the disk and the permissions, then retry"
        ) from error
