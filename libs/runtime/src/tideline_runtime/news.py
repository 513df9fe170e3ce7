"""What the mirror tells other services: the last published step of each table, and whether a living mirror looks at the table.

Only the mirror asks storage for news. Who knows from the event log that a table has none needs no request for it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from tideline_events import MIRRORS, TABLES, EventLog, Heartbeat, Record, TableDeleted, TableRecord, decode, open_event_log
from tideline_runtime.event_watcher import STOP_S
from tideline_runtime.logging import get_logger
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.shards import shard_of
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

_log = get_logger(__name__)
MISSED_BEATS = 3
"""Heartbeats of a mirror's shard that may be missing before its tables are asked for news again."""
HEALTHY, EXCLUSIVE = "healthy", "exclusive"
"""Values of `TableRecord.health` and `TableRecord.sharing`."""
_POLL_S = 0.25
_FIRST_POLL_S = 0.02
_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class _Told:
    base_path: str
    sequence: int
    quiet_since_s: float
    """When the last step was taken, in seconds since 1970; infinity while an action is pending."""


class News:
    """Reads the state of all tables and the heartbeats of the mirrors of one fleet, in a thread of its own.

    All answers are None or false until the topics are read to their end, and while the event log does not answer or no mirror
    beats: then the caller asks storage itself, as if there were no mirror. Thread-safe.
    """

    def __init__(self, settings: ServiceSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._mutex = threading.Lock()
        self._told: dict[str, _Told] = {}
        self._uids: dict[str, set[str]] = {}
        """By base path: the tables that are told to be there. With more than one, none is believed."""
        self._others: dict[str, tuple[str, str]] = {}
        """By uid: base path and health of the tables of the fleet that are not believed."""
        self._alive_until_s: dict[tuple[int, int], float] = {}
        """By shard and number of shards: when the shard's heartbeats count as missing, on the monotonic clock."""
        self._moved: set[str] = set()
        """The base paths of the tables of which anything was told since the last call of `moved`."""
        self._is_read = False
        self._places = 0
        self._tried = threading.Event()
        """Set once the topics were read to their end, or the event log did not answer."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="news", daemon=True)

    def start(self) -> None:
        """Begin to read, once; later calls do nothing."""
        if self._thread.ident is None and not self._stopped.is_set():
            self._thread.start()

    def stop(self) -> None:
        """End the thread, which takes a quarter of a second while the event log answers.

        One that waits for the event log is left behind.
        """
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def head(self, base_path: str, uid: str) -> int | None:
        """Return the last published sequence of an exclusive table; None if no living mirror looks at it."""
        with self._mutex:
            told = self._told.get(uid)
            if told is None or told.base_path != base_path or self._uids.get(base_path) != {uid} or not self._looks_at(base_path):
                return None
            return told.sequence

    def at_rest(self, base_path: str, quiet_s: float) -> tuple[str, int] | None:
        """Return uid and head of the exclusive table at a place that had no step for so long and has no pending action.

        None if no living mirror looks at it.
        """
        with self._mutex:
            uids = self._uids.get(base_path, ())
            told = self._told[next(iter(uids))] if len(uids) == 1 else None
            if told is None or self._clock.now().timestamp() - told.quiet_since_s < quiet_s or not self._looks_at(base_path):
                return None
            return next(iter(uids)), told.sequence

    def wait(self, limit_s: float) -> None:
        """Wait until all that was there is read, or cannot be read, at most so long."""
        if self._thread.is_alive():
            self._tried.wait(limit_s)

    def places(self) -> int | None:
        """Return a number that changes when tables appear or vanish; None unless a mirror lives for every shard."""
        with self._mutex:
            return self._places if self._all_live() else None

    def moved(self) -> set[str] | None:
        """Return the base paths of the tables of which anything was told since the last call.

        None unless a mirror lives for every shard.
        """
        with self._mutex:
            moved, self._moved = self._moved, set()
            return moved if self._all_live() else None

    def take(self, records: Iterable[Record], *, is_at_end: bool) -> None:
        """Take in records of `tideline.tables` and `tideline.mirrors`, in order. `is_at_end`: all that was there is read."""
        for record in records:
            try:
                event = decode(record)
            except TidelineError as error:
                _log.warning("event skipped", topic=record.topic, reason=str(error))
                continue
            with self._mutex:
                if isinstance(event, TableRecord):
                    self._note(event)
                elif isinstance(event, TableDeleted):
                    self._forget(event.table_uid)
                    self._places += self._others.pop(event.table_uid, None) is not None
                elif isinstance(event, Heartbeat):
                    self._hear(event)
        if is_at_end:
            with self._mutex:
                self._is_read = True

    def _all_live(self) -> bool:
        now_s = self._clock.monotonic_s()
        alive = {(shard, count) for (shard, count), until_s in self._alive_until_s.items() if now_s < until_s}
        return self._is_read and any(all((shard, count) in alive for shard in range(count)) for _, count in alive)

    def _looks_at(self, base_path: str) -> bool:
        now_s = self._clock.monotonic_s()
        return self._is_read and any(
            now_s < until_s and shard_of(base_path, count) == shard for (shard, count), until_s in self._alive_until_s.items()
        )

    def _note(self, record: TableRecord) -> None:
        table, known = record.table, self._told.get(record.table_uid)
        self._moved.add(table.base_path)
        is_own = (record.fleet or "") == self._settings.fleet
        believed = record.health == HEALTHY and record.sharing == EXCLUSIVE and is_own
        if not believed or (known is not None and known.base_path != table.base_path):
            self._forget(record.table_uid)
        if believed:
            if record.table_uid not in self._told:
                self._uids.setdefault(table.base_path, set()).add(record.table_uid)
                self._places += 1
            quiet_since = math.inf if record.pending_plans else (record.quiet_since or record.time).timestamp()
            self._told[record.table_uid] = _Told(table.base_path, record.sequence, quiet_since)
        elif is_own and self._others.get(record.table_uid) != (other := (table.base_path, record.health)):
            self._others[record.table_uid] = other
            self._places += 1
        if believed or not is_own:
            self._others.pop(record.table_uid, None)

    def _forget(self, uid: str) -> None:
        told = self._told.pop(uid, None)
        if told is not None:
            self._moved.add(told.base_path)
            self._places += 1
            self._uids[told.base_path].discard(uid)
            if not self._uids[told.base_path]:
                del self._uids[told.base_path]

    def _hear(self, beat: Heartbeat) -> None:
        if beat.fleet != self._settings.fleet:
            return
        # An old record may be read late; a mirror with a table that it cannot read does not see everything.
        age_s = max(0.0, (self._clock.now() - beat.time).total_seconds())
        lasts_s = 0.0 if beat.failing else MISSED_BEATS * beat.interval_s
        self._alive_until_s[beat.shard, beat.shard_count] = self._clock.monotonic_s() + lasts_s - age_s

    def _watch(self) -> None:
        reported = ""
        while not self._stopped.is_set():
            try:
                self._read_until_stopped()
            except Exception as error:  # noqa: BLE001 - the border of the thread: without news, the service asks storage
                if str(error) != reported:
                    _log.info("events of the mirror are not read: storage is asked for news", reason=str(error))
                reported = str(error)
                self._tried.set()
                self._stopped.wait(_PAUSE_S)

    def _read_until_stopped(self) -> None:
        settings = self._settings
        options = {name: secret.get_secret_value() for name, secret in settings.event_log_options.items()}
        log: EventLog = open_event_log(settings.event_log, clock=self._clock, client_options=options)
        try:
            tail = log.tail([TABLES.name, MIRRORS.name])
            try:
                while not self._stopped.is_set():
                    records = tail.poll(_POLL_S if self._tried.is_set() else _FIRST_POLL_S)
                    self.take(records, is_at_end=tail.is_at_end())
                    if self._is_read:
                        self._tried.set()
            finally:
                tail.close()
        finally:
            log.close()
            with self._mutex:
                self._moved.update(self._uids)
                self._told, self._uids, self._others, self._alive_until_s, self._is_read = {}, {}, {}, {}, False
                self._places += 1
