"""The status of the tables that only Apache Hudi writes, for the fleet API: the planner shows them and decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tideline_runtime.contract import ServiceContext
from tideline_runtime.open_tables import OpenTables
from tideline_runtime.policy import TablePolicy
from tideline_table.action import Rules, examine, failure_document, status_document
from tideline_table.coordination import observed_uid
from tideline_table.errors import TidelineError
from tideline_table.hudi import Action, ListedTimeline, State, TableFormat
from tideline_table.storage import ReadOnlyStorage
from tideline_table.table import Finding, FindingKind, Table, lost_finding

LOOK_S = 50.0
"""Time between two looks at a table: one listing of its timeline."""
EXAMINED_S = 3600.0
"""Time after which a table is examined again although its timeline is the same, because ages grow and files may be gone."""
CHANGED_S = 300.0
"""Time after which a table whose timeline changed is examined again: three listings of each partition, of a table that jobs write
all the time. A look alone finds a timeline file that is lost, or back; the table is then examined at once."""
FIRST_LOOKS, VISIT_S = 20, 5.0
"""First looks in one visit, each of which examines its table, and the time after which a visit begins no further look of any kind:
the tables that have plans must not wait."""


@dataclass(frozen=True, slots=True)
class _Seen:
    looked_s: float
    examined_s: float
    document: dict[str, Any]
    form: TableFormat | None = None
    listed: int = 0
    """Digest of the listing of the timeline, to find that it moved."""
    completed: Mapping[str, str] = field(default_factory=dict)
    """Path → instant of the completed files in that listing, and of the lost ones."""
    lost: tuple[str, ...] = ()
    """Completed timeline files that a look showed, and the next one did not, while it showed their actions as pending."""


class ObservedTables:
    """Keeps the documents of observed tables. Used by the thread that ticks."""

    def __init__(self, context: ServiceContext, tables: OpenTables) -> None:
        self._context, self._tables = context, tables
        self._seen: dict[str, _Seen] = {}

    def documents(self, rules: Callable[[Table, TablePolicy], Rules]) -> dict[str, dict[str, Any]]:
        """Look at some new tables and at the known ones that wait longest; return the documents of all looked at, by base path."""
        found, now_s = set(self._tables.left_alone()), self._context.clock.monotonic_s()
        # A table that a service cannot read for a moment keeps what was seen: a timeline file that is lost would be forgotten.
        kept = found | self._tables.refusals().keys()
        self._seen = {path: seen for path, seen in self._seen.items() if path in kept}
        waited = sorted((self._seen[path].looked_s, path) for path in found & self._seen.keys())
        new = sorted(found - self._seen.keys())[:FIRST_LOOKS]
        for path in (*new, *(path for at_s, path in waited if now_s - at_s >= LOOK_S)):
            if self._context.clock.monotonic_s() - now_s >= VISIT_S:
                break
            self._context.health.beat()
            self._seen[path] = self._look(path, rules, now_s)
        return {path: seen.document for path, seen in self._seen.items() if path in found}

    def _look(self, path: str, rules: Callable[[Table, TablePolicy], Rules], now_s: float) -> _Seen:
        known, storage = self._seen.get(path), ReadOnlyStorage(self._tables.storage(path))
        try:
            if known is not None and known.form is not None:
                listed = ListedTimeline.read(storage, known.form)
                completed, lost = _compared(known, listed)
                wait_s = EXAMINED_S if _digest(listed) == known.listed else CHANGED_S
                if lost == known.lost and now_s - known.examined_s < wait_s:
                    return replace(known, looked_s=now_s, completed=completed)
            table = Table.open(path, clock=self._context.clock, options=self._tables.options, storage=storage)
            listed = ListedTimeline.read(storage, table.definition.format)
            table.refresh()  # behind the listing: what comes in between makes the next look examine again
            completed, lost = _compared(known, listed)
            status = examine(table, rules(table, self._tables.policy(path)))
            document = status_document(replace(status, findings=(*status.findings, *lost_finding(lost))))
        except TidelineError as error:
            failed = _Seen(now_s, now_s, failure_document(path, Finding(FindingKind.CANNOT_OPEN, str(error))))
            return replace(failed, completed=known.completed, lost=known.lost) if known is not None else failed
        document |= {"uid": observed_uid(storage.root)}
        return _Seen(now_s, now_s, document, table.definition.format, _digest(listed), completed, lost)


def _digest(listed: ListedTimeline) -> int:
    return hash(frozenset(listed.modified.items()))


def _compared(known: _Seen | None, listed: ListedTimeline) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the completed files of a listing and those that are gone since they were seen, and which these are.

    A pending rollback or restore may have deleted them. Who deletes a savepoint deletes its completed file first.
    """
    begun = (i for i in listed.timeline.instants if i.state is not State.COMPLETED and i.action is not Action.SAVEPOINT)
    pending = {i.time: i.action for i in begun}
    completed = {path: i.time for i, path in listed.timeline.paths.items() if i.state is State.COMPLETED}
    before = known.completed if known is not None else {}
    gone = {path: at for path, at in before.items() if at in pending and path not in completed}
    is_undoing = not {Action.ROLLBACK, Action.RESTORE}.isdisjoint(pending.values())
    return {**completed, **gone}, () if is_undoing else tuple(sorted(gone))
