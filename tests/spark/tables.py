"""Tables and rows that the Spark tests share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import DataFrame, SparkSession

from tideline_table.table import Table, TableRequest, TableType, create_table

SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), ("region", pa.string()), ("ts", pa.int64()), ("amount", pa.float64())]
)

ROUTED = {"tideline.spark.collect.bytes": 0}
"""Sources are joined with the keys of the table, as large ones are."""


class Tables:
    """Makes tables below one folder; `defaults` are options of all of them."""

    def __init__(self, folder: Path, defaults: Mapping[str, object] | None = None) -> None:
        self.folder = folder
        self.defaults = dict(defaults or {})

    def create(
        self,
        name: str,
        *,
        ordering_field: str = "ts",
        partition_fields: tuple[str, ...] = ("region",),
        schema: pa.Schema = SCHEMA,
        key_fields: tuple[str, ...] = ("id",),
        options: Mapping[str, object] | None = None,
        type: TableType = TableType.COW,  # noqa: A002 - as the request has it
        meta_fields: bool = True,
    ) -> Table:
        path = str(self.folder / name)
        request = TableRequest("t", schema, key_fields, partition_fields, ordering_field, type, meta_fields=meta_fields)
        create_table(path, request)
        return Table.open(path, options={**self.defaults, **(options or {})})


def rows(start: int, end: int, ts: int, *, regions: int = 3) -> pa.Table:
    """Rows with the keys `start` to `end` (out), spread over regions."""
    numbers = range(start, end)
    return pa.table(
        {
            "id": [f"k{n:06d}" for n in numbers],
            "region": [f"r {n % regions}" for n in numbers],
            "ts": pa.array([ts] * len(numbers), pa.int64()),
            "amount": pa.array([n + ts / 1000 for n in numbers], pa.float64()),
        }
    )


def counted_source(spark: SparkSession, found: pa.Table, folder: Path) -> tuple[DataFrame, Accumulator[int]]:
    """A source that Spark reads in three tasks, and how many of its rows it has read so far, each time that it evaluates the
    source."""
    seen = spark.sparkContext.accumulator(0)

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    stored = str(folder / "source")
    spark.createDataFrame(found).repartition(3).write.parquet(stored)
    source = spark.read.parquet(stored)
    return source.mapInArrow(counted, source.schema), seen


def content(read: pa.Table) -> list[str]:
    """What a reader sees apart from meta fields, in a fixed order."""
    names = [n for n in read.column_names if not n.startswith("_hoodie")]
    return sorted(map(str, read.select(names).to_pylist()))
