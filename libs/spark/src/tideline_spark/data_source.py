"""The format `tideline`: the engine as a Spark data source for batches and streams. See docs/spark-data-source.md.

For convenience only: Spark gives this source neither column pruning nor its own Parquet scan; `tideline_spark.read.read` is faster.
The load path is the table's base path. Options: `as_of`, `read_optimized`, `since`, `until` as in `read`; `changes` (true) for net
changes with images instead of rows, `op` for some of them (`inserted,deleted`); `where`, a condition that chooses rows and files. A
schema given with `.schema(...)` selects columns.

A loaded DataFrame reads the files of its load, whatever is asked of it and however often. Filters are not pushed down: Spark
keeps the answer to them with the loaded DataFrame and gives it to every later scan of it, with other filters or none.

A stream's offset is a sequence of the table log, the order in which writes complete. Each batch holds the rows (or changes) of
exactly the writes that completed since the batch before, once, whenever those writes began.
"""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import tideline_spark.requirement  # noqa: F401 isort: skip - before PySpark

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from tideline_spark.arrow_rows import spark_batches, spark_schema, spread
from tideline_spark.data_source_write import StreamWriter, WriteOptions, Writer
from tideline_spark.frames import NAME, install
from tideline_spark.job import define_table
from tideline_spark.read import part_rows, query_of
from tideline_spark.session import is_connect, use_this_python
from tideline_table.errors import (
    HistoryRewritten,
    HistoryUnavailable,
    InvalidOption,
    SchemaMismatch,
    TableNotFound,
    UnsupportedTable,
)
from tideline_table.hudi_options import HudiOptions, is_hudi_option, parse_hudi_options
from tideline_table.reader import parse_where
from tideline_table.table import Images, Snapshot, Table, images_schema, newest_write

_OPTIONS = ("path", "as_of", "read_optimized", "since", "until", "changes", "op", "where")
_SEQUENCE = "sequence"
_LEAST_TASKS = 16


def register(spark: SparkSession) -> None:
    """Register the format `tideline` in a session. Its `save` then runs on the driver, see `tideline_spark.frames`.

    In a session of Spark Connect, the Python of the server needs this package, and its writers are those of `data_source_write`.
    """
    if not is_connect(spark):
        use_this_python(spark)
        install()
    spark.dataSource.register(TidelineDataSource)


@dataclass(frozen=True, slots=True)
class _Options:
    path: str
    as_of: str = ""
    read_optimized: bool = False
    since: str = ""
    until: str = ""
    changes: bool = False
    where: str = ""
    op: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> _Options:
        if {"provider", "location"} <= given.keys():
            raise InvalidOption(
                f"CREATE TABLE … USING {NAME}: Spark would read the table without giving this data source its path",
                expected=f"CREATE TEMPORARY VIEW … USING {NAME} OPTIONS (path '…'), or spark.read.format({NAME!r}).load('…')",
            )
        hudi = parse_hudi_options({name: value for name, value in given.items() if is_hudi_option(name)})
        unknown = sorted(name for name in given if name.lower() not in _OPTIONS and not is_hudi_option(name))
        if unknown:
            raise InvalidOption(
                f"option {unknown[0]!r} of format {NAME!r}", expected=f"one of {', '.join(_OPTIONS)}, or one of Hudi's"
            )
        asked = _query_by_hudi(hudi, given)
        if not given.get("path"):
            raise InvalidOption(
                f"format {NAME!r} without a path",
                expected=f"""the base path of a table: .load("/data/trips"), or CREATE TEMPORARY VIEW … USING {NAME} OPTIONS (path '…')""",
            )
        found = cls(
            given["path"],
            asked.get("as_of", given.get("as_of", "")),
            "read_optimized" in asked or _flag(given, "read_optimized"),
            asked.get("since", given.get("since", "")),
            asked.get("until", given.get("until", "")),
            _flag(given, "changes"),
            given.get("where", ""),
            given.get("op", ""),
        )
        if found.op and not found.changes:
            raise InvalidOption("op without changes", expected="op together with changes = true")
        if found.changes and (found.as_of or found.read_optimized or found.where):
            raise InvalidOption("changes together with as_of, read_optimized or where", expected="options of one kind of query")
        return found


def _query_by_hudi(hudi: HudiOptions, given: Mapping[str, str]) -> dict[str, str]:
    """Return the query that options of Hudi name, by this source's options. Raises `InvalidOption` if both name one."""
    asked = hudi.query()
    twice = [name for name in asked if given.get(name)]
    if twice:
        raise InvalidOption(f"option {twice[0]!r} together with Hudi's", expected="one of them")
    hudi.warn()
    return asked


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidOption(f"option {name!r} has the value {text!r}", expected="true or false")
    return text == "true"


@dataclass(frozen=True, slots=True)
class _Query:
    """What a loaded DataFrame reads, fixed when the table was opened. Spark keeps it pickled with the DataFrame."""

    found: Snapshot | Images
    where: pc.Expression | None = None

    @classmethod
    def of(cls, options: _Options) -> _Query:
        table = Table.open(options.path)
        if options.changes:
            return cls(table.changes(options.since, options.until, options.op))
        given = (options.as_of, options.since, options.until)
        found = query_of(table, as_of=given[0], read_optimized=options.read_optimized, since=given[1], until=given[2])
        where = parse_where(options.where, found.schema) if options.where.strip() else None
        return cls(found.only(where), where)

    def schema(self) -> StructType:
        return spark_schema(self.found.output())

    def partitions(self) -> list[ds.InputPartition]:
        return _changed(self.found) if isinstance(self.found, Images) else _spread(self.found)


def _rows(partition: ds.InputPartition, schema: StructType, where: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
    """Read the part of one task in Spark's types: slices of a query, or the changes of one partition of the table."""
    part: Snapshot | Images | None = partition.value
    if part is None:
        # Where a query has no partitions, Spark reads one without a value.
        return iter(())
    if isinstance(part, Images):
        return spark_batches(part.scan(), schema)
    return part_rows(part, schema, where)


class TidelineDataSource(ds.DataSource):
    """The format `tideline`; see this module."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Return all columns with the meta fields first, or `op`, `before` and `after`."""
        try:
            return self._query.schema()
        except (HistoryUnavailable, HistoryRewritten):
            # A stream has its own point in its checkpoint; a batch raises this again when it is read.
            found = Table.open(str(self.options["path"])).snapshot().schema
            return spark_schema(images_schema(found) if _flag(self.options, "changes") else found)

    @cached_property
    def _query(self) -> _Query:
        # Spark pickles this object behind `schema`, once for each load, and makes all readers of the DataFrame from it.
        return _Query.of(_Options.of(self.options))

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        _check_columns(schema, self.schema())
        return _Reader(self._query, schema)

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:  # noqa: FBT001 - PySpark's signature
        """Return the writer of modes append and overwrite. Raises `InvalidOption`, and as `WriteOptions.check_table`."""
        return Writer(_checked(WriteOptions.of(self.options, overwrite=overwrite, is_stream=False), schema))

    def streamWriter(  # noqa: N802 - PySpark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - PySpark's signature
    ) -> ds.DataSourceStreamWriter:
        """Return the writer of a stream in output mode append. Raises `InvalidOption`, and as `WriteOptions.check_table`."""
        return StreamWriter(_checked(WriteOptions.of(self.options, overwrite=overwrite, is_stream=True), schema))

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:  # noqa: N802 - PySpark's name
        options = _Options.of(self.options)
        if options.as_of or options.read_optimized or options.until or options.where:
            raise InvalidOption(
                "as_of, read_optimized, until or where of a stream", expected="since, the point where the stream begins"
            )
        _check_columns(schema, self.schema())
        return _StreamReader(options, schema)


def _checked(options: WriteOptions, rows: StructType) -> WriteOptions:
    """Open the table, or create the one that options of Hudi define. Sessions of Spark Connect write here, others in `frames`."""
    try:
        options.check_table()
    except TableNotFound:
        define_table(options, rows)
        options.check_table()
    return options


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
    # It has no `pushFilters`: Spark 4.3 keeps what a reader plans after one, and later scans of the same DataFrame read that.

    def __init__(self, query: _Query, schema: StructType) -> None:
        self._query = query
        self._schema = schema

    def partitions(self) -> Sequence[ds.InputPartition]:
        return self._query.partitions()

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._schema, self._query.where)


class _StreamReader(ds.DataSourceStreamReader):
    def __init__(self, options: _Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._table: Table | None = None

    def _refreshed(self) -> Table:
        if self._table is None:
            self._table = Table.open(self._options.path)
            if not self._table.capabilities.keeps_log:
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
        first, last = int(start[_SEQUENCE]), int(end[_SEQUENCE])
        if first >= last:
            return []
        table = self._refreshed()
        if self._options.changes:
            return _changed(table.changes(first, last, self._options.op))
        table.check_keyed_rows("a stream")
        return _spread(table.incremental(first, last))

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._schema)


def _spread(snapshot: Snapshot) -> list[ds.InputPartition]:
    return [ds.InputPartition(task) for task in spread(snapshot, _LEAST_TASKS)]


def _changed(images: Images) -> list[ds.InputPartition]:
    return [ds.InputPartition(part) for part in images.by_partition()]
