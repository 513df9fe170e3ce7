"""What a subscription keeps in the event log: how far each table is delivered, and what was given up."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from contextlib import closing

from tideline_events import DeadLetter, EventLog, Publisher, PublisherFenced, PublishUnknown, Record, encode
from tideline_events.positions import position_record
from tideline_table.clock import Clock

BEGUN = "begun"
"""Key of the position that says that a group has begun, so that tables without a position are new ones."""


class Ledger:
    """Positions and dead letters of the consumer group `group`. Thread-safe. All methods raise errors of the event log."""

    def __init__(self, log: EventLog, group: str, clock: Clock, *, from_oldest: bool) -> None:
        self._log = log
        self._group = group
        self._clock = clock
        self._from_oldest = from_oldest
        self._publisher: Publisher | None = None
        self._turn = threading.Lock()

    def positions(self) -> Mapping[str, int]:
        """Return the last delivered sequence of each table. A group that begins now has what was published before behind it."""
        return self._log.positions(self._group) or self._begun()

    def _begun(self) -> Mapping[str, int]:
        """Begin the group, unless another instance has begun it; return its positions.

        All instances begin with one writer id, and read again once they have it: of two at the same moment, one has begun before
        the other reads, or can no longer publish.
        """
        for is_last in (False, True):
            with closing(self._log.publisher(f"{self._group}-begin")) as publisher:
                stored: Mapping[str, int] = self._log.positions(self._group)
                if stored:
                    return stored
                known = [] if self._from_oldest else list(self._log.table_records())
                stored = {BEGUN: 0, **{record.table_uid: record.sequence for record in known}}
                try:
                    publisher.publish(*self._records(stored))
                except (PublisherFenced, PublishUnknown):
                    if is_last:
                        raise
                else:
                    return stored
        raise AssertionError("the last attempt returns or raises")

    def store(self, positions: Mapping[str, int]) -> None:
        """Store positions of tables."""
        self._publish(*self._records(positions))

    def give_up(self, record: Record, reason: str) -> None:
        """Publish a dead letter for an event."""
        letter = DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            group=self._group,
            reason=reason,
            time=self._clock.now(),
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
        self._publish(encode(letter))

    def close(self) -> None:
        """Close the publisher."""
        with self._turn:
            self._drop()

    def _records(self, positions: Mapping[str, int]) -> list[Record]:
        return [position_record(self._group, uid, sequence) for uid, sequence in sorted(positions.items())]

    def _publish(self, *records: Record) -> None:
        with self._turn:
            for is_last in (False, True):
                try:
                    if self._publisher is None:
                        self._publisher = self._log.publisher(f"{self._group}-{uuid.uuid4()}")
                    self._publisher.publish(*records)
                except (PublisherFenced, PublishUnknown):
                    # Published again, the records say the same.
                    self._drop()
                    if is_last:
                        raise
                else:
                    return

    def _drop(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
