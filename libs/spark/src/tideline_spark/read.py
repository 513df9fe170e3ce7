"""Read a table as a DataFrame: Spark's own Parquet scan over the exact base files of a snapshot, and workers that read log files.

Of slices with log files, `merged_scan` leaves the base rows to Spark. Python workers read slices that need the engine as a
whole: they receive paths and return Arrow rows. All other rows stay in the JVM.
"""

from __future__ import annotations

import tideline_spark.requirement  # noqa: F401 isort: skip - before PySpark

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tideline_spark.arrow_rows import map_snapshots, spark_batches, spark_schema, spread
from tideline_spark.merged_scan import BroadcastLimits, divided, scan_merged
from tideline_spark.options import SPARK_SCAN_BASE_BYTES
from tideline_spark.planning import known_files, planning_settings
from tideline_spark.pruning import implied
from tideline_spark.session import use_this_python
from tideline_spark.tagging import scan_files
from tideline_spark.unpushed import scanned_columns
from tideline_table.errors import InvalidOption
from tideline_table.file_group import FileSlice
from tideline_table.hudi import CREATE_SCHEMA, Point
from tideline_table.reader import BaseFileScan, LogIndexes, may_hold_nulls
from tideline_table.schema import MetaField, arrow_from_avro, field_path, top_columns
from tideline_table.table import CommitTimes, Snapshot, Table, sorted_keys

_FOOTERS_AT_ONCE = 16


def read(
    spark: SparkSession,
    table: Table | str,
    *,
    as_of: Point = "",
    columns: Sequence[str] | None = None,
    where: Column | str | None = None,
    read_optimized: bool = False,
    since: Point = "",
    until: Point = "",
    keys: Iterable[str] | None = None,
) -> DataFrame:
    """Return a query as a DataFrame: all columns with the meta fields first, unless `columns` names them.

    `columns` may name fields of structs by dotted paths. `where` selects rows, by any columns of the table: a condition of
    Spark, as a column or as SQL text.

    The query is a snapshot, now or at a point in time `as_of` (inclusive: an instant, date or time, UTC without a zone, or a
    sequence), with `read_optimized` of base files only; or the rows written after the point `since` up to `until` (also
    sequences of the table log), as `Table.incremental`. With `keys`, a snapshot query returns only rows with these record keys
    and reads only what can hold them, as `Table.look_up`. The files are fixed when this returns; the cleaner may delete them
    once they are older than its retention. An open table is refreshed first. Raises what `Table.open`, `Table.snapshot` and
    `Table.incremental` raise, `InvalidOption` for `keys` of other queries, and `SchemaMismatch` for unknown columns.
    """
    use_this_python(spark)
    if isinstance(table, str):
        table = Table.open(table)
    else:
        table.refresh()
    if keys is not None and not (since == until == ""):  # also where the increment begins with the table, so that it is a snapshot
        raise _keys_of_an_increment()
    found = query_of(table, as_of=as_of, read_optimized=read_optimized, since=since, until=until)
    return rows_of(spark, table, found, columns, where, keys)


def rows_of(
    spark: SparkSession,
    table: Table,
    found: Snapshot,
    columns: Sequence[str] | None = None,
    where: Column | str | None = None,
    keys: Iterable[str] | None = None,
) -> DataFrame:
    """Return the rows of a snapshot of `table`; arguments and errors as `read`."""
    if where is None and (columns is None or set(columns) <= set(found.schema.names)):
        return _rows(spark, table, found, columns, keys)
    output = found.output(columns).names
    conditioned: list[str] = []
    if where is not None:
        condition = _analysed(spark, spark_schema(found.output()), where)
        conditioned = _columns_of(condition)
        found = found.only(implied(condition))
    rows = _rows(spark, table, found, top_columns(found.schema, [*output, *conditioned]), keys)
    chosen = rows if where is None else rows.where(where)
    return chosen.select(*(f.col(".".join(f"`{part}`" for part in field_path(found.schema, name))).alias(name) for name in output))


def _analysed(spark: SparkSession, schema: StructType, where: Column | str) -> Any:
    """Return a condition on rows of `schema` as Spark's expression. Raises Spark's `AnalysisException` for a wrong condition."""
    plan: Any = spark.createDataFrame([], schema).where(where)._jdf.queryExecution().analyzed()  # noqa: SLF001 - the plan has no other access
    return plan.condition()


def _columns_of(condition: Any) -> list[str]:
    references = condition.references().toSeq()
    return [references.apply(at).name() for at in range(references.length())]


def _rows(
    spark: SparkSession, table: Table, found: Snapshot, columns: Sequence[str] | None, keys: Iterable[str] | None
) -> DataFrame:
    schema = spark_schema(found.output(columns))
    wanted = None if keys is None else sorted_keys(keys)
    if wanted is not None:
        if found.commit_times is not None:
            raise _keys_of_an_increment()
        found = table.narrowed(found, wanted) if len(wanted) else replace(found, slices=())
    filled = found.rule.path_columns
    by_value = (filled is not None and not filled.only_fill) or found.rule.versions is not None
    by_value |= wanted is not None and found.rule.keygen is not None  # the engine derives the keys of rows without meta fields
    by_engine = {s for s in found.slices if by_value or not s.base_file}
    by_engine |= older_types(table, found, schema.names) | lost_values(found, schema.names)
    with_logs = [s for s in found.slices if s.log_files and s not in by_engine]
    halved: set[FileSlice] = set()
    if with_logs and wanted is None:
        halved = divided(replace(found, slices=tuple(with_logs)), schema, BroadcastLimits.in_session(table.options, spark))
    if sum(s.size_bytes for s in halved) < table.options[SPARK_SCAN_BASE_BYTES]:
        halved = set()
    by_engine |= set(with_logs) - halved
    plain = tuple(s for s in found.slices if s not in by_engine and s not in halved)
    frames = []
    if plain:
        frames.append(_scanned(spark, replace(found, slices=plain), schema, wanted))
    if halved:
        frames.append(scan_merged(spark, replace(found, slices=tuple(s for s in found.slices if s in halved)), schema))
    if by_engine:
        frames.append(_merged(spark, replace(found, slices=tuple(s for s in found.slices if s in by_engine)), schema, wanted))
    if not frames:
        return spark.createDataFrame([], schema)
    return functools.reduce(DataFrame.unionAll, frames)


def older_types(table: Table, snapshot: Snapshot, columns: Sequence[str]) -> set[FileSlice]:
    """Return the slices whose base files hold one of `columns` in an older type than the table's.

    Spark's scan refuses some of these types, and widens others differently from Apache Hudi. Footers are read only if the type of a
    column changed, according to the schemas of the table's creation and of all commits.
    """
    created = table.definition.properties.get(CREATE_SCHEMA, "")
    earlier = [arrow_from_avro(text) for text in {created, *table.state.schemas.values()} if text]
    types = {(field.name, field.type) for schema in earlier for field in schema}
    changed = {f.name for f in snapshot.schema if f.name in columns and any(n == f.name and kind != f.type for n, kind in types)}
    if table.capabilities.has_hudi_files:
        # Apache Hudi labelled these types wrongly, also where no schema of a commit says so.
        changed |= {f.name for f in snapshot.schema if f.name in columns and _may_be_relabelled(f.type)}
    if not changed:
        return set()
    return _with_footers(
        snapshot, lambda s: not changed.isdisjoint(BaseFileScan(snapshot.storage, s.path, snapshot.schema).evolved)
    )


def _may_be_relabelled(kind: pa.DataType) -> bool:
    """Return whether stored values of a column of type `kind` may have another label (`schema.promotion.is_relabelled`)."""
    if pa.types.is_timestamp(kind):
        return kind.unit == "ms" or kind.tz is None
    return any(_may_be_relabelled(kind.field(at).type) for at in range(kind.num_fields))


def lost_values(snapshot: Snapshot, columns: Sequence[str]) -> set[FileSlice]:
    """Return slices whose base files may lack values that their paths hold; reads footers of Hudi-written tables with logs only."""
    filled = snapshot.rule.path_columns
    if filled is None or not filled.only_fill or set(columns).isdisjoint(filled.fields):
        return set()

    def has_lost(file_slice: FileSlice) -> bool:
        known = filled.values(file_slice.group.partition_path, snapshot.schema)
        wanted = known.keys() & set(columns)
        return bool(wanted) and may_hold_nulls(snapshot.storage, file_slice.path, wanted)

    return _with_footers(snapshot, has_lost)


def _with_footers(snapshot: Snapshot, fits: Callable[[FileSlice], bool]) -> set[FileSlice]:
    """Return the slices with a base file for which `fits`, which reads a footer, is true."""
    based = [s for s in snapshot.slices if s.base_file]
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        return {s for s, is_wanted in zip(based, pool.map(fits, based), strict=True) if is_wanted}


def _keys_of_an_increment() -> InvalidOption:
    return InvalidOption("keys of an incremental query", expected="a snapshot query")


def query_of(table: Table, *, as_of: Point = "", read_optimized: bool = False, since: Point = "", until: Point = "") -> Snapshot:
    """Return the files that the arguments of a read select. Raises `InvalidOption` for arguments of two kinds of queries."""
    if not (table.point_of(since) or table.point_of(until)):
        return table.snapshot(as_of, read_optimized=read_optimized)
    if table.instant_of(as_of) or read_optimized:
        raise InvalidOption(
            f"{'read_optimized' if read_optimized else 'as_of'} together with since or until",
            expected="options of one kind of query",
        )
    table.check_keyed_rows("an incremental query on Spark")
    return table.incremental(since, until)


def _scanned(spark: SparkSession, snapshot: Snapshot, schema: StructType, keys: pa.Array | None) -> DataFrame:
    root, paths = snapshot.storage.root, [s.path for s in snapshot.slices]
    condition, column = _condition(snapshot.commit_times, keys)
    with planning_settings(spark, known_files(root)):
        if condition is None:
            return scan_files(spark, root, paths, schema).select(*scanned_columns(schema))
        scanned = schema if column in schema.names else StructType(list(schema)).add(column, "string")
        rows = scan_files(spark, root, paths, scanned).where(condition)
        return rows.select(*scanned_columns(schema))


def _condition(times: CommitTimes | None, keys: pa.Array | None) -> tuple[Column | None, str]:
    """Return the filter that selects a query's rows in base files (None: all rows), and the column that it reads."""
    if keys is not None:
        return f.col(MetaField.RECORD_KEY).isin(keys.to_pylist()), MetaField.RECORD_KEY
    if times is None:
        return None, ""
    commit_time = f.col(MetaField.COMMIT_TIME)
    named = commit_time.isin(sorted(times.instants))
    if times.between is None:
        return named, MetaField.COMMIT_TIME
    low, high = times.between
    return named | ((commit_time > low) & (commit_time < high)), MetaField.COMMIT_TIME


def _merged(spark: SparkSession, snapshot: Snapshot, schema: StructType, keys: pa.Array | None) -> DataFrame:
    tasks = spread(snapshot, 2 * spark.sparkContext.defaultParallelism)
    return map_snapshots(spark, tasks, functools.partial(part_rows, schema=schema, keys=keys), schema)


def part_rows(
    part: Snapshot, schema: StructType, where: pc.Expression | None = None, keys: pa.Array | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a part of a snapshot in Spark's types, in a worker.

    Only rows of `keys` if given, without files that `where` excludes.
    """
    found = part if keys is None else with_indexes(part)
    return spark_batches(found.scan(list(schema.names), where, keys), schema)


def with_indexes(part: Snapshot) -> Snapshot:
    """Return `part` with the key indexes of log files, for a look-up of record keys; Apache Hudi's log files have none."""
    return part if part.rule.visible is not None else replace(part, log_indexes=LogIndexes(part.storage))
