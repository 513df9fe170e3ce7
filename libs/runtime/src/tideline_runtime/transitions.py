"""Derive transition events from entries of a table log, each from its entry alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from tideline_events import TableIdentity, Transition
from tideline_table.action import TableService, action_name
from tideline_table.hudi import (
    REPLACED_ROWS_KEY,
    SCHEMA_KEY,
    WRITE_ACTIONS,
    Action,
    Instant,
    State,
    time_from_instant,
    timeline_file_name,
)
from tideline_table.log import Archived, Cleaned, Entry, Published, RestoreBegun, Restored, RestorePlanned
from tideline_table.table import Table

_PLANNED = frozenset({TableService.CLUSTERING, TableService.CLEAN, TableService.ARCHIVAL})
_NO_CHECKPOINT = (SCHEMA_KEY, REPLACED_ROWS_KEY)
"""Extra metadata that other fields of an event say."""
_BATCH = 500
"""Entries that a backfill reads between two checks of the position up to which the log was trimmed."""


def table_identity(table: Table) -> TableIdentity:
    """Return the identity of the table, as events name it."""
    definition = table.definition
    return TableIdentity(
        uid=table.uid, base_path=table.storage.root, name=definition.name, type=definition.type.value, version=definition.version
    )


def transition_of(identity: TableIdentity, entry: Entry, observed_by: str) -> Transition:
    """Return the event of one entry. `observed_by` names the program that read the entry."""
    recorded = datetime.fromisoformat(entry.recorded)
    completed = entry.after is State.COMPLETED
    body = entry.body
    commit = body.metadata if isinstance(body, Published) and entry.action in WRITE_ACTIONS else None
    cleaned = body.files_deleted if isinstance(body, Cleaned | Restored) else 0
    back = body.rewind if isinstance(body, RestorePlanned | RestoreBegun) else None
    name = action_name(entry.action, entry.operation)
    stats = commit.stats if commit else ()
    schema = commit.extra.get(SCHEMA_KEY, "") if commit else ""
    return Transition(
        table=identity,
        instant=entry.instant,
        action=name,
        operation=entry.operation.lower(),
        from_state=None if entry.before is State.NONE else entry.before.value,
        to_state=entry.after.value,
        time=recorded,
        requested_time=time_from_instant(entry.instant),
        completion_time=recorded if completed else None,
        sequence=entry.sequence,
        writer_id=entry.writer_id,
        observed_by=observed_by,
        timeline_file=_timeline_file(entry),
        plan_instant=entry.instant if name in _PLANNED else None,
        # A restore names the oldest write that it undoes: all later writes are undone too.
        undone_instant=entry.target or (min(back.undone_instants, default=None) if back is not None else None),
        files_added=len(stats),
        files_removed=sum(len(ids) for ids in (commit.replaced or {}).values()) if commit else cleaned,
        rows_added=commit.rows_inserted if commit else 0,
        rows_removed=commit.rows_deleted if commit else 0,
        bytes_added=sum(s.file_size_bytes for s in stats),
        partitions=tuple(sorted({s.partition_path for s in stats}.union(commit.replaced or () if commit else ()))),
        schema_hash=hashlib.sha256(schema.encode()).hexdigest() if schema else None,
        checkpoint={k: v for k, v in commit.extra.items() if k not in _NO_CHECKPOINT} if commit else {},
    )


def _timeline_file(entry: Entry) -> str:
    if entry.action is Action.ARCHIVAL:
        # An archival has no timeline file; once completed, it names the file that it wrote.
        return entry.body.file if isinstance(entry.body, Archived) else ""
    # A deleted savepoint and a dropped index name their former file: the deletion itself has no timeline file.
    shown = State.COMPLETED if entry.after is State.ROLLED_BACK else entry.after
    return f".hoodie/{timeline_file_name(Instant(entry.instant, entry.action, shown))}"


def backfill(table: Table, first: int, last: int) -> Iterator[Transition]:
    """Yield transitions `first` to `last` (both inclusive) from the table log, for a consumer that found a gap.

    Entries that were trimmed (`tideline.log.retention`) are left out; the state of the table includes their effect.
    """
    identity, log = table_identity(table), table.timeline.log
    sequence = max(first, log.trimmed_to() + 1)
    while sequence <= last:
        entries = list(islice(log.after(sequence - 1), min(_BATCH, last + 1 - sequence)))
        # Read after the entries: if the log was trimmed meanwhile, a delayed writer may have put void entries below the floor.
        floor = log.trimmed_to()
        yield from (transition_of(identity, entry, "backfill") for entry in entries if entry.sequence > floor)
        if not entries and floor < sequence:
            return
        sequence = max(sequence + len(entries), floor + 1)
