"""The keys that logs took away from base files, found by workers: paths travel to them, keys come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession

from tideline_spark.arrow_rows import spread
from tideline_spark.layout import WriteLayout
from tideline_spark.tagging import KEY, PARTITION, UNIT
from tideline_table.file_group.slice import FileGroupId
from tideline_table.table import Table
from tideline_table.table.live_keys import all_deleted_keys
from tideline_table.table.query import Snapshot

_SCHEMA = pa.schema([(PARTITION, pa.string()), (KEY, pa.string()), (UNIT, pa.string())])
_SPARK_SCHEMA = ", ".join(f"{name} string" for name in _SCHEMA.names)


def deleted_key_table(spark: SparkSession, table: Table, layout: WriteLayout) -> pa.Table | None:
    """Partition path, record key and unit of what the logs of slices that are looked up deleted. One Spark job where there are such logs.

    None where there are none. Raises what reading the slices raises.
    """
    slices = layout.with_deletions
    if not slices:
        return None
    tasks = spread(replace(table.snapshot(), slices=slices), spark.sparkContext.defaultParallelism)
    units = {s.group: layout.unit_of(s) for s in slices}
    found = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(_reader(tasks, units), _SPARK_SCHEMA).toArrow()
    return found.cast(_SCHEMA) if found.num_rows else None


def _reader(
    tasks: list[Snapshot], units: Mapping[FileGroupId, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def keys(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for file_slice in tasks[number].slices:
                    gone = all_deleted_keys(tasks[number], file_slice)
                    fixed = (file_slice.group.partition_path, units[file_slice.group])
                    partition, unit = (pa.repeat(pa.scalar(text), len(gone)) for text in fixed)
                    yield pa.record_batch([partition, gone, unit], schema=_SCHEMA)

    return keys
