"""Tables of the event log that the mirror does not read: deleted, moved, no longer selected, or not readable."""

from __future__ import annotations

from tideline_events import TableRecord, encode, table_deletion
from tideline_mirror.changes import OBSERVED, UNMANAGED, lost
from tideline_mirror.metrics import DELETED
from tideline_runtime.contract import ServiceContext
from tideline_runtime.logging import get_logger
from tideline_runtime.open_tables import OpenTables
from tideline_runtime.shard_publishers import ShardPublishers
from tideline_runtime.shards import shard_of
from tideline_runtime.table_search import PROPERTIES
from tideline_table.coordination import observed_uid
from tideline_table.errors import TidelineError
from tideline_table.storage import exists, open_storage
from tideline_table.table import read_identity

_log = get_logger(__name__)
CHECK_ABSENT_EVERY_S = 60.0
"""Interval at which the mirror asks storage for the tables that it does not read."""
DELETED_AFTER_S = 300.0
"""Time for which a table must be absent before the event log says so."""


class AbsentTables:
    """Says of each table of the event log, once, that it is dropped or unmanaged. Used by the thread that ticks."""

    def __init__(self, context: ServiceContext, fleet: str, tables: OpenTables, publishers: ShardPublishers) -> None:
        self._context = context
        self._fleet = fleet
        self._tables = tables
        self._publishers = publishers
        self._absent_since_s: dict[str, float] = {}
        self._checked_at_s = -CHECK_ABSENT_EVERY_S

    def is_due(self) -> bool:
        """Return whether the interval since the last check is over."""
        return self._context.clock.monotonic_s() >= self._checked_at_s + CHECK_ABSENT_EVERY_S

    def check(self, known: dict[str, TableRecord]) -> None:
        """Publish what became of tables whose last records, `known` by uid, name a place in a shard that is held.

        Changes `known` as the event log changes. Raises the errors of `ShardPublishers.publish`.
        """
        now_s = self._checked_at_s = self._context.clock.monotonic_s()
        before, read = list(known.items()), self._tables.known()
        for uid, record in before:
            if uid in read or not self._tables.owns(record.table.base_path):
                self._absent_since_s.pop(uid, None)
                continue
            self._context.health.beat()
            found = self._found(record)
            if found is None:
                self._absent_since_s.pop(uid, None)
                continue
            kind, reason, is_certain = found
            # A folder that is not mounted looks as if its tables were deleted.
            if is_certain or now_s - self._absent_since_s.setdefault(uid, now_s) >= DELETED_AFTER_S:
                self._publish(known, record, kind, reason, is_certain=is_certain)
        self._absent_since_s = {uid: since_s for uid, since_s in self._absent_since_s.items() if uid in known}

    def _found(self, record: TableRecord) -> tuple[str, str, bool] | None:
        """Return the kind of change, its reason, and whether it is certain at once; None if nothing is known or to be said."""
        registry, base_path = self._tables.registry, record.table.base_path
        is_told = record.health == UNMANAGED or record.fleet != self._fleet
        if not registry.covers(base_path):
            is_left = registry.excludes(base_path) and not is_told
            return (UNMANAGED, "no pattern or resource of the fleet selects it", False) if is_left else None
        try:
            storage = open_storage(base_path)
            identity = read_identity(storage)
            if identity is None and exists(storage, PROPERTIES):
                return None if is_told else self._of_hudi(record, observed_uid(storage.root))
        except TidelineError as error:
            _log.info("table is not reachable", base_path=base_path, reason=str(error))
            return None if is_told else (UNMANAGED, str(error), False)
        if identity is None:
            return "dropped", "no table is there", False
        if identity.uid != record.table_uid:
            is_kept = is_told and record.sharing == OBSERVED
            return None if is_kept else ("dropped", f"table {identity.uid} is there now", True)
        return None if is_told else (UNMANAGED, self._tables.refusals().get(base_path, ("it is not selected", False))[0], False)

    def _of_hudi(self, record: TableRecord, uid: str) -> tuple[str, str, bool]:
        """Return what is to be said of a table that only Apache Hudi writes; `uid` is the one that it is observed by."""
        if record.sharing != OBSERVED and uid in self._tables.known():
            return UNMANAGED, f"it was returned to the writers of Apache Hudi and is observed as table {uid}", True
        return UNMANAGED, self._tables.refusals().get(record.table.base_path, ("it is not selected", False))[0], False

    def _publish(self, known: dict[str, TableRecord], record: TableRecord, kind: str, reason: str, *, is_certain: bool) -> None:
        uid, base_path = record.table_uid, record.table.base_path
        successor = next((other for other in known.values() if other.former_uid == uid), None)
        if kind == "dropped" and successor is not None:
            reason = f"moved to {successor.table.base_path} as table {successor.table_uid}"
        change, left = lost(record, kind, self._context.clock.now(), reason, self._fleet)
        shard = shard_of(base_path, self._tables.shards.count)
        # The record of a table that was shared stays: once it is left, its uid is that of before, and its sequences go on.
        goes = kind == "dropped" and (record.sharing != OBSERVED or not is_certain)
        self._publishers.publish(shard, encode(change), table_deletion(uid) if goes else encode(left))
        self._absent_since_s.pop(uid, None)
        if goes:
            del known[uid]
            self._context.metrics.increment(DELETED)
        else:
            known[uid] = left
        _log.info("table is " + kind, table=uid, base_path=base_path, reason=reason)
