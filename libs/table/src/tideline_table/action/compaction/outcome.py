"""Results of compaction tasks, checked against the plan before they are committed."""

from __future__ import annotations

from collections.abc import Sequence

from tideline_table.action.compaction.plan import CompactionTask
from tideline_table.action.outcome import check_one_each, failed
from tideline_table.action.receipt import check_proven
from tideline_table.hudi.write_stats import WriteStat


def check_compacted(tasks: Sequence[CompactionTask], results: Sequence[WriteStat]) -> tuple[WriteStat, ...]:
    """Return the files of a compaction in the order of its plan; `results` may be in any order.

    Raises `VerificationFailed` unless each operation has exactly one result: its planned base file, of the slice that it reads,
    with the proof that the file holds the merged rows.
    """
    numbers = {task.path: task.number for task in tasks}
    check_one_each("compaction", tasks, [*numbers.values()], [numbers.get(stat.path, stat.path) for stat in results])
    by_path = {stat.path: stat for stat in results}
    for task in tasks:
        stat, read = by_path[task.path], task.file_slice
        found = (stat.partition_path, stat.file_id, stat.prev_commit, stat.log_files_compacted)
        expected = (*read.group, read.base_instant, len(read.log_files))
        if found != expected:
            raise failed("compaction", task, f"merged {found}", f"{expected}: partition, file group, base instant, log files")
    check_proven("compaction", tasks[0].instant if tasks else "", results)
    return tuple(by_path[task.path] for task in tasks)
