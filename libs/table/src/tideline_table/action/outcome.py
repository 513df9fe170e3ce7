"""Checks of the results that the tasks of a plan report, made before the plan is committed (field notes: #9139).

An external executor may lose a result or report it twice without an error. A clustering committed without one of its results loses
rows. A compaction committed without one leaves log files without their file slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from tideline_table.action.receipt import check_proven
from tideline_table.errors import VerificationFailed
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.write_stats import WriteStat


class PlannedTask(Protocol):
    """A task of a plan, identified by the plan's instant and the number of the task in the plan."""

    @property
    def instant(self) -> str:
        """The instant of the plan."""
        ...

    @property
    def number(self) -> int:
        """The number of the task in the plan, from 0."""
        ...


class MergeTask(PlannedTask, Protocol):
    """A task that merges one file slice into one file."""

    @property
    def file_slice(self) -> FileSlice:
        """The slice to merge."""
        ...

    @property
    def path(self) -> str:
        """The planned file, relative to the table."""
        ...


def check_one_each(service: str, tasks: Sequence[PlannedTask], wanted: Sequence[int], found: Sequence[int | str]) -> None:
    """Raise `VerificationFailed` unless `found` contains each of the `wanted` task numbers exactly once, and no other."""
    counts = Counter(found)
    missing = [str(number) for number in wanted if not counts[number]]
    doubled = [str(number) for number, count in counts.items() if count > 1]
    unknown = sorted(str(number) for number in counts.keys() - set(wanted))
    kinds = (("no result of task", missing), ("several results of task", doubled), ("results of no task:", unknown))
    if problems := [f"{kind} {', '.join(which)}" for kind, which in kinds if which]:
        raise VerificationFailed(
            f"{service} {tasks[0].instant if tasks else 'without tasks'}: {'; '.join(problems)}",
            expected=f"one result of each of {len(wanted)} task(s)",
            remedy="nothing was committed; check the logs of its tasks, then run it again",
        )


def failed(service: str, task: PlannedTask, found: str, expected: str) -> VerificationFailed:
    """Return the error for a result that does not fit its task."""
    return VerificationFailed(
        f"{service} {task.instant}: the result of task {task.number} {found}",
        expected=expected,
        remedy="nothing was committed; check the logs of its tasks, then run it again",
    )


def check_merged(service: str, tasks: Sequence[MergeTask], results: Sequence[WriteStat]) -> tuple[WriteStat, ...]:
    """Return the files of a compaction or log compaction in the order of its plan; `results` may be in any order.

    Raises `VerificationFailed` unless each slice has exactly one result: its planned file, with the proof that the file holds the
    merged rows.
    """
    numbers = {task.path: task.number for task in tasks}
    check_one_each(service, tasks, [*numbers.values()], [numbers.get(stat.path, stat.path) for stat in results])
    by_path = {stat.path: stat for stat in results}
    for task in tasks:
        stat, read = by_path[task.path], task.file_slice
        found = (stat.partition_path, stat.file_id, stat.prev_commit, stat.log_files_compacted)
        expected = (*read.group, read.base_instant, len(read.log_files))
        if found != expected:
            raise failed(service, task, f"merged {found}", f"{expected}: partition, file group, base instant, log files")
    check_proven(service, tasks[0].instant if tasks else "", results)
    return tuple(by_path[task.path] for task in tasks)
