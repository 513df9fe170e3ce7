"""A service's link to the event log: one publisher, and a watcher that wakes the service."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from tideline_events import TOPICS, Event, EventLog, Publisher, PublishUnknown, Record, encode, open_event_log
from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_watcher import EventWatcher
from tideline_runtime.hinted_tables import HintedTables
from tideline_runtime.settings import ServiceSettings

QUEUE_LIMIT = 10_000
"""Most events that wait while the event log is down. Beyond this number the oldest are dropped, because events are only hints."""
_BATCH = 500
_NAMES = tuple(topic.name for topic in TOPICS)


class EventLink:
    """The event log of one instance of a service. The service calls `open` in `start` and `close` in `stop`.

    With `publishes`, the link takes over the writer id of the instance: the one of its shard, which fences an older instance of
    the shard, or a separate one if shards are leased. Events of the topics in `watches` wake the service, after their tables
    are noted in `hinted`. Used by one thread at a time: the thread that ticks, or the thread of an `EventOutbox`.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        context: ServiceContext,
        *,
        publishes: bool = False,
        watches: Sequence[str] = (),
        hinted: HintedTables | None = None,
    ) -> None:
        self._settings = settings
        self._context = context
        self._publishes = publishes
        self._watches = tuple(watches)
        self._hinted = hinted
        self._log: EventLog | None = None
        self._publisher: Publisher | None = None
        self._watcher: EventWatcher | None = None
        self._queue: deque[Record] = deque(maxlen=QUEUE_LIMIT)
        self._ids: dict[str, str] = {}
        """Ids of the topics as of the last check (`EventLog.topic_ids`)."""

    @property
    def log(self) -> EventLog:
        """The event log; only after `open`."""
        assert self._log is not None, "not opened"
        return self._log

    def open(self) -> None:
        """Connect, create missing topics, take over the writer id, start the watcher. May be called again after an error.

        Raises the errors of `open_event_log`, `EventLog.ensure_topics` and `EventLog.publisher`.
        """
        log = self._connected()
        log.ensure_topics()
        self._ids = log.topic_ids(_NAMES)
        if self._publishes:
            self._own_publisher()
        if self._watches and self._watcher is None:
            self._watcher = EventWatcher(log, self._watches, self._context.name_in_events(self._settings), self._wake)
            self._watcher.start()

    def _connected(self) -> EventLog:
        if self._log is None:
            settings = self._settings
            options = {name: secret.get_secret_value() for name, secret in settings.event_log_options.items()}
            self._log = open_event_log(settings.event_log, clock=self._context.clock, client_options=options)
        return self._log

    def check(self, members: Collection[str] = ()) -> frozenset[str]:
        """Create missing topics, also these `members` of families. Raises as `EventLog.ensure_topics`.

        Return the names of those that were created since `open` and the last call, here or, but for members, by another process.
        """
        created = self.log.ensure_topics(members)
        before, self._ids = self._ids, self.log.topic_ids(_NAMES)
        return created | {name for name, topic_id in self._ids.items() if before.get(name) != topic_id}

    def _wake(self, uid: str) -> None:
        if self._hinted is not None:
            self._hinted.add(uid)
        self._context.wake()

    def queue(self, *events: Event) -> None:
        """Keep events until `flush`: an event log that is down must not stop the service. Raises `InvalidEvent`."""
        self._queue.extend(encode(event) for event in events)

    def renew(self) -> None:
        """Close a fenced publisher.

        The next `flush` takes over the writer id again, and so fences the publisher that holds it now.
        """
        self._drop_publisher()

    def flush(self) -> None:
        """Publish the queued events. After an error, unpublished events stay queued for the next call.

        Connects if `open` was not called. Raises the errors of `open_event_log`, `EventLog.publisher` and `Publisher`.
        """
        while self._queue:
            batch = [self._queue[at] for at in range(min(_BATCH, len(self._queue)))]
            try:
                self._own_publisher().publish(*batch)
            except PublishUnknown:
                self._drop_publisher()
                raise
            for _ in batch:
                self._queue.popleft()

    def close(self) -> None:
        """Close everything that `open` opened."""
        if self._watcher is not None:
            self._watcher.stop()
        self._drop_publisher()
        if self._log is not None:
            self._log.close()

    def _own_publisher(self) -> Publisher:
        if self._publisher is None:
            settings = self._settings
            name = self._context.name_in_events(settings)
            leased = settings.shard_leases.enabled
            self._publisher = self._connected().publisher(name if leased else f"{name}-of-{settings.shard_count}")
        return self._publisher

    def _drop_publisher(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
