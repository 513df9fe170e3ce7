"""Rows of the engine for Spark: conversion to Spark's types, and slices spread over tasks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tideline_table.table import Snapshot

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
    spark: SparkSession, parts: Sequence[Snapshot], work: Callable[[Snapshot], Iterator[pa.RecordBatch]], schema: StructType | str
) -> DataFrame:
    """Return the rows that `work` yields for each part, each part in a task of a worker."""

    def rows(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from work(parts[number])

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(rows, schema)


def spread(snapshot: Snapshot, least_tasks: int) -> list[Snapshot]:
    """Spread the slices over tasks of about equal size: one per `TASK_BYTES`, at least `least_tasks`, at most one per slice."""
    total = sum(s.total_bytes for s in snapshot.slices)
    tasks = min(len(snapshot.slices), max(least_tasks, -(-total // TASK_BYTES)))
    loads = [(0, number) for number in range(tasks)]
    bins: list[list[int]] = [[] for _ in range(tasks)]
    largest_first = sorted(range(len(snapshot.slices)), key=lambda at: -snapshot.slices[at].total_bytes)
    for at in largest_first:
        size, number = heapq.heappop(loads)
        bins[number].append(at)
        # A slice of unknown size counts as one byte.
        heapq.heappush(loads, (size + max(1, snapshot.slices[at].total_bytes), number))
    return [replace(snapshot, slices=tuple(snapshot.slices[at] for at in sorted(chosen))) for chosen in bins if chosen]
