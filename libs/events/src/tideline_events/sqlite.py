"""The embedded event log: one SQLite file that many processes of one machine use at the same time.

There are no partitions: the offset is the commit order over all topics. `tideline.tables` is compacted on write; publications
delete old records in small batches.
"""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import heapq
import logging
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

from tideline_events.database import (
    BY_KEY,
    KEYED,
    connect,
    file_id,
    headers_of,
    headers_text,
    is_replaced,
    reading,
    translated,
    writing,
)
from tideline_events.envelope import decode, stamped
from tideline_events.errors import EventLogUnavailable, PoisonEvent, PublisherFenced, PublishUnknown
from tideline_events.log import POLL_LIMIT, Publisher, Subscription, check_records, check_subscription
from tideline_events.payload import TableRecord
from tideline_events.positions import is_ahead, positions_in
from tideline_events.record import Record
from tideline_events.topics import FAMILIES, POSITIONS, TOPICS, Topic, TopicSettings, topic_named
from tideline_events.wire import Wire
from tideline_table.clock import Clock

RETENTION_INTERVAL_S = 60.0
RETENTION_BATCH = 1000
"""Most expired records of a topic that a publication of few records deletes, which bounds its duration; one of many deletes twice
as many as it has. While more are left, each publication deletes some: expiry keeps up with what arrives. Expired deletions of a
compacted topic are all deleted at once."""
MIN_SLEEP_S = 0.001
MAX_SLEEP_S = 0.05
"""Longest sleep of an idle poll. It bounds the delay until the poll sees a new record."""
POLL_BYTES = 16 * 1024 * 1024

_INSERT = "INSERT INTO records (topic, key, value, headers, recorded_us) VALUES (?, ?, ?, ?, ?)"
_COMPACTED = {topic.name for topic in TOPICS if topic.compacted}
_COMPACT = "DELETE FROM records WHERE topic = ? AND key IS ? AND offset < ?"
_COMPACT_BY_KEY = f"{_COMPACT} AND {BY_KEY}"
_FIELDS = "SELECT topic, key, value, headers, offset FROM records"
_POSITION = f"{_FIELDS} WHERE topic = 'tideline.positions' AND {BY_KEY}"
_TABLES = f"{_FIELDS} WHERE topic = 'tideline.tables' AND {BY_KEY}"
_LAST = "SELECT topic, key, value, headers, offset FROM records WHERE topic = ? AND value IS NOT NULL"
_NEXT_MEMBER = "SELECT min(topic) FROM records WHERE topic > ? AND topic < ?"
_NEXT = "SELECT topic, key, value, headers, offset FROM records WHERE topic = ? AND offset >= ? ORDER BY offset LIMIT ?"
_SINCE = "SELECT min(offset) FROM records WHERE topic = ? AND recorded_us >= ?"
_EXPIRE = """DELETE FROM records WHERE offset IN (SELECT offset FROM
    (SELECT offset, recorded_us FROM records WHERE topic = ? ORDER BY offset LIMIT ?) WHERE recorded_us < ?)"""
_EXPIRE_DELETIONS = "DELETE FROM records WHERE topic = ? AND value IS NULL AND recorded_us < ?"
_REMEMBER = """INSERT INTO positions VALUES (?, ?, ?) ON CONFLICT (group_name, topic)
    DO UPDATE SET next_offset = max(next_offset, excluded.next_offset)"""

_Row = tuple[str, bytes | None, bytes | None, str, int]

_log = logging.getLogger(__name__)


class SqliteEventLog:
    """`EventLog` on the file `path`. A forked process must not use an open event log of its parent."""

    def __init__(self, path: Path, clock: Clock, topics: TopicSettings | None = None, wire: Wire | None = None) -> None:
        self._path = path
        self._clock = clock
        self._topics = topics or TopicSettings()
        self._wire = wire or Wire()

    def ensure_topics(self, members: Collection[str] = ()) -> frozenset[str]:  # noqa: ARG002
        connect(self._path).close()
        self._wire.prepare()
        return frozenset()

    def topic_ids(self, names: Collection[str]) -> dict[str, str]:  # noqa: ARG002
        return {}

    def publisher(self, writer_id: str) -> SqlitePublisher:
        connection = connect(self._path)
        try:
            with translated(self._path), writing(connection):
                (epoch,) = connection.execute(
                    """INSERT INTO publishers VALUES (?, 1)
                    ON CONFLICT (writer_id) DO UPDATE SET epoch = epoch + 1 RETURNING epoch""",
                    (writer_id,),
                ).fetchone()
        except BaseException:
            connection.close()
            raise
        return SqlitePublisher(self._path, connection, self._clock, writer_id, epoch, self._topics, self._wire)

    def cursor(self, table_uid: str) -> TableRecord | None:
        return next(self._records(f"{_TABLES} AND key = ?", (table_uid.encode(),)), None)

    def table_records(self) -> Iterator[TableRecord]:
        return self._records(_TABLES, ())

    def positions(self, group: str) -> dict[str, int]:
        return positions_in(self.last_records(POSITIONS).values(), group)

    def last_records(self, topic: Topic) -> dict[bytes, Record]:
        return {record.key: record for record in map(_record, self._rows(_LAST, (topic.name,))) if record.key is not None}

    def subscribe(
        self,
        topics: Sequence[str],
        group: str,
        *,
        from_beginning: bool = True,
        member: str = "",  # noqa: ARG002 - no partitions
    ) -> SqliteSubscription:
        check_subscription(topics, group)
        connection = connect(self._path)
        try:
            with translated(self._path), writing(connection):
                (newest,) = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()
                positions = _joined(connection, group, topics, 0 if from_beginning else newest + 1)
        except BaseException:
            connection.close()
            raise
        return SqliteSubscription(self._path, connection, self._clock, group, positions)

    def tail(self, topics: Sequence[str], since: datetime | None = None) -> SqliteTail:
        check_subscription(topics, "tail")
        connection = connect(self._path)
        since_us = 0 if since is None else _microseconds(since)
        try:
            with translated(self._path), reading(connection):
                (newest,) = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()
                first = [(topic, connection.execute(_SINCE, (topic, since_us)).fetchone()[0]) for topic in topics]
        except BaseException:
            connection.close()
            raise
        return SqliteTail(self._path, connection, self._clock, {topic: offset or newest + 1 for topic, offset in first}, newest)

    def close(self) -> None:
        """See `EventLog.close`. The log itself holds no connection to the file."""
        self._wire.close()

    def _rows(self, query: str, arguments: tuple[bytes | str, ...]) -> list[_Row]:
        with closing(connect(self._path)) as connection, translated(self._path):
            return connection.execute(query, arguments).fetchall()

    def _records(self, query: str, arguments: tuple[bytes, ...]) -> Iterator[TableRecord]:
        for row in self._rows(query, arguments):
            try:
                event = decode(_record(row))
            except PoisonEvent as poison:
                _log.warning("table record at offset %d is skipped: %s", row[4], poison)
                continue
            if isinstance(event, TableRecord):
                yield event


class SqlitePublisher(Publisher):
    """`Publisher` whose epoch is checked inside every transaction."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        clock: Clock,
        writer_id: str,
        epoch: int,
        topics: TopicSettings,
        wire: Wire,
    ) -> None:
        self._topics = topics
        self._wire = wire
        self._path = path
        self._connection = connection
        self._clock = clock
        self._writer_id = writer_id
        self._epoch = epoch
        self._turn = threading.Lock()
        self._file = file_id(path)
        self._expired_at_s = clock.monotonic_s() - RETENTION_INTERVAL_S
        self._expiring: list[Topic] = []
        """The topics of which the last publication left expired records."""

    def publish(self, *records: Record, reader: Subscription | None = None) -> None:
        check_records(records)
        now = self._clock.now()
        records = tuple(self._wire.written(stamped(record, now)) for record in records)
        with self._turn, translated(self._path):
            if is_replaced(self._path, self._file):
                # What was published before is gone with the file, and so are the epochs of publishers.
                raise PublishUnknown(f"the file {self._path} was replaced", remedy="open a new publisher, and read cursors again")
            self._write(records, now, reader)

    def _write(self, records: Sequence[Record], now: datetime, reader: Subscription | None) -> None:
        with writing(self._connection):
            self._check_epoch()
            # All members of a group read all tables: the one that is behind moves no position back.
            for record in records if reader is None else filter(self._is_ahead, records):
                row = (record.topic, record.key, record.value, headers_text(record.headers), _microseconds(now))
                offset = self._connection.execute(_INSERT, row).lastrowid
                if record.topic in _COMPACTED:
                    statement = _COMPACT_BY_KEY if record.topic in KEYED else _COMPACT
                    self._connection.execute(statement, (record.topic, record.key, offset))
            self._expire(now, max(RETENTION_BATCH, 2 * len(records)))

    def close(self) -> None:
        with self._turn:
            self._connection.close()

    def _is_ahead(self, record: Record) -> bool:
        """Return whether a record holds no position, or one that is ahead of the one that is there."""
        if record.topic != POSITIONS.name:
            return True
        rows = self._connection.execute(f"{_POSITION} AND key = ? AND value IS NOT NULL", (record.key,)).fetchall()
        return is_ahead(record, [_record(row) for row in rows])

    def _check_epoch(self) -> None:
        query = "SELECT epoch FROM publishers WHERE writer_id = ?"
        if self._connection.execute(query, (self._writer_id,)).fetchone() != (self._epoch,):
            raise PublisherFenced(self._writer_id)

    def _expire(self, now: datetime, limit: int) -> None:
        topics: Iterable[Topic] = self._expiring
        is_due = self._clock.monotonic_s() - self._expired_at_s >= RETENTION_INTERVAL_S
        if is_due:
            topics = (*TOPICS, *self._members())
        left = []
        for topic in topics:
            deleted = self._connection.execute(*_expiry(self._topics.own(topic), now, limit)).rowcount
            if deleted >= limit and not topic.compacted:
                left.append(topic)
        self._expiring = left
        if is_due:
            self._expired_at_s = self._clock.monotonic_s()

    def _members(self) -> Iterator[Topic]:
        """Yield the topics of families that have records. One look into the index for each."""
        for family in FAMILIES:
            name, end = family.name, family.name + "\x7f"
            while (name := self._connection.execute(_NEXT_MEMBER, (name, end)).fetchone()[0]) is not None:
                if (topic := topic_named(name)) is not None:
                    yield topic


class SqliteSubscription:
    """`Subscription` that reads all records of its topics, in order of commit over all topics."""

    generation = 1
    """See `Subscription.generation`: there are no partitions. It grows if the file is replaced."""

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Clock, group: str, positions: dict[str, int]) -> None:
        self._path = path
        self._file = file_id(path)
        self._connection = connection
        self._clock = clock
        self._group = group
        self._positions = positions
        self._uncommitted: dict[str, int] = {}

    def poll(self, timeout_s: float) -> list[Record]:
        deadline_s = self._clock.monotonic_s() + timeout_s
        with translated(self._path):
            if is_replaced(self._path, self._file):
                self._reopen()
            while True:
                version = self._version()
                if records := self._read():
                    return records
                if not self._changed(version, deadline_s):
                    return []

    def commit(self) -> None:
        """See `Subscription.commit`. Members of one group on this log share one position: the furthest."""
        if not self._uncommitted:
            return
        with translated(self._path), writing(self._connection):
            self._connection.executemany(_REMEMBER, [(self._group, topic, offset) for topic, offset in self._uncommitted.items()])
        self._uncommitted.clear()

    def owns(self, table_uid: str) -> bool:  # noqa: ARG002 - no partitions
        return True

    def close(self) -> None:
        self._connection.close()

    def _reopen(self) -> None:
        """Go on with the file that is there now: from the positions that the group has in it, or from its start."""
        _log.warning("the event log %s was replaced: group %s reads the new one", self._path, self._group)
        connection = connect(self._path)
        self._connection.close()
        self._connection, self._file = connection, file_id(self._path)
        self._positions = _joined(connection, self._group, self._positions, 0)
        self._uncommitted.clear()
        self.generation += 1

    def _version(self) -> int:
        """Return a number that changes with every commit of another connection. Reading this number costs less than a query."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)

    def _changed(self, version: int, deadline_s: float) -> bool:
        sleep_s = MIN_SLEEP_S
        while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
            self._clock.sleep(min(sleep_s, left_s))
            if self._version() != version:
                return True
            sleep_s = min(2 * sleep_s, MAX_SLEEP_S)
        return False

    def _read(self) -> list[Record]:
        records: list[Record] = []
        size_bytes = 0
        with reading(self._connection):
            per_topic = [self._connection.execute(_NEXT, (topic, start, POLL_LIMIT)) for topic, start in self._positions.items()]
            for row in heapq.merge(*per_topic, key=lambda row: row[4]):
                records.append(_record(row))
                size_bytes += len(row[2] or b"")
                if len(records) == POLL_LIMIT or size_bytes > POLL_BYTES:
                    break
            for rows in per_topic:
                rows.close()
        for record in records:
            self._positions[record.topic] = self._uncommitted[record.topic] = record.offset + 1
        return records


class SqliteTail(SqliteSubscription):
    """`Tail` of the embedded event log."""

    def __init__(self, path: Path, connection: sqlite3.Connection, clock: Clock, positions: dict[str, int], newest: int) -> None:
        super().__init__(path, connection, clock, "", positions)
        self._newest = newest
        self._is_at_end = False

    def poll(self, timeout_s: float) -> list[Record]:
        if is_replaced(self._path, self._file):
            raise EventLogUnavailable(f"the file {self._path} was replaced", remedy="read it from the start")
        records = super().poll(timeout_s)
        self._is_at_end = self._is_at_end or not records or records[-1].offset >= self._newest
        return records

    def is_at_end(self) -> bool:
        return self._is_at_end


def _joined(connection: sqlite3.Connection, group: str, topics: Collection[str], start: int) -> dict[str, int]:
    """Return the positions of a group by topic. Where it has none, it gets `start`."""
    connection.executemany("INSERT OR IGNORE INTO positions VALUES (?, ?, ?)", [(group, topic, start) for topic in topics])
    rows = connection.execute("SELECT topic, next_offset FROM positions WHERE group_name = ?", (group,))
    return {topic: offset for topic, offset in rows if topic in topics}


def _record(row: _Row) -> Record:
    topic, key, value, headers, offset = row
    return Record(topic, key, value, headers_of(headers), partition=0, offset=offset)


def _expiry(topic: Topic, now: datetime, limit: int) -> tuple[str, tuple[str | int, ...]]:
    """Return the statement that deletes expired records of `topic`, at most `limit` unless it is compacted."""
    limit_us = _microseconds(now) - topic.retention_s * 1_000_000
    if topic.compacted:
        return _EXPIRE_DELETIONS, (topic.name, limit_us)
    return _EXPIRE, (topic.name, limit, limit_us)


def _microseconds(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000)
