"""Table services behind the commit of a DataFrame write, with their tasks on the executors of its session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pyspark.sql import SparkSession

from tideline_spark.errors import translated
from tideline_spark.jobs import run_each, tagged_jobs
from tideline_table.action import InlineService, cluster_group, compact_slice, run_inline
from tideline_table.table import Table

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_inline_on_executors(spark: SparkSession, table: Table, options: Mapping[str, object] | None) -> tuple[InlineService, ...]:
    """Plan, or plan and run, the services that the options ask writers for. A failure does not change the commit before it."""
    return run_inline(
        table,
        options,
        cluster=lambda tasks: _on_executors(spark, tasks, cluster_group),
        compact=lambda tasks: _on_executors(spark, tasks, compact_slice),
    )


def _on_executors(spark: SparkSession, tasks: Sequence[Task], work: Callable[[Task], Result]) -> list[Result]:
    with translated(), tagged_jobs(spark):
        return run_each(spark.sparkContext, tasks, work)
