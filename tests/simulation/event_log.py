"""An event log in memory: the port of `tideline_events` without a disk or brokers, for histories and for its contract suite.

As the embedded log it has no partitions: the offset is the order of publication over all topics, and `tideline.tables` is
compacted as it is written. Nothing expires.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime

from tideline_events import (
    TABLES,
    PoisonEvent,
    Publisher,
    PublisherFenced,
    Record,
    TableRecord,
    decode,
    read_envelope,
)
from tideline_events.envelope import stamped
from tideline_events.log import POLL_LIMIT, Subscription, check_records, check_subscription
from tideline_events.positions import is_ahead, positions_in
from tideline_events.topics import POSITIONS, TOPICS, Topic
from tideline_table.clock import Clock

_SLEEP_S = 0.002
_COMPACTED = frozenset(topic.name for topic in TOPICS if topic.compacted)


class Broker:
    """What all clients of one log share: records, who may publish under which writer id, and how far groups read. Thread-safe."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        """By offset, in order."""
        self.end = 0
        """The next offset."""
        self.positions: dict[tuple[str, str], int] = {}
        """By group and topic the next offset that the group reads."""
        self.on_record: Callable[[Record], None] = lambda record: None
        """Hears of each record when it becomes visible."""
        self.on_loss: Callable[[], None] = lambda: None
        """Hears when all records are lost."""
        self._epochs: dict[str, int] = {}
        self._guard = threading.RLock()

    def take(self, writer_id: str) -> int:
        """A new epoch of `writer_id`: whichever process publishes under an older one is refused."""
        with self._guard:
            self._epochs[writer_id] = self._epochs.get(writer_id, 0) + 1
            return self._epochs[writer_id]

    def empty(self) -> None:
        """Everything that was published is lost, and who publishes: nobody knows a cursor any more."""
        with self._guard:
            self.records = {}
            # A number is never given twice, so that whichever process published before is fenced.
            self._epochs = {writer_id: epoch + 1 for writer_id, epoch in self._epochs.items()}
            self.on_loss()

    def append(self, writer_id: str, epoch: int, records: Sequence[Record], now: datetime) -> None:
        """Make records visible together. Raises `PublisherFenced`."""
        with self._guard:
            if self._epochs[writer_id] != epoch:
                raise PublisherFenced(writer_id)
            for record in (stamped(record, now) for record in records):
                if record.topic in _COMPACTED:
                    same = record.topic, record.key
                    self.records = {o: r for o, r in self.records.items() if (r.topic, r.key) != same}
                placed = Record(record.topic, record.key, record.value, record.headers, partition=0, offset=self.end)
                self.records[self.end] = placed
                self.end += 1
                self.on_record(placed)

    def join(self, group: str, topics: Sequence[str], *, from_beginning: bool) -> dict[str, int]:
        """Where `group` reads on; a topic without a position gets one that stays."""
        with self._guard:
            start = 0 if from_beginning else self.end
            return {topic: self.positions.setdefault((group, topic), start) for topic in topics}

    def after(self, positions: dict[str, int]) -> list[Record]:
        """The next records of topics from these offsets on."""
        with self._guard:
            if min(positions.values()) >= self.end:
                return []
            found = [r for o, r in self.records.items() if o >= positions.get(r.topic, self.end)]
            return found[:POLL_LIMIT]

    def remember(self, group: str, positions: dict[str, int]) -> None:
        """`group` read up to here: positions of a group only grow."""
        with self._guard:
            for topic, offset in positions.items():
                self.positions[group, topic] = max(offset, self.positions.get((group, topic), 0))


class MemoryEventLog:
    """`EventLog` on a broker."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self.broker = broker
        self.clock = clock

    def ensure_topics(self, members: Collection[str] = ()) -> frozenset[str]:
        """See `EventLog.ensure_topics`: topics need nothing here."""
        return frozenset()

    def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        """See `EventLog.topic_ids`."""
        return {}

    def publisher(self, writer_id: str) -> MemoryPublisher:
        """See `EventLog.publisher`."""
        return MemoryPublisher(self.broker, self.clock, writer_id, self.broker.take(writer_id))

    def cursor(self, table_uid: str) -> TableRecord | None:
        """See `EventLog.cursor`."""
        return next((known for known in self.table_records() if known.table_uid == table_uid), None)

    def table_records(self) -> Iterator[TableRecord]:
        """See `EventLog.table_records`."""
        for record in [r for r in list(self.broker.records.values()) if r.topic == TABLES.name]:
            try:
                event = decode(record)
            except PoisonEvent:
                continue
            if isinstance(event, TableRecord):
                yield event

    def positions(self, group: str) -> dict[str, int]:
        """See `EventLog.positions`."""
        return positions_in(self.last_records(POSITIONS).values(), group)

    def last_records(self, topic: Topic) -> dict[bytes, Record]:
        """See `EventLog.last_records`."""
        found = [r for r in list(self.broker.records.values()) if r.topic == topic.name]
        return {r.key: r for r in found if r.key is not None and r.value is not None}

    def subscribe(self, topics: Sequence[str], group: str, *, from_beginning: bool = True, member: str = "") -> MemorySubscription:
        """See `EventLog.subscribe`."""
        check_subscription(topics, group)
        positions = self.broker.join(group, topics, from_beginning=from_beginning)
        return MemorySubscription(self.broker, self.clock, group, positions)

    def tail(self, topics: Sequence[str], since: datetime | None = None) -> MemoryTail:
        """See `EventLog.tail`."""
        check_subscription(topics, "tail")
        recorded = {o: read_envelope(r).recorded_time for o, r in self.broker.records.items() if r.value is not None and since}
        later = [o for o, time in recorded.items() if time and since and time >= since]
        first = min(later, default=self.broker.end) if since else 0
        return MemoryTail(self.broker, self.clock, dict.fromkeys(topics, first))

    def close(self) -> None:
        """See `EventLog.close`."""


class MemoryPublisher(Publisher):
    """`Publisher` whose epoch is checked at every publication."""

    def __init__(self, broker: Broker, clock: Clock, writer_id: str, epoch: int) -> None:
        self.broker = broker
        self.writer_id = writer_id
        self.epoch = epoch
        self._clock = clock

    def publish(self, *records: Record, reader: Subscription | None = None) -> None:
        """See `Publisher.publish`."""
        check_records(records)
        self.append(records if reader is None else [record for record in records if self._is_ahead(record)])

    def _is_ahead(self, record: Record) -> bool:
        present = [r for r in self.broker.records.values() if (r.topic, r.key) == (record.topic, record.key)]
        return record.topic != POSITIONS.name or is_ahead(record, present)

    def append(self, records: Sequence[Record]) -> None:
        """What `publish` does with records that are as they should be."""
        self.broker.append(self.writer_id, self.epoch, records, self._clock.now())

    def close(self) -> None:
        """See `Publisher.close`."""


class MemorySubscription:
    """`Subscription` that reads all records of its topics in the order of their publication."""

    generation = 1
    """See `Subscription.generation`: there are no partitions."""

    def __init__(self, broker: Broker, clock: Clock, group: str, positions: dict[str, int]) -> None:
        self.broker = broker
        self.group = group
        self.positions = positions
        self._clock = clock
        self._read: dict[str, int] = {}

    def poll(self, timeout_s: float) -> list[Record]:
        """See `Subscription.poll`."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        while not (records := self.broker.after(self.positions)):
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return []
            self.wait(left_s)
        for record in records:
            self.positions[record.topic] = self._read[record.topic] = record.offset + 1
        return records

    def owns(self, table_uid: str) -> bool:
        """See `Subscription.owns`."""
        return True

    def wait(self, left_s: float) -> None:
        """Until there may be something new, or for `left_s` at most."""
        self._clock.sleep(min(_SLEEP_S, left_s))

    def commit(self) -> None:
        """See `Subscription.commit`."""
        self.broker.remember(self.group, self._read)
        self._read = {}

    def close(self) -> None:
        """See `Subscription.close`."""


class MemoryTail(MemorySubscription):
    """`Tail` on a broker."""

    def __init__(self, broker: Broker, clock: Clock, positions: dict[str, int]) -> None:
        super().__init__(broker, clock, "", positions)
        self._end = broker.end
        self._is_at_end = False

    def poll(self, timeout_s: float) -> list[Record]:
        """See `Subscription.poll`."""
        records = super().poll(timeout_s)
        self._is_at_end = self._is_at_end or not records or records[-1].offset + 1 >= self._end
        return records

    def is_at_end(self) -> bool:
        """See `Tail.is_at_end`."""
        return self._is_at_end
