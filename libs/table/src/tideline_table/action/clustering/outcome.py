"""Results of clustering tasks, checked against the plan before they are committed."""

from __future__ import annotations

from collections.abc import Sequence

from tideline_table.action.clustering.task import ClusteredGroup, ClusteringTask
from tideline_table.action.outcome import check_one_each, failed
from tideline_table.action.receipt import check_proven
from tideline_table.hudi.write_stats import WriteStat


def check_clustered(tasks: Sequence[ClusteringTask], results: Sequence[ClusteredGroup]) -> tuple[WriteStat, ...]:
    """Return the files of a clustering in the order of its plan; `results` may be in any order.

    Raises `VerificationFailed` unless each task has exactly one result that names only files planned for the task, and these hold
    as many rows as the task read.
    """
    check_one_each("clustering", tasks, [task.number for task in tasks], [result.number for result in results])
    by_number = {result.number: result for result in results}
    stats = tuple(stat for task in tasks for stat in _files_of(task, by_number[task.number]))
    check_proven("clustering", tasks[0].instant if tasks else "", stats)
    return stats


def _files_of(task: ClusteringTask, result: ClusteredGroup) -> Sequence[WriteStat]:
    named = [(stat.partition_path, stat.file_id, stat.path) for stat in result.stats]
    made = [(task.partition_path, *task.output(number)) for number in range(task.output_files)]
    # A range of a split group without rows has no file.
    if not named or named != [file for file in made if file in named]:
        paths = ", ".join(path for *_, path in named)
        raise failed("clustering", task, f"names {paths or 'no file'}", f"files in order of {', '.join(path for *_, path in made)}")
    written = sum(stat.num_writes for stat in result.stats)
    if written != result.rows_read:
        raise failed("clustering", task, f"wrote {written} rows", f"the {result.rows_read} that it read")
    return result.stats
