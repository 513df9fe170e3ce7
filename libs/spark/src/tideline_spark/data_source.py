"""The format `tideline`: the engine as a Spark data source in Python, for batches and streams. docs/spark-data-source.md describes it.

For convenience only: Spark gives this source neither column pruning nor its own Parquet scan; `tideline_spark.read.read` is faster.
The load path is the table's base path. Options: `as_of`, `read_optimized`, `since`, `until` as in `read`; `changes` (true) for net
changes with images instead of rows. A schema given with `.schema(...)` selects columns. A snapshot query with a filter on record
keys (`_hoodie_record_key = …`, `in (…)`) reads only files that can hold them.

A stream's offset is a sequence of the table log, the order in which writes complete. Each batch holds the rows (or changes) of
exactly the writes that completed since the batch before, once, whenever those writes began.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from tideline_spark.arrow_rows import spark_batches, spark_schema, spread
from tideline_spark.data_source_write import StreamWriter, WriteOptions, Writer
from tideline_spark.read import part_rows, query_of
from tideline_spark.session import use_this_python
from tideline_table.errors import InvalidOption, SchemaMismatch, UnsupportedTable
from tideline_table.schema import MetaField
from tideline_table.table import Images, Snapshot, Table, images_schema, newest_write, sorted_keys

NAME = "tideline"
_OPTIONS = ("path", "as_of", "read_optimized", "since", "until", "changes")
_SEQUENCE = "sequence"
_LEAST_TASKS = 16
_COMPARISONS: dict[type[ds.Filter], Callable[[Any, Any], Any]] = {
    ds.EqualTo: operator.eq,
    ds.GreaterThan: operator.gt,
    ds.GreaterThanOrEqual: operator.ge,
    ds.LessThan: operator.lt,
    ds.LessThanOrEqual: operator.le,
}


def register(spark: SparkSession) -> None:
    """Register the format `tideline` in a session, and let the session push filters down to Python data sources."""
    # The setting is off by default; while it is off, Spark refuses to plan a source that accepts filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    use_this_python(spark)
    spark.dataSource.register(TidelineDataSource)


@dataclass(frozen=True, slots=True)
class _Options:
    path: str
    as_of: str = ""
    read_optimized: bool = False
    since: str = ""
    until: str = ""
    changes: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> _Options:
        if {"provider", "location"} <= given.keys():
            raise InvalidOption(
                f"CREATE TABLE … USING {NAME}: Spark would read the table without giving this data source its path",
                expected=f"CREATE TEMPORARY VIEW … USING {NAME} OPTIONS (path '…'), or spark.read.format({NAME!r}).load('…')",
            )
        unknown = sorted(name for name in given if name.lower() not in _OPTIONS)
        if unknown:
            raise InvalidOption(f"option {unknown[0]!r} of format {NAME!r}", expected=f"one of {', '.join(_OPTIONS)}")
        if not given.get("path"):
            raise InvalidOption(
                f"format {NAME!r} without a path",
                expected=f"""the base path of a table: .load("/data/trips"), or CREATE TEMPORARY VIEW … USING {NAME} OPTIONS (path '…')""",
            )
        found = cls(
            given["path"],
            given.get("as_of", ""),
            _flag(given, "read_optimized"),
            given.get("since", ""),
            given.get("until", ""),
            _flag(given, "changes"),
        )
        if found.changes and (found.as_of or found.read_optimized):
            raise InvalidOption("changes together with as_of or read_optimized", expected="options of one kind of query")
        return found


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidOption(f"option {name!r} has the value {text!r}", expected="true or false")
    return text == "true"


def _rows(
    partition: ds.InputPartition, schema: StructType, where: pc.Expression | None = None, keys: pa.Array | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the part of one task in Spark's types: slices of a query, or the changes of one partition of the table."""
    part: Snapshot | Images | None = partition.value
    if part is None:
        # Where a query has no partitions, Spark reads one without a value.
        return iter(())
    if isinstance(part, Images):
        return spark_batches(part.scan(), schema)
    return part_rows(part, schema, where, keys)


class TidelineDataSource(ds.DataSource):
    """The format `tideline`; see this module."""

    @classmethod
    def name(cls) -> str:
        """See `DataSource.name`."""
        return NAME

    def schema(self) -> StructType:
        """Return all columns with the meta fields first, or `op`, `before` and `after`."""
        options = _Options.of(self.options)
        full = Table.open(options.path).snapshot(options.as_of).schema
        return spark_schema(images_schema(full) if options.changes else full)

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """See `DataSource.reader`."""
        options = _Options.of(self.options)
        _check_columns(schema, self.schema())
        return _Reader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:  # noqa: ARG002, FBT001 - PySpark's signature
        """Return the writer of modes append and overwrite. Raises `InvalidOption`."""
        return Writer(WriteOptions.of(self.options, overwrite=overwrite, is_stream=False))

    def streamWriter(  # noqa: N802 - PySpark's name
        self,
        schema: StructType,  # noqa: ARG002 - PySpark's signature
        overwrite: bool,  # noqa: FBT001 - PySpark's signature
    ) -> ds.DataSourceStreamWriter:
        """Return the writer of a stream in output mode append. Raises `InvalidOption`."""
        return StreamWriter(WriteOptions.of(self.options, overwrite=overwrite, is_stream=True))

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:  # noqa: N802 - PySpark's name
        """See `DataSource.streamReader`."""
        options = _Options.of(self.options)
        if options.as_of or options.read_optimized or options.until:
            raise InvalidOption("as_of, read_optimized or until of a stream", expected="since, the point where the stream begins")
        _check_columns(schema, self.schema())
        return _StreamReader(options, schema)


def _check_columns(chosen: StructType, known: StructType) -> None:
    types = {field.name: field.dataType for field in known}
    for field in chosen:
        if field.name not in types:
            raise SchemaMismatch(f"column {field.name!r} is not in the table", expected=f"one of {', '.join(types)}")
        if field.dataType != types[field.name]:
            raise SchemaMismatch(
                f"column {field.name!r} as {field.dataType.simpleString()}", expected=types[field.name].simpleString()
            )


class _Reader(ds.DataSourceReader):
    def __init__(self, options: _Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._where: pc.Expression | None = None
        self._keys: pa.Array | None = None

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:  # noqa: N802 - PySpark's name
        """Use filters to skip files, log blocks and row groups; return all of them, for Spark to evaluate by its own rules."""
        if not self._options.changes:
            self._keys = _record_keys(filters)
            kept = [found for found in map(_expression, filters) if found is not None]
            for expression in kept:
                self._where = expression if self._where is None else self._where & expression
        return filters

    def partitions(self) -> Sequence[ds.InputPartition]:
        """See `DataSourceReader.partitions`."""
        table, chosen = Table.open(self._options.path), self._options
        if chosen.changes:
            return _changed(table.changes(chosen.since, chosen.until))
        found = query_of(table, as_of=chosen.as_of, read_optimized=chosen.read_optimized, since=chosen.since, until=chosen.until)
        if found.commit_times is not None or not table.definition.has_meta_fields:
            # A look-up by key needs a snapshot query and the meta field of the record key.
            self._keys = None
        found = found.only(self._where)
        if self._keys is not None:
            found = table.narrowed(found, self._keys) if len(self._keys) else replace(found, slices=())
        return _spread(found)

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """See `DataSourceReader.read`."""
        return _rows(partition, self._schema, self._where, self._keys)


class _StreamReader(ds.DataSourceStreamReader):
    def __init__(self, options: _Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._table: Table | None = None

    def _refreshed(self) -> Table:
        if self._table is None:
            self._table = Table.open(self._options.path)
            if not self._table.has_log:
                raise UnsupportedTable(
                    f"a stream of table {self._table.definition.name!r}, which only Apache Hudi writes",
                    expected="a table with a table log",
                    remedy="read it with since and until",
                )
        else:
            self._table.refresh()
        return self._table

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        """Return the point `since`, or the beginning of the table without it."""
        table = self._refreshed()
        return {_SEQUENCE: table.sequence_of(self._options.since) if self._options.since else 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: ARG002, N802 - PySpark's name
        """Return the newest completed write, or `start` if no write completed after it; other log entries do not count."""
        return {_SEQUENCE: max(start[_SEQUENCE], newest_write(self._refreshed().state))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ds.InputPartition]:
        """See `DataSourceStreamReader.partitions`."""
        first, last = int(start[_SEQUENCE]), int(end[_SEQUENCE])
        if first >= last:
            return []
        table = self._refreshed()
        if self._options.changes:
            return _changed(table.changes(first, last))
        return _spread(table.incremental(first, last))

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """See `DataSourceStreamReader.read`."""
        return _rows(partition, self._schema)


def _spread(snapshot: Snapshot) -> list[ds.InputPartition]:
    return [ds.InputPartition(task) for task in spread(snapshot, _LEAST_TASKS)]


def _changed(images: Images) -> list[ds.InputPartition]:
    return [ds.InputPartition(part) for part in images.by_partition()]


def _record_keys(filters: Iterable[ds.Filter]) -> pa.Array | None:
    """Return the only record keys that can pass `filters`, or None if no filter names record keys."""
    named: list[set[str]] = []
    for found in filters:
        if getattr(found, "attribute", ()) != (MetaField.RECORD_KEY.value,):
            continue
        if isinstance(found, ds.EqualTo) and isinstance(found.value, str):
            named.append({found.value})
        elif isinstance(found, ds.In) and all(isinstance(value, str) for value in found.value):
            named.append({str(value) for value in found.value})
    return sorted_keys(set.intersection(*named)) if named else None


def _expression(found: ds.Filter) -> pc.Expression | None:
    """Return the filter for the scan, or None if only Spark evaluates it."""
    path: ds.ColumnPath = getattr(found, "attribute", ())
    if len(path) != 1:
        return None
    column = pc.field(path[0])
    if isinstance(found, ds.IsNotNull):
        return column.is_valid()
    if isinstance(found, ds.IsNull):
        return column.is_null()
    if isinstance(found, ds.In):
        values = [v for v in found.value if isinstance(v, str | int) and not isinstance(v, bool)]
        return column.isin(values) if values and len(values) == len(found.value) else None
    value = getattr(found, "value", None)
    if not isinstance(value, str | int) or isinstance(value, bool):
        return None  # the engine and Spark may compare NaN, decimals and times differently
    compare = _COMPARISONS.get(type(found))
    return compare(column, value) if compare is not None else None
