"""A queue of events with its own thread, so that publishing does not delay the ticks of the service."""

from __future__ import annotations

import random
import threading
from collections import deque

from tideline_events import Event, EventLogUnavailable, PublisherFenced, PublishUnknown
from tideline_runtime.event_link import QUEUE_LIMIT, EventLink
from tideline_runtime.logging import get_logger
from tideline_runtime.loop import Backoff

_log = get_logger(__name__)
_BATCH = 500


class EventOutbox:
    """Publishes events in the order of `put`, in a separate thread. Between `start` and `close` only this thread uses `link`.

    While the event log does not answer, events wait and the thread tries again, with pauses by `backoff`. At most `QUEUE_LIMIT`
    events wait; beyond that the oldest are dropped. A fenced publisher is opened again: `PublisherFenced` also follows a
    transaction that the broker ended during an outage, so it does not prove that another process has the shard. Only a service
    whose correctness does not depend on the order or the fencing of its events may use an outbox.
    """

    def __init__(self, link: EventLink, backoff: Backoff) -> None:
        self._link = link
        self._backoff = backoff
        self._waiting: deque[Event] = deque()
        self._taken = 0
        self._dropped = 0
        self._is_closing = False
        self._failure: Exception | None = None
        self._said = ""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="event-outbox", daemon=True)

    def start(self) -> None:
        """Start the thread, once `link` is open. Later calls do nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def put(self, *events: Event) -> None:
        """Publish these events soon. Does not wait for the event log."""
        with self._changed:
            self._waiting.extend(events)
            while len(self._waiting) > QUEUE_LIMIT:
                self._waiting.popleft()
                self._dropped += 1
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the last error of the thread that no wait cures, such as an event against the contract, and forget it."""
        with self._changed:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def drained(self, timeout_s: float) -> bool:
        """Wait until all events are published, at most `timeout_s`; return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._taken, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Publish the waiting events, without another try after an error, and end the thread.

        Returns false if the thread still waits for the event log after `timeout_s`. Then the thread still uses `link`.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._next():
            self._queue(batch)
            failures = 0
            while not self._published():
                failures += 1
                if self._closes_within(self._backoff.pause_s(failures, random.random())):  # noqa: S311 - spreads retries
                    return
            self._settle(failures)

    def _next(self) -> list[Event]:
        """Wait for events and take at most `_BATCH` of them. Returns an empty list once the outbox closes and no event waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            self._taken = len(batch)
            return batch

    def _queue(self, batch: list[Event]) -> None:
        for event in batch:
            try:
                self._link.queue(event)
            except Exception as error:  # noqa: BLE001 - for `check`, which raises it in the thread of the service
                self._fail(error)

    def _published(self) -> bool:
        try:
            self._link.flush()
        except (EventLogUnavailable, PublishUnknown) as error:
            _log.warning("events are published later", reason=str(error))
        except PublisherFenced as error:
            _log.error("events are published by a new publisher", reason=str(error))
            self._link.renew()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        else:
            return True
        return False

    def _fail(self, error: Exception) -> None:
        # A wrong setting fails each try: its traceback comes once.
        if (reason := repr(error)) == self._said:
            _log.warning("events cannot be published", reason=reason)
        else:
            _log.error("events cannot be published", exc_info=error)
        self._said = reason
        with self._changed:
            self._failure = error

    def _settle(self, failures: int) -> None:
        with self._changed:
            dropped, self._dropped = self._dropped, 0
            self._taken = 0
            self._changed.notify_all()
        if failures or dropped:
            _log.info("events are published again", failures=failures, dropped=dropped)

    def _closes_within(self, pause_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closing, pause_s)
