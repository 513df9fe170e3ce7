"""Protections of merge-on-read tables, switched off one at a time: what the simulator has to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tests.simulation.sabotage import sabotage
from tests.simulation.visible_files import is_data_file
from tests.simulation.world import World

from tideline_table.action.clean import plan as cleaning
from tideline_table.action.clean import run as clean_run
from tideline_table.action.clustering import task as clustering
from tideline_table.action.compaction import plan as compaction
from tideline_table.action.log_compaction import run as log_compaction
from tideline_table.action.log_compaction import task as merging_task
from tideline_table.action.write import transaction as write
from tideline_table.coordination import leftovers, rollback
from tideline_table.coordination.conflict import find_conflict
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, SliceVersion, join_path
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.index.simple import SimpleIndex
from tideline_table.log import state as group_state
from tideline_table.log.state import TableState
from tideline_table.writer.marker import marked_files


def _key_check_off(transaction: Any, own: Any, latest: Any) -> None:
    return None


def _find_without_compactions(own: Any, state: TableState, inserted_since: Any) -> Any:
    """Appends go on where a compaction was planned meanwhile."""
    kept = {group: read for group, read in own.based_on.items() if group not in state.groups_under_compaction()}
    return find_conflict(replace(own, based_on=kept), state, inserted_since)


_real_fold_file = group_state.fold_file


def _fold_forgetting_newer_logs(slices: dict[str, FileSlice], group: FileGroupId, instant: str, stat: WriteStat) -> None:
    """A base file takes away all log files of its group, those too that came after the plan of the compaction."""
    if not stat.is_log:
        slices.pop(instant, None)
    _real_fold_file(slices, group, instant, stat)


def _version_by_count(file_slice: FileSlice) -> SliceVersion:
    return SliceVersion(file_slice.base_instant, len(file_slice.log_files))


def _base_files_only(storage: Any, instant: str) -> Iterator[str]:
    return (path for path in marked_files(storage, instant) if path.endswith(".parquet"))


def _no_log_keys(index: SimpleIndex, file_slice: FileSlice, wanted: Any) -> list[Any]:
    return []


_real_planned_slice = compaction._planned_slice
_real_clustered_slice = clustering._planned_slice


def _planned_without_the_last_log(operation: Any, instant: str) -> FileSlice:
    planned = _real_planned_slice(operation, instant)
    return replace(planned, log_files=planned.log_files[:-1])


def _clustered_without_logs(root: str, document: Any, instant: str) -> FileSlice:
    return replace(_real_clustered_slice(root, document, instant), log_files=())


_real_plan_clean = cleaning.plan_clean
_real_execute_clean = cleaning.execute_clean


def _plan_clean_without_compactions(*arguments: Any) -> Any:
    with patch.object(TableState, "groups_under_compaction", lambda state: {}):
        return _real_plan_clean(*arguments)


def _execute_blindly(storage: Any, plan: Any, *_: Any) -> Any:
    return _real_execute_clean(storage, plan, ())


@contextmanager
def logs_in_flight_are_read(world: World) -> Iterator[None]:
    """A reader that lists log files instead of asking the timeline sees those of writes in flight, and of dead ones."""
    real = TableState.latest_slices

    def latest_slices(state: TableState, as_of: str = "", partitions: Any = None) -> list[FileSlice]:
        return [_with_everything_on_disk(world, s) for s in real(state, as_of, partitions)]

    with patch.object(TableState, "latest_slices", latest_slices):
        yield


def _with_everything_on_disk(world: World, file_slice: FileSlice) -> FileSlice:
    start = join_path(file_slice.group.partition_path, f".{file_slice.group.file_id}_{file_slice.base_instant}.log.")
    known = set(file_slice.log_paths)
    found = [path for path in sorted(world.disk._objects) if path.startswith(start) and is_data_file(path) and path not in known]
    more = [LogFile(path.rsplit("/", 1)[-1], len(world.disk._objects[path][0]), "", 1) for path in found]
    return replace(file_slice, log_files=(*file_slice.log_files, *more))


_real_fold_merged = group_state.fold_merged_log


def _fold_merged_behind_all(
    slices: dict[str, FileSlice], group: FileGroupId, instant: str, stat: WriteStat, *slice_and_names: Any
) -> None:
    """The log file of a log compaction stands for those too that were appended behind its plan."""
    _real_fold_merged(slices, group, instant, stat, *slice_and_names)
    for at, found in slices.items():
        ours = tuple(log for log in found.log_files if log.instant == instant)
        others = tuple(log for log in found.log_files if log.instant != instant)
        slices[at] = replace(found, log_files=(*others, *ours))


_real_merged_log = merging_task.merged_log


def _merged_without_deletions(*arguments: Any) -> Any:
    found = _real_merged_log(*arguments)
    return replace(found, deleted=found.deleted.slice(0, 0), purged=found.purged[:0])


_real_tasks = log_compaction._tasks


def _tasks_without_the_last_log(*arguments: Any) -> list[Any]:
    """The last log file of each slice is left out; the merged file counts as if it stood for it."""
    return [replace(task, file_slice=_without_last(task.file_slice)) for task in _real_tasks(*arguments)]


def _without_last(found: FileSlice) -> FileSlice:
    kept = found.log_files[:-1] or found.log_files
    # The name of the merged file is that of the last file of the slice.
    return replace(found, log_files=(*kept[:-1], replace(kept[-1], version=found.log_files[-1].version)))


MERGED_BUGS: dict[str, Callable[[World], Any]] = {
    "a merged log file hides later ones": sabotage((group_state, "fold_merged_log", _fold_merged_behind_all)),
    "a merged log file has no deletions": sabotage((merging_task, "merged_log", _merged_without_deletions)),
    "a log compaction leaves a log file out": sabotage((log_compaction, "_tasks", _tasks_without_the_last_log)),
}
"""Those of log compactions."""

LOG_BUGS: dict[str, Callable[[World], Any]] = {
    "moves behind others without looking at keys": sabotage((write.WriteTransaction, "_check_rows", _key_check_off)),
    "appends to a slice that is being compacted": sabotage((write, "find_conflict", _find_without_compactions)),
    "compaction forgets log files that came after its plan": sabotage((group_state, "fold_file", _fold_forgetting_newer_logs)),
    "compaction leaves a log file out": sabotage((compaction, "_planned_slice", _planned_without_the_last_log)),
    "clustering leaves logs out": sabotage((clustering, "_planned_slice", _clustered_without_logs)),
    "a slice that was compacted looks unchanged": sabotage((FileSlice, "version", property(_version_by_count))),
    "log versions do not count up": sabotage((FileSlice, "next_log_version", property(lambda _: 1))),
    "rollback forgets log files": sabotage(
        (rollback, "marked_files", _base_files_only), (leftovers, "marked_files", _base_files_only)
    ),
    "keys that logs add are not looked for": sabotage((SimpleIndex, "_log_keys", _no_log_keys)),
    "clean takes what a compaction reads": sabotage(
        (clean_run, "plan_clean", _plan_clean_without_compactions), (clean_run, "execute_clean", _execute_blindly)
    ),
    "log files of writes in flight are read": logs_in_flight_are_read,
}
"""Name → the protection that it takes away. They show only in merge-on-read tables."""
