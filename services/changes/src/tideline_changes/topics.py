"""The topic and the position of each table: who owns a topic, and where its changes go on."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tideline_changes.positions import Position, positions_of
from tideline_changes.settings import ChangesSettings
from tideline_events import CHANGES, CHANGES_POSITIONS, EventLogUnavailable, TopicMismatch
from tideline_events.topics import topic_named
from tideline_runtime.event_link import EventLink
from tideline_runtime.logging import get_logger
from tideline_runtime.shard_publishers import ShardPublishers
from tideline_table.clock import Clock
from tideline_table.errors import InvalidOption, TidelineError
from tideline_table.storage import open_storage
from tideline_table.table import Table, read_identity

_log = get_logger(__name__)
CHECK_EVERY_S = 15.0
"""Interval at which the service asks the event log for its topics, and time for which one topic may fail as if all did."""
DELETED_AFTER_S = 300.0
"""Time for which no table must be at the place of one before another table gets its topic."""
_ASKED_SHARE = 5
"""Requests about a topic that fails take at most this share of the time: a broker lets a topic without a leader wait."""


class TopicTaken(InvalidOption):
    """The topic of a table's changes is that of another table. Their rows are not mixed: neither is published in it anew."""


class TopicUnusable(TidelineError):
    """The event log serves others, but not the topic of one table. The visits of this table fail until it does."""


class TableTopics:
    """Positions of tables, as of the newest publisher of their shards. Used by the thread that ticks."""

    def __init__(self, fleet: str, clock: Clock, events: EventLink, publishers: ShardPublishers) -> None:
        self._fleet = fleet
        self._clock = clock
        self._events = events
        self._publishers = publishers
        self._known: dict[str, tuple[int, Position]] = {}
        self._stored: dict[tuple[str, str], Position] = {}
        self._taken: set[str] = set()
        """The tables whose positions in `_stored` were used, or may have changed since: they are read again before the next use."""
        self._read_for = 0
        self._ids: dict[str, str] = {}
        """Ids of the topics of tables that are known to exist (`EventLog.topic_ids`)."""
        self._failing: dict[str, tuple[float, float, str]] = {}
        """By table uid: since when its topic fails, when it is asked for again, and why it fails."""
        self._absent_since_s: dict[str, float] = {}
        """By the uid of a table whose topic another table claims: since when no table is at its place."""
        self._check_at_s = clock.monotonic_s() + CHECK_EVERY_S

    def check(self) -> None:
        """Create topics again that were deleted, and hear of those that another process created again.

        If one of them fails, the visit of each table asks for its own.
        """
        if self._clock.monotonic_s() < self._check_at_s:
            return
        used = {position.topic for _, position in self._known.values()}
        self._ids = {topic: topic_id for topic, topic_id in self._ids.items() if topic in used}
        try:
            self._create(self._ids)
        except (EventLogUnavailable, TopicMismatch):
            self._events.check()
            self._ids.clear()
            # The topic of the positions may be among those that were created before the failure.
            self._known.clear()
            self._read_for = 0
        self._check_at_s = self._clock.monotonic_s() + CHECK_EVERY_S

    def position(self, table: Table, shard: int, own: ChangesSettings, columns: tuple[str, ...]) -> tuple[int, Position]:
        """Return the number of the shard's publisher and the position, read after that publisher fenced the others.

        In a topic that was deleted since and is there again, whoever created it, nothing is published yet. A table without a
        position claims its topic first. Raises `TopicTaken`, `InvalidOption` for a name that no topic can have.
        """
        number = self._publishers.settle(shard)
        topic = CHANGES.name + (own.topic or table.definition.name)
        if topic_named(topic) is None:
            raise InvalidOption(
                f"topic {topic!r} of table {table.definition.name!r}",
                expected="letters, digits, dots, dashes and underscores",
                remedy="set `topic` in the settings of the table",
            )
        known = self._known.get(table.uid)
        if known is None or known[0] != number or known[1].topic != topic:
            found = self._stored_position(table.uid, number)
            claim = Position(self._fleet, table.uid, table.base_path, topic, columns)
            if found is None or found.topic != topic or not found.is_begun:
                found = self._claimed(table, shard, number, claim)
            else:
                self._refuse_taken(claim, only_begun=True)
            known = self._known[table.uid] = number, found
        if topic not in self._ids:
            with self.using(topic, table.uid):
                self._create([topic])
        number, found = known
        if found.topic_id != self._ids[topic]:
            if found.is_begun:
                _log.error("topic was deleted, and begins anew", table=table.uid, topic=topic)
            found = replace(found, topic_id=self._ids[topic], sequence=-1, unit=None)
        return number, found

    @contextmanager
    def using(self, topic: str, table_uid: str) -> Iterator[None]:
        """Around requests about the topic of one table.

        Raises `TopicUnusable` if they fail for `CHECK_EVERY_S` while the event log answers; before, `EventLogUnavailable`.
        """
        began_s = self._clock.monotonic_s()
        since_s, again_s, why = self._failing.get(table_uid, (began_s, began_s, ""))
        if began_s < again_s:
            raise _unusable(topic, why)
        try:
            yield
        except EventLogUnavailable as error:
            self._events.check()
            now_s = self._clock.monotonic_s()
            is_lasting = now_s - since_s >= CHECK_EVERY_S
            again_s = now_s + (_ASKED_SHARE - 1) * (now_s - began_s) if is_lasting else now_s
            self._failing[table_uid] = since_s, again_s, str(error)
            if not is_lasting:
                raise
            raise _unusable(topic, str(error)) from error

    def retain(self, table_uids: Collection[str]) -> None:
        """Forget all other tables, also their topics."""
        self._known = {uid: known for uid, known in self._known.items() if uid in table_uids}
        self._failing = {uid: failing for uid, failing in self._failing.items() if uid in table_uids}

    def forget(self, table_uid: str) -> None:
        """Before a publication: if it fails, the position is read again. Also of a table that is paused."""
        self._known.pop(table_uid, None)
        self._taken.add(table_uid)

    def keep(self, number: int, position: Position) -> None:
        """After a publication."""
        self._known[position.table_uid] = number, position
        self._failing.pop(position.table_uid, None)

    def _create(self, topics: Collection[str]) -> None:
        if CHANGES_POSITIONS.name in self._events.check(sorted(topics)):
            self._known.clear()
            self._read_for = 0
        ids = self._events.log.topic_ids(topics) if topics else {}
        self._ids |= {topic: ids.get(topic, "") for topic in topics}

    def _stored_position(self, uid: str, number: int) -> Position | None:
        if number > self._read_for or uid in self._taken:
            # Opened before the read, because a publication of another process is final only then.
            self._publishers.take_over()
            self._read_for = self._publishers.newest
            self._read()
        self._taken.add(uid)
        return self._stored.get((self._fleet, uid))

    def _read(self) -> None:
        self._stored = positions_of(self._events.log.last_records(CHANGES_POSITIONS).values())
        self._taken = set()

    def _claimed(self, table: Table, shard: int, number: int, claim: Position) -> Position:
        """Return `claim`, which is published, if no other table has the topic.

        Every table claims before it looks: of two that begin together at least one sees the other and gives way.
        """
        own = self._stored.get((claim.fleet, claim.table_uid))
        self._refuse_taken(claim)
        self._publishers.publish(shard, claim.record(), number=number)
        try:
            self._read()
            self._refuse_taken(claim)
        except TidelineError:
            self.forget(claim.table_uid)
            self._publishers.publish(shard, own.record() if own else claim.removal(), number=number)
            raise
        replaced = [p for p in self._stored.values() if p.topic == claim.topic and p.table_uid != claim.table_uid]
        if replaced:
            for position in replaced:
                self.forget(position.table_uid)
            self._publishers.publish(shard, *(position.removal() for position in replaced), number=number)
        _log.info("topic claimed", table=table.uid, topic=claim.topic)
        return claim

    def _refuse_taken(self, claim: Position, *, only_begun: bool = False) -> None:
        """Raise `TopicTaken` if another table has the topic. `only_begun`: of two that claim it, the other one gives way."""
        for other in self._stored.values():
            if other.topic != claim.topic or (other.fleet, other.table_uid) == (claim.fleet, claim.table_uid):
                continue
            if (other.is_begun or not only_begun) and not self._is_replaced(other, claim):
                raise TopicTaken(
                    f"topic {claim.topic} for table {claim.table_uid} at {claim.base_path}: it is that of table "
                    f"{other.table_uid} at {other.base_path}" + (f" of fleet {other.fleet!r}" if other.fleet else ""),
                    expected="one topic per table",
                    remedy="set `topic` in the settings of one of them",
                )

    def _is_replaced(self, other: Position, claim: Position) -> bool:
        """Return whether the table of a position was deleted, or another one created in its place.

        Only of the own fleet: others may reach their tables by other ways. A folder that is not mounted looks as if its tables
        were deleted.
        """
        if other.fleet != claim.fleet or other.table_uid == claim.table_uid:
            return False
        found = read_identity(open_storage(other.base_path))
        if found is not None:
            self._absent_since_s.pop(other.table_uid, None)
            return found.uid != other.table_uid
        now_s = self._clock.monotonic_s()
        return now_s - self._absent_since_s.setdefault(other.table_uid, now_s) >= DELETED_AFTER_S


def _unusable(topic: str, why: str) -> TopicUnusable:
    return TopicUnusable(
        f"topic {topic}: {why}",
        expected="a topic that can be created and written",
        remedy="mend the topic or its permissions, or set `topic` in the settings of the table; the service tries again",
    )
