"""`spark.read.format("tideline")` and `spark.readStream.format("tideline")`: the engine as a Spark data source in Python.

Convenience: Spark hands this source neither column pruning nor its own Parquet scan; `tideline_spark.read.read` is the fast way. The load
path is the table's base path. Options: `as_of`, `read_optimized`, `since`, `until` as in `read`; `changes` (true) for net changes with images
instead of rows. A schema given with `.schema(...)` chooses columns. A filter that names record keys (`_hoodie_record_key = …`, `in (…)`) makes a
snapshot query of them read only what can hold them.

A stream's offset is a sequence of the table log, the order in which writes complete: each batch holds the rows (or changes) of exactly the
writes that completed since the last one, once, whenever they began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from tideline_spark.arrow_rows import spark_batches, spark_schema, spread
from tideline_spark.read import query_of, with_indexes
from tideline_table.errors import InvalidOption, SchemaMismatch, UnsupportedTable
from tideline_table.schema import MetaField
from tideline_table.table import Table
from tideline_table.table.changes import newest_write, sequence_of
from tideline_table.table.images import Images, images_schema
from tideline_table.table.query import Snapshot, sorted_keys

NAME = "tideline"
_OPTIONS = ("path", "as_of", "read_optimized", "since", "until", "changes")
_SEQUENCE = "sequence"
_LEAST_TASKS = 16


def register(spark: SparkSession) -> None:
    """Make the format `tideline` known to a session, and let the session hand filters to data sources written in Python."""
    # Off by default, and with a source that could take filters Spark refuses to plan at all while it is off.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
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
        unknown = sorted(name for name in given if name.lower() not in _OPTIONS)
        if unknown:
            raise InvalidOption(f"option {unknown[0]!r} of format {NAME!r}", expected=f"one of {', '.join(_OPTIONS)}")
        if not given.get("path"):
            raise InvalidOption(f"format {NAME!r} without a path", expected='the base path of a table: .load("/data/trips")')
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
    """What one task reads, in Spark's types: slices of a query, or the changes of one table partition."""
    part: Snapshot | Images = partition.value
    if isinstance(part, Images):
        return spark_batches(part.scan(), schema)
    found = part if keys is None else with_indexes(part)
    return spark_batches(found.scan(list(schema.names), where, keys), schema)


class TidelineDataSource(ds.DataSource):
    """The format `tideline`; see this module."""

    @classmethod
    def name(cls) -> str:
        """See `DataSource.name`."""
        return NAME

    def schema(self) -> StructType:
        """All columns with the meta fields first, or `op`, `before` and `after`."""
        options = _Options.of(self.options)
        full = Table.open(options.path).snapshot(options.as_of).schema
        return spark_schema(images_schema(full) if options.changes else full)

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """See `DataSource.reader`."""
        options = _Options.of(self.options)
        _check_columns(schema, self.schema())
        return _Reader(options, schema)

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:  # noqa: N802 - PySpark's name
        """See `DataSource.streamReader`."""
        options = _Options.of(self.options)
        if options.as_of or options.read_optimized or options.until:
            raise InvalidOption("as_of, read_optimized or until of a stream", expected="since, where to begin")
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
        """Take what skips files, log blocks and row groups; Spark evaluates all filters again, by its own rules."""
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
            # Look-ups are of snapshots, and by the meta field.
            self._keys = None
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
                    f"a stream of table {self._table.definition.name!r}, which others write",
                    expected="a table with a log of Tideline's own",
                    remedy="read it by since and until",
                )
        else:
            self._table.refresh()
        return self._table

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        """The point `since`; the beginning of the table without it."""
        state = self._refreshed().state
        return {_SEQUENCE: sequence_of(state, self._options.since) if self._options.since else 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: ARG002, N802 - PySpark's name
        """The newest completed write; `start` while there is none after it, whatever else the log recorded."""
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
    """The only record keys that can pass `filters`, None where they name none."""
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
    """The filter for the scan, None for one that is left to Spark."""
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
        return None  # NaN, decimals and times compare by rules of their own
    if isinstance(found, ds.EqualTo):
        return column == value
    if isinstance(found, ds.GreaterThan):
        return column > value
    if isinstance(found, ds.GreaterThanOrEqual):
        return column >= value
    if isinstance(found, ds.LessThan):
        return column < value
    if isinstance(found, ds.LessThanOrEqual):
        return column <= value
    return None
