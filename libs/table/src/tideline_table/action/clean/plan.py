"""Cleaning by KEEP_LATEST_COMMITS (format reference 14): delete file slices that no query of the retained commits reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tideline_table.action.decision import Due, Reason, obstacle
from tideline_table.config import CLEANER_COMMITS_RETAINED, Options
from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.names import parse_base_file_name, parse_log_file_name
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.instant import WRITE_ACTIONS, Action
from tideline_table.log.action import ActionRecord
from tideline_table.log.plan import CleanPlanned
from tideline_table.log.savepoint import Saved, kept_slices
from tideline_table.log.state import TableState
from tideline_table.log_format.key_index import forget_index
from tideline_table.storage import Storage, checked_path

POLICY = "KEEP_LATEST_COMMITS"
OPERATION = "CLEAN"
SAVED_KEY = "savepointed_timestamps"
"""Key of extra metadata. With it, Hudi's incremental cleaning finds the slices that deleted savepoints had kept."""


def earliest_retained(state: TableState, retained: int) -> ActionRecord | None:
    """Return the earliest instant whose snapshot stays readable, None if nothing may be cleaned yet.

    It is the first to begin among the last `retained` writes to complete (or the last one before a pending write that began
    earlier): a running query may still read what a long write replaced just now. If writes never overlap, it is Hudi's choice, too.
    """
    completed = state.completed_writes()
    if len(completed) <= retained:
        return None
    earliest = min(sorted(completed, key=lambda a: a.sequence)[len(completed) - retained :], key=lambda a: a.instant)
    pending = [a.instant for a in state.pending() if a.action in WRITE_ACTIONS]
    if pending and earliest.instant > pending[0]:
        before = [a for a in completed if a.instant < pending[0]]
        return before[-1] if before else None
    return earliest


def plan_clean(state: TableState, root: str, options: Options, saved: Saved = MappingProxyType({})) -> Due | Reason:
    """Decide whether there is anything to delete, and plan it (HoodieCleanerPlan). The cost grows with groups of excess slices.

    Slices that the `saved` savepoints keep are left out.
    """
    forbidden = obstacle(state, Action.CLEAN)
    if forbidden is not None:
        return forbidden
    retained, completed = options[CLEANER_COMMITS_RETAINED], len(state.completed_writes())
    if completed <= retained:
        return Reason(
            f"{CLEANER_COMMITS_RETAINED.key}={retained} keeps all {completed} completed writes readable",
            f"{retained + 1 - completed} more write(s), or a smaller {CLEANER_COMMITS_RETAINED.key}",
        )
    all_read = Reason(
        f"every file is still read by a query of the last {retained} writes, by a pending plan, or by a pending write",
        f"a write that replaces files, or the end of pending work, or a smaller {CLEANER_COMMITS_RETAINED.key}",
    )
    earliest = earliest_retained(state, retained)
    if earliest is None:
        return all_read
    needed = {*state.groups_under_clustering(), *state.groups_under_compaction()}
    doomed: dict[str, list[FileSlice]] = {}
    for group in sorted(state.excess):
        if group not in needed:
            kept = kept_slices(state.slices.get(group, {}), state.replaced.get(group), saved)
            for file_slice in _doomed(state, group, earliest.instant):
                if file_slice.base_instant not in kept:
                    doomed.setdefault(group.partition_path, []).append(file_slice)
    if not doomed:
        return all_read
    document = {
        "earliestInstantToRetain": {"timestamp": earliest.instant, "action": earliest.action.value, "state": "COMPLETED"},
        "lastCompletedCommitTimestamp": state.completed_writes()[-1].instant,
        "policy": POLICY,
        "filesToBeDeletedPerPartition": {},
        "version": 2,
        "filePathsToBeDeletedPerPartition": {
            partition: [{"filePath": f"{root}/{path}", "isBootstrapBaseFile": False} for s in slices for path in s.paths]
            for partition, slices in doomed.items()
        },
        "partitionsToBeDeleted": [],
        "extraMetadata": {SAVED_KEY: ",".join(sorted(saved))} if saved else {},
    }
    return Due(CleanPlanned(document), f"{completed} completed writes, {CLEANER_COMMITS_RETAINED.key}={retained}")


def _doomed(state: TableState, group: FileGroupId, earliest: str) -> Iterable[FileSlice]:
    slices = state.slices.get(group, {})
    replaced = state.replaced.get(group)
    if replaced is not None:
        return list(slices.values()) if replaced < earliest else []
    instants = sorted(slices, reverse=True)
    older = [i for i in instants[1:] if i < earliest]
    # The newest slice before the earliest retained instant is read by queries as of that instant.
    if instants[0] >= earliest:
        older = older[1:]
    return [slices[i] for i in older]


@dataclass(frozen=True, slots=True)
class CleanResult:
    """The names of the files that a clean deleted, by partition."""

    deleted: Mapping[str, tuple[str, ...]]


def execute_clean(
    storage: Storage, plan: Mapping[str, Any], still_needed: Iterable[FileSlice], formerly: Iterable[str] = ()
) -> CleanResult:
    """Delete the files that `plan` names; a missing file counts as deleted.

    A plan may be older than a copy or move of the table: it names files below a base path of `formerly`, and they are deleted here.

    Before it deletes anything, refuses a plan that names a file outside of the table, a file that is no data file, or one that is
    visible now or as of a savepoint (`CorruptMetadata`, `UnsafePath`): a wrong plan must not cost committed rows.
    """
    visible = {path for s in still_needed for path in s.paths}
    paths: dict[str, list[str]] = {}
    for partition, files in plan["filePathsToBeDeletedPerPartition"].items():
        for file in files:
            uri = file["filePath"]
            root = next((place for place in (storage.root, *formerly) if uri.startswith(f"{place}/")), None)
            if root is None:
                raise CorruptMetadata(f"clean plan names {uri!r}", expected=f"files below {storage.root}")
            path = checked_path(uri[len(root) + 1 :])
            name = path.rsplit("/", 1)[-1]
            if path.startswith(".hoodie/") or (parse_base_file_name(name) is None and parse_log_file_name(name) is None):
                raise CorruptMetadata(f"clean plan names {path}, which is no data file", expected="base and log files only")
            if path in visible:
                raise CorruptMetadata(
                    f"clean plan names {path}, which is the latest slice of its file group or one of a savepoint",
                    expected="older slices only, that no savepoint keeps",
                )
            paths.setdefault(partition, []).append(path)
    deleted: dict[str, tuple[str, ...]] = {}
    for partition, names in paths.items():
        for path in names:
            # The index first: without its log file, no later clean would find it.
            forget_index(storage, path)
            storage.delete(path)
        deleted[partition] = tuple(path.rsplit("/", 1)[-1] for path in names)
    return CleanResult(deleted)


def clean_metadata(instant: str, plan: Mapping[str, Any], result: CleanResult, duration_ms: int) -> dict[str, Any]:
    """Return the completed document (HoodieCleanMetadata)."""
    earliest = plan["earliestInstantToRetain"]
    return {
        "startCleanTime": instant,
        "timeTakenInMillis": duration_ms,
        "totalFilesDeleted": sum(len(names) for names in result.deleted.values()),
        "earliestCommitToRetain": earliest["timestamp"] if earliest else "",
        "lastCompletedCommitTimestamp": plan["lastCompletedCommitTimestamp"],
        "partitionMetadata": {
            partition: {
                "partitionPath": partition,
                "policy": plan["policy"],
                "deletePathPatterns": list(names),
                "successDeleteFiles": list(names),
                "failedDeleteFiles": [],
                "isPartitionDeleted": False,
            }
            for partition, names in result.deleted.items()
        },
        "version": 2,
        "bootstrapPartitionMetadata": {},
        "extraMetadata": dict(plan.get("extraMetadata") or {}),
    }
