"""Savepoints of exclusive tables: a completed write whose files cleaning leaves alone, and the way back to it."""

from __future__ import annotations

import getpass

from tideline_table.errors import (
    HistoryUnavailable,
    InstantNotFound,
    ObjectNotFound,
    RestorePending,
    SavepointRefused,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.file_group.action import ActionRecord
from tideline_table.file_group.savepoint import PROGRESS_KEY, Savepoint, progress_json, saved_by
from tideline_table.file_group.state import TableState
from tideline_table.service.restore import plan_restore
from tideline_table.service.savepoint import OPERATION, savepoint_metadata
from tideline_table.table.facade import Table
from tideline_table.table.services import run_clean
from tideline_table.timeline.files import timeline_path
from tideline_table.timeline.instant import Action, Instant, State
from tideline_table.timeline.log import Draft
from tideline_table.timeline.progress import Progress, progress_said_by
from tideline_table.timeline.rewind import Rewind
from tideline_table.timeline.write_stats import CommitMetadata
from tideline_table.transaction.conflict import find_savepoint_conflict
from tideline_table.transaction.restore import Restored, finish_restore, request_restore

_CLEANS = 5


def create_savepoint(table: Table, instant: str = "", *, comment: str = "", user: str = "") -> Savepoint:
    """Protect the completed write `instant` (empty: the newest one) and the table as of it; `user` defaults to that of the process.

    Raises `SavepointRefused` for what is no completed write, has a savepoint, or lies before what cleaning keeps; `WriteConflict` while a
    pending clean names its files; `UnsupportedTable` for a table that Apache Hudi writes, too.
    """
    check_exclusive(table, "call create_savepoint")
    table.check_writable(keyed=False)

    def decide(state: TableState) -> Draft:
        chosen = instant or _newest(state)
        conflict = find_savepoint_conflict(state, chosen, table.storage.root)
        if conflict is not None:
            raise conflict
        metadata = savepoint_metadata(state, chosen, user or _user(), comment, table.clock.now())
        body = {"metadata": metadata, PROGRESS_KEY: progress_json(progress_as_of(table, state, chosen))}
        return Draft(chosen, Action.SAVEPOINT, State.NONE, State.COMPLETED, OPERATION, body)

    return saved_by(table.timeline.append(decide))


def delete_savepoint(table: Table, instant: str) -> None:
    """Give the files of a savepoint up: the next clean may take them. Raises `InstantNotFound` when there is none."""
    check_exclusive(table, "call delete_savepoint")
    table.check_writable(keyed=False)

    def decide(state: TableState) -> Draft:
        known_savepoint(state, instant)
        return Draft(instant, Action.SAVEPOINT, State.COMPLETED, State.ROLLED_BACK, OPERATION, {})

    table.timeline.append(decide)


def preview_restore(table: Table, instant: str) -> Rewind:
    """What `restore_to_savepoint` would take back now. Changes nothing; raises as that does."""
    check_exclusive(table, "call rollback_to_savepoint")
    table.check_writable(keyed=False)
    return plan_restore(table.state, known_savepoint(table.state, instant)).rewind


def restore_to_savepoint(table: Table, instant: str) -> Restored:
    """Bring the table back to the savepoint of `instant`: every newer write is undone, newest first, and cannot be had again.

    Rows, schema, replaced file groups and the progress of those who feed the table are as they were. What was being written fails with
    `RestoredMeanwhile`; newer plans and savepoints go. A restore to the same savepoint that died is taken to its end. Pending cleans are run first.
    Raises `InstantNotFound` without such a savepoint, `RestorePending` beside another restore, `UnsupportedTable` for a table that Apache Hudi
    writes, too. After `CommitUnknown` and storage errors the table says whether it began: call it again.
    """
    check_exclusive(table, "call rollback_to_savepoint")
    table.check_writable(keyed=False)
    running = table.state.restoring
    if running and table.state.plans[running]["plan"]["savepointToRestoreTimestamp"] == instant:
        finished = finish_restore(table.timeline, running)
        if finished is not None:
            return finished
    for _ in range(_CLEANS):
        while run_clean(table) is not None:
            pass
        try:
            restore = request_restore(table.timeline, lambda state: known_savepoint(state, instant))
            break
        except RestorePending:
            raise
        except WriteConflict:
            continue  # a clean was planned meanwhile
    else:
        restore = request_restore(table.timeline, lambda state: known_savepoint(state, instant))
    finished = finish_restore(table.timeline, restore, force=True)
    assert finished is not None  # one's own
    return finished


def known_savepoint(state: TableState, instant: str) -> Savepoint:
    """The savepoint of `instant`. Raises `InstantNotFound` naming those that are there."""
    found = state.savepoints.get(instant)
    if found is None:
        there = ", ".join(sorted(state.savepoints))
        raise InstantNotFound(
            f"no savepoint of {instant}",
            expected=f"one of {there}" if there else "a savepoint",
            remedy="" if there else "make one: tideline savepoint create PATH",
        )
    return found


def check_exclusive(table: Table, procedure: str) -> None:
    """Raise `UnsupportedTable` for a table that Apache Hudi writes: there its own procedures do it."""
    if table.has_log and not table.is_exclusive:
        raise UnsupportedTable(
            f"table {table.definition.name!r} is shared with Apache Hudi's writers",
            expected="an exclusive table",
            remedy=f"use Apache Hudi's procedure ({procedure}) with hoodie.write.table.version=6; Tideline follows it",
        )


def progress_as_of(table: Table, state: TableState, instant: str) -> dict[str, Progress]:
    """Where those who feed the table stood as of the write `instant`; reads older commits only for what moved since.

    Raises `HistoryUnavailable` when the commit that would say so is not on the timeline any more.
    """
    earlier = {a.instant: a for a in sorted(state.completed_writes(), key=lambda a: -a.sequence) if a.instant <= instant}
    return progress_said_by(
        state.progress, lambda at: at <= instant, earlier, lambda at: _commit_metadata(table, earlier[at]).extra
    )


def _commit_metadata(table: Table, record: ActionRecord) -> CommitMetadata:
    path = timeline_path(Instant(record.instant, record.action, State.COMPLETED))
    try:
        return CommitMetadata.from_bytes(table.storage.read(path), path)
    except ObjectNotFound:
        entry = table.timeline.log.read(record.sequence)
    if entry is None or entry.instant != record.instant:
        raise HistoryUnavailable(
            f"{path}, which says where the feeders of the table stood, is gone", expected="a commit on the timeline"
        )
    return CommitMetadata.from_json(entry.body["metadata"])


def _newest(state: TableState) -> str:
    completed = state.completed_writes()
    if not completed:
        raise SavepointRefused("a savepoint of a table that nobody wrote to", expected="a completed write")
    return completed[-1].instant


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # A container may run under an id that has no name.
        return ""
