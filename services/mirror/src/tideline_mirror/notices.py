"""What notifications of an object store tell the mirror, and of which tables they are believed to tell everything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from tideline_mirror.notification_port import NotificationSource
from tideline_mirror.object_messages import PROPERTIES, changed_objects, table_of
from tideline_runtime.hinted_tables import HintedTables
from tideline_runtime.logging import get_logger
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError

_log = get_logger(__name__)
ALIVE_S = 60.0
"""A source that has not answered for this long is dead: the mirror polls."""
STOP_S = 2.0
_POLL_S = 20.0
_PAUSE_S = 5.0


class Notices:
    """Notes which tables notifications name, and which tables may rest: the source answers, and the notices are believed.

    Notices of a table are believed if

    - its store has sent a notice of some table since the source was opened, and the mirror has looked at the table after that;
    - the mirror has found no step of the table, or later of its store, without a notice.

    So a queue without the bucket's notifications, or with those of some prefixes, delays the steps of a table once, not for ever.
    Thread-safe: one thread receives, another ticks.
    """

    def __init__(self, clock: Clock, hinted: HintedTables, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._hinted = hinted
        self._wake = wake
        self._mutex = threading.Lock()
        self._uids: Mapping[str, str] = {}
        """By base path: the tables that the mirror knows."""
        self._early: set[str] = set()
        """The base paths that notices named since the last visit of all tables, and that the mirror did not know."""
        self._answered_s: float | None = None
        self._from_s: float | None = None
        """When the source answered first since it was opened. It need not tell what happened before."""
        self._since_s: dict[str, float] = {}
        """By store: since when its notices are believed."""
        self._heard_s: dict[str, float] = {}
        self._missed_s: dict[str, float] = {}
        self._looked_s: dict[str, float] = {}
        self._places = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, opened: Callable[[], NotificationSource]) -> None:
        """Begin to receive in a thread of its own, once. `opened` opens the source, again after each failure."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, args=(opened,), name="notifications", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread. One that waits for an answer is left behind; what it has not deleted comes again."""
        self._stopped.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(STOP_S)

    def know(self, tables: Mapping[str, str]) -> None:
        """Note the tables of the mirror: base paths by uid."""
        with self._mutex:
            self._uids = {base_path: uid for uid, base_path in tables.items()}
            for base_path in self._early & self._uids.keys():
                self._heard_s[base_path] = self._clock.monotonic_s()
                self._hinted.add(self._uids[base_path])
            self._early.clear()
            for known in (self._heard_s, self._missed_s, self._looked_s):
                for base_path in known.keys() - self._uids.keys():
                    del known[base_path]

    def take(self, locations: Iterable[str]) -> None:
        """Take in an answer of the source: the objects that it names, none if it had no message."""
        is_told = False
        with self._mutex:
            now_s = self._clock.monotonic_s()
            if self._answered_s is None:
                self._from_s = now_s
            self._answered_s = now_s
            for location in locations:
                found = table_of(location)
                if found is None:
                    continue
                base_path, name = found
                self._since_s.setdefault(_store(base_path), now_s)
                uid = self._uids.get(base_path)
                if uid is None:
                    self._early.add(base_path)
                else:
                    self._heard_s[base_path] = now_s
                    self._hinted.add(uid)
                    is_told = True
                if name == PROPERTIES:
                    # A table that came or went: the next search for tables looks at the folders again.
                    self._places += 1
                    is_told = True
        if is_told:
            self._wake()

    def found(self, base_path: str) -> None:
        """Note that a look found new steps of a table: notices that did not tell of them are not believed until they tell again."""
        with self._mutex:
            heard_s, looked_s = self._heard_s.get(base_path), self._looked_s.get(base_path)
            if looked_s is None or (heard_s is not None and heard_s >= looked_s):
                return
            self._missed_s[base_path] = self._clock.monotonic_s()
            self._since_s.pop(_store(base_path), None)

    def looked(self, base_path: str, at_s: float) -> None:
        """Note a look at a table that began at this monotonic time, after what it found."""
        with self._mutex:
            self._looked_s[base_path] = at_s

    def owes(self, base_path: str) -> bool:
        """Return whether the mirror last looked at a table before the source was opened: the source tells no step in between."""
        from_s = self._from_s
        return from_s is not None and self._looked_s.get(base_path, from_s) < from_s

    def tells(self, base_path: str) -> bool:
        """Return whether a table may rest: its next step would be told."""
        with self._mutex:
            if not self._is_alive():
                return False
            since_s, looked_s = self._since_s.get(_store(base_path)), self._looked_s.get(base_path)
            if since_s is None or looked_s is None or looked_s < since_s:
                return False
            missed_s = self._missed_s.get(base_path)
            return missed_s is None or self._heard_s.get(base_path, missed_s) > missed_s

    def places(self) -> int | None:
        """Return a number that changes when tables come or go; None unless the stores of all known tables tell of it."""
        with self._mutex:
            stores = {_store(base_path) for base_path in self._uids}
            return self._places if self._is_alive() and stores and stores <= self._since_s.keys() else None

    def _is_alive(self) -> bool:
        return self._answered_s is not None and self._clock.monotonic_s() < self._answered_s + ALIVE_S

    def forget(self) -> None:
        """Believe nothing until it is told again: the source was away, and messages may be lost."""
        with self._mutex:
            self._answered_s = None
            self._since_s.clear()

    def _watch(self, opened: Callable[[], NotificationSource]) -> None:
        reported = ""
        while not self._stopped.is_set():
            try:
                source = opened()
                try:
                    while not self._stopped.is_set():
                        self.take([place for message in source.receive(_POLL_S) for place in changed_objects(message)])
                        reported = ""
                finally:
                    source.close()
            except Exception as error:  # noqa: BLE001 - the border of the thread: without notifications, the mirror polls
                if str(error) != reported:
                    why = str(error) if isinstance(error, TidelineError) else repr(error)
                    _log.warning("notifications are not received: the mirror polls", reason=why)
                reported = str(error)
                self.forget()
                self._stopped.wait(_PAUSE_S)


def _store(base_path: str) -> str:
    """Return scheme and bucket; local disks are one store."""
    scheme, separator, rest = base_path.partition("://")
    return scheme + separator + rest.partition("/")[0] if separator else ""
