"""`df.write.format("tideline").save(path)`: one write for DataFrames of any size, by the options and save modes of Apache Hudi.

What is wrong with the options, the mode, the table or the columns is raised before Spark runs a job. `tideline_spark.frames` brings
PySpark's own `save` here.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tideline_locks import attach_lock, open_hudi_lock
from tideline_spark.collected import needs_driver, write_collected
from tideline_spark.data_source_write import DELETIONS, WriteOptions
from tideline_spark.errors import translated
from tideline_spark.sink import WriteBatch, sink
from tideline_spark.tagging import arrow_schema
from tideline_spark.write import write_dataframe
from tideline_table.action import create_metadata, delete_partitions
from tideline_table.config import COMBINE_BEFORE_INSERT, COMBINE_BEFORE_UPSERT, METADATA_ENABLE, SCHEMA_EVOLUTION, Options
from tideline_table.errors import InvalidOption, TableExists, TableNotFound
from tideline_table.hudi_options import HudiOptions, check_agrees, is_hudi_option, parse_hudi_options, table_request
from tideline_table.schema import storable_schema, top_columns
from tideline_table.table import RecordIndex, Table, create_table, default_name
from tideline_table.writer import Operation, promises_unique_keys

_LOGGER = logging.getLogger(__name__)
OWN_NAMES = ("path", "operation", "locks")
_OVERWRITES = (Operation.INSERT_OVERWRITE_TABLE, Operation.INSERT_OVERWRITE)


class SaveMode(enum.StrEnum):
    """Spark's save modes."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    IGNORE = "ignore"
    ERROR = "errorifexists"


@dataclass(frozen=True, slots=True)
class SaveJob:
    """What a `save` asks for. `named` is the operation by Tideline's own option, None for Hudi's or the default of the mode."""

    path: str
    mode: SaveMode
    named: Operation | None
    options: HudiOptions
    partition_by: tuple[str, ...] = ()
    locks: str | None = None

    @classmethod
    def of(cls, path: str, mode: SaveMode, given: Mapping[str, str], partition_by: tuple[str, ...] = ()) -> SaveJob:
        """Check the options of Spark's writer. Raises `InvalidOption` for unknown ones, and for two operations."""
        if "query_id" in given:
            raise InvalidOption("query_id of a batch write", expected="query_id for writeStream only")
        unknown = sorted(name for name in given if name not in OWN_NAMES and not is_hudi_option(name))
        if unknown:
            expected = f"one of {', '.join(OWN_NAMES)}, or an option of Hudi or the engine (hoodie.…, tideline.…)"
            raise InvalidOption(f"option {unknown[0]!r} of a write in format 'tideline'", expected=expected)
        if not path:
            raise InvalidOption("format 'tideline' without a path", expected='the base path of a table: .save("/data/trips")')
        options = parse_hudi_options({name: value for name, value in given.items() if is_hudi_option(name)})
        Options(options.write_options())
        named = options.operation_named(given["operation"]) if "operation" in given else None
        return cls(path, mode, named, options, partition_by, given.get("locks"))

    @property
    def operation(self) -> Operation:
        """The operation that writes the rows. Raises `InvalidOption` for one that the mode excludes.

        Mode overwrite replaces the whole table, whatever operation of Hudi it names, as Hudi's does.
        """
        asked = self.options.operation if self.named is None else self.named
        if asked in DELETIONS and self.mode is not SaveMode.APPEND:
            raise self._excluded(asked, "mode append: rows are deleted from a table that exists")
        if self.mode is not SaveMode.OVERWRITE:
            if self.named in _OVERWRITES:
                raise self._excluded(asked, "mode overwrite, or hoodie.datasource.write.operation")
            return asked
        if self.named is None:
            return Operation.INSERT_OVERWRITE_TABLE
        if self.named not in _OVERWRITES:
            raise self._excluded(asked, f"{' or '.join(_OVERWRITES)}, or no operation")
        return self.named

    def operation_on(self, table: Table | None) -> Operation:
        """Return the operation that writes the rows into `table` (None: a new one). Raises `InvalidOption` as `operation`.

        As with Hudi, a job that names none adds the rows to a table without record keys.
        """
        has_keys = "key" in self.options.table if table is None else bool(table.definition.keygen.key_fields)
        is_named = self.named is not None or "operation" in self.options.write
        return self.operation if has_keys or is_named or self.operation is not Operation.UPSERT else Operation.BULK_INSERT

    def _excluded(self, operation: Operation, expected: str) -> InvalidOption:
        return InvalidOption(f"operation {operation.value!r} in mode {self.mode}", expected=expected)

    def write_options(self) -> dict[str, str]:
        """Return the engine's options of the write: those given, and Hudi's defaults for a job that was written for it."""
        given = self.options.write_options()
        chosen: dict[str, str] = {}
        if self.options.is_hudi_job:
            chosen[SCHEMA_EVOLUTION.key] = "evolve"
        if self.mode is SaveMode.OVERWRITE and self.named is None and self.options.operation is Operation.UPSERT:
            # Hudi writes such rows into an empty table, by an upsert.
            combines = Options(given)[COMBINE_BEFORE_UPSERT]
            given[COMBINE_BEFORE_INSERT.key] = str(combines).lower()
        return {**chosen, **given}


def save(df: DataFrame, job: SaveJob) -> None:
    """Write `df` as one commit, or nothing in mode ignore if the table exists. A missing table is created first.

    Raises, before Spark runs a job: `InvalidOption`, `TableExists` (mode errorifexists), `TableNotFound` (nothing defines the
    table, or rows are to be deleted), `SchemaMismatch`; otherwise what `write_dataframe` raises.
    """
    table = _existing(job)
    operation = job.operation_on(table)
    if table is not None and job.mode is SaveMode.IGNORE:
        _warn_of_ignored(job)
        return
    if table is not None and job.mode is SaveMode.ERROR:
        raise TableExists(
            f"a table at {job.path!r}",
            expected="an empty place: errorifexists is Spark's default mode",
            remedy='name another mode: .mode("append")',
        )
    try:
        table = _ready(job, table, df.schema, operation)
    except TableExists:
        if job.mode is not SaveMode.IGNORE:
            raise
        _warn_of_ignored(job)
        return
    attach_lock(table, job.locks)
    if operation is Operation.DELETE_PARTITION:
        _delete_partitions(table, df, job)
    elif needs_driver(table, operation):
        write_collected(table, df, operation)
    else:
        write_dataframe(table, df, operation)


def _warn_of_ignored(job: SaveJob) -> None:
    _LOGGER.warning("the table at %r exists, and mode ignore writes nothing", job.path)


def stream_sink(df: DataFrame, given: Mapping[str, str], partition_by: tuple[str, ...] = ()) -> WriteBatch:
    """Return what writes each micro-batch of `df`, of any size, once. A missing table that Hudi's options define is created.

    `partition_by`: as of `SaveJob`.

    Raises, before the stream begins, what `WriteOptions.of` and `save` raise.
    """
    asked = WriteOptions.of(given, overwrite=False, is_stream=True)
    named = asked.operation if given.get("operation") else None
    job = SaveJob(asked.path, SaveMode.APPEND, named, asked.hudi, partition_by, asked.locks)
    found = _existing(job)
    operation = job.operation_on(found)
    table = _ready(job, found, df.schema, operation)
    table.check_writable(keyed=promises_unique_keys(operation, table.options))
    return sink(asked.path, query_id=asked.query_id, operation=operation, options=job.write_options(), locks=asked.locks)


def define_table(asked: WriteOptions, rows: StructType) -> None:
    """Create the table of a writer that has no DataFrame, as `save` does. Raises what `save` raises for a missing table."""
    _created(SaveJob(asked.path, SaveMode.APPEND, asked.operation, asked.hudi, (), asked.locks), rows, asked.operation)


def _ready(job: SaveJob, found: Table | None, rows: StructType, operation: Operation) -> Table:
    """Return the table, created if it is missing and otherwise compared with what the options name."""
    job.options.warn()
    if found is None:
        return _created(job, rows, operation)
    differs = check_agrees(job.options, found.definition, job.partition_by)
    if differs:
        _LOGGER.warning("the table at %r stays as it is: %s", job.path, ", ".join(differs))
    return found


def _existing(job: SaveJob) -> Table | None:
    try:
        return Table.open(job.path, options=job.write_options(), hudi_lock=open_hudi_lock)
    except TableNotFound:
        return None


def _created(job: SaveJob, rows: StructType, operation: Operation) -> Table:
    if operation in DELETIONS or not job.options.is_hudi_job:
        raise TableNotFound(
            f"no table at {job.path!r}",
            expected=f"a table for {operation}",
            remedy="create it with tideline.create, or define it by hoodie.table.name and hoodie.datasource.write.recordkey.field",
        )
    schema = storable_schema(arrow_schema(rows))
    needs_key = promises_unique_keys(operation, Options(job.write_options()))
    request = table_request(job.options, default_name(job.path), schema, job.partition_by, needs_key=needs_key)
    try:
        create_table(job.path, request)
    except TableExists:
        # Another job created it since this one looked.
        found = _existing(job)
        if found is None or job.mode not in (SaveMode.APPEND, SaveMode.OVERWRITE):
            raise
        return _ready(job, found, rows, operation)
    table = Table.open(job.path, options=job.write_options(), hudi_lock=open_hudi_lock)
    if isinstance(request.index, RecordIndex):
        create_metadata(table, ("record_index",))
    elif table.options[METADATA_ENABLE]:
        create_metadata(table)
    return table


def _delete_partitions(table: Table, df: DataFrame, job: SaveJob) -> None:
    """Delete the partitions that the options name, or those of the rows. As with Hudi, those that are not there are left out."""
    patterns = job.options.partitions or _partitions_of(table, df)
    known = table.state.partition_paths()
    chosen = {name for name in known if any(fnmatchcase(name, _literal(pattern)) for pattern in patterns)}
    if chosen:
        delete_partitions(table, sorted(chosen))
    else:
        _LOGGER.warning("table %r has none of the partitions %s: nothing is deleted", table.definition.name, ", ".join(patterns))


def _literal(pattern: str) -> str:
    # Only `*` has a meaning in Hudi's patterns.
    return pattern.replace("[", "[[]").replace("?", "[?]")


def _partitions_of(table: Table, df: DataFrame) -> tuple[str, ...]:
    keygen = table.definition.keygen
    keygen.check_columns(pa.schema([*arrow_schema(df.schema), *(f for f in table.schema if f.name not in df.columns)]))
    columns = top_columns(table.schema, keygen.partition_fields)
    with translated():
        rows = df.select(*(f.col(f"`{name}`") for name in columns)).distinct().toArrow()
    return tuple(str(path) for path in keygen.partition_paths(rows).unique().to_pylist())
