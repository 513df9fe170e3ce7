"""Table services behind the commit of a DataFrame write, with their tasks on the executors of its session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from tideline_spark.clustering import cluster_on_executors
from tideline_spark.errors import translated
from tideline_spark.jobs import run_each, tagged_jobs
from tideline_table.action import InlineService, Rewrite, run_inline
from tideline_table.table import Table


def run_inline_on_executors(spark: SparkSession, table: Table, options: Mapping[str, object] | None) -> tuple[InlineService, ...]:
    """Plan, or plan and run, the services that the options ask writers for. A failure does not change the commit before it."""

    def on_executors(service: Rewrite, tasks: Sequence[Any]) -> list[Any]:
        with translated(), tagged_jobs(spark):
            if service.splits_tasks:
                return cluster_on_executors(spark.sparkContext, tasks)
            return run_each(spark.sparkContext, tasks, service.work)

    return run_inline(table, options, run=on_executors)
