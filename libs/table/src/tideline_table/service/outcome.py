"""What the tasks of a plan say that they did, checked against the plan before it is committed (field notes: #9139).

Whoever runs tasks elsewhere may lose one, or hear of one twice, without an error. A clustering that commits without one of its results takes
rows away, a compaction leaves log files without the slice that they belong to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tideline_table.errors import VerificationFailed
from tideline_table.service.clustering import ClusteredGroup, ClusteringTask
from tideline_table.service.compaction import CompactionTask
from tideline_table.timeline.write_stats import WriteStat


def check_clustered(tasks: Sequence[ClusteringTask], results: Sequence[ClusteredGroup]) -> tuple[WriteStat, ...]:
    """The files of a clustering, in the order of its plan; `results` may come in any order.

    Raises `VerificationFailed` unless each task has exactly one result, names the files that the task makes and no others, and they hold as
    many rows as the task read.
    """
    _check_one_each("clustering", tasks, [task.number for task in tasks], [result.number for result in results])
    by_number = {result.number: result for result in results}
    return tuple(stat for task in tasks for stat in _files_of(task, by_number[task.number]))


def _files_of(task: ClusteringTask, result: ClusteredGroup) -> Sequence[WriteStat]:
    named = [(stat.partition_path, stat.file_id, stat.path) for stat in result.stats]
    made = [(task.partition_path, *task.output(number)) for number in range(task.output_files)]
    if not named or named != made[: len(named)]:
        paths = ", ".join(path for *_, path in named)
        raise _failed("clustering", task, f"names {paths or 'no file'}", f"the first of {', '.join(path for *_, path in made)}")
    written = sum(stat.num_writes for stat in result.stats)
    if written != result.rows_read:
        raise _failed("clustering", task, f"wrote {written} rows", f"the {result.rows_read} that it read")
    return result.stats


def check_compacted(tasks: Sequence[CompactionTask], results: Sequence[WriteStat]) -> tuple[WriteStat, ...]:
    """The files of a compaction, in the order of its plan; `results` may come in any order.

    Raises `VerificationFailed` unless each operation has exactly one result: the base file that it makes, of the slice that it reads.
    """
    numbers = {task.path: task.number for task in tasks}
    _check_one_each("compaction", tasks, [*numbers.values()], [numbers.get(stat.path, stat.path) for stat in results])
    by_path = {stat.path: stat for stat in results}
    for task in tasks:
        stat, read = by_path[task.path], task.file_slice
        found = (stat.partition_path, stat.file_id, stat.prev_commit, stat.log_files_compacted)
        expected = (*read.group, read.base_instant, len(read.log_files))
        if found != expected:
            raise _failed("compaction", task, f"merged {found}", f"{expected}: partition, file group, base instant, log files")
    return tuple(by_path[task.path] for task in tasks)


def _check_one_each(
    service: str, tasks: Sequence[ClusteringTask] | Sequence[CompactionTask], wanted: Sequence[int], found: Sequence[int | str]
) -> None:
    counts = Counter(found)
    missing = [str(number) for number in wanted if not counts[number]]
    doubled = [str(number) for number, count in counts.items() if count > 1]
    unknown = sorted(str(number) for number in counts.keys() - set(wanted))
    kinds = (("no result of task", missing), ("several results of task", doubled), ("results of no task:", unknown))
    if problems := [f"{kind} {', '.join(which)}" for kind, which in kinds if which]:
        raise VerificationFailed(
            f"{service} {tasks[0].instant if tasks else 'without tasks'}: {'; '.join(problems)}",
            expected=f"one result of each of its {len(tasks)} task(s)",
            remedy="nothing was committed; look at what ran its tasks, then run it again",
        )


def _failed(service: str, task: ClusteringTask | CompactionTask, found: str, expected: str) -> VerificationFailed:
    return VerificationFailed(
        f"{service} {task.instant}: the result of task {task.number} {found}",
        expected=expected,
        remedy="nothing was committed; look at what ran its tasks, then run it again",
    )
