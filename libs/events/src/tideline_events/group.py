"""What a member of a consumer group counts, and what it publishes: positions and dead letters."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import tenacity

from tideline_events.envelope import encode
from tideline_events.errors import PublisherFenced, PublishUnknown
from tideline_events.log import EventLog, Publisher, Subscription
from tideline_events.payload import DeadLetter
from tideline_events.record import Record
from tideline_table.clock import Clock

_BEGINNINGS = 10


@dataclass(frozen=True, slots=True)
class ConsumerCounts:
    """Numbers of events since a consumer was created. `missing`: transitions of gaps that the table log did not hold either."""

    delivered: int = 0
    duplicates: int = 0
    backfilled: int = 0
    missing: int = 0
    unknown: int = 0
    dead: int = 0


class GroupPublisher:
    """Publishes for one member of `group`, under a writer id that no other member has. Opened when needed. Thread-safe."""

    def __init__(self, log: EventLog, group: str, clock: Clock) -> None:
        self._log = log
        self._group = group
        self._clock = clock
        self._publisher: Publisher | None = None
        self._turn = threading.Lock()

    def publish(self, *records: Record, reader: Subscription | None = None) -> None:
        """See `Publisher.publish`. If the broker ended the transaction, for example, a new publisher tries once more.

        So the records must say the same if they are published twice.
        """
        with self._turn:
            for is_last in (False, True):
                try:
                    if self._publisher is None:
                        self._publisher = self._log.publisher(f"{self._group}-{uuid.uuid4()}")
                    self._publisher.publish(*records, reader=reader)
                except (PublisherFenced, PublishUnknown):
                    self._drop()
                    if is_last:
                        raise
                else:
                    return

    def begin(self, first: Callable[[], Sequence[Record]]) -> None:
        """Publish what `first` returns, which returns nothing once the group has begun.

        All members begin under one writer id, and ask `first` once they have it: of two at the same moment, one has begun before
        the other asks, or can no longer publish.
        """
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((PublisherFenced, PublishUnknown)),
            wait=tenacity.wait_random_exponential(0.1, max=2.0),
            stop=tenacity.stop_after_attempt(_BEGINNINGS),
            sleep=self._clock.sleep,
            reraise=True,
        ):
            with attempt, closing(self._log.publisher(f"{self._group}-begin")) as publisher:
                if records := first():
                    publisher.publish(*records)

    def give_up(self, record: Record, reason: str) -> None:
        """Publish a dead letter for a record."""
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
        self.publish(encode(letter))

    def close(self) -> None:
        """Close the publisher, if one is open."""
        with self._turn:
            self._drop()

    def _drop(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
