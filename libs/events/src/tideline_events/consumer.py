"""Consume events: drop duplicates, fill gaps from the table log, move poison records to the dead-letter topic.

`Deduplicator` decides; `EventConsumer` reads, fills gaps and publishes dead letters.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tideline_events.envelope import TableDeleted, UnknownEvent, decode, encode
from tideline_events.errors import PoisonEvent
from tideline_events.log import Publisher, Subscription
from tideline_events.payload import DeadLetter, Event, Transition
from tideline_events.record import Record
from tideline_table.clock import Clock
from tideline_table.errors import Recovery, TidelineError

Backfill = Callable[[str, int, int], Iterable[Transition]]
"""Takes a table uid, a first and a last sequence, both inclusive. Returns the transitions of this range from the table log, in
order."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Missing:
    """A gap before a transition: sequences `first` to `last`, both inclusive."""

    first: int
    last: int


class Deduplicator:
    """The last sequence seen of each table, which identifies duplicates and gaps: each transition of a table has its own sequence.

    A table that is not in `seen` starts with the first transition that arrives. No transition before that one counts as missing.
    """

    def __init__(self, seen: Mapping[str, int] | None = None) -> None:
        self._seen = dict(seen or {})

    @property
    def seen(self) -> Mapping[str, int]:
        """Last sequence by table uid. A consumer that stores this mapping with its results finds gaps across a restart."""
        return dict(self._seen)

    def is_duplicate(self, table_uid: str, sequence: int) -> bool:
        """Return whether the last sequence seen of the table is `sequence` or a greater one."""
        return sequence <= self._seen.get(table_uid, -1)

    def missing_before(self, table_uid: str, sequence: int) -> Missing | None:
        """Return the gap between the last sequence seen and `sequence`, or None."""
        last = self._seen.get(table_uid)
        return None if last is None or sequence <= last + 1 else Missing(last + 1, sequence - 1)

    def mark(self, table_uid: str, sequence: int) -> None:
        """Record that all transitions of the table up to `sequence` were seen."""
        self._seen[table_uid] = max(sequence, self._seen.get(table_uid, -1))


@dataclass(frozen=True, slots=True)
class ConsumerCounts:
    """Numbers of events since a consumer was created. `missing`: transitions of gaps that the table log did not hold either."""

    delivered: int = 0
    duplicates: int = 0
    backfilled: int = 0
    missing: int = 0
    unknown: int = 0
    dead: int = 0


class EventConsumer:
    """Reads the events of a subscription: transitions of each table once and in order, other events as they arrive.

    Events that `poll` returned count as seen. Call `commit` after processing them: after a restart, the subscription delivers
    everything since the last commit again.
    """

    def __init__(
        self,
        subscription: Subscription,
        *,
        group: str,
        backfill: Backfill,
        dead_letters: Publisher,
        clock: Clock,
        seen: Mapping[str, int] | None = None,
    ) -> None:
        self._subscription = subscription
        self._group = group
        self._backfill = backfill
        self._dead_letters = dead_letters
        self._clock = clock
        self._deduplicator = Deduplicator(seen)
        self._waiting: deque[Record] = deque()
        self._counts = ConsumerCounts()

    @property
    def counts(self) -> ConsumerCounts:
        """See `ConsumerCounts`."""
        return self._counts

    @property
    def seen(self) -> Mapping[str, int]:
        """See `Deduplicator.seen`."""
        return self._deduplicator.seen

    def poll(self, timeout_s: float) -> list[Event | TableDeleted]:
        """Return the next events; empty after `timeout_s` without any.

        Raises errors of the event log and of the dead-letter topic, and errors of the backfill that a retry may cure. No event is
        lost: events before the failed record are returned first, and the next call continues with the same record. A record is sent
        to the dead-letter topic if it is no event, and if its backfill fails with an error that no retry cures.
        """
        if not self._waiting:
            self._waiting.extend(self._subscription.poll(timeout_s))
        events: list[Event | TableDeleted] = []
        while self._waiting:
            try:
                events.extend(self._accept(self._waiting[0]))
            except TidelineError:
                if events:
                    # These events are marked as seen and must be returned. The next call repeats the failed record.
                    return events
                raise
            self._waiting.popleft()
        return events

    def commit(self) -> None:
        """Commit what `poll` returned; do nothing while a record waits for a retry.

        Raises `CommitLost` and `EventLogUnavailable`.
        """
        if not self._waiting:
            self._subscription.commit()

    def close(self) -> None:
        """Close the subscription; the publisher of dead letters belongs to the caller."""
        self._subscription.close()

    def _accept(self, record: Record) -> list[Event | TableDeleted]:
        try:
            event = decode(record)
            if isinstance(event, UnknownEvent):
                self._count(unknown=1)
                return []
            if isinstance(event, Transition):
                return list(self._in_order(event))
        except PoisonEvent as poison:
            self._send_to_dead_letters(record, str(poison))
            return []
        except TidelineError as error:
            if error.recovery is not Recovery.STOP:
                raise
            self._send_to_dead_letters(record, f"backfill failed: {error}")
            return []
        self._count(delivered=1)
        return [event]

    def _in_order(self, transition: Transition) -> list[Transition]:
        """Return `transition` after the missing ones before it; empty for a duplicate."""
        uid, sequence = transition.table_uid, transition.sequence
        if self._deduplicator.is_duplicate(uid, sequence):
            self._count(duplicates=1)
            return []
        filled: list[Transition] = []
        if gap := self._deduplicator.missing_before(uid, sequence):
            found = {found.sequence: found for found in self._backfill(uid, gap.first, gap.last) if found.table_uid == uid}
            filled = [found[number] for number in range(gap.first, gap.last + 1) if number in found]
            lost_count = gap.last - gap.first + 1 - len(filled)
            if lost_count:
                _log.warning("table %s: %d transitions before sequence %d are no longer in its log", uid, lost_count, sequence)
            self._count(backfilled=len(filled), missing=lost_count)
        self._deduplicator.mark(uid, sequence)
        self._count(delivered=1 + len(filled))
        return [*filled, transition]

    def _send_to_dead_letters(self, record: Record, reason: str) -> None:
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
        self._dead_letters.publish(encode(letter))
        self._count(dead=1)

    def _count(self, **more: int) -> None:
        self._counts = dataclasses.replace(self._counts, **{name: getattr(self._counts, name) + by for name, by in more.items()})


class TransitionConsumer:
    """An `EventConsumer` that returns transitions only."""

    def __init__(self, events: EventConsumer) -> None:
        self._events = events

    def poll(self, timeout_s: float) -> list[Transition]:
        """See `EventConsumer.poll`; other events are dropped."""
        return [event for event in self._events.poll(timeout_s) if isinstance(event, Transition)]

    def commit(self) -> None:
        """See `EventConsumer.commit`."""
        self._events.commit()

    def close(self) -> None:
        """See `EventConsumer.close`."""
        self._events.close()
