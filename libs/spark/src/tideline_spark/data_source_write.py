"""`df.write.format("tideline")` and `df.writeStream.format("tideline")`.

Tasks stage their rows beside the table, one process commits them.

Spark gives a data source in Python no shuffle, so keys cannot be looked up on executors: each task stores its rows as an Arrow
file, and the process that commits reads them all and writes them as `write_rows` does. So one write has at most
`tideline.spark.collect.bytes` of staged rows; `tideline_spark.write.write_dataframe` and `tideline_spark.sink` have no such
bound.
"""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
from pyspark.sql import datasource as ds

from tideline_locks import attach_lock, open_hudi_lock
from tideline_spark.options import SPARK_COLLECT_BYTES
from tideline_spark.sink import BatchMark, progress_key, write_once
from tideline_table.action import write_rows
from tideline_table.config import Options
from tideline_table.errors import InvalidOption, TidelineError
from tideline_table.hudi_options import HudiOptions, check_agrees, is_hudi_option, parse_hudi_options
from tideline_table.log import ProgressStep
from tideline_table.storage import STAGING, open_storage
from tideline_table.table import Table
from tideline_table.writer import Operation, promises_unique_keys

_LOGGER = logging.getLogger(__name__)
DELETIONS = (Operation.DELETE, Operation.DELETE_PARTITION)
_APPENDS = (Operation.UPSERT, Operation.INSERT, Operation.BULK_INSERT, Operation.DELETE)
_OVERWRITES = (Operation.INSERT_OVERWRITE_TABLE, Operation.INSERT_OVERWRITE)
_NAMES = ("path", "operation", "locks", "query_id")
_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of streams that Spark itself reads and passes on to the writer, in lower case."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write: table, operation, locks, engine options, and the name of a streaming query."""

    path: str
    operation: Operation
    locks: str | None = None
    query_id: str = ""
    engine: Mapping[str, str] | None = None
    hudi: HudiOptions = field(default_factory=HudiOptions)

    @classmethod
    def of(cls, given: Mapping[str, str], *, overwrite: bool, is_stream: bool) -> WriteOptions:
        """Check the options of Spark's writer.

        Raises `InvalidOption` for unknown ones, and for an operation that the mode excludes.
        """
        hudi = parse_hudi_options({name: value for name, value in given.items() if is_hudi_option(name)})
        engine = hudi.write_options()
        of_spark = _OF_SPARK if is_stream else ()
        unknown = sorted(n for n in given if n not in _NAMES and n.lower() not in of_spark and not is_hudi_option(n))
        if unknown:
            expected = f"one of {', '.join(_NAMES)}, or an engine option (hoodie.…, tideline.…)"
            raise InvalidOption(f"option {unknown[0]!r} of a write in format 'tideline'", expected=expected)
        Options(engine)
        if not given.get("path"):
            raise InvalidOption("format 'tideline' without a path", expected='the base path of a table: .save("/data/trips")')
        allowed = _OVERWRITES if overwrite else _APPENDS
        mode, asked = "overwrite" if overwrite else "append", hudi.operation
        if overwrite and asked in DELETIONS:
            # The rows would replace the table from which they are to be deleted.
            raise InvalidOption(f"operation {asked.value!r} in mode {mode}", expected="mode append")
        own = hudi.operation_named(given["operation"]) if given.get("operation") else None
        operation = own or (asked if hudi.write and not overwrite else allowed[0])
        if operation not in allowed:
            raise InvalidOption(f"operation {operation.value!r} in mode {mode}", expected=f"one of {', '.join(allowed)}")
        query_id = given.get("query_id", "")
        if is_stream and not query_id:
            raise InvalidOption(
                "a stream in format 'tideline' without query_id",
                expected="a permanent name of the query, by which batches are written once",
                remedy='.option("query_id", "orders-eu")',
            )
        if query_id and not is_stream:
            raise InvalidOption("query_id of a batch write", expected="query_id for writeStream only")
        if is_stream and overwrite:
            raise InvalidOption("output mode complete", expected="append", remedy="tideline_spark.sink takes other operations")
        return cls(given["path"], operation, given.get("locks"), query_id, engine, hudi)

    def check_table(self) -> None:
        """Open the table, before Spark runs a job for it.

        Raises what `Table.open` and `Table.check_writable` raise, and `InvalidOption` if options of Hudi name another table.
        """
        table = _opened(self)
        table.check_writable(keyed=promises_unique_keys(self.operation, table.options))
        check_agrees(self.hudi, table.definition)
        self.hudi.warn()

    @property
    def limit_bytes(self) -> int:
        """Most bytes of staged rows of one write."""
        return Options(self.engine)[SPARK_COLLECT_BYTES]


@dataclass(frozen=True)
class Staged(ds.WriterCommitMessage):
    """The file with the rows of one task, empty for a task without rows."""

    path: str
    size_bytes: int


def stage(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Store the rows of a task. Raises `InvalidOption` as soon as they exceed the limit of a write."""
    storage = open_storage(options.path)
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return Staged("", 0)
    path, size_bytes = f"{STAGING}/spark-{uuid.uuid4().hex}.arrow", 0
    with storage.open_output(path) as sink, pa.ipc.new_stream(sink, first.schema) as stream:
        for batch in chain((first,), batches):
            stream.write_batch(batch)
            size_bytes += batch.nbytes
            _check_size(size_bytes, options)
    return Staged(path, size_bytes)


def _check_size(size_bytes: int, options: WriteOptions) -> None:
    if size_bytes > options.limit_bytes:
        raise InvalidOption(
            f"a write of {size_bytes} bytes or more in format 'tideline'",
            expected=f"at most {SPARK_COLLECT_BYTES.key}={options.limit_bytes}: one process commits it",
            remedy="use tideline_spark.write.write_dataframe, or tideline_spark.sink for a stream; or raise the option",
        )


def staged_rows(options: WriteOptions, table: Table, messages: Sequence[object]) -> pa.Table:
    """Return the rows that all tasks stored, in the order of Spark's partitions; without rows, an empty table."""
    found = [message for message in messages if isinstance(message, Staged) and message.path]
    _check_size(sum(message.size_bytes for message in found), options)
    parts = []
    for message in found:
        with table.storage.open_input(message.path) as source, pa.ipc.open_stream(source) as stream:
            parts.append(stream.read_all())
    return pa.concat_tables(parts) if parts else table.schema.empty_table()


def forget(options: WriteOptions, messages: Sequence[object]) -> None:
    """Delete what tasks stored. A failure is a warning: the write has ended, and the cleaner deletes staged objects that stay."""
    try:
        storage = open_storage(options.path)
        for message in messages:
            if isinstance(message, Staged) and message.path:
                storage.delete(message.path)
    except TidelineError as error:
        _LOGGER.warning("staged rows of a write could not be deleted: %s", error)


def _opened(options: WriteOptions) -> Table:
    table = Table.open(options.path, options=options.engine, hudi_lock=open_hudi_lock)
    attach_lock(table, options.locks)
    return table


class Writer(ds.DataSourceArrowWriter):
    """A batch write: one commit, or none."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(self._options, iterator)

    def commit(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        """Write the rows of all tasks as one commit. Raises what `write_rows` raises."""
        table = _opened(self._options)
        write_rows(table, staged_rows(self._options, table, messages), self._options.operation)
        forget(self._options, messages)

    def abort(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        forget(self._options, messages)


class StreamWriter(ds.DataSourceStreamArrowWriter):
    """A stream: each micro-batch is one commit, once, as of `tideline_spark.sink`."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(self._options, iterator)

    def commit(self, messages: list[ds.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's name
        """Write the batch unless it is in the table. Raises what `tideline_spark.sink` raises."""
        options, table = self._options, _opened(self._options)
        rows = staged_rows(options, table, messages)
        # Always an insert without rows: it moves the number of the batch.
        operation = options.operation if rows.num_rows else Operation.INSERT

        def write(step: ProgressStep) -> None:
            write_rows(table, rows, operation, progress=step)

        write_once(table, progress_key(options.query_id), BatchMark(batchId, ""), write)
        forget(options, messages)

    def abort(self, messages: list[ds.WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - PySpark's name
        forget(self._options, messages)
