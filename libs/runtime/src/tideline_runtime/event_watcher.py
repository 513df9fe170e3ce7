"""A thread that reads events and wakes its service. An event is only a reason for a tick; the tick reads the table log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tideline_events import DeadLetter, EventLog, Heartbeat, TableDeleted, UnknownEvent, decode
from tideline_runtime.logging import get_logger
from tideline_table.errors import TidelineError

_log = get_logger(__name__)
_POLL_S = 0.25
_PAUSE_S = 2.0
_JOIN_S = 2.0
"""Longest wait of a service that starts until it is a member: it misses no event about what it looks at afterwards."""
STOP_S = 2.0
"""Kafka's client waits half a minute for a broker that does not answer: longer than a service may take to stop."""


class EventWatcher:
    """Calls `wake` with the table uid of each new event of `topics` until stopped, in a separate thread.

    Unreadable events and failures of the event log are logged and skipped. A missed event only delays the service by a poll
    interval.
    """

    def __init__(self, event_log: EventLog, topics: Sequence[str], group: str, wake: Callable[[str], None]) -> None:
        self._event_log = event_log
        self._topics = tuple(topics)
        self._group = group
        self._wake = wake
        self._stopped = threading.Event()
        self._tried = threading.Event()
        """Set once the event log took the watcher in, or did not."""
        self._thread = threading.Thread(target=self._watch, name=f"watch-{group}", daemon=True)

    def start(self) -> None:
        """Start to watch for events that are new from now on. The caller looks at tables afterwards."""
        self._thread.start()
        self._tried.wait(_JOIN_S)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def _watch(self) -> None:
        while not self._stopped.is_set():
            try:
                self._read_until_stopped()
            except TidelineError as error:
                _log.warning("events are not being read", group=self._group, reason=str(error))
                self._tried.set()
                self._stopped.wait(_PAUSE_S)

    def _read_until_stopped(self) -> None:
        subscription = self._event_log.subscribe(self._topics, self._group, from_beginning=False)
        self._tried.set()
        try:
            while not self._stopped.is_set():
                for record in subscription.poll(_POLL_S):
                    try:
                        event = decode(record)
                    except TidelineError as error:
                        _log.warning("event skipped", topic=record.topic, reason=str(error))
                        continue
                    if not isinstance(event, UnknownEvent | TableDeleted | DeadLetter | Heartbeat):
                        self._wake(event.table_uid)
                subscription.commit()
        finally:
            subscription.close()
