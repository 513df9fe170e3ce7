"""The service: reads the events of tables, and brings the entries of those tables up to date."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tideline_catalog.metrics import PARTITIONS, REFUSED, SYNCS, WAITING
from tideline_catalog.settings import CatalogSettings
from tideline_catalogs import Catalog, CatalogAway, Names, SyncReport, drop_table, open_catalog, sync_table
from tideline_events import CATALOG, TIMELINE, Event, EventConsumer, TableChange, TableDeleted, TableIdentity, Transition
from tideline_locks import open_hudi_lock
from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_link import EventLink
from tideline_runtime.logging import get_logger
from tideline_runtime.loop import may_be_cured
from tideline_runtime.policy import LivePolicies
from tideline_runtime.table_settings import TableSettings
from tideline_table.errors import TidelineError
from tideline_table.hudi import State
from tideline_table.storage import ReadOnlyStorage, open_storage
from tideline_table.table import Table

_log = get_logger(__name__)
POLL_S = 0.25
_MOST_POLLS = 200
"""Reads of the event log before tables are registered: a table with many events is registered once."""


@dataclass(slots=True)
class _Work:
    """What is due of one table: a sync unless it `is_dropped`, after the entries of former places and names are dropped."""

    table: TableIdentity
    is_dropped: bool = False
    former: list[tuple[str, str, str]] = field(default_factory=list)
    """Base path, name and uid of entries that are no longer right."""


class CatalogService:
    """One instance of the service. Instances share the tables as members of a consumer group.

    The position in the event log is stored when nothing is due. What a process that died left undone is delivered again, and a
    sync that is repeated changes nothing. At the start, and after a change of the policy file, all tables are due.
    """

    def __init__(self, settings: CatalogSettings, context: ServiceContext) -> None:
        self._context = context
        self._group = context.name_in_events(settings, context.name)
        self._member = context.name_of_instance(settings)
        self._events = EventLink(settings, context)
        self._policies = LivePolicies(settings.policy_file, context.clock, context.metrics)
        self._per_table = TableSettings(settings, self._own_settings)
        self._consumer: EventConsumer | None = None
        self._revision = -1
        self._due: dict[str, _Work] = {}
        self._refused: dict[str, str] = {}
        self._catalogs: dict[str, Catalog] = {}

    def start(self) -> None:
        """Open the event log, and join the consumer group."""
        self._events.open()
        if self._consumer is None:
            self._consumer = EventConsumer(
                self._events.log,
                self._group,
                topics=[TIMELINE.name, CATALOG.name],
                member=self._member,
                clock=self._context.clock,
            )

    def tick(self) -> float | None:
        """Register the tables of the events that arrived.

        A table that fails stops no other one. Raises the first error that a retry may cure at the end: the life cycle pauses
        ever longer, and the tables stay due.
        """
        assert self._consumer is not None, "started"
        self._policies.current()
        if self._policies.revision != self._revision:
            for record in self._events.log.table_records():
                self._work_of(record.table)
            self._revision = self._policies.revision
        self._read(self._consumer)
        failure = self._register_all()
        if not self._due:
            self._consumer.commit()
        self._show()
        if failure is not None:
            raise failure
        return 0.0

    def stop(self) -> None:
        """Leave the group, and close what `start` and the ticks opened."""
        if self._consumer is not None:
            self._consumer.close()
        for catalog in self._catalogs.values():
            catalog.close()
        self._events.close()

    def _own_settings(self, base_path: str) -> dict[str, Any]:
        return self._policies.current().of(base_path).settings("catalog")

    def _read(self, consumer: EventConsumer) -> None:
        events = consumer.poll(POLL_S)
        for _ in range(_MOST_POLLS):
            for event in events:
                self._note(event)
            self._context.health.beat()
            if not events or self._context.stopping.is_set():
                return
            events = consumer.poll(0.0)

    def _note(self, event: Event | TableDeleted) -> None:
        if isinstance(event, Transition):
            if event.to_state in (State.COMPLETED, State.ROLLED_BACK):
                self._work_of(event.table)
            return
        if not isinstance(event, TableChange) or event.kind == "unmanaged":
            return
        table, work = event.table, self._work_of(event.table)
        work.is_dropped = event.kind == "dropped"
        if work.is_dropped:
            work.former.append((table.base_path, table.name, table.uid))
        elif event.kind == "moved" and event.previous:
            work.former.append((event.previous, table.name, event.former_uid or table.uid))
        elif event.kind == "renamed" and event.previous:
            work.former.append((table.base_path, event.previous.rpartition(".")[2], table.uid))

    def _work_of(self, table: TableIdentity) -> _Work:
        work = self._due.setdefault(table.uid, _Work(table))
        work.table = table
        return work

    def _register_all(self) -> TidelineError | None:
        """Do what is due until the service stops; return the first error that a retry may cure."""
        failure: TidelineError | None = None
        away: set[str] = set()
        for uid, work in list(self._due.items()):
            if self._context.stopping.is_set():
                break
            self._context.health.beat()
            try:
                if not self._register(work, away):
                    continue
            except TidelineError as error:
                if may_be_cured(error):
                    failure = failure or error
                    self._context.metrics.increment(SYNCS, outcome="failed")
                    _log.warning("table is not registered, trying again", table=uid, reason=str(error))
                    continue
                self._context.metrics.increment(SYNCS, outcome="refused")
                if uid not in self._refused:
                    _log.error("table is not registered", table=uid, base_path=work.table.base_path, reason=str(error))
                self._refused[uid] = f"{work.table.base_path}: {error}"
            else:
                self._refused.pop(uid, None)
            del self._due[uid]
        return failure

    def _register(self, work: _Work, away: set[str]) -> bool:
        """Do the work of one table; return False if its catalog is away, as another table has found."""
        own = self._per_table.of(work.table.base_path)
        if not own.url:
            return True
        if own.url in away:
            return False
        names = Names(own.database, own.name)
        try:
            catalog = self._catalog(own.url)
            reports = self._bring(catalog, work, names)
        except CatalogAway:
            away.add(own.url)
            raise
        self._context.metrics.increment(SYNCS, outcome="done")
        for report in reports:
            for change, count in (("added", report.added), ("moved", report.moved), ("dropped", report.dropped)):
                self._context.metrics.increment(PARTITIONS, count, change=change)
            if report.changed:
                _log.info("table registered", table=work.table.uid, **report.to_json())
        return True

    def _bring(self, catalog: Catalog, work: _Work, names: Names) -> list[SyncReport]:
        for base_path, name, uid in work.former:
            for dropped in drop_table(catalog, base_path, name, names, uid=uid):
                _log.info("entry dropped", table=work.table.uid, entry=dropped)
        if work.is_dropped:
            return []
        storage = ReadOnlyStorage(open_storage(work.table.base_path))
        table = Table.open(work.table.base_path, clock=self._context.clock, storage=storage, hudi_lock=open_hudi_lock)
        return sync_table(catalog, table, names)

    def _catalog(self, url: str) -> Catalog:
        if url not in self._catalogs:
            self._catalogs[url] = open_catalog(url)
        return self._catalogs[url]

    def _show(self) -> None:
        metrics, health = self._context.metrics, self._context.health
        metrics.set(WAITING, len(self._due))
        metrics.set(REFUSED, len(self._refused))
        if not self._refused:
            health.clear("catalog")
            return
        reason = next(iter(self._refused.values()))
        health.obstruct("catalog", f"tables that are not registered: {len(self._refused)}, such as {reason}", after_s=math.inf)
