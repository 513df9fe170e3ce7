"""From a source to routed rows: native key expressions, a native look-up of existing keys, one exchange to units.

All of it is lazy and runs in the JVM; see `layout` for what a unit is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from tideline_spark.keys import NativeKeys
from tideline_spark.layout import WriteLayout
from tideline_table.config import Options
from tideline_table.errors import SchemaMismatch
from tideline_table.file_group.slice import FileSlice
from tideline_table.index import SimpleIndex
from tideline_table.keygen import KeyGenerator
from tideline_table.schema import META_FIELDS, MetaField, fit_rows
from tideline_table.table.definition import TableDefinition
from tideline_table.table.evolution import TargetSchema, target_schema
from tideline_table.writer import Operation

PARTITION = "_tideline_partition"
"""Partition path by the native expression."""
UNIT = "_tideline_unit"
"""The slice's name, or the bucket's number."""
ORDER = "_tideline_order"
"""Hash of partition path and unit: rows arrive sorted by it."""
POSITION = "_tideline_position"
"""Ascending in the order of the source: decides ties between rows of one key."""
LOCATED = "_tideline_located"
"""Whether the table holds the key."""
KNOWN = "_tideline_known"
"""Whether the table shows the key: a log may have deleted one that it holds."""
KEY = "_tideline_key"
"""Record key by the native expression."""
OWN = "_tideline_own"
"""With a global index, the partition path that the row itself has; `PARTITION` is then that of its unit."""
PURGES = "_tideline_purges"
"""Whether the row deletes its key from the unit, for it moves to its own partition."""
TWICE = "_tideline_twice"
"""Whether another row of the source has the key, where none may."""
_GONE_FROM = "_tideline_gone_from"
_GLOB = re.compile(r"[\\{}\[\]*?]")
"""What Hadoop takes for a pattern. (Spark's own switch for it, `__globPaths__`, reads all paths once more for each that looks like one.)"""


@dataclass(frozen=True, slots=True)
class Routing:
    """What of the source travels, and what for."""

    operation: Operation
    keys: NativeKeys
    columns: tuple[str, ...]
    """Of the source."""
    sort_columns: tuple[str, ...] = ()
    keeps_position: bool = False
    drops_known: bool = False
    """Of the keys that the table shows already no row is written."""
    refuses_known: bool = False
    """Such keys are an error."""
    is_global: bool = False
    """Keys are unique in the table, and the write has to know which it holds."""


@dataclass(frozen=True, slots=True)
class LogKeys:
    """What log files say about keys beside the base files: tables of `PARTITION`, `KEY` and `UNIT`, None for no keys."""

    added: pa.Table | None = None
    """Those that base files may lack."""
    deleted: pa.Table | None = None
    """Those that a log took away from its slice."""


def evolved_by(
    df: DataFrame, definition: TableDefinition, schema_json: str, operation: Operation, options: Options
) -> TargetSchema:
    """What a write of `df` makes of the schema of a table. Raises `SchemaMismatch` for what the options do not allow."""
    # Deletions change nothing, and their other columns do not matter.
    incoming = pa.schema([]) if operation is Operation.DELETE else _arrow_schema(df)
    return target_schema(definition, schema_json, incoming, operation, options)


def source_columns(df: DataFrame, schema: pa.Schema, keygen: KeyGenerator, operation: Operation) -> tuple[str, ...]:
    """The columns of `df` that a write takes. Raises `SchemaMismatch` where types or names do not fit `schema`, whatever the rows hold."""
    if operation is Operation.DELETE:
        needed = {*keygen.key_fields, *keygen.partition_fields}
        return tuple(n for n in df.columns if n in needed)
    fit_rows(pa.Table.from_batches([], schema=_arrow_schema(df)), schema)
    return tuple(n for n in df.columns if n not in META_FIELDS)


def _arrow_schema(df: DataFrame) -> pa.Schema:
    try:
        return to_arrow_schema(df.schema, timezone="UTC")
    except Exception as error:
        raise SchemaMismatch(f"a DataFrame whose types Arrow cannot hold ({error})", expected="types of the table") from error


Tag = Callable[[DataFrame, Routing, Column], DataFrame]


def routed_rows(
    df: DataFrame, routing: Routing, layout: WriteLayout, root: str, log_keys: LogKeys, anywhere: Tag | None = None
) -> DataFrame:
    """The source's rows, repartitioned so that each unit is in one task, sorted by `ORDER`. `root` is the table's base path as a URI.

    `anywhere` tags them where keys are unique in the table.
    """
    keyed = df.select(*(f.col(f"`{n}`") for n in routing.columns))
    extra = {PARTITION: routing.keys.partition_path(), KEY: routing.keys.record_key()}
    if routing.keeps_position or anywhere is not None:
        extra[POSITION] = f.monotonically_increasing_id()
    keyed = keyed.withColumns(extra)
    bucket = f.pmod(f.xxhash64(KEY), f.lit(layout.buckets)).cast("string")
    if anywhere is not None:
        keyed = anywhere(keyed, routing, bucket)
    elif layout.looked_up:
        keyed = _located(keyed, routing, layout, existing_keys(df.sparkSession, root, layout, log_keys.added), log_keys.deleted)
        keyed = keyed.withColumns({LOCATED: f.col(UNIT).isNotNull(), UNIT: f.coalesce(f.col(UNIT), bucket)})
    else:
        keyed = keyed.withColumn(UNIT, bucket)
    if routing.keys.is_plain:
        keyed = keyed.drop(KEY)
    # One long as the sort key: Spark sorts it by radix. Two units of one hash are told apart by the task.
    ordered = keyed.withColumn(ORDER, f.xxhash64(PARTITION, UNIT)).repartition(layout.tasks, PARTITION, UNIT)
    return ordered.sortWithinPartitions(ORDER, *(f"`{n}`" for n in routing.sort_columns))


def _located(keyed: DataFrame, routing: Routing, layout: WriteLayout, existing: DataFrame, deleted: pa.Table | None) -> DataFrame:
    """With `UNIT` where a key is; one that logs deleted is there only if nowhere else."""
    gone = None if deleted is None else f.broadcast(_by_key(keyed.sparkSession, deleted))
    if gone is not None:
        here = f.coalesce(f.array_contains(_GONE_FROM, f.col(UNIT)), f.lit(False))
        existing = existing.join(gone, [PARTITION, KEY], "left").filter(~here).drop(_GONE_FROM)
    if layout.broadcasts_keys:
        existing = f.broadcast(existing)
    else:
        keyed = keyed.repartition(layout.join_tasks, KEY, PARTITION)
        existing = existing.repartition(layout.join_tasks, KEY, PARTITION).hint("shuffle_hash")
    keyed = keyed.join(existing, [PARTITION, KEY], "left")
    if routing.drops_known:
        keyed = keyed.filter(f.col(UNIT).isNull())
    if routing.refuses_known:
        keyed = keyed.withColumn(KNOWN, f.col(UNIT).isNotNull())
    if gone is None:
        return keyed
    # By the same columns as above, so that Spark broadcasts it once.
    keyed = keyed.join(gone, [PARTITION, KEY], "left")
    return keyed.withColumn(UNIT, f.coalesce(UNIT, f.get(_GONE_FROM, f.lit(0)))).drop(_GONE_FROM)


def _by_key(spark: SparkSession, deleted: pa.Table) -> DataFrame:
    return spark.createDataFrame(
        deleted.group_by([PARTITION, KEY]).aggregate([(UNIT, "list")]).rename_columns([PARTITION, KEY, _GONE_FROM])
    )


def log_key_table(layout: WriteLayout, index: SimpleIndex) -> pa.Table | None:
    """Partition path, record key and unit of what log files of the slices that are looked up add to their base files.

    None where `layout` has no such log files.
    """
    pieces = []
    for file_slice in layout.with_log_keys:
        keys = index.log_keys(file_slice)
        partition, unit = file_slice.group.partition_path, layout.unit_of(file_slice)
        columns = [pa.repeat(pa.scalar(partition), len(keys)), keys, pa.repeat(pa.scalar(unit), len(keys))]
        pieces.append(pa.table(columns, names=[PARTITION, KEY, UNIT]))
    return pa.concat_tables(pieces) if pieces else None


def existing_keys(spark: SparkSession, root: str, layout: WriteLayout, log_keys: pa.Table | None = None) -> DataFrame:
    """Partition path, record key and unit of every row in the slices that are looked up, by Spark's own Parquet scan, and `log_keys`.

    A key may come twice; so may then rows of the source, which are told by their position.
    """
    by_bucket: dict[int | None, list[FileSlice]] = {}
    for file_slice in layout.looked_up:
        if file_slice.base_file:
            by_bucket.setdefault(layout.filled_by.get(file_slice.group), []).append(file_slice)
    scans = []
    for bucket in sorted(by_bucket, key=lambda b: -1 if b is None else b):
        rows = scan_files(
            spark,
            root,
            [s.path for s in by_bucket[bucket]],
            f"{MetaField.RECORD_KEY} string, {MetaField.PARTITION_PATH} string",
        )
        unit = f.col("_metadata.file_name") if bucket is None else f.lit(str(bucket))
        scans.append(
            rows.select(f.col(MetaField.PARTITION_PATH).alias(PARTITION), f.col(MetaField.RECORD_KEY).alias(KEY), unit.alias(UNIT))
        )
    if log_keys is not None:
        scans.append(spark.createDataFrame(log_keys))
    return reduce(DataFrame.unionAll, scans)


def scan_files(spark: SparkSession, root: str, paths: Sequence[str], schema: Any) -> DataFrame:
    """Spark's scan of exactly these files below the base path, without partition discovery or a listing job."""
    reader = (
        spark.read.schema(schema)
        # A key that is silently missing would be inserted a second time.
        .option("ignoreMissingFiles", "false")
        .option("ignoreCorruptFiles", "false")
        .option("mergeSchema", "false")
    )
    base = unquote(root)
    return reader.parquet(*(_GLOB.sub(r"\\\g<0>", f"{base}/{path}") for path in paths))
