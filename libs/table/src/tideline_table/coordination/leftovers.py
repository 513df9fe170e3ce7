"""What markers say of actions that ended.

Markers of completed ones whose process died, files that tasks of rolled-back ones wrote late.
"""

from __future__ import annotations

import logging
from datetime import datetime

from tideline_table.clock import Clock
from tideline_table.config import Options
from tideline_table.coordination.heartbeat import allowed_silence, store_time
from tideline_table.errors import TidelineError
from tideline_table.hudi.instant import State
from tideline_table.log.action import COMPACT, ActionRecord
from tideline_table.log.body import Published
from tideline_table.log.state import TableState
from tideline_table.log.table_log import TableLog
from tideline_table.log_format.key_index import forget_index
from tideline_table.storage import Storage
from tideline_table.writer.marker import MARKER_FOLDER, forget_markers, marked_files

_LOGGER = logging.getLogger(__name__)


def tidy_up(storage: Storage, log: TableLog, state: TableState, clock: Clock, options: Options) -> None:
    """Delete the markers of actions that completed longer ago than the allowed silence of a heartbeat, or that are archived.

    Also delete the files that the markers of rolled-back actions name: tasks wrote them after the rollback or restore. To
    Apache Hudi's readers the timeline begins with the first write without a savepoint, and log blocks before it count as
    committed. So such a file must not wait until archival. Markers of pending and of rolled-back actions stay: rollbacks and
    the orphan-file cleanup need them. A failure is a warning.
    """
    try:
        folders = storage.list_folder(MARKER_FOLDER).folders
        for name in folders:
            record = state.actions.get(name)
            if record is not None and record.state is State.ROLLED_BACK:
                _delete_late_files(storage, state, name)
        ended = {name: state.actions.get(name) for name in folders if _has_ended(state, name)}
        if not any(_is_old(record, clock.now(), options) for record in ended.values()):
            return
        now = store_time(storage)
        for instant, record in ended.items():
            if _is_old(record, now, options):
                if record is not None and record.operation == COMPACT:
                    _delete_unnamed_files(storage, log, record)
                forget_markers(storage, instant)
    except TidelineError as error:
        _LOGGER.warning("leftovers of ended actions stay behind: %s", error)


def _has_ended(state: TableState, instant: str) -> bool:
    record = state.actions.get(instant)
    if record is None:
        return instant < state.archived_before
    return record.state is State.COMPLETED and not record.fenced_by


def _is_old(record: ActionRecord | None, now: datetime, options: Options) -> bool:
    return record is None or (bool(record.since) and now - datetime.fromisoformat(record.since) > allowed_silence(options))


def _delete_unnamed_files(storage: Storage, log: TableLog, record: ActionRecord) -> None:
    """Delete files of lost attempts of a compaction: it does so only after its commit point, unlike writes and clusterings."""
    entry = log.read(record.sequence)
    if entry is None or entry.instant != record.instant or not isinstance(entry.body, Published):
        return
    named = {stat.path for stat in entry.body.metadata.stats}
    for path in list(marked_files(storage, record.instant)):
        if path not in named:
            storage.delete(path)


def _delete_late_files(storage: Storage, state: TableState, instant: str) -> None:
    kept = {path for file_slice in state.every_slice() for path in file_slice.paths}
    for path in sorted(set(marked_files(storage, instant)) - kept):
        _LOGGER.debug("deleting %s, if a task of the rolled-back write %s wrote it late", path, instant)
        forget_index(storage, path)
        storage.delete(path)
