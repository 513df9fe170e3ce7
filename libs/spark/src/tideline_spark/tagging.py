"""Route the rows of a source: native key expressions, a native look-up of existing keys, one exchange to units.

All of it is lazy and runs in the JVM. `layout` defines what a unit is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tideline_spark.buckets import bucket_number
from tideline_spark.hadoop_s3 import scan_options
from tideline_spark.keys import NativeKeys, source_column
from tideline_spark.layout import WriteLayout
from tideline_spark.rings import with_nodes
from tideline_table.action import TargetSchema, target_schema
from tideline_table.config import Options
from tideline_table.errors import SchemaMismatch
from tideline_table.file_group import FileSlice
from tideline_table.index import SimpleIndex
from tideline_table.keygen import KeyGenerator
from tideline_table.reader import ORC
from tideline_table.schema import META_FIELDS, MetaField, fit_rows
from tideline_table.table import TableDefinition
from tideline_table.writer import Operation

PARTITION = "_tideline_partition"
"""Partition path, computed by the native expression."""
UNIT = "_tideline_unit"
"""Name of the file slice, or number of the bucket."""
ORDER = "_tideline_order"
"""Hash of partition path and unit; rows arrive sorted by it."""
POSITION = "_tideline_position"
"""Position in the source, ascending; decides ties between rows of one key."""
LOCATED = "_tideline_located"
"""Whether the table holds the key."""
KNOWN = "_tideline_known"
"""Whether the table shows the key; a log file may have deleted a key that the table holds."""
KEY = "_tideline_key"
"""Record key, computed by the native expression."""
OWN = "_tideline_own"
"""With a global index: partition path of the row itself, while `PARTITION` is that of its unit."""
PURGES = "_tideline_purges"
"""Whether the row deletes its key from the unit, because it moves to its own partition."""
TWICE = "_tideline_twice"
"""Whether another row of the source has the same key, where the write does not combine rows."""
_GONE_FROM = "_tideline_gone_from"
_GLOB = re.compile(r"[\\{}\[\]*?]")
"""Characters of Hadoop's path patterns. Spark's switch `__globPaths__` would read all paths again for each that has one."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The columns of the source that are sent to tasks, and how the write treats their keys."""

    operation: Operation
    keys: NativeKeys
    columns: tuple[str, ...]
    """Columns of the source."""
    sort_columns: tuple[str, ...] = ()
    keeps_position: bool = False
    drops_known: bool = False
    """Whether rows whose key the table shows are dropped."""
    refuses_known: bool = False
    """Whether such keys are an error."""
    is_global: bool = False
    """Whether keys are unique in the table and the write must know which keys the table holds."""


@dataclass(frozen=True, slots=True)
class LogKeys:
    """Keys from log files, as tables of `PARTITION`, `KEY` and `UNIT`; None for no keys."""

    added: pa.Table | None = None
    """Keys that base files may lack."""
    deleted: pa.Table | None = None
    """Keys that a log file deleted from its slice."""


def evolved_by(
    df: DataFrame, definition: TableDefinition, schema_json: str, operation: Operation, options: Options
) -> TargetSchema:
    """Return the schema that a write of `df` gives the table. Raises `SchemaMismatch` for a change that the options forbid."""
    # A delete reads keys only and leaves the schema unchanged.
    incoming = pa.schema([]) if operation is Operation.DELETE else arrow_schema(df.schema)
    return target_schema(definition, schema_json, incoming, operation, options)


def source_columns(df: DataFrame, schema: pa.Schema, keygen: KeyGenerator, operation: Operation) -> tuple[str, ...]:
    """Return the columns of `df` that a write uses. Raises `SchemaMismatch` if types or names do not fit `schema`. Reads no row."""
    if operation is Operation.DELETE:
        named = (*keygen.key_fields, *keygen.partition_fields)
        needed = {*named, *(name.partition(".")[0] for name in named if name not in df.columns)}
        return tuple(n for n in df.columns if n in needed)
    fit_rows(pa.Table.from_batches([], schema=arrow_schema(df.schema)), schema)
    return tuple(n for n in df.columns if n not in META_FIELDS)


def arrow_schema(rows: StructType) -> pa.Schema:
    """Return the types of `rows` as Arrow has them. Raises `SchemaMismatch` for a type that it lacks."""
    try:
        return to_arrow_schema(rows, timezone="UTC")
    except Exception as error:
        raise SchemaMismatch(f"a DataFrame whose types Arrow cannot hold ({error})", expected="types of the table") from error


Tag = Callable[[DataFrame, Routing, Column], DataFrame]


def routed_rows(
    df: DataFrame, routing: Routing, layout: WriteLayout, root: str, log_keys: LogKeys, anywhere: Tag | None = None
) -> DataFrame:
    """Return the source's rows with each unit in one task, sorted by `ORDER`. `root` is the table's base path as a URI.

    `anywhere` tags the rows if keys are unique in the table.
    """
    keyed = df.select(*(f.col(f"`{n}`") for n in routing.columns))
    extra = {PARTITION: routing.keys.partition_path(), KEY: routing.keys.record_key()}
    if routing.keeps_position or anywhere is not None:
        extra[POSITION] = f.monotonically_increasing_id()
    keyed = keyed.withColumns(extra)
    if layout.rings is not None:
        keyed = with_nodes(keyed, KEY, PARTITION, UNIT, layout.rings.index, layout.rings.resized)
        own = f.col(UNIT)
    elif layout.index is not None:
        own = bucket_number(f.col(KEY), layout.index, f.col(PARTITION))
    else:
        own = f.pmod(f.xxhash64(KEY), f.lit(layout.buckets))
    bucket = own.cast("string")
    if anywhere is not None:
        keyed = anywhere(keyed, routing, bucket)
    elif layout.looked_up:
        keyed = _located(keyed, routing, layout, existing_keys(df.sparkSession, root, layout, log_keys.added), log_keys.deleted)
        keyed = keyed.withColumns({LOCATED: f.col(UNIT).isNotNull(), UNIT: f.coalesce(f.col(UNIT), bucket)})
    else:
        keyed = keyed.withColumn(UNIT, bucket)
    if routing.keys.is_plain:
        keyed = keyed.drop(KEY)
    # Spark radix-sorts a single long. The task separates units that share a hash.
    ordered = keyed.withColumn(ORDER, f.xxhash64(PARTITION, UNIT)).repartition(layout.tasks, PARTITION, UNIT)
    return ordered.sortWithinPartitions(ORDER, *(source_column(routing.keys.source, n) for n in routing.sort_columns))


def _located(keyed: DataFrame, routing: Routing, layout: WriteLayout, existing: DataFrame, deleted: pa.Table | None) -> DataFrame:
    """Add `UNIT`: the slice that holds the key. A slice whose log files deleted the key counts only if no other slice holds it."""
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
    # Join by the same columns as above, so that Spark broadcasts `gone` once.
    keyed = keyed.join(gone, [PARTITION, KEY], "left")
    return keyed.withColumn(UNIT, f.coalesce(UNIT, f.get(_GONE_FROM, f.lit(0)))).drop(_GONE_FROM)


def _by_key(spark: SparkSession, deleted: pa.Table) -> DataFrame:
    return spark.createDataFrame(
        deleted.group_by([PARTITION, KEY]).aggregate([(UNIT, "list")]).rename_columns([PARTITION, KEY, _GONE_FROM])
    )


def log_key_table(layout: WriteLayout, index: SimpleIndex) -> pa.Table | None:
    """Return partition path, record key and unit of the keys that log files of looked-up slices add; None if there are none."""
    pieces = []
    for file_slice in layout.with_log_keys:
        keys = index.log_keys(file_slice)
        partition, unit = file_slice.group.partition_path, layout.unit_of(file_slice)
        columns = [pa.repeat(pa.scalar(partition), len(keys)), keys, pa.repeat(pa.scalar(unit), len(keys))]
        pieces.append(pa.table(columns, names=[PARTITION, KEY, UNIT]))
    return pa.concat_tables(pieces) if pieces else None


def existing_keys(spark: SparkSession, root: str, layout: WriteLayout, log_keys: pa.Table | None = None) -> DataFrame:
    """Return partition path, record key and unit of every row in the looked-up slices, by Spark's Parquet scan, and of `log_keys`.

    A key may appear twice. The join then repeats rows of the source, which their position identifies.
    """
    schema = f"{MetaField.RECORD_KEY} string, {MetaField.PARTITION_PATH} string"
    columns = (f.col(MetaField.PARTITION_PATH).alias(PARTITION), f.col(MetaField.RECORD_KEY).alias(KEY))
    scans = [
        scan_files(spark, root, paths, schema).select(*columns, unit.alias(UNIT))
        for paths, unit in paths_by_unit(layout, layout.looked_up)
    ]
    if log_keys is not None:
        scans.append(spark.createDataFrame(log_keys))
    return reduce(DataFrame.unionAll, scans)


def paths_by_unit(layout: WriteLayout, slices: Sequence[FileSlice]) -> Iterator[tuple[list[str], Column]]:
    """Yield the base files of `slices` that one scan reads, and the unit of its rows.

    Each bucket alone, all other slices together.
    """
    by_bucket: dict[int | None, list[str]] = {}
    for file_slice in slices:
        if file_slice.base_file:
            by_bucket.setdefault(layout.filled_by.get(file_slice.group), []).append(file_slice.path)
    for bucket in sorted(by_bucket, key=lambda b: -1 if b is None else b):
        yield by_bucket[bucket], f.col("_metadata.file_name") if bucket is None else f.lit(str(bucket))


def scan_files(spark: SparkSession, root: str, paths: Sequence[str], schema: Any) -> DataFrame:
    """Return Spark's scan of exactly these files below the base path, without partition discovery.

    Raises `ObjectStoreScanUnavailable` if the table is in an object store that the session cannot read.
    """
    reader = (
        spark.read.schema(schema)
        # A key that a scan misses silently would be inserted a second time.
        .option("ignoreMissingFiles", "false")
        .option("ignoreCorruptFiles", "false")
        .option("mergeSchema", "false")
        # Compare pages with the checksums that they have: a damaged page is an error, not other rows.
        .option("parquet.page.verify-checksum.enabled", "true")
        .options(**scan_options(spark, root))
    )
    # Names in object stores are not quoted.
    base = unquote(root) if root.startswith("file:") else root
    named = [_GLOB.sub(r"\\\g<0>", f"{base}/{path}") for path in paths]
    return reader.orc(named) if paths and paths[0].endswith(ORC) else reader.parquet(*named)
