"""Writes that only one process can do, however many rows they have: the driver collects the rows and writes them."""

from __future__ import annotations

from pyspark.sql import DataFrame

from tideline_spark.choices import refuse_look_ups
from tideline_spark.errors import translated
from tideline_spark.inline import run_inline_on_executors
from tideline_spark.small_source import DriverAndTasks
from tideline_spark.tagging import evolved_by, source_columns
from tideline_table.action import OnConflict, write_rows
from tideline_table.errors import UnsupportedTable
from tideline_table.log import ProgressStep
from tideline_table.table import Table
from tideline_table.writer import Operation, promises_unique_keys


def needs_driver(table: Table, operation: Operation) -> bool:
    """Return whether executors cannot do this write.

    Spark's own expressions do not derive partition paths from times, and executors do not look up all kinds of keys.
    """
    try:
        refuse_look_ups(table, operation, table.options)
    except UnsupportedTable:
        return True
    return not table.definition.keygen.has_plain_paths


def write_collected(
    table: Table,
    df: DataFrame,
    operation: Operation,
    progress: ProgressStep | None = None,
    on_conflict: OnConflict | None = None,
) -> None:
    """Write the rows of `df`, which the driver holds, as one commit. Raises what `write_rows` raises, and `SparkFailed`.

    A table that cannot be written, and columns that do not fit, are found before Spark runs a job.
    """
    table.check_writable(keyed=promises_unique_keys(operation, table.options))
    target = evolved_by(df, table.definition, table.schema_json, operation, table.options)
    source_columns(df, target.schema, table.definition.keygen, operation)
    with translated():
        rows = df.toArrow()
    executor = DriverAndTasks(df.sparkSession, lambda: None)
    write_rows(table, rows, operation, progress=progress, on_conflict=on_conflict, executor=executor)
    run_inline_on_executors(df.sparkSession, table, None)
