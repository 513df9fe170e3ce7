"""Table services behind the commit of a DataFrame write, with their tasks on the executors of its session."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from tideline_spark.errors import translated
from tideline_spark.jobs import run_each, tagged_jobs
from tideline_table.action import InlineService, cluster_group, compact_slice, run_inline
from tideline_table.table import Table


def run_inline_on_executors(spark: SparkSession, table: Table, options: Mapping[str, object] | None) -> tuple[InlineService, ...]:
    """Plan, or plan and run, the services that the options ask writers for. The commit before it stands whatever happens."""
    context = spark.sparkContext

    def on_executors(tasks, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - two kinds of tasks, one body
        with translated(), tagged_jobs(spark):
            return run_each(context, tasks, work)

    return run_inline(
        table,
        options,
        cluster=lambda tasks: on_executors(tasks, cluster_group),
        compact=lambda tasks: on_executors(tasks, compact_slice),
    )
