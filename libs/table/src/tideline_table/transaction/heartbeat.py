"""Heartbeats of writers (format reference 13.2): an empty file per instant, renewed while its writer lives."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from types import TracebackType

from tideline_table.clock import Clock
from tideline_table.config import CLUSTERING_EXPIRATION_MIN, HEARTBEAT_INTERVAL_MS, HEARTBEAT_MISSES, Options
from tideline_table.errors import ObjectNotFound, TidelineError
from tideline_table.file_group.action import ActionRecord
from tideline_table.storage import Storage
from tideline_table.timeline.files import timeline_path
from tideline_table.timeline.instant import Instant, State, time_from_instant
from tideline_table.writer.marker import last_announced

_LOGGER = logging.getLogger(__name__)
_FOLDER = ".hoodie/.heartbeat"


STORE_TIME_PATH = ".hoodie/.tideline/now"
"""Of an empty file that is put to see what time the store makes of it."""


def heartbeat_path(instant: str) -> str:
    """The heartbeat file of an instant."""
    return f"{_FOLDER}/{instant}"


def allowed_silence(options: Options) -> timedelta:
    """For how long a heartbeat may be missing before its writer counts as dead."""
    return timedelta(milliseconds=options[HEARTBEAT_INTERVAL_MS] * options[HEARTBEAT_MISSES])


def is_alive(storage: Storage, record: ActionRecord, clock: Clock, options: Options) -> bool:
    """Whether whoever runs `record` gave a sign of life lately: by its heartbeat, or by the transition itself when that is younger.

    By this machine's clock: who acts on it asks `is_dead`.
    """
    # Of before the question: a slow answer tells of then, and the writer went on since.
    return _is_recent(storage, record, clock.now(), allowed_silence(options))


def is_dead(storage: Storage, record: ActionRecord, clock: Clock, options: Options) -> bool:
    """Whether whoever runs `record` gave no sign of life for too long, by this machine's clock and by the store's, which dates heartbeats.

    A machine whose clock is ahead would take everybody for dead. Puts a file to learn the store's time, if its own clock says so.
    """
    return is_silent(storage, record, clock, allowed_silence(options))


def is_silent(storage: Storage, record: ActionRecord, clock: Clock, allowed: timedelta) -> bool:
    """Whether there was no sign of life of `record` for longer than `allowed`, by both clocks, as `is_dead`."""
    if _is_recent(storage, record, clock.now(), allowed):
        return False
    return not _is_recent(storage, record, _store_time(storage), allowed)


def _store_time(storage: Storage) -> datetime:
    storage.put(STORE_TIME_PATH, b"")
    return storage.stat(STORE_TIME_PATH).modified


def _is_recent(storage: Storage, record: ActionRecord, now: datetime, allowed: timedelta) -> bool:
    signs: list[datetime] = [datetime.fromisoformat(record.since)] if record.since else []
    if record.is_peers:
        # Its log entry says only when somebody of ours saw it.
        signs = [time_from_instant(record.instant)]
    # No file: not yet created, or its writer ended; then the transition's own time decides.
    with contextlib.suppress(ObjectNotFound):
        signs.append(storage.stat(heartbeat_path(record.instant)).modified)
    return bool(signs) and now - max(signs) <= allowed


def beats(storage: Storage, instant: str, clock: Clock, options: Options) -> bool:
    """Whether the heartbeat of an instant is there and fresh."""
    allowed = allowed_silence(options)
    asked = clock.now()
    try:
        return asked - storage.stat(heartbeat_path(instant)).modified <= allowed
    except ObjectNotFound:
        return False


def is_given_up(storage: Storage, record: ActionRecord, clock: Clock, options: Options) -> bool:
    """Whether a plan that Apache Hudi runs gave no sign of life for `hoodie.clustering.expiration.threshold.mins`.

    Most of its releases keep no heartbeat for table services: the time of the inflight file and of the markers count as well. By both clocks, as
    `is_dead`.
    """
    return _is_silent_plan(storage, record, clock.now(), options) and _is_silent_plan(
        storage, record, _store_time(storage), options
    )


def _is_silent_plan(storage: Storage, record: ActionRecord, asked: datetime, options: Options) -> bool:
    allowed = max(timedelta(minutes=options[CLUSTERING_EXPIRATION_MIN]), allowed_silence(options))
    if asked - time_from_instant(record.instant) <= allowed:
        return False
    for path in (timeline_path(Instant(record.instant, record.action, State.INFLIGHT)), heartbeat_path(record.instant)):
        with contextlib.suppress(ObjectNotFound):
            if asked - storage.stat(path).modified <= allowed:
                return False
    announced = last_announced(storage, record.instant)
    return announced is None or asked - announced > allowed


def forget_silent(storage: Storage, pending: AbstractSet[str], clock: Clock, options: Options) -> None:
    """Delete heartbeats that stopped long ago and belong to no pending instant: of writers that died before their request was there, or behind their end.

    A failure is a warning: they are in nobody's way.
    """
    try:
        left = [o for o in storage.list_folder(_FOLDER).objects if o.path.rpartition("/")[2] not in pending]
        if not any(clock.now() - o.modified > allowed_silence(options) for o in left):
            return
        now = _store_time(storage)
        for found in left:
            if now - found.modified > allowed_silence(options):
                storage.delete(found.path)
    except TidelineError as error:
        _LOGGER.warning("heartbeats of writers that are gone stay behind: %s", error)


class Heartbeat:
    """Keeps an instant's heartbeat fresh from a thread until the context ends.

    A renewal that fails, whatever its error, is logged and tried again; a slow one delays only the next (field notes: PR 18904).
    """

    def __init__(self, storage: Storage, instant: str, options: Options) -> None:
        self._storage = storage
        self._path = heartbeat_path(instant)
        self._interval_s = options[HEARTBEAT_INTERVAL_MS] / 1000
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat-{instant}", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._storage.put(self._path, b"")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End the heartbeat and remove its file. Safe to repeat."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._storage.delete(self._path)
        except Exception as error:
            _LOGGER.warning("heartbeat %s stays behind: %s", self._path, error, exc_info=_unexpected(error))

    def _beat(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._storage.put(self._path, b"")
            except Exception as error:
                _LOGGER.warning("heartbeat %s was not renewed: %s; trying again", self._path, error, exc_info=_unexpected(error))


def _unexpected(error: Exception) -> Exception | None:
    """Errors that storage should not raise are logged with their traceback."""
    return None if isinstance(error, TidelineError) else error
