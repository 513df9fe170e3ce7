"""The tick of the cleaner: roll back dead writers, clean files that no retained query reads, then archive old instants."""

from __future__ import annotations

from tideline_cleaner.metrics import ARCHIVED, EXPIRED, EXPIRED_ROWS, FILES_DELETED, HALF_WRITTEN, LATE_FILES, LEASES, ROLLBACKS
from tideline_cleaner.settings import CleanerSettings
from tideline_events import Hint
from tideline_runtime.cleaning import Basis, Check, is_check_due, next_check_s
from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_link import EventLink
from tideline_runtime.event_outbox import EventOutbox
from tideline_runtime.logging import get_logger
from tideline_runtime.loop import Backoff
from tideline_runtime.open_tables import OpenTables, open_tables
from tideline_runtime.table_settings import TableSettings
from tideline_table.action import (
    TableService,
    archive,
    delete_half_written,
    expire_partitions,
    expire_rows,
    request_clean,
    roll_back_dead,
    run_clean,
    why_stopped,
)
from tideline_table.config import ARCHIVE_AUTOMATIC
from tideline_table.coordination import forget_expired, may_live
from tideline_table.hudi import Action, State
from tideline_table.log import ActionRecord
from tideline_table.table import Table, leases_of

_log = get_logger(__name__)
_LAST_HINTS_S = 2.0
"""Longest wait of a cleaner that stops for the publication of its last hints: a lost one delays events."""


class CleanerService:
    """One instance of the cleaner. It does not watch events, because its work is never urgent."""

    def __init__(self, settings: CleanerSettings, context: ServiceContext) -> None:
        self._context = context
        self._tables: OpenTables = open_tables(settings, context, settings.options)
        self._per_table = TableSettings(settings, self._tables.own_settings)
        self._events = EventLink(settings, context)
        self._hints = EventOutbox(self._events, Backoff(max_s=settings.retry_backoff_max_s))
        self._checked: dict[str, Check] = {}
        self._tables.rests_until_s = self._rests_until_s

    def start(self) -> None:
        """Begin to publish hints. The event log need not answer: each tick opens the tables it needs."""
        self._hints.start()

    def tick(self) -> float | None:
        """Maintain every table of the shards that this instance holds. Raises the first error that a retry may cure, at the end."""
        failure = self._tables.visit(self._context, self._visit)
        if failure is not None:
            raise failure
        return None

    def stop(self) -> None:
        """Publish the last hints; give back the shards; close the lock providers and the source of tables."""
        if self._hints.close(_LAST_HINTS_S):
            self._events.close()
        self._tables.close()

    def _visit(self, table: Table) -> None:
        before = table.state.sequence
        try:
            self._maintain(table)
        finally:
            if table.state.sequence != before:
                # The mirror publishes the steps at once that these are, and does not wait for its next look.
                hint = Hint(table.uid, self._context.clock.now(), base_path=table.base_path, reason="maintained")
                self._hints.put(hint)

    def _maintain(self, table: Table) -> None:
        # The check for dead writers lists no files, so it runs at each visit. A rollback runs only if the check finds one.
        policy, now = self._tables.policy(table.base_path), self._context.clock.now()
        if policy.observes:
            return
        pending = list(table.state.pending())
        if policy.wants(TableService.ROLLBACK, now) and any(_is_abandoned(table, record) for record in pending):
            for instant in roll_back_dead(table, spares_eager=True):
                self._context.metrics.increment(ROLLBACKS, table=table.uid)
                _log.info("rolled back", table=table.uid, name=table.definition.name, instant=instant)
            self._delete_half_written(table)
        cleans, archives = (policy.wants(service, now) for service in (TableService.CLEAN, TableService.ARCHIVAL))
        if cleans and any(record.action is Action.CLEAN for record in pending):
            self._clean(table)  # completes a clean whose process died
        if archives and any(record.action is Action.ARCHIVAL for record in pending):
            self._archive(table)
        basis, own, now_s = Basis.of(table.options, policy), self._per_table.of(table.base_path), self._context.clock.monotonic_s()
        last = self._checked.setdefault(table.uid, Check(0, now_s, basis))
        if not is_check_due(table.state, last, basis, own, now_s):
            return
        if policy.paused_at(now) is not None:
            return
        # Read before the decisions: a write that completes while they are carried out makes another check due.
        seen = table.state.sequence
        table.timeline.tidy_up()
        self._delete_half_written(table)  # before the clean, because this deletion also works on a full disk
        has_leases = self._report_leases(table)
        expires = cleans and why_stopped(table.state) is None  # as with plans: rows of a write without the lock would be lost
        if expires:
            self._expire(table)
        if cleans and isinstance(request_clean(table), str):
            self._clean(table)
        if archives and table.options[ARCHIVE_AUTOMATIC] and table.capabilities.archives:
            self._archive(table)
        if expires:  # last: a column that does not fit is an error at each visit, and stops none of the others
            self._expire_rows(table)
        self._checked[table.uid] = Check(seen, self._context.clock.monotonic_s(), basis, has_leases)

    def _rests_until_s(self, table: Table) -> float:
        """Return until when no check of a table is due unless it gets new entries."""
        last, own = self._checked.get(table.uid), self._per_table.of(table.base_path)
        if last is None or not self._tables.is_told_to_rest(table):
            return 0.0
        return next_check_s(table.state, last, own)

    def _report_leases(self, table: Table) -> bool:
        for gone in forget_expired(table.storage):
            _log.info("reader lease expired", table=table.uid, name=table.definition.name, lease=gone.lease_id, holder=gone.holder)
        leases = leases_of(table)
        self._context.metrics.set(LEASES, len(leases), table=table.uid)
        if leases:
            first = leases[0]
            about = {"lease": first.lease_id, "holder": first.holder, "instant": first.instant, "since": first.since}
            _log.info("cleaning stays behind a reader", table=table.uid, name=table.definition.name, leases=len(leases), **about)
        return bool(leases)

    def _clean(self, table: Table) -> None:
        deleted = run_clean(table)
        if deleted is not None:
            self._context.metrics.increment(FILES_DELETED, deleted, table=table.uid)
            _log.info("cleaned", table=table.uid, name=table.definition.name, files=deleted)

    def _expire(self, table: Table) -> None:
        done, deleted = expire_partitions(table)
        if done is not None:
            self._context.metrics.increment(EXPIRED, len(deleted), table=table.uid)
            _log.info(
                "old partitions deleted", table=table.uid, name=table.definition.name, instant=done.instant, partitions=deleted
            )

    def _expire_rows(self, table: Table) -> None:
        done, rows = expire_rows(table)
        if done is not None:
            self._context.metrics.increment(EXPIRED_ROWS, rows, table=table.uid)
            _log.info("old rows deleted", table=table.uid, name=table.definition.name, instant=done.instant, rows=rows)

    def _delete_half_written(self, table: Table) -> None:
        deleted = delete_half_written(table)
        if deleted:
            self._context.metrics.increment(HALF_WRITTEN, len(deleted), table=table.uid)
            _log.info("incomplete files deleted", table=table.uid, name=table.definition.name, files=len(deleted))

    def _archive(self, table: Table) -> None:
        done, cleanup, _ = archive(table)
        if cleanup.deleted:
            self._context.metrics.increment(LATE_FILES, len(cleanup.deleted), table=table.uid)
            _log.warning(
                "late files of rolled-back writes deleted", table=table.uid, name=table.definition.name, files=cleanup.deleted
            )
        if done is not None:
            self._context.metrics.increment(ARCHIVED, len(done.instants), table=table.uid)
            _log.info("archived", table=table.uid, name=table.definition.name, instants=len(done.instants), file=done.path)


def _is_abandoned(table: Table, record: ActionRecord) -> bool:
    """Return whether the process of `record` is dead and `roll_back_dead` undoes or completes the action.

    False for plans and dead attempts of clusterings and compactions, which the launcher runs again, for requested log
    compactions, and for cleans and archivals, which the cleaner completes. True for a clustering that an unfinished rollback
    has fenced.
    """
    if record.action in (Action.CLEAN, Action.COMPACTION, Action.ARCHIVAL) or (record.is_clustering and not record.fenced_by):
        return False
    if record.action is Action.LOG_COMPACTION and record.state is State.REQUESTED:
        return False
    return not may_live(table.storage, record, table.clock, table.options)
