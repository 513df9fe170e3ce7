"""Where the rows of `read` go: JSON lines, one JSON document, CSV, Parquet or Arrow, batch by batch."""

from __future__ import annotations

import contextlib
import enum
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import simplejson

from tideline_cli.errors import InvalidInput
from tideline_cli.json_values import json_column, json_rows, text_column
from tideline_table.errors import InvalidOption


class RowFormat(enum.StrEnum):
    """Formats that rows can be written in."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


class RowSink(Protocol):
    """Takes batches of one schema; `close` ends the output, the stream below stays open."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the rows of `batch`."""

    def close(self) -> None:
        """Write what belongs behind the last row."""


class JsonLines:
    """One object per line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, batch: pa.RecordBatch) -> None:
        """See `RowSink.write`."""
        self._stream.writelines(line + b"\n" for line in json_rows(batch))

    def close(self) -> None:
        """See `RowSink.close`."""
        self._stream.flush()


class JsonDocument:
    """One object with `columns` (name, type), `rows` and `row_count`."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._stream = stream
        self._rows = 0
        columns = [{"name": f.name, "type": str(f.type)} for f in schema]
        stream.write(f'{{"columns": {simplejson.dumps(columns, ensure_ascii=False)}, "rows": ['.encode())

    def write(self, batch: pa.RecordBatch) -> None:
        """See `RowSink.write`."""
        for line in json_rows(batch):
            self._stream.write((b",\n" if self._rows else b"\n") + line)
            self._rows += 1

    def close(self) -> None:
        """See `RowSink.close`."""
        self._stream.write(f'\n], "row_count": {self._rows}}}\n'.encode())
        self._stream.flush()


class Csv:
    """A heading line, then a record per row: null is empty, empty text is `""`, nested values are JSON."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._schema = pa.schema([pa.field(f.name, _csv_type(f.type)) for f in schema])
        self._stream = stream
        self._writer = pv.CSVWriter(stream, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """See `RowSink.write`."""
        self._writer.write_batch(pa.record_batch([_csv_column(c) for c in batch.columns], schema=self._schema))

    def close(self) -> None:
        """See `RowSink.close`."""
        self._writer.close()
        self._stream.flush()


class Parquet:
    """One Parquet file."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(stream, schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        """See `RowSink.write`."""
        self._writer.write_batch(batch)

    def close(self) -> None:
        """See `RowSink.close`."""
        self._writer.close()


class Arrow:
    """An Arrow IPC file, or a stream where nobody can seek."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema, *, as_file: bool) -> None:
        self._stream = stream
        self._writer = pa.ipc.new_file(stream, schema) if as_file else pa.ipc.new_stream(stream, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """See `RowSink.write`."""
        self._writer.write_batch(batch)

    def close(self) -> None:
        """See `RowSink.close`."""
        self._writer.close()
        self._stream.flush()


def _csv_type(kind: pa.DataType) -> pa.DataType:
    is_plain = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return kind if is_plain else pa.string()


def _csv_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if _csv_type(kind) == kind:
        return column
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return text_column(column)
    values = json_column(column)
    if pa.types.is_nested(kind):
        values = [None if v is None else simplejson.dumps(v, ensure_ascii=False) for v in values]
    return pa.array(values, pa.string())


def stdout_sink(row_format: RowFormat, stream: BinaryIO, schema: pa.Schema) -> RowSink:
    """The sink for stdout. Raises `InvalidOption` for Parquet, which has to go into a file."""
    if row_format is RowFormat.PARQUET:
        raise InvalidOption("--format parquet without --output", expected="a file for Parquet", remedy="add --output FILE.parquet")
    makers: dict[RowFormat, Callable[[], RowSink]] = {
        RowFormat.JSONL: lambda: JsonLines(stream),
        RowFormat.CSV: lambda: Csv(stream, schema),
        RowFormat.ARROW: lambda: Arrow(stream, schema, as_file=False),
    }
    return makers[row_format]()


def format_of(output: str) -> RowFormat:
    """The format that the ending of a file name says. Raises `InvalidOption`."""
    endings = {".json": "jsonl", ".ndjson": "jsonl", ".feather": "arrow"}
    suffix = PurePath(output).suffix.lower()
    try:
        return RowFormat(endings.get(suffix, suffix.removeprefix(".")))
    except ValueError:
        raise InvalidOption(
            f"--output {output!r} has an ending that says no format",
            expected=".parquet, .csv, .jsonl or .arrow",
            remedy="or name it with --format",
        ) from None


@contextlib.contextmanager
def file_sink(output: str, row_format: RowFormat, schema: pa.Schema) -> Iterator[RowSink]:
    """A sink into the file `output`, which appears (or is replaced) whole when the context ends well and not at all otherwise."""
    unfinished = f"{output}.{uuid.uuid4().hex[:8]}.unfinished"
    try:
        stream = open(unfinished, "xb")  # noqa: SIM115 - closed below, before the file gets its name
    except OSError as error:
        raise InvalidInput(f"--output {output!r} cannot be written ({error.strerror})", expected="a place for a file") from None
    try:
        with stream:
            sink = _file_sink(row_format, stream, schema)
            try:
                yield sink
            finally:
                sink.close()  # while the stream is open, whatever happened: writers end their files when they are collected
        os.replace(unfinished, output)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)


def _file_sink(row_format: RowFormat, stream: BinaryIO, schema: pa.Schema) -> RowSink:
    if row_format is RowFormat.PARQUET:
        return Parquet(stream, schema)
    if row_format is RowFormat.ARROW:
        return Arrow(stream, schema, as_file=True)
    return stdout_sink(row_format, stream, schema)
