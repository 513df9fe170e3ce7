"""Orphan-file cleanup: delete files that tasks of rolled-back writes wrote after the rollback (docs/design/archival.md).

The fence keeps such files invisible while the active timeline begins before their instant. Archival moves its beginning later;
so does a savepoint of the oldest write, because to Apache Hudi's readers the timeline begins with the first write without one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tideline_table.config import TASK_MAX_LIFETIME_S, Options
from tideline_table.errors import ObjectNotFound
from tideline_table.file_group.partition_listing import list_partitions
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.file_names import instant_token, parse_base_file_name, parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, Instant, State
from tideline_table.log.action import ActionRecord
from tideline_table.log.state import TableState
from tideline_table.log_format import HeaderKey, scan_log
from tideline_table.log_format.key_index import forget_index
from tideline_table.storage import STAGING, Storage
from tideline_table.writer.marker import marked_files

MOST_CHECKED = 1000
"""Maximum number of instants per cleanup, the oldest first."""
_STAGED_FOR_S = 3600.0
"""Staged objects younger than this may have a live writer, whatever lifetime the options give to tasks."""


@dataclass(frozen=True, slots=True)
class OrphanCleanup:
    """The result of a cleanup: instants without any file (`cleaned_up`), and the files of the other instants, which it deleted."""

    cleaned_up: frozenset[str] = frozenset()
    deleted: tuple[str, ...] = ()


def due(state: TableState, rolled_back: Iterable[ActionRecord], options: Options, now: datetime) -> list[ActionRecord]:
    """Return the rolled-back writes whose tasks must have ended, because the fence is older than the longest task lifetime."""
    ended = now - timedelta(seconds=options[TASK_MAX_LIFETIME_S])
    fences = ((record, state.actions.get(record.fenced_by, record)) for record in rolled_back)
    return [r for r, fence in fences if fence.since and datetime.fromisoformat(fence.since) <= ended]


def clean_up_orphans(storage: Storage, form: TableFormat, state: TableState, rolled_back: Sequence[ActionRecord]) -> OrphanCleanup:
    """Delete the files of these rolled-back writes in all partitions that they may have written to.

    Tasks list every file in a marker before they write it: the remaining markers and the files of the rollback name each partition.
    If a restore undid the write or its rollback, these partitions are unknown. Then every partition on storage is listed.
    """
    everywhere = functools.cache(lambda: frozenset(partition for partition, _ in list_partitions(storage)))
    by_partition: dict[str, set[str]] = {}
    for record in rolled_back:
        named = _named_partitions(storage, form, record, state.actions.get(record.fenced_by))
        for partition in everywhere() if named is None else named:
            by_partition.setdefault(partition, set()).add(record.instant)
    kept = {path for file_slice in state.every_slice() for path in file_slice.paths}
    late = {
        path: instant
        for partition, instants in sorted(by_partition.items())
        for path, instant in _files_of(storage, partition, instants)
        if path not in kept
    }
    for path in sorted(late):
        forget_index(storage, path)
        storage.delete(path)
    return OrphanCleanup(frozenset(r.instant for r in rolled_back) - frozenset(late.values()), tuple(sorted(late)))


def delete_staging(storage: Storage, options: Options, now: datetime) -> tuple[str, ...]:
    """Delete objects that killed writers left half written, on storage that stages them beside the table; return their paths.

    No reader sees them, and no task runs as long as the age that they have here. The write of a task that does fails.
    """
    ended = now - timedelta(seconds=max(options[TASK_MAX_LIFETIME_S], _STAGED_FOR_S))
    left = tuple(found.path for found in storage.list_folder(STAGING).objects if found.modified <= ended)
    for path in left:
        storage.delete(path)
    return left


def _named_partitions(storage: Storage, form: TableFormat, record: ActionRecord, rollback: ActionRecord | None) -> set[str] | None:
    if rollback is None:
        return None
    try:
        plan = _document(storage, form, rollback, State.REQUESTED)
        done = _document(storage, form, rollback, State.COMPLETED)
    except ObjectNotFound:
        return None
    marked = {path.rpartition("/")[0] for path in marked_files(storage, record.instant)}
    planned = {str(request["partitionPath"] or "") for request in plan["RollbackRequests"] or ()}
    return marked | planned | set(done["partitionMetadata"])


def _document(storage: Storage, form: TableFormat, rollback: ActionRecord, at: State) -> Mapping[str, Any]:
    path = form.timeline_path(Instant(rollback.instant, Action.ROLLBACK, at), rollback.completion)
    return decode_document(storage.read(path), path)


def _files_of(storage: Storage, partition: str, instants: set[str]) -> Iterator[tuple[str, str]]:
    tokens = {instant_token(instant) for instant in instants}
    for found in storage.list_folder(partition).objects:
        name = found.path.rpartition("/")[2]
        base, log = parse_base_file_name(name), parse_log_file_name(name)
        if base is not None and base.instant in instants:
            yield found.path, base.instant
        elif log is not None and log.is_cdc and log.instant in instants:
            yield found.path, log.instant
        elif log is not None and log.write_token.split("-")[1:2] in ([token] for token in tokens):
            # Only the blocks of a log file prove which write made it.
            wrote = {block.header.get(HeaderKey.INSTANT_TIME, "") for block in scan_log(storage, found.path).blocks}
            yield from ((found.path, instant) for instant in sorted(wrote & instants)[:1])
