"""Heartbeats of writers (format reference 13.2): a file per instant, renewed while its writer is alive.

It is empty, except while a clustering in an exclusive table holds writers up (`Heartbeat.hold_writers`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from types import TracebackType

from tideline_table.clock import Clock
from tideline_table.config import CLUSTERING_EXPIRATION_MIN, HEARTBEAT_INTERVAL_MS, HEARTBEAT_MISSES, Options
from tideline_table.errors import ObjectNotFound, StorageError, StorageFull, TidelineError
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import State, time_from_instant
from tideline_table.log.action import ActionRecord
from tideline_table.log.entry import IDENTITY_PATH, entry_path
from tideline_table.storage import Storage, exists
from tideline_table.writer.marker import last_marked

_LOGGER = logging.getLogger(__name__)
_FOLDER = ".hoodie/.heartbeat"
_HOLD = b"hold"


STORE_TIME_PATH = ".hoodie/.tideline/now"
"""The path of an empty file that is written to read the store's time from its modification time."""


def heartbeat_path(instant: str) -> str:
    """Return the path of the heartbeat file of an instant."""
    return f"{_FOLDER}/{instant}"


def allowed_silence(options: Options) -> timedelta:
    """Return how long a heartbeat may be missing before its writer counts as dead."""
    return timedelta(milliseconds=options[HEARTBEAT_INTERVAL_MS] * options[HEARTBEAT_MISSES])


def is_alive(storage: Storage, record: ActionRecord, clock: Clock, options: Options, beat: datetime | None = None) -> bool:
    """Return whether the process that runs `record` recently renewed its heartbeat or appended the transition.

    `beat` is the last renewal if the caller knows it; else it is asked for (`last_beat`). Uses this machine's clock, unless a sign
    of life shows that it is behind. Before an action on a dead writer, ask `is_dead`.
    """
    return _seems_alive(storage, record, clock, allowed_silence(options), beat)


def last_beat(storage: Storage, instant: str) -> datetime | None:
    """Return when the heartbeat of an instant was last renewed; None if it has none. One request."""
    with contextlib.suppress(ObjectNotFound):
        return storage.stat(heartbeat_path(instant)).modified
    return None


def is_dead(storage: Storage, record: ActionRecord, clock: Clock, options: Options) -> bool:
    """Return whether the process that runs `record` was silent too long, by this machine's clock and by the store's.

    If this clock says so, writes a file to learn the store's time: a clock that is ahead would take every writer for dead.
    """
    return is_silent(storage, record, clock, allowed_silence(options))


def is_silent(storage: Storage, record: ActionRecord, clock: Clock, allowed: timedelta) -> bool:
    """Return whether `record` showed no sign of life for longer than `allowed`, by both clocks as in `is_dead`."""
    if _seems_alive(storage, record, clock, allowed):
        return False
    silence = _silence(storage, record, store_time(storage), allowed)
    return silence is None or silence > allowed


def _seems_alive(storage: Storage, record: ActionRecord, clock: Clock, allowed: timedelta, beat: datetime | None = None) -> bool:
    # Read the clock before the request, so that a slow reply cannot make a live writer look dead.
    silence = _silence(storage, record, clock.now(), allowed, beat)
    if silence is not None and silence < -allowed:
        # This clock is behind: by it, a dead writer would stay alive until the clock has caught up. A reader may not be allowed to
        # write the file that shows the store's time, and nobody in a table that only Apache Hudi writes, whose instants may be in
        # another zone.
        with contextlib.suppress(StorageError):
            if not record.is_by_hudi or exists(storage, IDENTITY_PATH):
                silence = _silence(storage, record, store_time(storage), allowed, beat)
    return silence is not None and silence <= allowed


def last_sign(storage: Storage, record: ActionRecord, clock: Clock, options: Options) -> timedelta | None:
    """Return the time since the last sign of life of the process that runs `record`, by this machine's clock.

    None without a sign.
    """
    return _silence(storage, record, clock.now(), allowed_silence(options))


def store_time(storage: Storage) -> datetime:
    """Return the store's time by writing a file: not after the return, not before the call by more than the store's rounding."""
    storage.put(STORE_TIME_PATH, b"")
    return storage.stat(STORE_TIME_PATH).modified


def _silence(
    storage: Storage, record: ActionRecord, now: datetime, allowed: timedelta, beat: datetime | None = None
) -> timedelta | None:
    """Return the time since the last sign of life, negative for a sign in the future. None without a sign."""
    signs: list[datetime] = [datetime.fromisoformat(record.since)] if record.since else []
    if record.is_by_hudi:
        # The log entry only has the time when this engine adopted the action.
        signs = [time_from_instant(record.instant)]
    elif signs and signs[0] - now > allowed:
        # A clock that was ahead recorded it, so use the store's time of the entry. A trimmed entry gives no sign.
        signs = []
        with contextlib.suppress(ObjectNotFound):
            signs = [storage.stat(entry_path(record.sequence)).modified]
    # Without a file, the heartbeat was not created yet or its writer ended: then the time of the transition decides.
    beat = beat or last_beat(storage, record.instant)
    if beat is not None:
        signs.append(beat)
    return now - max(signs) if signs else None


def beats(storage: Storage, instant: str, clock: Clock, options: Options) -> bool:
    """Return whether the heartbeat of an instant exists and is fresh; where this clock differs from its time, by the store's."""
    path, allowed = heartbeat_path(instant), allowed_silence(options)
    asked = clock.now()
    try:
        silence = asked - storage.stat(path).modified
        if abs(silence) > allowed:
            asked = store_time(storage)
            silence = asked - storage.stat(path).modified
    except ObjectNotFound:
        return False
    return silence <= allowed


def holds_writers(storage: Storage, instant: str) -> bool:
    """Return whether the heartbeat of a clustering asks writers to wait (`Heartbeat.hold_writers`)."""
    try:
        return storage.read(heartbeat_path(instant)) == _HOLD
    except ObjectNotFound:
        return False


def is_given_up(storage: Storage, record: ActionRecord, clock: Clock, options: Options, form: TableFormat) -> bool:
    """Return whether a plan that Apache Hudi runs showed no sign of life for `hoodie.clustering.expiration.threshold.mins`.

    Most Hudi releases keep no heartbeat for table services, so the times of the inflight file and of the markers count, too.
    Uses both clocks, as `is_dead` does; a sign ahead of this clock only shows that this clock is behind.
    """
    allowed = max(timedelta(minutes=options[CLUSTERING_EXPIRATION_MIN]), allowed_silence(options))
    inflight = form.timeline_path(record.at(State.INFLIGHT))
    if not _is_silent_plan(storage, record.instant, inflight, clock.now(), allowed, ahead=allowed):
        return False
    return _is_silent_plan(storage, record.instant, inflight, store_time(storage), allowed, ahead=timedelta.max)


def _is_silent_plan(storage: Storage, instant: str, inflight: str, asked: datetime, allowed: timedelta, ahead: timedelta) -> bool:
    """Return whether no sign of life lies at most `allowed` before and at most `ahead` after `asked`."""

    def is_recent(sign: datetime) -> bool:
        return asked - sign <= allowed and sign - asked <= ahead

    if is_recent(time_from_instant(instant)):
        return False
    for path in (inflight, heartbeat_path(instant)):
        with contextlib.suppress(ObjectNotFound):
            if is_recent(storage.stat(path).modified):
                return False
    marked = last_marked(storage, instant)
    return marked is None or not is_recent(marked)


def forget_silent(storage: Storage, pending: AbstractSet[str], clock: Clock, options: Options) -> None:
    """Delete expired heartbeats without a pending instant: their writers died before their request existed, or after their end.

    A failure is logged as a warning, because these files do no harm.
    """
    try:
        left = [o for o in storage.list_folder(_FOLDER).objects if o.path.rpartition("/")[2] not in pending]
        if not any(abs(clock.now() - o.modified) > allowed_silence(options) for o in left):
            return
        now = store_time(storage)
        for found in left:
            if now - found.modified > allowed_silence(options):
                storage.delete(found.path)
    except TidelineError as error:
        _LOGGER.warning("heartbeats of writers that are gone stay behind: %s", error)


class Heartbeat:
    """A thread that keeps the heartbeat of an instant fresh until the context ends.

    A failed renewal, whatever its error, is logged and tried again. A slow one delays only the next (field notes: PR 18904).
    """

    def __init__(self, storage: Storage, instant: str, options: Options) -> None:
        self._storage = storage
        self._path = heartbeat_path(instant)
        self._content = b""
        self._interval_s = options[HEARTBEAT_INTERVAL_MS] / 1000
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat-{instant}", daemon=True)

    def __enter__(self) -> Heartbeat:
        try:
            self._storage.put(self._path, self._content)
        except StorageFull as error:
            # The action has begun: its files may still find space, and its rollback can spend the reserve.
            _LOGGER.warning("heartbeat %s was not created: %s; trying again", self._path, error)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def hold_writers(self) -> None:
        """Ask writers to wait until this heartbeat ends or expires: those that meet this clustering at their commit.

        It only saves the clustering's work, so a failure is a warning.
        """
        self._content = _HOLD
        try:
            self._storage.put(self._path, _HOLD)
        except TidelineError as error:
            _LOGGER.warning("heartbeat %s does not hold writers up: %s", self._path, error)

    def stop(self) -> None:
        """End the heartbeat and delete its file. Safe to repeat."""
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
                self._storage.put(self._path, self._content)
            except Exception as error:
                _LOGGER.warning("heartbeat %s was not renewed: %s; trying again", self._path, error, exc_info=_unexpected(error))


def _unexpected(error: Exception) -> Exception | None:
    """Return the error, to be logged with its traceback, if storage should not raise it."""
    return None if isinstance(error, TidelineError) else error
