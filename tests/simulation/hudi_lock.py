"""The lock of Apache Hudi's `StorageBasedLockProvider` as its client takes it: a put on condition, renewed in the background,
never looked at before a commit."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from tests.simulation.scheduler import SECOND, Process, Scheduler, SimulatedClock
from tests.simulation.shared_world import HUDI_LOCK_VALIDITY_S, SharedStorage, SharedWorld

from tideline_locks.hudi_storage_lock import LOCK_OBJECT
from tideline_table.errors import ObjectNotFound, StorageError

_SKEW_MS = 500
_WAITS_S = 0.5
_ATTEMPTS = 12
_EPOCH = datetime.fromtimestamp(0, UTC)


class HudiLock:
    """Held inside `hold()`. Raises `StorageError` when it is not to be had, as a failed Hudi job does."""

    def __init__(self, world: SharedWorld, process: Process, storage: SharedStorage) -> None:
        self._world = world
        self._process = process
        self._storage = storage
        self._scheduler: Scheduler = world.scheduler
        self._clock = SimulatedClock(world.scheduler, process)
        self._owner = uuid.uuid4().hex
        self._version = ""
        self._is_held = False

    @contextmanager
    def hold(self) -> Iterator[None]:
        """The lock, until the context ends. Who dies inside leaves it to run out."""
        self._acquire()
        self._is_held = True
        self._world.peers_in_lock.add(self._process.name)
        self._scheduler.spawn(f"renew {self._process.name}", self._process, self._renew)
        try:
            yield
        finally:
            self._is_held = False
            self._world.peers_in_lock.discard(self._process.name)
            if not self._process.dead:
                with suppress(StorageError):  # it runs out
                    self._storage.put_if_version(LOCK_OBJECT, self._document(expired=True), self._version)

    def _acquire(self) -> None:
        for _ in range(_ATTEMPTS):
            version, is_free = self._look()
            if is_free and self._put(version):
                return
            self._scheduler.sleep(round(_WAITS_S * SECOND))
        raise StorageError("Hudi's writer did not get the lock")

    def _look(self) -> tuple[str, bool]:
        try:
            content, version = self._storage.read_versioned(LOCK_OBJECT)
        except ObjectNotFound:
            return "", True
        found = json.loads(content)
        return version, bool(found["expired"]) or found["validUntil"] + _SKEW_MS < self._now_ms()

    def _put(self, version: str) -> bool:
        if not self._storage.put_if_version(LOCK_OBJECT, self._document(expired=False), version):
            return False
        # Its answer has the new version; the memory store's is that of the content.
        self._version = self._storage.disk.read_versioned(LOCK_OBJECT)[1]
        return True

    def _renew(self) -> None:
        while True:
            self._scheduler.sleep(round(HUDI_LOCK_VALIDITY_S / 3 * SECOND))
            if not self._is_held:
                return
            try:
                self._put(self._version)
            except StorageError:
                continue

    def _document(self, *, expired: bool) -> bytes:
        valid_until = self._now_ms() + round(HUDI_LOCK_VALIDITY_S * 1000)
        return json.dumps({"expired": expired, "validUntil": valid_until, "owner": self._owner}).encode()

    def _now_ms(self) -> int:
        return (self._clock.now() - _EPOCH) // timedelta(milliseconds=1)
