"""What a restore to a savepoint undoes (format reference 6.4), decided from the state alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.instant import WRITE_ACTIONS, Action, State, completed_as
from tideline_table.log.action import ActionRecord
from tideline_table.log.plan import RestorePlanned
from tideline_table.log.rewind import Named, Rewind
from tideline_table.log.savepoint import Savepoint, is_newer
from tideline_table.log.state import TableState
from tideline_table.storage import hudi_root

OPERATION = "RESTORE"


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore undoes, and the data files of each undone write, newest write first."""

    rewind: Rewind
    files: Mapping[str, tuple[str, ...]]
    unreplaced: tuple[str, ...]
    """The partition paths of the file groups that an undone write replaced."""

    def to_body(self) -> RestorePlanned:
        """Return the body of the requested entry: HoodieRestorePlan, and what the later steps need."""
        document = {
            "instantsToRollback": [_info(instant, action) for instant, action in self.rewind.undone],
            "version": 2,
            "savepointToRestoreTimestamp": self.rewind.savepoint,
        }
        return RestorePlanned(document, self.rewind, self.files, self.unreplaced)


def plan_restore(state: TableState, savepoint: Savepoint, changes: Collection[str] = ()) -> RestorePlan:
    """Plan to undo everything that is newer than `savepoint` (`is_newer`).

    A pending compaction planned before the savepoint stays, because log files refer to it. A clustering can be planned again.
    `changes`: the change files that are there, which go with their base files.
    """
    undone = _newest_first(a for a in state.completed_writes() if is_newer(a, savepoint))
    resizes = [a.instant for a in undone if a.instant in state.bucket_numbers or a.instant in state.ring_resizes]
    if resizes:
        raise UnsupportedTable(
            f"a restore to {savepoint.instant}, before {resizes[-1]} split the buckets of the table, or gave them other hash rings",
            expected="a savepoint of a write after it: the number of buckets and the hash rings are not restored",
            remedy="read the table as of the savepoint, and write the rows into a new table",
        )
    pending = list(state.pending())
    fenced = _newest_first(
        a
        for a in pending
        if a.action in WRITE_ACTIONS | {Action.ROLLBACK, Action.LOG_COMPACTION} or _is_newer_compaction(a, savepoint)
    )
    rollbacks = _newest_first(
        a
        for a in state.actions.values()
        if a.action is Action.ROLLBACK and a.state is State.COMPLETED and a.instant > savepoint.instant
    )
    saved = sorted((at for at in state.savepoints if any(at == a.instant for a in undone)), reverse=True)
    completions = {a.instant: a.completion for a in (*undone, *rollbacks) if a.completion}
    saved_at = {at: completion for at in saved if (completion := state.savepoints[at].completion)}
    named = _named(undone), _named(fenced), _named(rollbacks)
    back = Rewind(savepoint.instant, *named, tuple(saved), completions, saved_at)
    unreplaced = {group.partition_path for group, at in state.replaced.items() if at in back.undone_instants}
    return RestorePlan(back, _files_of(state, [a.instant for a in undone], changes), tuple(sorted(unreplaced)))


def _named(records: Iterable[ActionRecord]) -> tuple[Named, ...]:
    return tuple((a.instant, a.action) for a in records)


def _is_newer_compaction(action: ActionRecord, savepoint: Savepoint) -> bool:
    return action.action is Action.COMPACTION and action.instant > savepoint.instant


def _newest_first(records: Iterable[ActionRecord]) -> list[ActionRecord]:
    return sorted(records, key=lambda a: a.instant, reverse=True)


def _files_of(state: TableState, instants: Sequence[str], changes: Collection[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {instant: [] for instant in instants}
    for file_slice in state.every_slice():
        opens = False
        if file_slice.base_file and file_slice.base_instant in found:
            found[file_slice.base_instant] += (file_slice.path, *(path for path in file_slice.change_paths if path in changes))
            opens = file_slice.base_instant == min(state.slices[file_slice.group])
        for log, path in zip(file_slice.log_files, file_slice.log_paths, strict=True):
            if log.instant in found:
                found[log.instant].append(path)
            elif opens:
                # A clustering carried it into a file group that is removed with its base file (`undo_writes`).
                found[file_slice.base_instant].append(path)
    return {instant: tuple(sorted(paths)) for instant, paths in found.items()}


def restore_metadata(restore: str, back: Rewind, files: Mapping[str, Sequence[str]], root: str, duration_ms: int) -> dict[str, Any]:
    """Return the completed document (HoodieRestoreMetadata); `files` are the deleted files of each instant."""
    return {
        "startRestoreTime": restore,
        "timeTakenInMillis": duration_ms,
        "instantsToRollback": [instant for instant, _ in back.undone],
        "hoodieRestoreMetadata": {
            instant: [_rollback_metadata(restore, instant, action, files.get(instant, ()), root)] for instant, action in back.undone
        },
        "version": 1,
        "restoreInstantInfo": [_info(instant, action) for instant, action in back.undone],
    }


def _rollback_metadata(restore: str, instant: str, action: Action, paths: Sequence[str], root: str) -> dict[str, Any]:
    folder = hudi_root(root).removeprefix("file:")
    by_partition: dict[str, list[str]] = {}
    for path in paths:
        by_partition.setdefault(path.rpartition("/")[0], []).append(f"{folder}/{path}")
    return {
        "startRollbackTime": restore,
        "timeTakenInMillis": 0,
        "totalFilesDeleted": len(paths),
        "commitsRollback": [instant],
        "partitionMetadata": {
            partition: {
                "partitionPath": partition,
                "successDeleteFiles": deleted,
                "failedDeleteFiles": [],
                "rollbackLogFiles": {},
                "logFilesFromFailedCommit": {},
            }
            for partition, deleted in by_partition.items()
        },
        "version": 1,
        "instantsRollback": [_info(instant, action)],
    }


def _info(instant: str, action: Action) -> dict[str, str]:
    return {"commitTime": instant, "action": completed_as(action).value}
