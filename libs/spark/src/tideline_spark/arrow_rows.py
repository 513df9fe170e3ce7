"""Rows of the engine for Spark: types as Spark has them, and slices spread over tasks."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tideline_table.table.query import Snapshot

TASK_BYTES = 128 * 1024 * 1024
"""What one task reads at most before further slices become tasks of their own."""


def spark_schema(schema: pa.Schema) -> StructType:
    """The same columns in Spark's types, all nullable: files of earlier schemas lack some."""
    return from_arrow_schema(pa.schema([field.with_nullable(nullable=True) for field in schema]))


def spark_batches(batches: Iterator[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Batches in exactly the Arrow types that Spark reads for `schema`, columns by name."""
    target = to_arrow_schema(schema, timezone="UTC")
    for batch in batches:
        columns = [batch.column(field.name) for field in target]
        fitted = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, target, strict=True)]
        yield pa.RecordBatch.from_arrays(fitted, schema=target)


def spread(snapshot: Snapshot, least_tasks: int) -> list[Snapshot]:
    """The slices in tasks of about equal size: at least `least_tasks` if there are so many slices, each of `TASK_BYTES` or one slice."""
    total = sum(s.total_bytes for s in snapshot.slices)
    tasks = min(len(snapshot.slices), max(least_tasks, -(-total // TASK_BYTES)))
    loads = [(0, number) for number in range(tasks)]
    bins: list[list[int]] = [[] for _ in range(tasks)]
    largest_first = sorted(range(len(snapshot.slices)), key=lambda at: -snapshot.slices[at].total_bytes)
    for at in largest_first:
        size, number = heapq.heappop(loads)
        bins[number].append(at)
        # A slice without bytes (size unknown) weighs something too.
        heapq.heappush(loads, (size + max(1, snapshot.slices[at].total_bytes), number))
    return [replace(snapshot, slices=tuple(snapshot.slices[at] for at in sorted(chosen))) for chosen in bins if chosen]
