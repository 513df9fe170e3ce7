"""Small sources: the driver collects the rows once and writes them, instead of joining them with the keys of the table.

The rows are read, keyed and routed as by `tideline_table.action.write_rows`. Executors do the work that grows with the table,
unless it is little: they look up the source's keys in files, return which of them each file holds, and rewrite base files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np
import pyarrow as pa
from pyspark import Broadcast, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tideline_spark.arrow_rows import spread
from tideline_spark.errors import translated
from tideline_spark.jobs import run_each
from tideline_spark.options import SPARK_COLLECT_BYTES, SPARK_INSERT_PARALLELISM
from tideline_table.action import RoutedWrite, ThisProcess
from tideline_table.config import Options
from tideline_table.file_group import FileGroupId, FileSlice
from tideline_table.index import BucketPlace, Location, PlaceT, SimpleIndex
from tideline_table.table import Snapshot, Table
from tideline_table.writer import FileGroupResult, FileGroupTask, Operation, WriteContext, minds_known_keys, write_file_group

_OPERATIONS = (Operation.UPSERT, Operation.DELETE, Operation.INSERT)
_MOST_THREADS = 8
_UNKNOWN_BYTES = 2**50
"""Estimates from here on mean unknown: Spark reports 8 EiB for sources of unknown size."""
_BOUNDED = frozenset(
    {
        *(
            "LocalRelation",
            "LogicalRelation",
            "LogicalRDD",
            "InMemoryRelation",
            "Range",
            "OneRowRelation",
            "DataSourceV2ScanRelation",
        ),
        *("Project", "Filter", "LocalLimit", "GlobalLimit", "Offset", "Tail", "Sort", "Sample", "Window", "Aggregate", "Distinct"),
        *("Deduplicate", "Union", "Join", "Repartition", "RepartitionByExpression", "RebalancePartitions"),
        *("ArrowEvalPython", "BatchEvalPython"),
    }
)
"""Logical plan nodes that return no more than Spark estimates. Others, such as `explode` or a Python map, may multiply rows."""


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """Limits of the work that the driver does itself, because a Spark job costs more. Spark tasks do the work beyond them."""

    files: int = 64
    keys: int = 2_000_000
    """Keys of the table that are read for a look-up."""
    merged_bytes: int = 64 * 1024 * 1024
    """Base files that are written over. For so many bytes, two threads take about as long as Python workers take to start."""
    message_bytes: int = 64 * 1024 * 1024
    """Rows of one file group that are sent to a task. If a group has more, the driver writes: Spark's messages are bounded."""


LIMITS = DriverLimits()


def estimated_bytes(df: DataFrame) -> int | None:
    """Return Spark's estimate of the bytes of a source, None if it is unknown."""
    estimate = int(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())  # noqa: SLF001 - PySpark does not show it
    return None if estimate >= _UNKNOWN_BYTES else estimate


def goes_through_driver(df: DataFrame, estimate_bytes: int | None, operation: Operation, options: Options) -> bool:
    """Return whether the source of a write is certainly small and the write gains from going through the driver."""
    if operation not in _OPERATIONS or options[SPARK_INSERT_PARALLELISM]:
        return False
    if minds_known_keys(operation, options) and not operation.looks_up_keys:
        return False
    if estimate_bytes is None or estimate_bytes > options[SPARK_COLLECT_BYTES] or not options[SPARK_COLLECT_BYTES]:
        return False
    pending = [df._jdf.queryExecution().optimizedPlan()]  # noqa: SLF001 - PySpark shows plans as text only
    while pending:
        node = pending.pop()
        if str(node.getClass().getSimpleName()) not in _BOUNDED:
            return False
        children = node.children()
        pending += [children.apply(at) for at in range(children.size())]
    return True


def small_rows(df: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the rows that the driver collects, in source order."""
    return df.select(*(f.col(f"`{name}`") for name in columns))


@dataclass(frozen=True, slots=True)
class DriverAndTasks:
    """A `WriteExecutor`: small work in threads of the driver, the rest in Spark jobs. It calls `on_written` after each attempt."""

    spark: SparkSession
    on_written: Callable[[], None]
    limits: DriverLimits = field(default_factory=lambda: LIMITS)

    def locate(
        self,
        table: Table,
        wanted: Mapping[PlaceT, pa.ChunkedArray],
        slices: Mapping[PlaceT, Sequence[FileSlice]],
        *,
        by_filters: bool = False,
    ) -> Mapping[PlaceT, Location]:
        """See `WriteExecutor`. Raises `SparkFailed`."""
        asked = [s for name in wanted for s in slices[name]]
        files = sum(bool(s.base_file) + len(s.log_files) for s in asked)
        # A slice of unknown row count may have any number of rows.
        keys = sum(s.rows if s.rows >= 0 else self.limits.keys + 1 for s in asked if s.base_file)
        if files <= self.limits.files and keys <= self.limits.keys:
            return self._driver.locate(table, wanted, slices, by_filters=by_filters)
        context = self.spark.sparkContext
        tasks = spread(replace(table.snapshot(), slices=tuple(asked)), 2 * context.defaultParallelism)
        shipped = context.broadcast(cast("Mapping[str | BucketPlace, pa.ChunkedArray]", dict(wanted)))
        try:
            with translated():
                found = dict(
                    hit for hits in run_each(context, tasks, partial(_hits, shipped, by_filters=by_filters)) for hit in hits
                )
        finally:
            shipped.destroy()
        return {name: _location(slices[name], found, len(keys)) for name, keys in wanted.items()}

    def write(self, work: RoutedWrite) -> list[FileGroupResult]:
        """See `WriteExecutor`. Raises `SparkFailed`."""
        bases = [t.task.base for t in work.tasks if t.task.base is not None]
        merged_bytes = sum(max(1, s.size_bytes) for s in bases if s.group not in work.appends)
        if len(work.tasks) <= self.limits.files and merged_bytes <= self.limits.merged_bytes:
            results = self._driver.write(work)
        else:
            results = self._by_tasks(work)
        self.on_written()
        return results

    def _by_tasks(self, work: RoutedWrite) -> list[FileGroupResult]:
        items = [(routed.task, work.incoming(routed)) for routed in work.tasks]
        if any(rows.nbytes > self.limits.message_bytes for _, rows in items):
            return self._driver.write(work)
        work.check()
        with translated():
            results = run_each(self.spark.sparkContext, items, partial(_written, work.context))
        for result in results:
            work.written(result)
        return results

    @property
    def _driver(self) -> ThisProcess:
        return ThisProcess(min(_MOST_THREADS, self.spark.sparkContext.defaultParallelism))


def _hits(
    wanted: Broadcast[Mapping[str | BucketPlace, pa.ChunkedArray]], part: Snapshot, *, by_filters: bool
) -> list[tuple[FileGroupId, np.ndarray]]:
    """Return which keys of its place each slice of a task holds, without slices that hold none."""
    index, asked = SimpleIndex(part.storage), wanted.value

    def keys_for(group: FileGroupId) -> pa.ChunkedArray:
        in_partition = asked.get(group.partition_path)
        return asked[BucketPlace.of(group)] if in_partition is None else in_partition

    found = [(s.group, index.locate(keys_for(s.group), [s], by_filters=by_filters)) for s in part.slices]
    return [(group, location.hits[0]) for group, location in found if location.hits]


def _location(slices: Sequence[FileSlice], found: Mapping[FileGroupId, np.ndarray], keys: int) -> Location:
    holding = tuple(s for s in slices if s.group in found)
    return Location(holding, tuple(found[s.group] for s in holding), keys)


def _written(context: WriteContext, item: tuple[FileGroupTask, pa.Table]) -> FileGroupResult:
    task, rows = item
    running = TaskContext.get()
    assert running is not None
    # The attempt number gives a task that Spark retries another file name.
    return write_file_group(context, replace(task, attempt=running.taskAttemptId()), rows)
