"""Where the publication of each table stands, by the event log: its last record, and the cursor, the last published sequence."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from tideline_events import Record, TableRecord, encode
from tideline_mirror.changes import OBSERVED
from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_link import EventLink
from tideline_runtime.logging import get_logger
from tideline_runtime.open_tables import OpenTables
from tideline_runtime.shard_publishers import ShardPublishers
from tideline_runtime.shards import shard_of
from tideline_table.log import entry_path
from tideline_table.storage import exists
from tideline_table.table import Table

_log = get_logger(__name__)
OPENING_S = 2.0
"""Time for which a visit opens tables that had not changed when the mirror started. The first visit only asks each whether it has
changed: one request instead of ten, so that the start of a mirror over 10,000 tables takes seconds."""


@dataclass(frozen=True, slots=True)
class _Closed:
    uid: str
    sequence: int
    until_s: float


class Positions:
    """The positions of the tables of one mirror.

    What the event log says of a table counts once the publisher of its shard is open, because only then has it fenced the others.
    Therefore everything is kept by the number of that publisher, and read again for a newer one.
    """

    def __init__(
        self, context: ServiceContext, fleet: str, tables: OpenTables, events: EventLink, publishers: ShardPublishers
    ) -> None:
        self._context, self._fleet = context, fleet
        self._tables, self._events, self._publishers = tables, events, publishers
        self.records: dict[str, TableRecord] = {}
        """The last record of each table in the event log, by uid, of those that this instance published or read."""
        self.cursors: dict[str, tuple[int, int]] = {}
        """By table uid: the number of the publisher for which the cursor was read, and the cursor."""
        self._quiet: dict[str, TableRecord] = {}
        """By base path: the records of tables that need not be opened until they change."""
        self._closed: dict[str, _Closed] = {}
        """By base path: the tables that were closed because they rest."""
        self.looked: Callable[[str, float], None] = lambda _, __: None
        """Called with base path and time of each look at a closed table."""
        self._opens_until_s = 0.0
        self._read_for = 0
        """The number of the newest publisher that was open when the records were read."""
        self._asked: set[str] = set()

    def begin_visit(self) -> None:
        """Read the records if publishers were opened since. In the first visit no table is opened that has not changed."""
        self._opens_until_s = self._context.clock.monotonic_s() + OPENING_S if self._read_for else 0.0
        self.read(self._publishers.newest)

    def of(self, table: Table, shard: int) -> tuple[int, int]:
        """Return the number of the shard's publisher and the cursor, which is read after that publisher fenced the others."""
        number = self._publishers.settle(shard)
        known = self.cursors.get(table.uid)
        if known is None or known[0] != number:
            record = self.record(table.uid, number)
            known = self.cursors[table.uid] = number, kept_from(table, record.sequence if record else 0)
        return known

    def record(self, uid: str, number: int) -> TableRecord | None:
        """Return the last record of a table. The records of all tables are read at once after publishers were opened."""
        self.read(number)
        if uid in self._asked:
            record = self._events.log.cursor(uid)
            self.records.pop(uid, None)
            if record is not None:
                self.records[uid] = record
        self._asked.add(uid)
        return self.records.get(uid)

    def read(self, number: int) -> None:
        """Read the records of all tables, unless they were read with the publisher of this number open."""
        if number > self._read_for:
            # Opened before the read, because a publication of another process is final only then.
            self._publishers.take_over()
            self._read_for = self._publishers.newest
            self.records.clear()
            self.records |= {record.table_uid: record for record in self._events.log.table_records()}
            own = [record for record in self.records.values() if record.fleet == self._fleet and record.health == "healthy"]
            self._quiet = {record.table.base_path: record for record in own if record.sharing == "exclusive"}
            self._asked = set()

    def doubt(self) -> None:
        """Have the records of all tables read again before the next publication."""
        self._read_for = 0

    def close(self, table: Table, sequence: int) -> None:
        """Note that a table is closed of which everything is published up to `sequence`."""
        self._closed[table.base_path] = _Closed(table.uid, sequence, self._tables.looks.audit_at_s(table.base_path))

    def rests(self, base_path: str, every_s: Callable[[str, str], float]) -> str | None:
        """Return the uid of a table that need not be open: its log has no entry after the published ones. One request for a look.

        `every_s`: asked for the seconds between two looks, by uid and base path. A table that was closed is opened by an audit,
        and as soon as something names it. One that was not opened yet and that was created again at the same place, or whose log
        was trimmed past the cursor, is noticed when it is opened.
        """
        if (closed := self._closed.get(base_path)) is not None:
            if self._is_quiet(base_path, closed, every_s):
                return closed.uid
            del self._closed[base_path]
            return None
        record = self._quiet.get(base_path)
        if record is None or self._tables.source is not None:
            return None
        now_s = self._context.clock.monotonic_s()
        is_turn = now_s < self._opens_until_s
        if not is_turn and self._tables.looks.waits(base_path, every_s(record.table_uid, base_path)):
            return record.table_uid
        if is_turn or exists(self._tables.storage(base_path), entry_path(record.sequence + 1)):
            del self._quiet[base_path]
            return None
        self._tables.looks.looked(base_path)
        self.looked(base_path, now_s)
        return record.table_uid

    def _is_quiet(self, base_path: str, closed: _Closed, every_s: Callable[[str, str], float]) -> bool:
        looks, record = self._tables.looks, self.records.get(closed.uid)
        if record is None or record.sequence != closed.sequence or self._context.clock.monotonic_s() >= closed.until_s:
            return False
        interval_s = every_s(closed.uid, base_path)
        if looks.waits(base_path, interval_s):
            return True
        self.looked(base_path, self._context.clock.monotonic_s())
        return self._tables.is_unchanged(base_path, closed.uid, closed.sequence, interval_s)

    def start_again(self, *, keeps_records: bool) -> None:
        """Have the steps of all tables of this instance published again, from their start.

        `keeps_records`: whether the topic of records is still there, and has to say so first. One transaction for each shard: a
        mirror that ends meanwhile leaves no table of a shard without its steps in the new topic. The mirror does not publish the
        steps of observed tables again: no log tells their sequences.
        """
        # New publishers ask the broker for the topics.
        self._publishers.close()
        if keeps_records:
            self._publishers.take_over()
            found: dict[int, list[Record]] = {}
            for record in self._events.log.table_records():
                is_own = record.fleet == self._fleet and self._tables.owns(record.table.base_path)
                if is_own and record.sharing != OBSERVED:
                    shard = shard_of(record.table.base_path, self._tables.shards.count)
                    found.setdefault(shard, []).append(encode(replace(record, sequence=0, steps=())))
            for shard, records in found.items():
                self._publishers.publish(shard, *records)
        self.cursors.clear()
        self.records.clear()
        self.doubt()

    def retain(self, uids: Collection[str]) -> None:
        """Forget the cursors of other tables."""
        for uid in self.cursors.keys() - uids:
            del self.cursors[uid]
        self._closed = {base_path: closed for base_path, closed in self._closed.items() if closed.uid in uids}


def kept_from(table: Table, cursor: int) -> int:
    """Return `cursor`, or the start of the log if it was trimmed past `cursor`. Trimmed entries can no longer be published."""
    trimmed_to = table.timeline.log.trimmed_to()
    if trimmed_to <= cursor:
        return cursor
    _log.error(
        "log entries were trimmed before they were published; consumers see a gap, the table is complete",
        table=table.uid,
        first=cursor + 1,
        last=trimmed_to,
    )
    return trimmed_to
