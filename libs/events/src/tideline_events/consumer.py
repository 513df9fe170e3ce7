"""Consume events: drop duplicates, fill gaps from the table log, move poison records to the dead-letter topic."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Self

from tideline_events.envelope import TableDeleted, UnknownEvent, decode
from tideline_events.errors import CommitLost, PoisonEvent
from tideline_events.group import ConsumerCounts, GroupPublisher
from tideline_events.log import POLL_LIMIT, EventLog
from tideline_events.payload import Event, TableIdentity, TableRecord, Transition
from tideline_events.positions import position_record, positions_in, start_record, starts_in
from tideline_events.record import Record
from tideline_events.topics import POSITIONS, TIMELINE
from tideline_table.clock import Clock, SystemClock
from tideline_table.errors import Recovery, TidelineError

Backfill = Callable[[TableIdentity, int, int], Iterable[Transition]]
"""Takes a table, a first and a last sequence, both inclusive. Returns the transitions of this range from the table log, in order.

Raises `PoisonEvent` if the log of the table has not come to the last sequence."""
MAX_JUMP = 100_000
"""Of a table without a state in `tideline.tables`, a transition so many sequences after the last known one must be confirmed by the
table log."""
RECONCILE_EVERY_S = 300.0
"""Interval at which an idle consumer compares its positions with the state of the tables."""
LAG_EVERY_S = 30.0
"""Interval at which `EventConsumer.lag` reads the state of the tables again."""
_BACKFILL_BATCH = 5000
_WAIT_S = 5.0
_PAUSE_S = 1.0

_log = logging.getLogger(__name__)


class EventConsumer:
    """Reads topics as a member of `group`: transitions of each table once and in order, other events as they arrive.

    `changes` and `events` yield them and commit behind the caller's work; with `poll`, call `commit` after processing what it
    returned. A commit stores the position of each table in the event log. After a restart, or when another member takes over,
    everything since the last commit is delivered again, also what the topics have lost meanwhile: it is read from the table
    logs. If nothing arrives, the positions are compared with `tideline.tables`, so that a quiet table is not left behind.

    A group starts with the oldest records in the topics, without `from_beginning` after the newest. The first member stores where
    each table was then: if it dies before it commits, the next one goes on from there. With `snapshot` the group starts with the
    state of each table, a `TableRecord`, and goes on with the transitions after the `sequence` in it. Tables that it meets later
    start with their first transition.

    `backfill` fills gaps; by default from the log of the table at the event's base path. `seen`: for sinks that store positions
    with their results. It returns the last processed sequence by table uid, and is called at the start and when this member gets
    partitions of another one; then the event log holds no positions of the group. `member`: see `EventLog.subscribe`.
    """

    def __init__(
        self,
        log: EventLog,
        group: str,
        *,
        backfill: Backfill | None = None,
        topics: Sequence[str] = (TIMELINE.name,),
        from_beginning: bool = True,
        snapshot: bool = False,
        member: str = "",
        seen: Callable[[], Mapping[str, int]] | None = None,
        clock: Clock | None = None,
        owns_log: bool = False,
    ) -> None:
        self._event_log = log
        self._owns_log = owns_log
        self._group = group
        self._backfill = backfill or _table_logs()
        self._clock = clock or SystemClock()
        self._stored = seen
        self._publisher = GroupPublisher(log, group, self._clock)
        self._seen: dict[str, int] = {}
        self._generation = 0
        self._follows_tables = TIMELINE.name in topics
        self._starts: dict[str, int] = {}
        """The sequences of the tables when the group began: a table without a position begins there, or with an older event."""
        self._moved: set[str] = set()
        self._kept: dict[str, int] = {}
        """The positions of the group in the event log, as far as this member read or stored them: none of them is moved back."""
        self._snapshot = snapshot
        self._stores_starts = seen is None and self._follows_tables and not snapshot
        self._unknown: deque[TableRecord] = deque()
        """With `snapshot`: states of tables without a position, which are not delivered yet."""
        self._taken: deque[Event | TableDeleted] = deque()
        """What `poll` returned to `events`, from the event on that the caller processes now."""
        self._waiting: deque[Record] = deque()
        self._behind: deque[TableRecord] = deque()
        self._reconcile_at_s = self._clock.monotonic_s()
        self._heads: dict[str, int] = {}
        """The last sequence that the mirror published of each table, as far as it was read, since `_heads_at_s`."""
        self._heads_at_s = self._reconcile_at_s - LAG_EVERY_S
        self._is_quiet = False
        """Whether the last poll waited for its whole time: it also returns nothing for what it drops."""
        self._is_older_than_heads = False
        """Whether the states were read after the waiting records: of a step and its state, which are published together, then both
        are known."""
        self._counts = ConsumerCounts()
        if self._stores_starts and not self._has_begun():
            # Before this process is a member, which others wait for; and before what it does not read from the beginning ends.
            self._publisher.begin(self._first)
        self._subscription = log.subscribe(topics, group, from_beginning=from_beginning, member=member)

    @property
    def counts(self) -> ConsumerCounts:
        """See `ConsumerCounts`."""
        return self._counts

    @property
    def seen(self) -> Mapping[str, int]:
        """The last sequence by table uid."""
        return dict(self._seen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def changes(self, *, wait_s: float | None = None) -> Iterator[Transition]:
        """Yield each step after which queries may return other rows; otherwise as `events`."""
        return (event for event in self.events(wait_s=wait_s) if isinstance(event, Transition) and event.datachange)

    def events(self, *, wait_s: float | None = None) -> Iterator[Event | TableDeleted]:
        """Yield all events, for ever or until none came for `wait_s` seconds.

        An event counts as processed when the next one is asked for. What the caller processed is committed before each `poll`: if
        the caller dies, the events since then are delivered again. If the caller leaves the loop, the next one begins with the
        event at which it left. Errors that a retry may cure are logged, and the call is repeated, unless `wait_s` is given; raises
        other errors of `poll` and `commit`.
        """
        while True:
            while self._taken:
                yield self._taken[0]
                self._taken.popleft()
            try:
                self.commit()
                arrived = self.poll(_WAIT_S if wait_s is None else wait_s)
            except TidelineError as error:
                if wait_s is not None or error.recovery is not Recovery.RETRY:
                    raise
                _log.warning("group %s: %s", self._group, error)
                self._clock.sleep(_PAUSE_S)
                continue
            if not arrived and wait_s is not None and self._is_quiet:
                return
            self._taken.extend(arrived)

    def lag(self) -> dict[str, int]:
        """Return how many steps of each table of this member were published and not returned by `poll`, by table uid.

        The numbers of published steps are those of `tideline.tables`, which is read at most every 30 seconds.
        """
        if self._clock.monotonic_s() >= self._heads_at_s + LAG_EVERY_S:
            self._read_states()
        owned = [uid for uid in self._heads if self._subscription.owns(uid)]
        return {uid: max(0, self._heads[uid] - self._position(uid)) for uid in owned}

    def poll(self, timeout_s: float) -> list[Event | TableDeleted]:
        """Return the next events; empty after `timeout_s` without any.

        Raises errors of the event log and of the dead-letter topic, and errors of the backfill that a retry may cure. No event is
        lost: events before the failed record are returned first, and the next call continues with the same record. A record is sent
        to the dead-letter topic if it is no event, or if it names a sequence that the table log has not come to. What a backfill
        cannot give for another reason is counted as `missing`.
        """
        if self._taken:
            left, self._taken = list(self._taken), deque()
            return left
        self._load_positions()
        if not self._waiting and not self._unknown:
            self._waiting.extend(self._subscription.poll(timeout_s))
            self._is_quiet, self._is_older_than_heads = not self._waiting, False
            self._load_positions()
        if begun := self._begun():
            return list(begun)
        if not self._waiting and self._generation and self._follows_tables and self._clock.monotonic_s() >= self._reconcile_at_s:
            return list(self._reconciled())
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

    def commit(self, positions: Mapping[str, int] | None = None) -> bool:
        """Store durably that everything that `poll` returned is processed; do nothing while a record waits that was read.

        `positions`: of a caller with `seen` that processes later than it reads, the last sequences that it processed, by table uid.
        They are stored also while a record waits. Positions of tables that this member does not read, and positions behind those
        that are stored, are left out. Return whether the rest is stored. A commit that a rebalance made void is no error: its
        events are delivered again, here or to the member that reads them now. Raises `EventLogUnavailable`; it may be repeated.
        """
        is_complete = not self._waiting and not self._taken
        if not is_complete and not positions:
            return False
        moved = {uid: self._seen.get(uid, 0) for uid in self._moved} if self._stored is None else dict(positions or {})
        if moved:
            # Members that had these tables meanwhile may be ahead.
            self._load_positions()
        moved = {uid: at for uid, at in moved.items() if at > self._kept.get(uid, at - 1) and self._subscription.owns(uid)}
        try:
            if moved:
                # Before the offsets: a position that is ahead of them only makes records duplicates that were processed.
                records = [position_record(self._group, uid, moved[uid]) for uid in sorted(moved)]
                self._publisher.publish(*records, reader=self._subscription)
            if is_complete:
                self._subscription.commit()
        except CommitLost as error:
            _log.info("group %s: %s", self._group, error)
            return False
        self._kept |= moved
        self._moved.clear()
        return True

    def close(self) -> None:
        """Close the subscription and the publisher. What was not committed is delivered again."""
        self._subscription.close()
        self._publisher.close()
        if self._owns_log:
            self._event_log.close()

    def _load_positions(self) -> None:
        """Read the positions after a change of partitions: other members may have processed tables of these partitions."""
        if self._generation == self._subscription.generation:
            return
        generation = self._subscription.generation
        held = self._held() if self._stored is None else []
        stored = positions_in(held, self._group) if self._stored is None else self._stored()
        if self._stores_starts:
            self._starts = starts_in(held, self._group)
        elif self._generation == 0 and not stored and self._follows_tables and not self._snapshot:
            self._starts = {state.table_uid: state.sequence for state in self._read_states()}
        self._kept = dict(stored)
        for table_uid, sequence in stored.items():
            self._seen[table_uid] = max(sequence, self._seen.get(table_uid, -1))
        if self._snapshot:
            # Of this group or of its members, each table without a position begins with its state.
            self._unknown = deque(s for s in self._read_states() if s.table_uid not in self._seen)
        self._generation, self._reconcile_at_s = generation, self._clock.monotonic_s()

    def _has_begun(self) -> bool:
        held = self._held()
        return bool(positions_in(held, self._group) or starts_in(held, self._group))

    def _first(self) -> list[Record]:
        """Return where the group begins, unless it has begun: its first member may die before it commits anything."""
        if self._has_begun():
            return []
        starts = {"": 0, **{state.table_uid: state.sequence for state in self._read_states()}}
        return [start_record(self._group, uid, sequence) for uid, sequence in starts.items()]

    def _held(self) -> list[Record]:
        return list(self._event_log.last_records(POSITIONS).values())

    def _begun(self) -> list[TableRecord]:
        """Return the states of the next tables that this member reads and that have no position."""
        begun: list[TableRecord] = []
        while self._unknown and len(begun) < POLL_LIMIT:
            state = self._unknown.popleft()
            if self._subscription.owns(state.table_uid) and state.table_uid not in self._seen:
                self._mark(state.table_uid, state.sequence)
                begun.append(state)
        self._count(delivered=len(begun))
        return begun

    def _position(self, table_uid: str) -> int:
        """Return the last sequence processed of a table; if no event of it arrived, that at which the group began."""
        return self._seen.get(table_uid, self._starts.get(table_uid, 0))

    def _reconciled(self) -> list[Transition]:
        """Return transitions of tables whose state is ahead of the position, at most a batch of one table."""
        if not self._behind:
            states = self._read_states()
            self._behind.extend(state for state in states if self._subscription.owns(state.table_uid))
        while self._behind:
            state = self._behind[0]
            last = self._position(state.table_uid)
            upto = min(state.sequence, last + _BACKFILL_BATCH)
            if upto <= last:
                self._behind.popleft()
                continue
            found = self._filled(state.table, last + 1, upto)
            self._mark(state.table_uid, upto)
            self._count(delivered=len(found))
            if found:
                return found
        self._reconcile_at_s = self._clock.monotonic_s() + RECONCILE_EVERY_S
        return []

    def _read_states(self) -> list[TableRecord]:
        states = list(self._event_log.table_records())
        self._heads = {state.table_uid: state.sequence for state in states}
        self._heads_at_s = self._clock.monotonic_s()
        self._is_older_than_heads = True
        return states

    def _accept(self, record: Record) -> list[Event | TableDeleted]:
        try:
            event = decode(record)
            if isinstance(event, UnknownEvent):
                self._count(unknown=1)
                return []
            if isinstance(event, Transition):
                return list(self._in_order(event))
        except PoisonEvent as poison:
            self._publisher.give_up(record, str(poison))
            self._count(dead=1)
            return []
        self._count(delivered=1)
        return [event]

    def _in_order(self, transition: Transition) -> list[Transition]:
        """Return `transition` after the missing ones before it; empty for a duplicate."""
        table, sequence = transition.table, transition.sequence
        if self._is_duplicate(table.uid, sequence):
            self._count(duplicates=1)
            return []
        last = self._seen.get(table.uid)
        if not self._is_plausible(transition, last or 0):
            raise PoisonEvent(f"sequence {sequence} after {last or 0}", expected="a sequence that the table log has")
        if last is None:
            last = min(sequence - 1, self._starts.get(table.uid, 0))
        filled: list[Transition] = []
        if sequence > last + 1:
            filled = self._filled(table, last + 1, sequence - 1)
        self._mark(table.uid, sequence)
        self._count(delivered=1 + len(filled))
        return [*filled, transition]

    def _is_duplicate(self, table_uid: str, sequence: int) -> bool:
        return sequence <= self._seen.get(table_uid, -1)

    def _is_plausible(self, transition: Transition, last: int) -> bool:
        """Return whether the mirror published a step with this sequence, or the table log has it.

        A wrong one would hide all later events. The mirror publishes the state of a table in one transaction with its steps, so a
        step after that state is of another publisher. A table has no state once it is deleted, and sequence 0 while its steps are
        published again.
        """
        table, sequence = transition.table, transition.sequence
        if sequence <= max(last + 1, self._heads.get(table.uid, 0)):
            return True
        if not self._is_older_than_heads:
            # Once for all tables that a group meets in what it polled.
            self._read_states()
        if self._is_published(table.uid, sequence, last) or self._from_log(table, sequence, sequence):
            return True
        # A broker ends a transaction in one topic after the other.
        self._clock.sleep(_PAUSE_S)
        self._read_states()
        return self._is_published(table.uid, sequence, last)

    def _is_published(self, table_uid: str, sequence: int, last: int) -> bool:
        """Return whether the state of a table has a sequence; without a state, whether it is near to the last one."""
        return sequence <= (self._heads.get(table_uid, 0) or last + MAX_JUMP)

    def _filled(self, table: TableIdentity, first: int, last: int) -> list[Transition]:
        """Return the transitions `first` to `last` that the table log still has, and count the rest as missing."""
        found = {event.sequence: event for event in self._from_log(table, first, last) if event.table_uid == table.uid}
        filled = [found[number] for number in range(first, last + 1) if number in found]
        if lost_count := last - first + 1 - len(filled):
            _log.warning("table %s: %d transitions from sequence %d on are not in its log", table.uid, lost_count, first)
        self._count(backfilled=len(filled), missing=lost_count)
        return filled

    def _from_log(self, table: TableIdentity, first: int, last: int) -> list[Transition]:
        try:
            return list(self._backfill(table, first, last))
        except PoisonEvent:
            raise
        except TidelineError as error:
            if error.recovery is not Recovery.STOP:
                raise
            failure: Exception = error
        except Exception as error:  # noqa: BLE001 - the function of the application must not end the delivery of all tables
            failure = error
        _log.error("table %s cannot be read to fill a gap: %r", table.uid, failure)
        return []

    def _mark(self, table_uid: str, sequence: int) -> None:
        self._seen[table_uid] = max(sequence, self._seen.get(table_uid, -1))
        self._heads[table_uid] = max(sequence, self._heads.get(table_uid, 0))
        self._moved.add(table_uid)

    def _count(self, **more: int) -> None:
        self._counts = dataclasses.replace(self._counts, **{name: getattr(self._counts, name) + by for name, by in more.items()})


def _table_logs() -> Backfill:
    # A member that only publishes needs no engine.
    from tideline_events.transitions import TableLogs

    return TableLogs()
