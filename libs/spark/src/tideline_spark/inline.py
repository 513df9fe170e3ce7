"""Table services behind the commit of a DataFrame write, with their tasks on the executors of its session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tideline_spark.clustering import cluster_on_executors
from tideline_spark.errors import translated
from tideline_spark.jobs import run_each, tagged_jobs
from tideline_table.action import InlineService, compact_slice, run_inline
from tideline_table.table import Table

Result = TypeVar("Result")


def run_inline_on_executors(spark: SparkSession, table: Table, options: Mapping[str, object] | None) -> tuple[InlineService, ...]:
    """Plan, or plan and run, the services that the options ask writers for. A failure does not change the commit before it."""
    return run_inline(
        table,
        options,
        cluster=lambda tasks: _on_executors(spark, lambda context: cluster_on_executors(context, tasks)),
        compact=lambda tasks: _on_executors(spark, lambda context: run_each(context, tasks, compact_slice)),
    )


def _on_executors(spark: SparkSession, work: Callable[[SparkContext], list[Result]]) -> list[Result]:
    with translated(), tagged_jobs(spark):
        return work(spark.sparkContext)
