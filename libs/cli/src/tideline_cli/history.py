"""Builds documents of instants from the table log or, where the log does not hold them, from timeline files."""

from __future__ import annotations

from typing import Any

from tideline_cli.progress import Progress
from tideline_cli.tables import known_rows
from tideline_table.errors import ObjectNotFound
from tideline_table.hudi import WRITE_ACTIONS, Action, CommitMetadata, State, decode_document
from tideline_table.log import ActionRecord, Body, Cleaned, Published
from tideline_table.table import Table


def instant_documents(table: Table, limit: int, progress: Progress) -> list[dict[str, Any]]:
    """Return the documents of the newest `limit` instants, latest first.

    Reads one object per completed instant, which `progress` counts.

    `files` is the number of files written, or deleted by a clean. Rows and files are null if they were not recorded. Raises
    `CorruptMetadata` with the name of a file that cannot be read.
    """
    records = sorted(table.state.actions.values(), key=lambda a: a.instant, reverse=True)[:limit]
    saved = table.timeline.savepoints()
    return [{**instant_document(table, record), "has_savepoint": record.instant in saved} for record in progress.over(records)]


def instant_document(table: Table, record: ActionRecord) -> dict[str, Any]:
    """Return the document of one instant; see `instant_documents`."""
    document: dict[str, Any] = {
        "instant": record.instant,
        "action": record.action.value,
        "state": record.state.value,
        "operation": record.operation,
        "sequence": record.sequence if table.capabilities.keeps_log else None,
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
        if metadata is not None:
            document["rows_inserted"] = metadata.rows_inserted
            document["rows_updated"] = sum(s.num_updates for s in metadata.stats)
            document["rows_deleted"] = known_rows(metadata.rows_deleted)
            document["files"] = len(metadata.stats)
    elif record.action is Action.CLEAN:
        document["files"] = _files_deleted(table, record)
    return document


def _commit_metadata(table: Table, record: ActionRecord) -> CommitMetadata | None:
    logged = _logged(table, record)
    if isinstance(logged, Published):
        return logged.metadata
    path, content = _timeline_file(table, record)
    return CommitMetadata.from_bytes(content, path) if content else None


def _files_deleted(table: Table, record: ActionRecord) -> int | None:
    logged = _logged(table, record)
    if isinstance(logged, Cleaned):
        return logged.files_deleted
    path, content = _timeline_file(table, record)
    found: int | None = decode_document(content, path).get("totalFilesDeleted") if content else None
    return found


def _logged(table: Table, record: ActionRecord) -> Body | None:
    """Return the body of the latest transition of `record` in the table log, or None if the log does not hold it."""
    entry = table.timeline.log.read(record.sequence) if table.capabilities.keeps_log else None
    return entry.body if entry is not None and entry.instant == record.instant else None


def _timeline_file(table: Table, record: ActionRecord) -> tuple[str, bytes]:
    """Return path and content of the completed timeline file; no content if an archival has just removed the file."""
    path = table.timeline.format.timeline_path(record.at(record.state), record.completion)
    try:
        return path, table.storage.read(path)
    except ObjectNotFound:
        return path, b""
