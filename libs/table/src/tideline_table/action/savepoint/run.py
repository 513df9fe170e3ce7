"""Savepoints of exclusive tables: completed writes whose files cleaning keeps."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tideline_table.coordination.conflict import find_savepoint_conflict
from tideline_table.errors import (
    HistoryUnavailable,
    InstantNotFound,
    ObjectNotFound,
    SavepointRefused,
)
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log.action import ActionRecord
from tideline_table.log.body import Bare, Published, SavepointMade
from tideline_table.log.progress import Progress, progress_said_by
from tideline_table.log.savepoint import Savepoint, every_saved_slice, saved_by
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.table.facade import Table

OPERATION = "SAVEPOINT"


def saved_files(state: TableState, instant: str) -> list[FileSlice]:
    """Return the slices that a savepoint of `instant` keeps."""
    return every_saved_slice(state.slices, state.replaced, {instant: frozenset()})


def savepoint_metadata(state: TableState, instant: str, user: str, comment: str, now: datetime) -> dict[str, Any]:
    """Return the completed document (HoodieSavepointMetadata)."""
    names: dict[str, list[str]] = {}
    for file_slice in saved_files(state, instant):
        partition = names.setdefault(file_slice.group.partition_path, [])
        partition += [path.rsplit("/", 1)[-1] for path in file_slice.paths]
    return {
        "savepointedBy": user,
        "savepointedAt": int(now.timestamp() * 1000),
        "comments": comment,
        "partitionMetadata": {
            partition: {"partitionPath": partition, "savepointDataFile": sorted(files)}
            for partition, files in sorted(names.items())
        },
        "version": 1,
    }


def create_savepoint(table: Table, instant: str = "", *, comment: str = "", user: str = "") -> Savepoint:
    """Protect the completed write `instant` (empty: the newest) and the table as of it; `user` defaults to the user of the process.

    Raises `SavepointRefused` if `instant` is not a completed write, has a savepoint or is older than cleaning retains;
    `WriteConflict` while a pending clean names its files or a pending archival its instant; `UnsupportedTable` for a shared table.
    """
    check_exclusive(table, "call create_savepoint")
    table.check_writable(keyed=False)

    def chosen_write(state: TableState) -> str:
        chosen = instant or _newest(state)
        conflict = find_savepoint_conflict(state, chosen)
        if conflict is not None:
            raise conflict
        return chosen

    def progress(state: TableState) -> dict[str, Progress]:
        return progress_as_of(table, state, chosen_write(state))

    def decide(state: TableState, progress: Mapping[str, Progress]) -> Draft:
        chosen = chosen_write(state)
        metadata = savepoint_metadata(state, chosen, user or _user(), comment, table.clock.now())
        body = SavepointMade(metadata, progress)
        return Draft(chosen, Action.SAVEPOINT, State.NONE, State.COMPLETED, OPERATION, body)

    entry = table.timeline.append(decide, progress)
    assert isinstance(entry.body, SavepointMade)
    return saved_by(entry, entry.body)


def delete_savepoint(table: Table, instant: str) -> None:
    """Delete a savepoint, so that the next clean may delete its files. Raises `InstantNotFound` if there is none."""
    check_exclusive(table, "call delete_savepoint")
    table.check_writable(keyed=False)

    def decide(state: TableState) -> Draft:
        known_savepoint(state, instant)
        return Draft(instant, Action.SAVEPOINT, State.COMPLETED, State.ROLLED_BACK, OPERATION, Bare())

    table.timeline.append(decide)


def known_savepoint(state: TableState, instant: str) -> Savepoint:
    """Return the savepoint of `instant`. Raises `InstantNotFound`, which names the existing ones."""
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
    """Raise `UnsupportedTable` for a table shared with Apache Hudi, whose own procedures do this."""
    version = table.timeline.format.version
    remedy = f"use Apache Hudi's procedure ({procedure}) with hoodie.write.table.version={version}; Tideline follows it"
    table.timeline.check_sole_writer(table.definition.name, remedy)


def progress_as_of(table: Table, state: TableState, instant: str) -> dict[str, Progress]:
    """Return the progress of the table's feeders as of the write `instant`; reads older commits only for keys that moved since.

    Raises `HistoryUnavailable` if the commit that holds a value is neither on the timeline nor in the log.
    """
    earlier = {a.instant: a for a in sorted(state.completed_writes(), key=lambda a: -a.sequence) if a.instant <= instant}
    return progress_said_by(
        state.progress, lambda at: at <= instant, earlier, lambda at: _commit_metadata(table, earlier[at]).extra
    )


def _commit_metadata(table: Table, record: ActionRecord) -> CommitMetadata:
    path = table.timeline.format.timeline_path(record.at(State.COMPLETED), record.completion)
    try:
        return CommitMetadata.from_bytes(table.storage.read(path), path)
    except ObjectNotFound:
        entry = table.timeline.log.read(record.sequence)
    if entry is None or entry.instant != record.instant:
        raise HistoryUnavailable(
            f"{path}, which holds the progress of the feeders of the table, is missing", expected="a commit on the timeline"
        )
    assert isinstance(entry.body, Published)
    return entry.body.metadata


def _newest(state: TableState) -> str:
    completed = state.completed_writes()
    if not completed:
        raise SavepointRefused("a savepoint of a table without a completed write", expected="a completed write")
    return completed[-1].instant


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # A container may run under a user id without a name.
        return ""
