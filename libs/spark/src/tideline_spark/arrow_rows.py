"""Rows of the engine for Spark: conversion to Spark's types, and slices spread over tasks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tideline_table.table import Snapshot

Part = TypeVar("Part")
TASK_BYTES = 128 * 1024 * 1024
"""Size of a task from which on further slices become separate tasks."""


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the same columns in Spark's types, all nullable, because files of earlier schemas lack some."""
    return from_arrow_schema(pa.schema([field.with_nullable(nullable=True) for field in schema]))


def spark_batches(batches: Iterator[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield batches in exactly the Arrow types that Spark reads for `schema`, with columns matched by name."""
    target = to_arrow_schema(schema, timezone="UTC")
    for batch in batches:
        columns = [batch.column(field.name) for field in target]
        fitted = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, target, strict=True)]
        yield pa.RecordBatch.from_arrays(fitted, schema=target)


def map_snapshots(
    spark: SparkSession, parts: Sequence[Part], work: Callable[[Part], Iterator[pa.RecordBatch]], schema: StructType | str
) -> DataFrame:
    """Return the rows that `work` yields for each part (a snapshot, or what a task needs of several), each in its own task."""

    def rows(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from work(parts[number])

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(rows, schema)


def spread(snapshot: Snapshot, least_tasks: int) -> list[Snapshot]:
    """Spread the slices over tasks of about equal size: one per `TASK_BYTES`, at least `least_tasks`, at most one per slice."""
    bins = spread_sizes([s.total_bytes for s in snapshot.slices], least_tasks)
    return [replace(snapshot, slices=tuple(snapshot.slices[at] for at in chosen)) for chosen in bins]


def spread_sizes(sizes_bytes: Sequence[int], least_tasks: int) -> list[list[int]]:
    """Return the numbers of the units of each task, as `spread` distributes slices of these sizes."""
    tasks = min(len(sizes_bytes), max(least_tasks, -(-sum(sizes_bytes) // TASK_BYTES)))
    loads = [(0, number) for number in range(tasks)]
    bins: list[list[int]] = [[] for _ in range(tasks)]
    for at in sorted(range(len(sizes_bytes)), key=lambda at: -sizes_bytes[at]):
        size, number = heapq.heappop(loads)
        bins[number].append(at)
        # A unit of unknown size counts as one byte.
        heapq.heappush(loads, (size + max(1, sizes_bytes[at]), number))
    return [sorted(chosen) for chosen in bins if chosen]
