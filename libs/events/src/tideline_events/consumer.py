"""What every consumer of events does: drop what was seen, fill gaps from the table log, set poison aside (design: Rules).

`Deduplicator` decides, `EventConsumer` acts.
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
"""(table uid, from sequence, to sequence), both ends in → those transitions in order, read from the table log."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Missing:
    """A gap before a transition: sequences `first` to `last`, both in."""

    first: int
    last: int


class Deduplicator:
    """What was seen of every table: its last sequence. An event's `source` and `id` follow from table and sequence, so that is enough.

    A table that is not in `seen` starts with the first transition that comes: nothing before it counts as missing.
    """

    def __init__(self, seen: Mapping[str, int] | None = None) -> None:
        self._seen = dict(seen or {})

    @property
    def seen(self) -> Mapping[str, int]:
        """Last sequence by table uid; keep it beside what was made of the events to find gaps over a restart."""
        return dict(self._seen)

    def is_duplicate(self, table_uid: str, sequence: int) -> bool:
        """True if the table was seen up to `sequence` or further."""
        return sequence <= self._seen.get(table_uid, -1)

    def missing_before(self, table_uid: str, sequence: int) -> Missing | None:
        """The gap between what was seen and `sequence`, if there is one."""
        last = self._seen.get(table_uid)
        return None if last is None or sequence <= last + 1 else Missing(last + 1, sequence - 1)

    def mark(self, table_uid: str, sequence: int) -> None:
        """Count everything up to `sequence` as seen."""
        self._seen[table_uid] = max(sequence, self._seen.get(table_uid, -1))


@dataclass(frozen=True, slots=True)
class ConsumerCounts:
    """What a consumer did so far. `missing`: transitions that the table log no longer had either."""

    delivered: int = 0
    duplicates: int = 0
    backfilled: int = 0
    missing: int = 0
    unknown: int = 0
    dead: int = 0


class EventConsumer:
    """Events of a subscription: transitions of each table once and in order, others as they come.

    What `poll` returned counts as seen. `commit` after it was dealt with; after a restart everything since comes again.
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
        """The next events; empty after `timeout_s` without any.

        An error of the event log, the backfill or the dead-letter topic that may pass is raised, with nothing lost: the next call goes
        on with the same record. A backfill that will never succeed sends its record to the dead-letter topic.
        """
        if not self._waiting:
            self._waiting.extend(self._subscription.poll(timeout_s))
        events: list[Event | TableDeleted] = []
        while self._waiting:
            try:
                events.extend(self._accept(self._waiting[0]))
            except TidelineError:
                if events:
                    # The failure shows again at the next call; these are marked as seen and must reach the caller.
                    return events
                raise
            self._waiting.popleft()
        return events

    def commit(self) -> None:
        """Commit what `poll` returned; waits, without an error, while a record is still to be retried."""
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
            self._bury(record, str(poison))
            return []
        except TidelineError as error:
            if error.recovery is not Recovery.STOP:
                raise
            self._bury(record, f"backfill failed: {error}")
            return []
        self._count(delivered=1)
        return [event]

    def _in_order(self, transition: Transition) -> list[Transition]:
        """`transition` after what is missing before it; empty for a duplicate."""
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
                _log.warning("table %s: %d transitions before sequence %d are gone from its log", uid, lost_count, sequence)
            self._count(backfilled=len(filled), missing=lost_count)
        self._deduplicator.mark(uid, sequence)
        self._count(delivered=1 + len(filled))
        return [*filled, transition]

    def _bury(self, record: Record, reason: str) -> None:
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
    """An `EventConsumer` for those who want transitions only."""

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
