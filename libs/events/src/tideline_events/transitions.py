"""Derive transition events from entries of a table log, each from its entry alone."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from tideline_events.errors import PoisonEvent
from tideline_events.payload import TableIdentity, Transition
from tideline_table.action import action_name
from tideline_table.errors import TableNotFound
from tideline_table.hudi import (
    DATABASE,
    REPLACED_ROWS_KEY,
    SCHEMA_KEY,
    Action,
    State,
    TableFormat,
    time_from_instant,
)
from tideline_table.log import Archived, Cleaned, Entry, Published, RestoreBegun, Restored, RestorePlanned, RollbackStep
from tideline_table.table import Table, TableDefinition

_UNKNOWN_ROWS = (None, None, None)
_NO_ROWS = (0, 0, 0)
_NAMES_PARTITIONS = Published | Cleaned | Restored | RollbackStep
_NO_CHECKPOINT = (SCHEMA_KEY, REPLACED_ROWS_KEY)
"""Extra metadata that other fields of an event say."""
_BATCH = 500
"""Entries that a backfill reads between two checks of the position up to which the log was trimmed."""


def table_identity(table: Table, definition: TableDefinition | None = None, *, uid: str = "") -> TableIdentity:
    """Return the identity of the table, as events name it. `definition`: one that was read since the table was opened.

    `uid`: of an observed table, which has no identity (`observed_uid`).
    """
    definition = definition or table.definition
    return TableIdentity(
        uid=uid or table.uid,
        base_path=table.storage.root,
        name=definition.name,
        database=definition.properties.get(DATABASE, ""),
        type=definition.type.value,
        version=definition.version,
    )


def transition_of(identity: TableIdentity, definition: TableDefinition, entry: Entry, observed_by: str) -> Transition:
    """Return the event of one entry of a table. `observed_by` names the program that read the entry."""
    recorded = datetime.fromisoformat(entry.recorded)
    body = entry.body
    commit = body.metadata if isinstance(body, Published) else None
    schema = commit.extra.get(SCHEMA_KEY, "") if commit else ""
    rows = _rows(entry, routed=definition.routes_to_logs)
    return Transition(
        table=identity,
        instant=entry.instant,
        action=action_name(entry.action, entry.operation),
        operation=entry.operation.lower() or None,
        from_state=None if entry.before is State.NONE else entry.before.value,
        to_state=entry.after.value,
        time=recorded,
        requested_time=time_from_instant(entry.instant),
        completion_time=_completion_time(entry, recorded),
        sequence=entry.sequence,
        writer_id=entry.writer_id,
        observed_by=observed_by,
        timeline_file=_timeline_file(entry, definition.format),
        undone_instant=_undone_instant(entry),
        datachange=entry.after is State.COMPLETED and rows != _NO_ROWS,
        rows_inserted=rows[0],
        rows_updated=rows[1],
        rows_deleted=rows[2],
        files_added=len(commit.stats) if commit else 0,
        files_deleted=body.files_deleted if isinstance(body, Cleaned | Restored | RollbackStep) else 0,
        file_groups_replaced=sum(map(len, (commit.replaced or {}).values())) if commit else 0,
        bytes_added=sum(s.file_size_bytes for s in commit.stats) if commit else 0,
        partitions=tuple(sorted(body.partitions)) if isinstance(body, _NAMES_PARTITIONS) else (),
        schema_hash=hashlib.sha256(schema.encode()).hexdigest() if schema else None,
        checkpoint={k: v for k, v in commit.extra.items() if k not in _NO_CHECKPOINT} if commit and not commit.is_rewrite else {},
    )


def _completion_time(entry: Entry, recorded: datetime) -> datetime | None:
    """Return when the instant completed: if the names of timeline files say so, that time."""
    if entry.after is not State.COMPLETED:
        return None
    return time_from_instant(entry.completion) if entry.completion else recorded


def _rows(entry: Entry, *, routed: bool) -> tuple[int | None, int | None, int | None]:
    """Return the numbers of rows that a completed step inserted, updated and deleted; None for what it does not know.

    `routed`: see `TableDefinition.routes_to_logs`.
    """
    body = entry.body
    if entry.after is not State.COMPLETED:
        return _UNKNOWN_ROWS
    if isinstance(body, Published):
        commit = body.metadata
        logs = [stat for stat in commit.stats if stat.is_log] if routed and not commit.is_rewrite else []
        inserted, updated = (None, None) if any(s.num_updates for s in logs) else (commit.rows_inserted, commit.rows_updated)
        is_uncounted = commit.rows_deleted < 0 or any(s.num_deletes for s in logs)
        return inserted, updated, None if is_uncounted else commit.rows_deleted
    if isinstance(body, Restored) or (isinstance(body, RollbackStep) and body.progress is not None):
        # Apache Hudi may roll back a completed write of a shared table.
        return _UNKNOWN_ROWS
    return _NO_ROWS


def _undone_instant(entry: Entry) -> str | None:
    body = entry.body
    if isinstance(body, RestorePlanned | RestoreBegun):
        return min(body.rewind.undone_instants, default=None)
    if isinstance(body, Restored):
        return min(body.instants, default=None)
    return entry.target or None


def _timeline_file(entry: Entry, form: TableFormat) -> str:
    if entry.action is Action.ARCHIVAL:
        # An archival has no timeline file; once completed, it names the file that it wrote.
        return entry.body.file if isinstance(entry.body, Archived) else ""
    # A deleted savepoint and a dropped index name their former file: the deletion itself has no timeline file.
    shown = State.COMPLETED if entry.after is State.ROLLED_BACK else entry.after
    return form.timeline_path(entry.at(shown), entry.completion)


def backfill(table: Table, first: int, last: int) -> Iterator[Transition]:
    """Yield transitions `first` to `last` (both inclusive) from the table log, for a consumer that found a gap.

    Entries that were trimmed (`tideline.log.retention`) are left out; the state of the table includes their effect. So are entries
    that were lost. Raises `PoisonEvent` if the log has not come to `last`.
    """
    identity, definition, log = table_identity(table), table.definition, table.timeline.log
    if last > table.state.sequence and last > table.refresh().sequence:
        raise PoisonEvent(f"sequence {last} of table {table.uid}", expected=f"at most {table.state.sequence}, the last log entry")
    sequence = max(first, log.trimmed_to() + 1)
    while sequence <= last:
        entries = list(islice(log.after(sequence - 1), min(_BATCH, last + 1 - sequence)))
        # Read after the entries: if the log was trimmed meanwhile, a delayed writer may have put void entries below the floor.
        floor = log.trimmed_to()
        yield from (transition_of(identity, definition, entry, "backfill") for entry in entries if entry.sequence > floor)
        # A lost entry is passed over: what follows it can still be told.
        sequence = max(sequence + max(1, len(entries)), floor + 1)


class TableLogs:
    """The `Backfill` of a consumer: opens the table that an event names and reads its log. Keeps the last tables open."""

    def __init__(self, most_open: int = 64) -> None:
        self._open: OrderedDict[str, Table] = OrderedDict()
        self._most_open = most_open

    def __call__(self, identity: TableIdentity, first: int, last: int) -> Iterator[Transition]:
        """See `Backfill`. Raises the errors of `Table.open`, and `TableNotFound` if another table is at the base path now."""
        return backfill(self._table(identity), first, last)

    def write_stats(self, transition: Transition) -> list[dict[str, Any]]:
        """Return Apache Hudi's write stats of a commit; empty if its entry is trimmed. Raises as `__call__` does."""
        table = self._table(transition.table)
        if transition.sequence > table.state.sequence:
            table.refresh()
        entry = next(table.timeline.log.after(transition.sequence - 1), None)
        if entry is None or entry.sequence != transition.sequence or not isinstance(entry.body, Published):
            return []
        return [stat.to_json() for stat in entry.body.metadata.stats]

    def _table(self, identity: TableIdentity) -> Table:
        table = self._open.pop(identity.uid, None) or Table.open(identity.base_path, by_log=True)
        if table.uid != identity.uid:
            raise TableNotFound(f"table {table.uid} at {identity.base_path}", expected=f"table {identity.uid}")
        self._open[identity.uid] = table
        if len(self._open) > self._most_open:
            self._open.popitem(last=False)
        return table
