"""The tick of the lock service: break expired leases, publish the changes of leases and heartbeats since the last poll."""

from __future__ import annotations

import math
from datetime import datetime

from tideline_events import EventLogUnavailable, LockEvent, PublishUnknown
from tideline_lock_service.api import LeaseApi
from tideline_lock_service.directory import LeaseDirectory
from tideline_lock_service.metrics import EVENTS, LEASES
from tideline_lock_service.settings import LockServiceSettings
from tideline_lock_service.watch import Kind, SeenLease, changes, seen
from tideline_locks import LeaseState
from tideline_locks.port import RemoteLeases
from tideline_locks.table_lock import lock_name
from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_link import EventLink
from tideline_runtime.logging import get_logger
from tideline_runtime.open_tables import OpenTables, open_tables
from tideline_table.coordination import may_live
from tideline_table.hudi import State
from tideline_table.table import Table

_log = get_logger(__name__)
LEASES_EVERY_S = 900.0
"""Least interval at which the lease beside an idle table is read."""
LEASES_RARELY_S = 21_600.0
"""Longest such interval: it is the time for which the table has been quiet, between these two."""
EVENT_LOG = "event log"
"""Topic of `Health`."""


class LockService:
    """One shard of the lock service.

    It remembers the last poll only to find changes. The first poll of a table is the baseline: it publishes expired leases and lost
    heartbeats only.

    Writers cannot commit without the lease API, and leases do not depend on the event log. So while the event log is away, the
    service stays ready and grants leases, from its start on, and up to `QUEUE_LIMIT` events wait.
    """

    def __init__(self, settings: LockServiceSettings, context: ServiceContext) -> None:
        self._context = context
        self._tables: OpenTables = open_tables(settings, context, settings.options)
        if self._tables.search_health is not None and not self._tables.lock_providers.is_per_table:
            # One provider grants all leases, without the tables. So the API stays ready while the store of the tables does not
            # answer.
            self._tables.search_health.not_needed()
        self._directory = LeaseDirectory(self._tables.lock_providers)
        self._events = EventLink(settings, context, publishes=True)
        self._is_linked = False
        """Whether the event log has been opened and the shard taken over."""
        self._is_cut_off = False
        """Whether the event log did not answer the last time."""
        self._seen: dict[str, SeenLease | None] = {}
        self._lost: dict[str, set[str]] = {}
        self._polled_at_s: dict[str, float] = {}
        self._quiet_since_s: dict[str, tuple[int, float]] = {}
        """By table uid: the sequence, and when it was first seen."""
        self._listed: dict[str, LeaseState] | None = None
        context.metrics.expose(LEASES)
        self._api = LeaseApi(self._directory, settings, context)
        context.add_routes(*self._api.routes())

    def start(self) -> None:
        """Take over the shard and find the tables, so that the API can answer."""
        self._publish()
        self._directory.update({table.uid: table.base_path for table in self._tables.each()})

    def tick(self) -> float | None:
        """Poll the lease and the heartbeats of every table of the shard."""
        self._listed = None
        known: dict[str, str] = {}

        def examine(table: Table) -> None:
            known[table.uid] = table.base_path
            self._poll_heartbeats(table)
            self._poll_lease(table)

        self._queue_forced_releases()
        failure = self._tables.visit(self._context, examine)
        if not self._context.stopping.is_set():
            self._forget_all_but(known)
        self._context.metrics.set(LEASES, sum(1 for lease in self._seen.values() if lease is not None))
        self._publish()
        if failure is not None:
            raise failure
        return None

    def stop(self) -> None:
        """Close what `start` opened."""
        self._events.close()
        self._tables.close()

    def _publish(self) -> None:
        """Publish the events that wait, or leave them for the next tick if the event log does not answer."""
        health = self._context.health
        try:
            if not self._is_linked:
                self._events.open()
                self._is_linked = True
            self._events.flush()
        except (EventLogUnavailable, PublishUnknown) as error:
            if not self._is_cut_off:
                _log.warning("lock events are published later: the event log does not answer", reason=str(error))
            self._is_cut_off = True
            health.obstruct(EVENT_LOG, f"lock events are published later: {error}", after_s=math.inf)
        else:
            if self._is_cut_off:
                _log.info("lock events are published again")
            self._is_cut_off = False
            health.clear(EVENT_LOG)

    def _poll_lease(self, table: Table) -> None:
        if self._is_at_rest(table):
            return
        provider = self._directory.provider_beside(table.base_path)
        name, now = lock_name(table.uid), self._context.clock.now()
        lease = self._current(provider, name)
        is_first = table.uid not in self._seen
        before = self._seen.get(table.uid)
        if lease is not None and lease.expired:
            lease, before = self._broken(table, provider, name, before, now)
        if not is_first:
            for change in changes(before, lease):
                self._note(table, change.kind, change.owner, now, token=change.token, previous_owner=change.previous_owner)
        self._seen[table.uid] = seen(lease, now, before) if lease else None

    def _is_at_rest(self, table: Table) -> bool:
        """Return whether this tick leaves out the lease of a table: it was free, no action is pending, the mirror tells no news."""
        now_s, sequence = self._context.clock.monotonic_s(), table.state.sequence
        if self._quiet_since_s.get(table.uid, (-1, 0.0))[0] != sequence:
            self._quiet_since_s[table.uid] = sequence, now_s
        since_s = self._quiet_since_s[table.uid][1]
        if (
            self._tables.lock_providers.is_per_table
            and table.uid in self._seen
            and self._seen[table.uid] is None
            and next(table.state.pending(), None) is None
            and now_s < self._polled_at_s.get(table.uid, -math.inf) + min(LEASES_RARELY_S, max(LEASES_EVERY_S, now_s - since_s))
            and self._tables.looks.is_current(table)
        ):
            return True
        self._polled_at_s[table.uid] = now_s
        return False

    def _broken(
        self, table: Table, provider: RemoteLeases, name: str, before: SeenLease | None, now: datetime
    ) -> tuple[LeaseState | None, SeenLease | None]:
        """Break the expired lease. Return the lease that is held now, and the previous one to compare it with."""
        ended = provider.break_expired(name)
        if ended is None:
            # Since it was read, its holder renewed or released it, or another owner took it over.
            lease = provider.read(name)
            return (lease if lease is not None and not lease.expired else None), before
        self._note(table, Kind.EXPIRED, ended.owner, now, token=ended.token)
        return provider.read(name), None

    def _current(self, provider: RemoteLeases, name: str) -> LeaseState | None:
        if self._tables.lock_providers.is_per_table:
            return provider.read(name)
        if self._listed is None:
            # One listing for all tables instead of one request per table.
            self._listed = {lease.name: lease for lease in provider.list(lock_name(""))}
        return self._listed.get(name)

    def _poll_heartbeats(self, table: Table) -> None:
        inflight = [record for record in table.state.pending() if record.state is State.INFLIGHT]
        lost = self._lost.setdefault(table.uid, set())
        lost &= {record.instant for record in inflight}
        for record in inflight:
            if record.instant in lost or may_live(table.storage, record, table.clock, table.options):
                continue
            lost.add(record.instant)
            now = self._context.clock.now()
            reason = f"{record.action} without a sign of life since its heartbeat ran out"
            self._note(table, Kind.HEARTBEAT_LOST, record.writer_id, now, instant=record.instant, reason=reason)

    def _queue_forced_releases(self) -> None:
        """Queue the events of forced releases, of tables that the directory knows.

        A common lock store has leases of other tables, too.
        """
        while not self._api.forced.empty():
            forced = self._api.forced.get()
            if not self._directory.knows(forced.lease.name):
                continue
            uid = forced.lease.name.removeprefix(lock_name(""))
            if uid in self._seen:
                # A user ended this lease. Compared with the last poll, its end would look like a release by the holder.
                self._seen[uid] = None
            self._queue(
                uid,
                Kind.FORCE_RELEASED,
                forced.by,
                forced.time,
                token=forced.lease.token,
                previous_owner=forced.lease.owner,
                reason=forced.reason,
            )

    def _note(
        self,
        table: Table,
        kind: Kind,
        owner: str,
        now: datetime,
        *,
        token: int | None = None,
        previous_owner: str | None = None,
        instant: str | None = None,
        reason: str | None = None,
    ) -> None:
        self._queue(table.uid, kind, owner, now, token=token, previous_owner=previous_owner, instant=instant, reason=reason)
        _log.info("lock event", table=table.uid, name=table.definition.name, kind=kind.value, owner=owner, instant=instant)

    def _queue(
        self,
        table_uid: str,
        kind: Kind,
        owner: str,
        time: datetime,
        *,
        token: int | None = None,
        previous_owner: str | None = None,
        instant: str | None = None,
        reason: str | None = None,
    ) -> None:
        self._events.queue(
            LockEvent(
                table_uid=table_uid,
                kind=kind.value,
                owner=owner,
                time=time,
                previous_owner=previous_owner,
                fencing_token=token,
                instant=instant,
                reason=reason,
            )
        )
        self._context.metrics.increment(EVENTS, kind=kind.value)

    def _forget_all_but(self, known: dict[str, str]) -> None:
        self._directory.update(known)
        for memory in (self._seen, self._lost, self._polled_at_s, self._quiet_since_s):
            for uid in memory.keys() - known.keys():
                del memory[uid]
