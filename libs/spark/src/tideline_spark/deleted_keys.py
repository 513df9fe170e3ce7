"""Find the keys that log files deleted from base files: workers receive paths and return keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession

from tideline_spark.arrow_rows import map_snapshots, spread
from tideline_spark.layout import WriteLayout
from tideline_spark.tagging import KEY, PARTITION, UNIT
from tideline_table.action import all_deleted_keys
from tideline_table.table import Snapshot, Table

_SCHEMA = pa.schema([(PARTITION, pa.string()), (KEY, pa.string()), (UNIT, pa.string())])
_SPARK_SCHEMA = ", ".join(f"{name} string" for name in _SCHEMA.names)


def deleted_key_table(spark: SparkSession, table: Table, layout: WriteLayout) -> pa.Table | None:
    """Return partition path, record key and unit of the keys that log files of looked-up slices deleted; None if there are none.

    Runs one Spark job if such log files exist. Raises what reading the slices raises.
    """
    slices = layout.with_deletions
    if not slices:
        return None
    tasks = spread(replace(table.snapshot(), slices=slices), spark.sparkContext.defaultParallelism)
    units = {s.group: layout.unit_of(s) for s in slices}

    def deleted(part: Snapshot) -> Iterator[pa.RecordBatch]:
        for file_slice in part.slices:
            keys = all_deleted_keys(part, file_slice)
            place = (file_slice.group.partition_path, units[file_slice.group])
            partition, unit = (pa.repeat(pa.scalar(text), len(keys)) for text in place)
            yield pa.record_batch([partition, keys, unit], schema=_SCHEMA)

    found = map_snapshots(spark, tasks, deleted, _SPARK_SCHEMA).toArrow()
    return found.cast(_SCHEMA) if found.num_rows else None
