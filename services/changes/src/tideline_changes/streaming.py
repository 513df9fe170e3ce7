"""The service: visits tables, and publishes what changed after their positions, with the position, in one transaction each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from tideline_changes.envelope import Shape, key_columns_of, shape_of
from tideline_changes.feed import changes_of
from tideline_changes.metrics import BACKLOG, OVERSIZED, ROWS, SNAPSHOTS
from tideline_changes.positions import SNAPSHOT, WRITE, Position, Unit
from tideline_changes.registry import Registry
from tideline_changes.settings import ChangesSettings
from tideline_changes.topics import TableTopics
from tideline_events import (
    HINTS,
    TIMELINE,
    DeadLetter,
    EventLogUnavailable,
    PublisherFenced,
    PublishUnknown,
    Record,
    encode,
)
from tideline_events.record import MAX_RECORD_BYTES
from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_link import EventLink
from tideline_runtime.hinted_tables import HintedTables
from tideline_runtime.logging import get_logger
from tideline_runtime.open_tables import OpenTables, open_tables
from tideline_runtime.shard_publishers import ShardPublishers
from tideline_runtime.shards import shard_of
from tideline_runtime.table_settings import TableSettings
from tideline_runtime.visits import Visits
from tideline_table.errors import HistoryUnavailable, InstantNotFound, UnsupportedTable, WriteConflict
from tideline_table.table import HeldLease, Table

_log = get_logger(__name__)
BATCH_BYTES = 8_000_000
"""Size from which on a transaction takes no more rows."""


class ChangesService:
    """One instance of the service. A newer publisher of the same shard fences the older one."""

    def __init__(self, settings: ChangesSettings, context: ServiceContext) -> None:
        self._context = context
        self._fleet = settings.fleet
        self._tables: OpenTables = open_tables(settings, context)
        hinted = HintedTables()
        self._events = EventLink(settings, context, watches=[HINTS.name, TIMELINE.name], hinted=hinted)
        self._visits = Visits(context.clock, settings.poll_interval_s, hinted)
        name = context.name_in_events(settings, context.name)
        self._publishers = ShardPublishers(name, self._tables.shards, lambda: self._events.log)
        self._topics = TableTopics(settings.fleet, context.clock, self._events, self._publishers)
        self._per_table = TableSettings(settings, self._tables.own_settings)
        self._registry = Registry(settings)
        self._backlog: dict[str, int] = {}
        self._is_behind = False
        self._began_ms = 0

    def start(self) -> None:
        """Take over the shards that are held, and watch for commits."""
        self._events.open()
        self._publishers.take_over()

    def tick(self) -> float | None:
        """Publish the changes of every enabled table of the shards that this instance holds, tables with new commits first.

        Raises errors of the event log at once, and the first error of a table that a retry may cure at the end.
        """
        visit = self._visits.begin(full=self._is_behind)
        self._is_behind = False
        self._began_ms = int(self._context.clock.now().timestamp() * 1000)
        self._publishers.close_lost()
        self._topics.check()
        failure = self._tables.visit(
            self._context,
            self._visit,
            ends_on=(EventLogUnavailable, PublishUnknown, PublisherFenced),
            only=visit.only,
            first=visit.first,
        )
        if visit.is_full and not self._context.stopping.is_set():
            known = self._tables.known()
            self._topics.retain(known)
            self._backlog = {uid: commits for uid, commits in self._backlog.items() if uid in known}
        self._context.metrics.set(BACKLOG, sum(self._backlog.values()))
        if failure is not None:
            raise failure
        pause_s = self._visits.end(visit)
        return 0.0 if self._is_behind else pause_s

    def stop(self) -> None:
        """Close what `start` opened."""
        self._publishers.close()
        self._events.close()
        self._registry.close()
        self._tables.close()

    def _visit(self, table: Table) -> None:
        own = self._per_table.of(table.base_path)
        if not own.enabled:
            self._backlog.pop(table.uid, None)
            self._topics.forget(table.uid)
            return
        self.note(table, max(1, self._backlog.get(table.uid, 0)))  # until the visit has counted
        _check_supported(table)
        shard = shard_of(table.base_path, self._tables.shards.count)
        number, position = self._topics.position(table, shard, own, key_columns_of(table))
        shape = shape_of(table, position.topic, self._fleet, own, partial(self._registry.schema_id, position.topic))
        _Stream(self, table, own, shape, shard, number, position, self._began_ms).run()

    def note(self, table: Table, commits: int) -> None:
        """Note how many commits of a table are not published."""
        self._backlog[table.uid] = commits

    def publish(self, shard: int, number: int, position: Position, records: list[Record]) -> None:
        """Publish records and the position behind them together."""
        self._topics.forget(position.table_uid)
        with self._topics.using(position.topic, position.table_uid):
            self._publishers.publish(shard, *records, position.record(), number=number)
        self._topics.keep(number, position)

    def observes(self, table: Table) -> bool:
        """Return whether the policy of a table forbids to write anything to it, also leases."""
        return self._tables.policy(table.base_path).observes

    @property
    def context(self) -> ServiceContext:
        """The context of the service."""
        return self._context

    def go_on(self) -> None:
        """Visit the tables again at once."""
        self._is_behind = True


class _Stream:
    """One visit of one table."""

    def __init__(
        self,
        service: ChangesService,
        table: Table,
        own: ChangesSettings,
        shape: Shape,
        shard: int,
        number: int,
        position: Position,
        read_ms: int,
    ) -> None:
        """`read_ms`: a time before the state of the table was read."""
        self._service = service
        self._table = table
        self._own = own
        self._shape = shape
        self._shard = shard
        self._number = number
        self._position = position
        self._read_ms = read_ms
        self._newest = 0
        """The last sequence of the table's log at the time `read_ms`, or later."""

    def run(self) -> None:
        """Publish what is to be published, until the service stops."""
        position, columns = self._position, self._shape.key_columns
        reason = ""
        if not position.is_begun:
            reason = "nothing was published"
        elif position.key_columns != columns:
            reason = f"the key columns were {', '.join(position.key_columns)}"
        elif position.format != self._own.format:
            reason = f"the format was {position.format}"
        elif position.snapshot != self._own.snapshot:
            reason = "the setting says so"
        if not reason:
            try:
                self._go_on()
            except HistoryUnavailable as error:
                reason = str(error)
            else:
                return
        self._begin_snapshot(reason)
        self._go_on()

    def _begin_snapshot(self, reason: str) -> None:
        state = self._table.refresh()
        _log.warning("snapshot begins", table=self._table.uid, topic=self._shape.topic, sequence=state.sequence, reason=reason)
        self._service.context.metrics.increment(SNAPSHOTS, table=self._table.uid)
        unit = Unit(SNAPSHOT, state.sequence, state.last_instant)
        now_ms = self._now_ms()
        position = replace(
            self._position,
            key_columns=self._shape.key_columns,
            snapshot=self._own.snapshot,
            format=self._own.format,
            base_path=self._table.base_path,
            unit=unit,
            published_ms=0,
        )
        truncation = self._shape.truncation(self._shape.source_of(unit, now_ms, 0), now_ms)
        self._publish(position, [truncation] if self._own.truncations else [])

    def _go_on(self) -> None:
        unit, newest = self._position.unit, self._table.state.sequence
        is_due = bool(self._own.heartbeat_s) and self._read_ms - self._position.published_ms >= self._own.heartbeat_s * 1000
        if newest != (reached := self._position.reached) or is_due:
            # The holder before may have published what was written since this visit began. And a visit of a table of which the
            # mirror tells no news reads nothing, so that its state may be older than the visit.
            newest = self._table.refresh().sequence
        self._newest = newest
        if newest < reached:
            raise HistoryUnavailable(
                f"sequence {reached} is published, but the table log ends with {newest}", expected="the table log as it was"
            )
        if unit is not None and not self._unit(unit):
            return
        writes = {a.sequence: a.instant for a in self._table.writes_after(self._position.sequence)}
        for done, (sequence, instant) in enumerate(writes.items()):
            self._service.note(self._table, len(writes) - done)
            if not self._unit(Unit(WRITE, sequence, instant)):
                return
        self._service.note(self._table, 0)
        if self._position.sequence < newest or is_due:
            # Steps that change no rows move the position too: what it names must not be archived.
            self._publish(replace(self._position, sequence=max(newest, self._position.sequence)), [])

    def _unit(self, unit: Unit) -> bool:
        """Publish the rest of a unit; return whether it is complete, and not cut off by the stop of the service."""
        table, context = self._table, self._service.context
        if unit.kind == WRITE and unit.instant not in {a.instant for a in table.writes_after(unit.sequence - 1)}:
            raise HistoryUnavailable(f"write {unit.instant} was undone", expected="a write that is complete")
        with ExitStack() as held:
            at, records, size_bytes, rows, is_held = unit, [], 0, 0, False
            for change in changes_of(table, unit, self._shape.columns, self._shape.key_columns):
                found = self._records(change.op, change.before, change.after, at)
                at = replace(at, part=change.part, rows=change.rows, row=at.row + 1)
                records += found
                rows += 1
                size_bytes += sum(len(record.value or b"") for record in found)
                if rows < self._own.batch_rows and size_bytes < BATCH_BYTES:
                    continue
                if context.stopping.is_set():
                    self._service.go_on()
                    return False
                if not is_held and not self._service.observes(table):
                    # A small unit is read before cleaning can delete its files.
                    _hold(held, table, unit)
                is_held = True
                self._publish(replace(self._position, unit=at), records)
                context.health.beat()
                records, size_bytes, rows = [], 0, 0
            self._publish(replace(self._position, sequence=unit.sequence, unit=None), records)
        return True

    def _records(self, op: str, before: dict[str, object] | None, after: dict[str, object] | None, unit: Unit) -> list[Record]:
        now_ms = self._now_ms()
        source = self._shape.source_of(unit, now_ms, unit.row)
        found = self._shape.change(op, before, after, source, now_ms)
        if before is not None and any(map(_is_too_large, found)):
            found = self._shape.change(op, before, after, source, now_ms, shows_before=False)
        self._service.context.metrics.increment(ROWS, table=self._table.uid, op=op)
        return [kept for record in found for kept in self._kept(record)]

    def _kept(self, record: Record) -> Iterator[Record]:
        if not _is_too_large(record):
            yield record
            return
        size_bytes = len(record.value or b"")
        _log.error("row is too large for a record", table=self._table.uid, topic=record.topic, size_bytes=size_bytes)
        self._service.context.metrics.increment(OVERSIZED, table=self._table.uid)
        reason = f"a record of {size_bytes} bytes; expected at most {MAX_RECORD_BYTES}"
        now = self._service.context.clock.now()
        yield encode(DeadLetter(record.topic, -1, -1, self._service.context.name, reason, now, record.key, record.value))

    def _publish(self, position: Position, records: list[Record]) -> None:
        if position.unit is None and position.sequence >= self._newest:
            # Nothing older is to come. A part, or a position behind which the log goes on, says nothing of the kind.
            position = replace(position, published_ms=max(self._read_ms, position.published_ms))
        self._service.publish(self._shard, self._number, position, records)
        self._position = position

    def _now_ms(self) -> int:
        return round(self._service.context.clock.now().timestamp() * 1000)


def _is_too_large(record: Record) -> bool:
    return len(record.key or b"") + len(record.value or b"") > MAX_RECORD_BYTES


def _hold(held: ExitStack, table: Table, unit: Unit) -> None:
    """Keep cleaning from the files of a unit. Where it has begun already, files that are gone lead to a new snapshot."""
    if not table.capabilities.keeps_leases:
        return
    after = unit.sequence if unit.kind == SNAPSHOT else unit.sequence - 1
    try:
        held.enter_context(HeldLease(table, after=after, reads="row changes"))
    except (InstantNotFound, WriteConflict) as error:
        _log.info("read without a lease", table=table.uid, reason=str(error))


def _check_supported(table: Table) -> None:
    if not table.capabilities.keeps_log:
        raise UnsupportedTable(
            f"row changes of table {table.definition.name!r}, which has no table log",
            expected="a table that Tideline writes",
            remedy="share the table with Apache Hudi (tideline share), or create it with Tideline",
        )
    table.check_keyed_rows("row changes")
