"""Delivers the events of one subscription: a thread that reads them, and workers that send them, one table at a time each."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tideline_events import TIMELINE, EventConsumer, EventLog, TableDeleted, TableRecord, Transition, UnknownEvent
from tideline_events.payload import Event
from tideline_events.transitions import TableLogs
from tideline_runtime.logging import get_logger
from tideline_runtime.loop import Backoff, may_be_cured
from tideline_runtime.metrics import Metrics
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError
from tideline_webhooks.lanes import Item, Lane, Lanes
from tideline_webhooks.ledger import Ledger
from tideline_webhooks.messages import Messages
from tideline_webhooks.metrics import DEAD_LETTERS, DELIVERIES, REQUEST_TIME
from tideline_webhooks.sending import Attempt, Outcome, Sender
from tideline_webhooks.subscriptions import KINDS, Subscription, TableEvent

_log = get_logger(__name__)
POLL_S = 0.25
STORE_EVERY_S = 1.0
"""Interval at which positions are stored. What was delivered after the last time is delivered again after a crash."""
_REFILL = 100
"""Transitions that are read at once from the log of a table that is behind."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all couriers of the service share."""

    clock: Clock
    metrics: Metrics
    workers: int
    queue_events: int
    backoff: Backoff
    member: str = ""


@dataclass(slots=True)
class Trouble:
    """Why a subscription does not get on: its endpoint, or the event log. Empty if it does."""

    endpoint: str = ""
    since_s: float = 0.0
    events: str = ""


class Courier:
    """Runs one subscription. `start` and `stop` are called by the service's thread; a failure of one courier stops no other."""

    def __init__(self, subscription: Subscription, open_log: Callable[[], EventLog], group: str, around: Surroundings) -> None:
        self.subscription = subscription
        self.trouble = Trouble()
        self._open_log = open_log
        self._group = group
        self._around = around
        self._clock, self._metrics = around.clock, around.metrics
        self._logs = TableLogs()
        self._messages = Messages(subscription, TableLogs())
        self._sender = Sender(subscription, around.workers)
        self._lanes = Lanes(around.queue_events)
        self._guard = threading.Lock()
        self._stopping = threading.Event()
        self._ledger: Ledger | None = None
        self._consumers: list[tuple[EventConsumer, bool]] = []
        self._places: dict[str, str] = {}
        self._store_at_s = 0.0
        self._pool = ThreadPoolExecutor(around.workers, f"send-{subscription.name}")
        self._thread = threading.Thread(target=self._run, name=f"webhook-{subscription.name}", daemon=True)

    def start(self) -> None:
        """Begin to read and to deliver."""
        self._thread.start()

    def stop(self) -> None:
        """End after the requests under way; their positions are stored."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._pool.shutdown()
        self._sender.close()

    def backlog(self) -> tuple[int, float]:
        """Return the number of tables that wait, and the age of the oldest event that waits, in seconds."""
        with self._guard:
            oldest = [lane.items[0].event.time for lane in self._lanes if lane.items]
            return len(self._lanes), max([0.0, *((self._clock.now() - time).total_seconds() for time in oldest)])

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._turn()
                failures, self.trouble.events = 0, ""
            except Exception as error:  # noqa: BLE001 - the border of the thread: another courier must not end
                failures += 1
                self.trouble.events = f"{type(error).__name__}: {error}"
                _log.warning("events are not being delivered", subscription=self.subscription.name, exc_info=error)
                if not isinstance(error, TidelineError):
                    self._close()
                self._stopping.wait(self._around.backoff.pause_s(failures, random.random()))  # noqa: S311 - spreads retries
        self._pool.shutdown()
        try:
            self._store(now=True)
        except TidelineError as error:
            _log.warning("positions are not stored", subscription=self.subscription.name, reason=str(error))
        self._close()

    def _turn(self) -> None:
        if not self._consumers:
            self._open()
        for consumer, is_timeline in self._consumers:
            with self._guard:
                is_full = not is_timeline and self._lanes.others >= self._around.queue_events
            if not is_full:
                self._take(consumer.poll(POLL_S if is_timeline or len(self._consumers) == 1 else 0.0))
            elif len(self._consumers) == 1:
                self._stopping.wait(POLL_S)
        self._refill()
        self._send_due()
        self._store()

    def _open(self) -> None:
        log, subscription, clock = self._open_log(), self.subscription, self._clock
        from_oldest = subscription.start == "oldest"
        self._ledger = Ledger(log, self._group, clock, from_oldest=from_oldest)
        topics = {KINDS[kind][1].name for kind in subscription.kinds}
        for names, is_timeline in (({TIMELINE.name} & topics, True), (topics - {TIMELINE.name}, False)):
            if not names:
                continue
            # Positions are of the timeline; other topics have their offsets.
            group, seen = (self._group, self._ledger.positions) if is_timeline else (f"{self._group}.other", None)
            consumer = EventConsumer(
                log,
                group,
                backfill=self._logs,
                topics=sorted(names),
                from_beginning=from_oldest,
                member=self._around.member,
                seen=seen,
                clock=clock,
            )
            self._consumers.append((consumer, is_timeline))

    def _close(self) -> None:
        for consumer, _ in self._consumers:
            consumer.close()
        self._consumers.clear()
        if self._ledger is not None:
            self._ledger.close()

    def _take(self, events: Sequence[Event | TableDeleted | UnknownEvent]) -> None:
        for event in events:
            if not isinstance(event, TableEvent):
                continue
            wanted = self._messages.wants(event) and self._is_of_table(event)
            with self._guard:
                if wanted:
                    self._lanes.add(Item(event))
                elif isinstance(event, Transition):
                    self._lanes.pass_by(event)

    def _is_of_table(self, event: TableEvent) -> bool:
        if isinstance(event, Transition | TableRecord):
            base_path = self._places[event.table_uid] = event.table.base_path
        else:
            base_path = getattr(event, "base_path", "") or self._place(event.table_uid)
        return self.subscription.tables.rank(base_path, event.table_uid) is not None

    def _place(self, uid: str) -> str:
        if uid not in self._places:
            record = self._open_log().cursor(uid)
            if record is None:
                return ""
            self._places[uid] = record.table.base_path
        return self._places[uid]

    def _refill(self) -> None:
        """Read the transitions for which there was no room from the table logs, for tables that have delivered the others."""
        with self._guard:
            now_s = self._clock.monotonic_s()
            wanted = [
                lane for lane in self._lanes if lane.is_behind and not lane.items and not lane.is_busy and lane.due_s <= now_s
            ]
        for lane in wanted:
            with self._guard:
                upto = min(lane.seen, lane.queued + min(_REFILL, self._lanes.room_of(lane)))
                identity = lane.identity
            assert identity is not None, "a lane that is behind has seen a transition"
            try:
                read = list(self._logs(identity, lane.queued + 1, upto))
            except TidelineError as error:
                if may_be_cured(error):
                    raise
                _log.error(
                    "transitions are lost with their table", table=lane.uid, first=lane.queued + 1, last=upto, exc_info=error
                )
                read = []
            items = [Item(event) for event in read if self._messages.wants(event)]
            with self._guard:
                self._lanes.refill(lane, upto, items)

    def _send_due(self) -> None:
        with self._guard:
            now_s = self._clock.monotonic_s()
            due = [lane for lane in self._lanes if lane.items and not lane.is_busy and lane.due_s <= now_s]
            for lane in due:
                lane.is_busy = True
        for lane in due:
            self._pool.submit(self._deliver, lane)

    def _deliver(self, lane: Lane) -> None:
        """Send the events of a table, one after the other, until one fails or none is left. Runs in a worker."""
        try:
            while not self._stopping.is_set() and self._deliver_first(lane):
                pass
        except Exception as error:  # noqa: BLE001 - the border of the worker: the event is tried again
            _log.warning("delivery failed", subscription=self.subscription.name, table=lane.uid, exc_info=error)
            self._postpone(lane, Attempt(Outcome.RETRIED, type(error).__name__))
        finally:
            with self._guard:
                self._lanes.release(lane)

    def _deliver_first(self, lane: Lane) -> bool:
        with self._guard:
            if not lane.items:
                return False
            item = lane.items[0]
        message = self._messages.of(item.event)
        with self._metrics.timed(REQUEST_TIME):
            attempt = self._sender.send(message, int(self._clock.now().timestamp()))
        name = self.subscription.name
        self._metrics.increment(DELIVERIES, subscription=name, outcome=attempt.outcome.value)
        if attempt.outcome is not Outcome.TAKEN:
            if not self._gives_up(lane, attempt):
                self._postpone(lane, attempt)
                return False
            assert self._ledger is not None, "opened before the first event"
            self._ledger.give_up(item.record, f"subscription {name}: {attempt.reason}")
            self._metrics.increment(DEAD_LETTERS, subscription=name)
            _log.error("event is given up", subscription=name, table=lane.uid, id=message.id, reason=attempt.reason)
        else:
            self.trouble.endpoint = ""
        with self._guard:
            self._lanes.delivered(lane)
        return True

    def _gives_up(self, lane: Lane, attempt: Attempt) -> bool:
        if self.subscription.on_failure == "hold":
            return False
        if attempt.outcome is Outcome.REFUSED:
            return True
        failing_s = self._clock.monotonic_s() - lane.failing_since_s if lane.failures else 0.0
        return lane.failures > 0 and failing_s >= self.subscription.give_up_after_s

    def _postpone(self, lane: Lane, attempt: Attempt) -> None:
        now_s, name = self._clock.monotonic_s(), self.subscription.name
        with self._guard:
            lane.failures += 1
            lane.failing_since_s = lane.failing_since_s if lane.failures > 1 else now_s
            pause_s = self._around.backoff.pause_s(lane.failures, random.random())  # noqa: S311 - spreads retries
            lane.due_s = now_s + max(pause_s, attempt.retry_after_s)
            if not self.trouble.endpoint:
                self.trouble.since_s = now_s
            self.trouble.endpoint = attempt.reason
        if lane.failures == 1:
            _log.warning("delivery failed, trying again", subscription=name, table=lane.uid, reason=attempt.reason)

    def _store(self, *, now: bool = False) -> None:
        """Store the positions of the tables of this member, and then the offsets behind them."""
        if self._ledger is None or (self._clock.monotonic_s() < self._store_at_s and not now):
            return
        self._store_at_s = self._clock.monotonic_s() + STORE_EVERY_S
        with self._guard:
            # Taken together: without it an event between the two would be lost.
            positions, others = self._lanes.take_positions(), self._lanes.others
        is_stored = False
        try:
            for consumer, is_timeline in self._consumers:
                if is_timeline:
                    is_stored = consumer.commit(positions)
                elif not others:
                    consumer.commit()
        finally:
            if not is_stored:
                with self._guard:
                    self._lanes.put_back(positions)
