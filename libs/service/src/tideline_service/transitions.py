"""From entries of a table log to transition events, derived from the entry alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from tideline_events import TableIdentity, Transition
from tideline_table.table import Table
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, Instant, State, time_from_instant, timeline_file_name
from tideline_table.timeline.rewind import REWIND_KEY, Rewind
from tideline_table.timeline.write_stats import SCHEMA_KEY, CommitMetadata

CLUSTERING = "clustering"
_BATCH = 500
"""Entries that a backfill reads between two looks at where the log begins."""


def table_identity(table: Table) -> TableIdentity:
    """Who the table is, as events name it."""
    definition = table.definition
    return TableIdentity(
        uid=table.uid, base_path=table.storage.root, name=definition.name, type=definition.type.value, version=definition.version
    )


def transition_of(identity: TableIdentity, entry: Entry, observed_by: str) -> Transition:
    """The event of one entry."""
    recorded = datetime.fromisoformat(entry.recorded)
    completed = entry.after is State.COMPLETED
    commit = CommitMetadata.from_json(entry.body["metadata"]) if completed and entry.action in WRITE_ACTIONS else None
    cleaned = _files_deleted(entry) if completed else 0
    back = Rewind.from_json(entry.body[REWIND_KEY]) if REWIND_KEY in entry.body else None
    is_clustering = entry.action is Action.REPLACE_COMMIT and entry.operation == "CLUSTER"
    stats = commit.stats if commit else ()
    schema = commit.extra.get(SCHEMA_KEY, "") if commit else ""
    return Transition(
        table=identity,
        instant=entry.instant,
        action=CLUSTERING if is_clustering else entry.action.value,
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
        plan_instant=entry.instant if is_clustering or entry.action in (Action.CLEAN, Action.ARCHIVAL) else None,
        # Of a restore the oldest write that it takes back: from there on everything is gone.
        undone_instant=entry.target or (min(back.undone_instants, default=None) if back is not None else None),
        files_added=len(stats),
        files_removed=sum(len(ids) for ids in (commit.replaced or {}).values()) if commit else cleaned,
        rows_added=sum(s.num_inserts for s in stats),
        rows_removed=sum(s.num_deletes for s in stats),
        bytes_added=sum(s.file_size_bytes for s in stats),
        partitions=tuple(sorted({s.partition_path for s in stats})),
        schema_hash=hashlib.sha256(schema.encode()).hexdigest() if schema else None,
        checkpoint={k: v for k, v in commit.extra.items() if k != SCHEMA_KEY} if commit else {},
    )


def _files_deleted(entry: Entry) -> int:
    if entry.action is Action.CLEAN:
        return int(entry.body["metadata"]["totalFilesDeleted"])
    if entry.action is Action.RESTORE:
        by_instant = (entry.body.get("metadata") or {}).get("hoodieRestoreMetadata") or {}
        return sum(int(one["totalFilesDeleted"]) for found in by_instant.values() for one in found)
    return 0


def _timeline_file(entry: Entry) -> str:
    if entry.action is Action.ARCHIVAL:
        # It has none; once it is done, what it wrote.
        return str(entry.body.get("file", ""))
    # What a deleted savepoint was called; there is no file of a state that undoes.
    shown = State.COMPLETED if entry.action is Action.SAVEPOINT else entry.after
    return f".hoodie/{timeline_file_name(Instant(entry.instant, entry.action, shown))}"


def backfill(table: Table, first: int, last: int) -> Iterator[Transition]:
    """Transitions `first` to `last` (both in) from the table log: what a consumer that found a gap asks for.

    What the log was trimmed past (`tideline.log.retention`) is left out: the table's state has it.
    """
    identity, log = table_identity(table), table.timeline.log
    sequence = max(first, log.trimmed_to() + 1)
    while sequence <= last:
        entries = list(islice(log.after(sequence - 1), min(_BATCH, last + 1 - sequence)))
        # Asked behind the reads: where the log was trimmed meanwhile, a writer that slept may have put what never counted.
        floor = log.trimmed_to()
        yield from (transition_of(identity, entry, "backfill") for entry in entries if entry.sequence > floor)
        if not entries and floor < sequence:
            return
        sequence = max(sequence + len(entries), floor + 1)
