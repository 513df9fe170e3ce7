"""What the timeline knows about each instant, from the table log or, for tables of others, from timeline files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tideline_table.file_group.action import ActionRecord
from tideline_table.table import Table
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, Instant, State, timeline_file_name
from tideline_table.timeline.plans import decode_document
from tideline_table.timeline.write_stats import CommitMetadata


def instant_documents(table: Table, limit: int) -> list[dict[str, Any]]:
    """The newest `limit` instants, latest first. Reads one object for each completed one.

    `files` counts files written, for a clean those deleted. Rows and files are null where nobody recorded them. Raises
    `CorruptMetadata` naming a file that cannot be read.
    """
    records = sorted(table.state.actions.values(), key=lambda a: a.instant, reverse=True)[:limit]
    saved = table.saved_instants()
    return [{**instant_document(table, record), "has_savepoint": record.instant in saved} for record in records]


def instant_document(table: Table, record: ActionRecord) -> dict[str, Any]:
    """One instant; see `instant_documents`."""
    document: dict[str, Any] = {
        "instant": record.instant,
        "action": record.action.value,
        "state": record.state.value,
        "operation": record.operation,
        "sequence": record.sequence if table.has_log else None,
        "writer": record.writer_id,
        "since": record.since,
        "rows_inserted": None,
        "rows_updated": None,
        "rows_deleted": None,
        "files": None,
    }
    if record.state is not State.COMPLETED:
        return document
    if record.action in WRITE_ACTIONS:
        metadata = _commit_metadata(table, record)
        document["rows_inserted"] = sum(s.num_inserts for s in metadata.stats)
        document["rows_updated"] = sum(s.num_updates for s in metadata.stats)
        document["rows_deleted"] = sum(s.num_deletes for s in metadata.stats)
        document["files"] = len(metadata.stats)
    elif record.action is Action.CLEAN:
        document["files"] = _clean_metadata(table, record).get("totalFilesDeleted")
    return document


def _commit_metadata(table: Table, record: ActionRecord) -> CommitMetadata:
    logged = _logged(table, record)
    if logged is not None:
        return CommitMetadata.from_json(logged)
    path = _timeline_path(record)
    return CommitMetadata.from_bytes(table.storage.read(path), path)


def _clean_metadata(table: Table, record: ActionRecord) -> Mapping[str, Any]:
    logged = _logged(table, record)
    if logged is not None:
        return logged
    path = _timeline_path(record)
    return decode_document(table.storage.read(path), path)


def _logged(table: Table, record: ActionRecord) -> Mapping[str, Any] | None:
    """What the table log keeps; None where the timeline has to be asked: what was there before a table was shared."""
    entry = table.timeline.log.read(record.sequence) if table.has_log else None
    if table.is_shared and (entry is None or entry.instant != record.instant):
        return None
    if entry is None:
        return {} if table.has_log else None
    found: Mapping[str, Any] = entry.body.get("metadata", {})
    return found


def _timeline_path(record: ActionRecord) -> str:
    return f".hoodie/{timeline_file_name(Instant(record.instant, record.action, record.state))}"
