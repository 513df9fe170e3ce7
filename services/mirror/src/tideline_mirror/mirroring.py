"""The tick of the mirror: read each table's log after the cursor, publish the entries and move the cursor in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice

from tideline_events import (
    HINTS,
    TABLES,
    TIMELINE,
    EventLogUnavailable,
    Heartbeat,
    PublisherFenced,
    PublishUnknown,
    TableIdentity,
    TableRecord,
    encode,
)
from tideline_events.transitions import table_identity, transition_of
from tideline_mirror.absent import AbsentTables
from tideline_mirror.batches import Batches, Publication
from tideline_mirror.changes import changes_between, is_changed, sharing_text
from tideline_mirror.metrics import BACKLOG, BEHIND, ENTRIES, HEALED, LAG, NAMES
from tideline_mirror.notices import Notices
from tideline_mirror.notification_source import source_of
from tideline_mirror.observed import ObservedTables
from tideline_mirror.pace import Pace
from tideline_mirror.positions import Positions, kept_from
from tideline_mirror.records import record_of
from tideline_mirror.settings import MirrorSettings
from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_link import EventLink
from tideline_runtime.hinted_tables import HintedTables
from tideline_runtime.logging import get_logger
from tideline_runtime.looks import REST_AFTER_S
from tideline_runtime.news import HEALTHY
from tideline_runtime.open_tables import OpenTables, open_tables
from tideline_runtime.shard_publishers import ShardPublishers
from tideline_runtime.shards import ShardLost, shard_of
from tideline_runtime.table_settings import TableSettings
from tideline_runtime.visits import Visit, Visits
from tideline_table.coordination import observed_uid
from tideline_table.errors import CorruptMetadata, TidelineError
from tideline_table.log import Entry
from tideline_table.storage import open_storage
from tideline_table.table import Table, TableDefinition, read_identity

_log = get_logger(__name__)
HEAL_AFTER_S = 5.0
"""If a writer has not created the timeline files of its entry after this time, the mirror creates them."""
CHECK_EVERY_S = 15.0
"""Interval at which the mirror asks the event log for its topics."""
EVENT_LOG = "event log"
"""Why the mirror is not ready, from a failed request to the event log until it answers."""
DEFINITION_EVERY_S = 300.0
"""Interval at which the mirror reads the properties of an open table again: one request."""
SCRUB_EVERY_S = 60.0
"""Interval at which an idle table is checked for timeline files that a slow writer created after their action had ended. Apache
Hudi's readers trust such files, so the check deletes them."""


class MirrorService:
    """One instance of the mirror. A newer publisher of the same shard fences the older one."""

    def __init__(self, settings: MirrorSettings, context: ServiceContext) -> None:
        self._context = context
        context.metrics.expose(HEALED, BEHIND, BACKLOG)
        self._tables: OpenTables = open_tables(settings, context, observes=True)
        self._tables.looks.interval_s = self._look_every_s
        hinted = HintedTables()
        self._events = EventLink(settings, context, watches=[HINTS.name], hinted=hinted)
        self._visits = Visits(context.clock, settings.poll_interval_s, hinted)
        self._publishers = ShardPublishers(
            context.name_in_events(settings, context.name), self._tables.shards, lambda: self._events.log
        )
        self._batches = Batches(context.clock, self._publishers)
        self._urgent: set[str] = set()
        """The uids of tables that hints named in this visit: they do not wait for others."""
        self._per_table = TableSettings(settings, self._tables.own_settings)
        self._positions = Positions(context, settings.fleet, self._tables, self._events, self._publishers)
        self._cursors, self._known = self._positions.cursors, self._positions.records
        self._tables.waits = lambda base_path: self._positions.rests(base_path, self._pace.look_s)
        self._tables.rests_until_s, self._tables.closed = self._rests_until_s, self._note_closed
        self._notices = Notices(context.clock, hinted, context.wake)
        self._positions.looked = self._notices.looked
        self._source_of = source_of(settings)
        self._tables.looks.told_places = self._notices.places
        self._pace = Pace(context.clock, self._per_table, self._known, self._notices.tells, self._notices.owes)
        self._identities: dict[str, tuple[Table, float, TableIdentity]] = {}
        """By table uid: the open table, when its properties were read, and what they said."""
        self._waiting: dict[str, datetime] = {}
        """When the first entry was recorded that is read and not published, by table uid."""
        self._backlog: dict[str, int] = {}
        """Numbers of entries that are not published, by table uid; only of tables that have some."""
        self._partial: set[str] = set()
        """The uids of tables of which the last visit published not all that was there when it began."""
        self._absent = AbsentTables(context, settings.fleet, self._tables, self._publishers)
        self._fleet = settings.fleet
        self._observed = ObservedTables(context, settings.fleet, self._publishers)
        self._heartbeat_every_s = settings.heartbeat_interval_s
        self._heartbeat_at_s = context.clock.monotonic_s()
        self._check_at_s = context.clock.monotonic_s() + CHECK_EVERY_S
        self._scrubbed_s: dict[str, float] = {}
        self._in_order: dict[str, int] = {}
        """By table uid: the sequence up to which the timeline files are known to be there."""
        self._is_behind = False
        self._lost: set[str] = set()
        """Topics that were deleted, and of which nothing is published again yet."""

    def start(self) -> None:
        """Take over the shards that are held, and watch for hints."""
        self._events.open()
        self._publishers.take_over()
        if self._source_of is not None:
            self._notices.start(self._source_of)

    def tick(self) -> float | None:
        """Publish the new log entries of every table of the shards that this instance holds, hinted tables first.

        Between two visits of all tables it visits only hinted tables, so that the delay of an event does not grow with the
        fleet. Raises errors of the event log at once, and the first error of a table that a retry may cure at the end.
        """
        visit = self._visits.begin(full=self._is_behind)
        self._is_behind = False
        try:
            return self._visit(visit)
        except (EventLogUnavailable, PublishUnknown) as error:
            self._context.health.obstruct(EVENT_LOG, str(error))
            self._check_at_s = self._context.clock.monotonic_s()
            raise
        finally:
            if self._batches.dropped():
                self._positions.doubt()  # the visit ended early: the cursors of these tables are read again
            if visit.is_full:
                self._forget_others()
            now = self._context.clock.now()
            ages_s = [(now - recorded).total_seconds() for recorded in self._waiting.values()]
            self._context.metrics.set(BEHIND, max([0.0, *ages_s]))
            self._context.metrics.set(BACKLOG, sum(self._backlog.values()))

    def _visit(self, visit: Visit) -> float | None:
        self._publishers.close_lost()
        self._check_event_log()
        began = self._context.clock.now()
        self._positions.begin_visit()
        # Step 1 of a tick: visit the tables, hinted ones first. A table that fails does not keep the others waiting.
        self._urgent.clear()
        failure = self._tables.visit(
            self._context,
            self._look,
            ends_on=(EventLogUnavailable, PublishUnknown, PublisherFenced),
            only=visit.only,
            first=lambda: self._hinted(visit),
        )
        self._flush()
        self._context.health.clear(EVENT_LOG)
        if visit.is_full and not self._context.stopping.is_set():
            self._notices.know(self._tables.known())
            self._check_absent()
            self._tables.show()
            self._beat(began)
        if failure is not None:
            raise failure
        pause_s = self._visits.end(visit)
        return 0.0 if self._is_behind else pause_s

    def stop(self) -> None:
        """Close what `start` opened."""
        self._notices.stop()
        self._publishers.close()
        self._events.close()
        self._tables.close()

    def _hinted(self, visit: Visit) -> list[str]:
        named = visit.first()
        self._urgent.update(named)
        return named

    def _look(self, table: Table) -> None:
        began_s = self._context.clock.monotonic_s()
        self._mirror(table)
        self._notices.looked(table.base_path, began_s)

    def _mirror(self, table: Table) -> None:
        if self._batches.is_due():
            self._flush()
        shard = shard_of(table.base_path, self._tables.shards.count)
        if not table.capabilities.keeps_log:
            uid, batch_entries = observed_uid(table.storage.root), self._per_table.of(table.base_path).batch_entries
            number = self._publishers.settle(shard)
            self._partial.add(uid)  # until the visit ends without an error
            found = self._observed.mirror(table, uid, shard, number, lambda: self._positions.record(uid, number), batch_entries)
            self._note_part(uid, is_partial=found.is_behind)
            if found.record is not None:
                self._notices.found(table.base_path)
                self._known[uid] = found.record
            return
        if table.uid in self._batches:
            self._flush()
        # Step 2, for each table: where did the last publisher stop? The event log says it.
        number, cursor = self._positions.of(table, shard)
        batch_entries = self._per_table.of(table.base_path).batch_entries
        self._note_backlog(table, cursor)
        # The visit has just refreshed the table: an idle one need not be asked for its next entry again. The head of the log
        # decides: the view of a shared table has steps of Apache Hudi that the log lacks until `heal` adopts them.
        head = table.timeline.state.sequence
        is_idle = cursor == head
        self._note_part(table.uid, is_partial=False)
        # Step 3: read the entries after it, a batch at most.
        entries = [] if is_idle else list(islice(table.timeline.log.after(cursor), batch_entries))
        if not entries:
            if cursor < table.timeline.state.sequence:
                self._skip_gap(table, number, cursor)
                return
            identity, sharing = self._identity(table), sharing_text(table)
            if is_changed(self._known.get(table.uid), identity, sharing):
                self._publish(table, shard, number, cursor, [], is_partial=False)
            observes = self._tables.policy(table.base_path).observes
            if observes and table.capabilities.log_is_truth:
                return
            # An idle table is put in order: a writer that died behind its commit has left no timeline file.
            self._heal(table)
            # `heal` refreshes the table: an entry that was appended meanwhile is published by the next tick, which follows at once.
            self._note_part(table.uid, is_partial=is_idle and cursor < table.timeline.state.sequence)
            if table.state.sequence > table.timeline.state.sequence:
                self._partial.add(table.uid)  # the lock of both sides was not free: adopted, and published, by a later visit
            if not observes:
                self._scrub(table)
            return
        # Checked after the reads: if the log was trimmed meanwhile, a paused writer may have put void entries there.
        start = kept_from(table, cursor)
        if start != cursor:
            self._cursors[table.uid] = number, start
            self._note_part(table.uid, is_partial=True)
            return
        table.refresh()
        # Steps of Apache Hudi that are not adopted yet are not published either.
        is_partial = entries[-1].sequence < max(head, table.state.sequence)
        self._publish(table, shard, number, cursor, entries, is_partial=is_partial)

    def _publish(self, table: Table, shard: int, number: int, cursor: int, entries: Sequence[Entry], *, is_partial: bool) -> None:
        """Publish entries and what changed about the table itself since its last record, together with other tables.

        `is_partial`: whether the table has more to publish.
        """
        known, identity = self._known.get(table.uid), self._identity(table)
        # Step 4: an event for each entry, and the state of the table behind the last one.
        transitions = [transition_of(identity, table.definition, entry, "mirror") for entry in entries]
        record = self._record(table, entries[-1].sequence if entries else cursor)
        if entries:
            self._notices.found(table.base_path)
            record = replace(record, quiet_since=datetime.fromisoformat(entries[-1].recorded))
            self._waiting.setdefault(table.uid, datetime.fromisoformat(entries[0].recorded))
        changes = changes_between(known, record, moved_from=_moved_from(table) if known is None else None)
        # Removed before and set after publishing: if the outcome is unknown, the next tick reads the cursor from the event log.
        del self._cursors[table.uid]
        self._partial.add(table.uid)

        def done() -> None:
            self._cursors[table.uid], self._known[table.uid] = (number, record.sequence), record
            self._waiting.pop(table.uid, None)
            self._note_part(table.uid, is_partial=is_partial)
            for change in changes:
                _log.info("table is " + change.kind, table=table.uid, name=identity.name, previous=change.previous)
            if entries:
                self._note_backlog(table, record.sequence)
                self._observe(table, entries)
                self._is_behind |= len(entries) == self._per_table.of(table.base_path).batch_entries

        # Step 5: events, state and cursor in one transaction, so that each step and each change is published once.
        self._batches.add(Publication(shard, number, table.uid, transitions, record, changes, done))
        if not entries or table.uid in self._urgent or self._batches.is_due():
            self._flush()

    def _flush(self) -> None:
        """Publish what waits. If that fails, the cursors are read again, those of several tables at once."""
        is_alone = len(self._batches) == 1
        try:
            self._batches.flush()
        except TidelineError:
            if not is_alone:
                self._positions.doubt()
            raise

    def _identity(self, table: Table) -> TableIdentity:
        """Return the identity of a table. Another program may have renamed or upgraded it since it was opened."""
        now_s, seen = self._context.clock.monotonic_s(), self._identities.get(table.uid)
        if seen is not None and seen[0] is table and now_s - seen[1] < self._pace.check_s(DEFINITION_EVERY_S, table.uid):
            return seen[2]
        is_new = seen is None or seen[0] is not table
        definition = table.definition if is_new else TableDefinition.read(table.storage, table.base_path)
        self._identities[table.uid] = table, now_s, (found := table_identity(table, definition))
        return found

    def _note_backlog(self, table: Table, cursor: int) -> None:
        if table.timeline.state.sequence > cursor:
            self._backlog[table.uid] = table.timeline.state.sequence - cursor
        else:
            self._backlog.pop(table.uid, None)

    def _note_part(self, uid: str, *, is_partial: bool) -> None:
        (self._partial.add if is_partial else self._partial.discard)(uid)
        self._is_behind |= is_partial

    def _look_every_s(self, table: Table) -> float:
        """Return the seconds between two looks at a table: none while there is something to publish."""
        uid = table.uid if table.capabilities.keeps_log else observed_uid(table.storage.root)
        return 0.0 if uid in self._partial or uid in self._backlog else self._pace.look_s(uid, table.base_path)

    def _rests_until_s(self, table: Table) -> float:
        """Return until when a look at a table need only ask for its next entry: it is quiet, published and in order."""
        uid, sequence = table.uid, table.state.sequence
        is_published = uid not in self._partial and uid not in self._backlog and uid not in self._batches
        record = self._known.get(uid)
        if not is_published or self._in_order.get(uid) != sequence or self._pace.quiet_s(uid) < REST_AFTER_S:
            return 0.0
        if record is None or record.sequence != sequence or record.pending_plans or record.health != HEALTHY:
            return 0.0
        return self._tables.looks.audit_at_s(table.base_path)

    def _note_closed(self, table: Table) -> None:
        self._positions.close(table, table.state.sequence)
        for of_tables in (self._identities, self._scrubbed_s, self._in_order):
            of_tables.pop(table.uid, None)

    def _heal(self, table: Table) -> None:
        """Create timeline files that a writer left out, once for each step: those of an exclusive table may be late, not vanish."""
        sequence, quiet_s = table.timeline.state.sequence, self._pace.quiet_s(table.uid)
        if table.capabilities.log_is_truth and self._in_order.get(table.uid) == sequence:
            return
        if table.timeline.heal(HEAL_AFTER_S):
            self._context.metrics.increment(HEALED)
            healed = table.timeline.state.sequence
            _log.info("created timeline files that the writer had not created", table=table.uid, sequence=healed)
        elif quiet_s > 2 * HEAL_AFTER_S:
            self._in_order[table.uid] = sequence

    def _scrub(self, table: Table) -> None:
        now_s, every_s = self._context.clock.monotonic_s(), self._pace.check_s(SCRUB_EVERY_S, table.uid)
        if table.capabilities.has_late_files and now_s - self._scrubbed_s.get(table.uid, -every_s) >= every_s:
            self._scrubbed_s[table.uid] = now_s
            table.check_writable(keyed=False)  # also deletes timeline files that a slow writer left

    def _check_event_log(self) -> None:
        """Create deleted topics again, and notice an event log that does not answer although nothing is to be published."""
        if self._context.clock.monotonic_s() < self._check_at_s:
            return
        created = self._events.check()
        self._lost |= created & {TABLES.name, TIMELINE.name}
        self._check_at_s = self._context.clock.monotonic_s() + CHECK_EVERY_S
        if created:
            _log.error("topics were deleted, and are created again", topics=sorted(created))
        if self._lost:
            # Everything is published again, with the same ids.
            self._positions.start_again(keeps_records=TABLES.name not in self._lost)
            self._partial.update(self._tables.known())
            self._lost.clear()

    def _check_absent(self) -> None:
        """Publish which tables of the event log are dropped or unmanaged, once per search for tables."""
        if self._absent.is_due():
            self._publishers.take_over()
            self._positions.read(self._publishers.newest)
            self._absent.check(self._known)

    def _forget_others(self) -> None:
        """Forget what is known of tables that are gone or not readable, or whose shards another instance holds."""
        own = {uid for uid, base_path in self._tables.known().items() if self._tables.owns(base_path)}
        for of_tables in (self._identities, self._backlog, self._waiting, self._scrubbed_s, self._in_order):
            for uid in of_tables.keys() - own:
                del of_tables[uid]
        self._positions.retain(own)
        self._partial &= own
        self._observed.retain(own)

    def _beat(self, began: datetime) -> None:
        """Publish a heartbeat of each shard that is held, if the interval is over: a visit of all tables has just ended."""
        now_s, shards = self._context.clock.monotonic_s(), self._tables.shards
        if now_s < self._heartbeat_at_s:
            return
        # Tables that rest were not looked at in this visit.
        looked_s = self._tables.looks.oldest_s()
        if looked_s is not None:
            began = min(began, self._context.clock.now() - timedelta(seconds=max(0.0, now_s - looked_s)))
        opened = [(shard_of(base_path, shards.count), uid) for uid, base_path in self._tables.known().items()]
        failing = [shard_of(base_path, shards.count) for base_path in self._tables.refusals()]
        for shard in shards.held():
            tables = [uid for of, uid in opened if of == shard]
            heartbeat = Heartbeat(
                fleet=self._fleet,
                shard=shard,
                shard_count=shards.count,
                time=self._context.clock.now(),
                visited_since=began,
                interval_s=self._heartbeat_every_s,
                tables=len(tables),
                behind=sum(uid in self._waiting or uid in self._partial for uid in tables),
                failing=failing.count(shard),
                instance=self._context.instance,
            )
            try:
                self._publishers.publish(shard, encode(heartbeat))
            except ShardLost as error:
                _log.info("shard left to another instance", shard=shard, reason=str(error))
        self._heartbeat_at_s = now_s + self._heartbeat_every_s

    def _skip_gap(self, table: Table, number: int, cursor: int) -> None:
        start = kept_from(table, cursor)
        self._cursors[table.uid] = number, start
        if start == cursor:
            raise CorruptMetadata(
                f"table log entry {cursor + 1} is missing, but the log continues to entry {table.timeline.state.sequence}",
                expected="a log without gaps",
                remedy="restore the entry from a copy",
            )
        self._note_part(table.uid, is_partial=True)

    def _observe(self, table: Table, entries: Sequence[Entry]) -> None:
        now = self._context.clock.now()
        self._context.metrics.increment(ENTRIES, len(entries), table=table.uid)
        self._context.metrics.describe(NAMES, table=table.uid, name=table.definition.name)
        for entry in entries:
            self._context.metrics.observe(LAG, max(0.0, (now - datetime.fromisoformat(entry.recorded)).total_seconds()))
        _log.info("published", table=table.uid, name=table.definition.name, entries=len(entries), sequence=entries[-1].sequence)

    def _record(self, table: Table, sequence: int) -> TableRecord:
        known, now = self._known.get(table.uid), self._context.clock.now()
        return record_of(table, self._identity(table), sequence, known, now, self._fleet)


def _moved_from(table: Table) -> str | None:
    """Return the base path at which a moved table was before its adoption; None for a new table, and for a copy."""
    identity = table.identity
    if identity is None or identity.former_uid is None or not identity.formerly:
        return None
    try:
        there = read_identity(open_storage(identity.formerly[-1]))
    except TidelineError:
        return None
    return None if there is not None and there.uid == identity.former_uid else identity.formerly[-1]
