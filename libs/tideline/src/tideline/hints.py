"""Hints of writers: the mirror publishes a commit at once that a hint names, and otherwise at its next look at the table."""

from __future__ import annotations

import logging
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from tideline_events import EventLog, Hint, Publisher, encode
from tideline_table.clock import Clock, SystemClock
from tideline_table.errors import TidelineError

if TYPE_CHECKING:
    import tideline

_log = logging.getLogger(__name__)


class Hints:
    """Publishes hints from a thread of its own, so that no writer waits for the event log. Thread-safe.

    A hint may be lost: if the event log does not answer, a warning is logged, and the commit is published without it. Hints of one
    table that wait are one. `log` is closed with this object.
    """

    def __init__(self, log: EventLog, clock: Clock | None = None) -> None:
        self._log = log
        self._clock = clock or SystemClock()
        self._mutex = threading.Lock()
        self._waiting: dict[str, Hint] = {}
        self._publisher: Publisher | None = None
        self._worker = ThreadPoolExecutor(1, "hints")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def give(self, table: tideline.Table) -> None:
        """Tell of a commit to `table`, and return at once."""
        hint = Hint(table.inspect.uid, self._clock.now(), base_path=table.path, reason="committed")
        with self._mutex:
            is_asked = bool(self._waiting)
            self._waiting[hint.table_uid] = hint
        if not is_asked:
            self._worker.submit(self._publish)

    def close(self) -> None:
        """Publish what waits, and release connections. Waits at most half a minute for an event log that does not answer."""
        self._worker.shutdown()
        self._close_publisher()
        self._log.close()

    def _publish(self) -> None:
        with self._mutex:
            hints, self._waiting = list(self._waiting.values()), {}
        try:
            if self._publisher is None:
                self._publisher = self._log.publisher(f"hints-{uuid.uuid4()}")
            self._publisher.publish(*map(encode, hints))
        except TidelineError as error:
            _log.warning("%d hints are lost: %s", len(hints), error)
            self._close_publisher()

    def _close_publisher(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
