"""Sinks for the rows of `read`: JSON lines, one JSON document, CSV, Parquet or Arrow, written batch by batch."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import base64
import contextlib
import enum
import math
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.parquet as pq
import simplejson

from tideline_table.errors import InvalidInput, InvalidOption, StorageFull
from tideline_table.storage import refused_write, writing


class RowFormat(enum.StrEnum):
    """Output formats of rows."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


class RowSink(Protocol):
    """Accepts batches of one schema. `close` ends the output but leaves the underlying stream open."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the rows of `batch`."""

    def close(self) -> None:
        """Write what follows the last row."""


class ArrowWriter(Protocol):
    """Arrow's writers of CSV, Parquet and IPC."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append the rows of `batch`."""

    def close(self) -> None:
        """End the output."""


class JsonLines:
    """One object per line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, batch: pa.RecordBatch) -> None:
        self._stream.writelines(line + b"\n" for line in json_rows(batch))

    def close(self) -> None:
        self._stream.flush()


class JsonDocument:
    """One object with `columns` (name, type), `rows` and `row_count`."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._stream = stream
        self._rows = 0
        columns = [{"name": f.name, "type": str(f.type)} for f in schema]
        stream.write(f'{{"columns": {simplejson.dumps(columns, ensure_ascii=False)}, "rows": ['.encode())

    def write(self, batch: pa.RecordBatch) -> None:
        for line in json_rows(batch):
            self._stream.write((b",\n" if self._rows else b"\n") + line)
            self._rows += 1

    def close(self) -> None:
        self._stream.write(f'\n], "row_count": {self._rows}}}\n'.encode())
        self._stream.flush()


class ArrowSink:
    """Batches through one of Arrow's writers. `fitted` converts each batch to what the writer accepts."""

    def __init__(
        self, stream: BinaryIO, writer: ArrowWriter, fitted: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch
    ) -> None:
        self._stream = stream
        self._writer = writer
        self._fitted = fitted

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(self._fitted(batch))

    def close(self) -> None:
        self._writer.close()
        self._stream.flush()


def csv_sink(stream: BinaryIO, schema: pa.Schema) -> ArrowSink:
    """Return a sink with a heading line, then one record per row: null is empty, empty text is `""`, nested values are JSON."""
    texts = pa.schema([pa.field(f.name, _csv_type(f.type)) for f in schema])
    return ArrowSink(
        stream, pv.CSVWriter(stream, texts), lambda batch: pa.record_batch([_csv_column(c) for c in batch.columns], schema=texts)
    )


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
    """Return the sink for stdout. Raises `InvalidOption` for Parquet, which needs a file."""
    if row_format is RowFormat.PARQUET:
        raise InvalidOption("--format parquet without --output", expected="a file for Parquet", remedy="add --output FILE.parquet")
    if row_format is RowFormat.CSV:
        return csv_sink(stream, schema)
    if row_format is RowFormat.ARROW:
        return ArrowSink(stream, pa.ipc.new_stream(stream, schema))
    return JsonLines(stream)


def format_of(output: str) -> RowFormat:
    """Return the format for the ending of a file name. Raises `InvalidOption` for an unknown ending."""
    endings = {".json": "jsonl", ".ndjson": "jsonl", ".feather": "arrow"}
    suffix = PurePath(output).suffix.lower()
    try:
        return RowFormat(endings.get(suffix, suffix.removeprefix(".")))
    except ValueError:
        raise InvalidOption(
            f"--output {output!r} has no known file ending",
            expected=".parquet, .csv, .jsonl or .arrow",
            remedy="rename the file, or add --format",
        ) from None


@contextlib.contextmanager
def file_sink(output: str, row_format: RowFormat, schema: pa.Schema) -> Iterator[RowSink]:
    """Open a sink into the file `output`.

    If the context succeeds, the complete file appears (or replaces another), else no file appears.

    Raises `InvalidInput` for a path that cannot be written, and `StorageError` (`StorageFull` on a full disk) for errors while
    writing.
    """
    unfinished = f"{output}.{uuid.uuid4().hex[:8]}.unfinished"
    try:
        stream = open(unfinished, "xb")  # noqa: SIM115 - closed below, before the file gets its name
    except OSError as error:
        if isinstance(full := refused_write(error, repr(output)), StorageFull):
            raise full from error
        raise InvalidInput(
            f"--output {output!r} cannot be written ({error.strerror})", expected="a path in a writable folder"
        ) from None
    try:
        with writing(repr(output)), stream:
            sink = _file_sink(row_format, stream, schema)
            try:
                yield sink
            finally:
                sink.close()  # before the stream closes, also after an error: an open writer still writes when it is collected
        with writing(repr(output)):
            os.replace(unfinished, output)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)


def _file_sink(row_format: RowFormat, stream: BinaryIO, schema: pa.Schema) -> RowSink:
    if row_format is RowFormat.PARQUET:
        return ArrowSink(stream, pq.ParquetWriter(stream, schema, compression="zstd"))
    if row_format is RowFormat.ARROW:
        return ArrowSink(stream, pa.ipc.new_file(stream, schema))
    return stdout_sink(row_format, stream, schema)


def json_rows(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield each row as one JSON object in UTF-8, without a line end."""
    columns = [json_column(column) for column in batch.columns]
    names = batch.schema.names
    for row in zip(*columns, strict=True):
        document = dict(zip(names, row, strict=True))
        yield simplejson.dumps(document, ensure_ascii=False, separators=(",", ":"), use_decimal=True).encode()


def json_column(column: pa.Array) -> list[Any]:
    """Return the values of `column` as `json` writes them."""
    kind = column.type
    if pa.types.is_floating(kind):
        return [v if v is None or math.isfinite(v) else _number_word(v) for v in column.to_pylist()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return [None if v is None else base64.b64encode(v).decode() for v in column.to_pylist()]
    if pa.types.is_temporal(kind):
        texts: list[Any] = text_column(column).to_pylist()
        return texts
    if pa.types.is_map(kind):
        entries = column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        return [
            None if pairs is None else {p[kind.key_field.name]: p[kind.item_field.name] for p in pairs} for pairs in _lists(entries)
        ]
    if pa.types.is_list(kind):
        return _lists(column)
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        rows = zip(*(json_column(child) for child in column.flatten()), strict=True) if names else iter([()] * len(column))
        valid = column.is_valid().to_pylist()
        return [dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, valid, strict=True)]
    values: list[Any] = column.to_pylist()
    return values


def text_column(column: pa.Array) -> pa.Array:
    """Return a temporal or decimal column as the text that JSON and CSV contain."""
    kind = column.type
    if not pa.types.is_timestamp(kind):
        return column.cast(pa.string())
    local = column.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit)) if kind.tz is not None else column
    text = pc.replace_substring(local.cast(pa.string()), " ", "T", max_replacements=1)
    text = pc.replace_substring_regex(text, r"(\.\d{3})000$", r"\1")
    return text if kind.tz is None else pc.binary_join_element_wise(text, "Z", "")


def _lists(column: pa.Array) -> list[Any]:
    flat = json_column(column.flatten())
    found: list[Any] = []
    at = 0
    for length in pc.list_value_length(column).to_pylist():
        found.append(None if length is None else flat[at : at + length])
        at += length or 0
    return found


def _number_word(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
