"""Clustering tasks whose Python worker dies while it writes an output file; Spark's workers import this module."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from pyspark import TaskContext

from tideline_table.action import ClusteringTask


@dataclass(frozen=True, slots=True)
class DyingTask(ClusteringTask):
    """A group of which the writer of its second file dies in its first attempts."""

    dies_below: int = 0

    def output(self, number: int) -> tuple[str, str]:
        """End the process without a word, as the kernel does with one that takes too much memory."""
        context = TaskContext.get()
        if number == 1 and context is not None and context.attemptNumber() < self.dies_below:
            os._exit(137)
        return super(DyingTask, self).output(number)


def dying(task: ClusteringTask, dies_below: int) -> DyingTask:
    """Return the task as one that dies in so many attempts."""
    return DyingTask(**{f.name: getattr(task, f.name) for f in fields(task)}, dies_below=dies_below)
