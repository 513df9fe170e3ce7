"""Reads the files of rows and schemas that commands accept. The file name's ending determines the format."""

from __future__ import annotations

import csv
import enum
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import PurePath

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.parquet as pq

from tideline_cli.json_input import infer_json_schema, read_json_rows
from tideline_cli.report import print_warning
from tideline_cli.typed_values import BadValue, column_from_text
from tideline_table.errors import CorruptMetadata, InvalidInput
from tideline_table.schema import IS_DELETED, arrow_from_avro, storable_rows, storable_schema

STDIN = "-"


class FileFormat(enum.StrEnum):
    """Formats of the files that commands read."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"
    AVRO_SCHEMA = "avro schema"


_BY_ENDING = {
    ".parquet": FileFormat.PARQUET,
    ".csv": FileFormat.CSV,
    ".json": FileFormat.JSON,
    ".jsonl": FileFormat.JSON,
    ".ndjson": FileFormat.JSON,
    ".arrow": FileFormat.ARROW,
    ".feather": FileFormat.ARROW,
    ".avsc": FileFormat.AVRO_SCHEMA,
}
_ROWS = ".parquet, .csv, .json, .jsonl, .ndjson, .arrow or .feather"


def read_rows(files: Iterable[str], schema: pa.Schema) -> pa.Table:
    """Return the rows of all `files` (`-` is JSON lines on stdin), with text parsed to the types of `schema`.

    Raises `InvalidInput` with the file, the line and the column.
    """
    kinds = {field.name: field.type for field in schema} | {IS_DELETED: pa.bool_()}
    tables = [_read_file(file, kinds) for file in files]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidInput(
            f"the files have different schemas ({error})", expected="equal types in columns of the same name"
        ) from None


def _read_file(file: str, kinds: dict[str, pa.DataType]) -> pa.Table:
    if file == STDIN:
        return read_json_rows(sys.stdin.buffer, "stdin", kinds)
    kind = _checked_format(file, _ROWS, schema_only=False)
    try:
        if kind is FileFormat.CSV:
            return read_csv_rows(file, kinds)
        if kind is FileFormat.JSON:
            with open(file, "rb") as stream:
                return read_json_rows(stream, file, kinds)
        if kind is FileFormat.PARQUET:
            return storable_rows(pq.ParquetFile(file).read())
        return storable_rows(_open_arrow(file).read_all())
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInput(f"{file} cannot be read ({error})", expected=f"a file of format {kind}") from None


def read_schema(file: str) -> pa.Schema:
    """Return the storable schema, without meta fields, of a file of rows (inferred for CSV and JSON) or of an Avro schema.

    Timestamps become microseconds. Columns without any value become text, with a warning. Raises `InvalidInput`.
    """
    kind = _checked_format(file, f"{_ROWS}, or an Avro schema .avsc", schema_only=True)
    try:
        found = _schema_of(file, kind)
    except CorruptMetadata as error:
        raise InvalidInput(f"{file}: {error.found}", expected=error.expected) from None
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        raise InvalidInput(f"{file} cannot be read ({error})", expected=f"a file of format {kind}") from None
    if unknown := [field.name for field in found if pa.types.is_null(field.type)]:
        print_warning(
            f"{file} has no value in column(s) {', '.join(unknown)}: they become text; an Avro schema (.avsc) names types"
        )
    return storable_schema(found, empty=pa.string())


def _schema_of(file: str, kind: FileFormat) -> pa.Schema:
    if kind is FileFormat.CSV:
        return infer_csv_schema(file)
    if kind is FileFormat.PARQUET:
        return pq.read_schema(file)
    if kind is FileFormat.ARROW:
        return _open_arrow(file).schema
    with open(file, "rb") as stream:
        if kind is FileFormat.JSON:
            return infer_json_schema(stream, file)
        return arrow_from_avro(stream.read().decode())


def _open_arrow(file: str) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    try:
        return pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        return pa.ipc.open_stream(pa.OSFile(file))


def _checked_format(file: str, expected: str, *, schema_only: bool) -> FileFormat:
    kind = _BY_ENDING.get(PurePath(file).suffix.lower())
    if kind is None or (kind is FileFormat.AVRO_SCHEMA and not schema_only):
        raise InvalidInput(f"{file} has no known file ending", expected=expected)
    if not os.path.exists(file):
        raise InvalidInput(f"file {file} does not exist", expected="an existing file", remedy="check the path")
    if os.path.isdir(file):
        raise InvalidInput(f"{file} is a folder", expected="a file", remedy="repeat --from for each file")
    return kind


# With one thread, Arrow's errors have row numbers, and the cores stay free for the engine.
_READ = pv.ReadOptions(use_threads=False)
_PARSE = pv.ParseOptions(newlines_in_values=True)


def read_csv_rows(path: str, kinds: dict[str, pa.DataType]) -> pa.Table:
    """Return all rows, with the columns in `kinds` parsed to their types. Other columns are text.

    Raises `InvalidInput`, with the line number where there is one, and `OSError`.
    """
    names = _heading(path)
    convert = pv.ConvertOptions(
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        column_types=dict.fromkeys(names, pa.string()),
    )
    rows = _read(path, convert, pa.string())
    columns = [_parsed(path, name, rows.column(name), kinds.get(name, pa.string())) for name in rows.column_names]
    return pa.table(columns, names=rows.column_names)


def infer_csv_schema(path: str) -> pa.Schema:
    """Return the schema that Arrow infers from all values of the file. Columns without values have the type null.

    Timestamps, also those without a zone, become UTC timestamps, because hudi-rs reads no table with local timestamps. Raises
    `InvalidInput` and `OSError`.
    """
    _heading(path)
    convert = pv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
    found = _read(path, convert, pa.null()).schema
    return pa.schema([f.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(f.type) else f for f in found])


def _heading(path: str) -> list[str]:
    _, names = next(_records(path), (1, []))
    if not names:
        raise InvalidInput(f"{path} is empty", expected="a heading line with the column names")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"{path} line 1: column {twice!r} is repeated", expected="each column once")
    return names


def _read(path: str, convert: pv.ConvertOptions, empty: pa.DataType) -> pa.Table:
    """Return the rows as Arrow parses them. A file without rows gives an empty table with columns of the type `empty`."""
    if next(itertools.islice(_records(path), 1, None), None) is None:
        # Arrow refuses a heading line without a line end.
        return pa.schema([(name, empty) for name in _heading(path)]).empty_table()
    try:
        return pv.read_csv(path, read_options=_READ, parse_options=_PARSE, convert_options=convert)
    except pa.ArrowInvalid as error:
        _name_bad_record(path)
        raise InvalidInput(f"{path} cannot be read ({error})", expected="CSV in UTF-8") from None


def _name_bad_record(path: str) -> None:
    width = len(_heading(path))
    for line, record in _records(path):
        if len(record) != width:
            raise InvalidInput(
                f"{path} line {line} has {len(record)} field(s)", expected=f"{width}, as in the heading line", remedy="fix the line"
            )


def _records(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each record with the line at which it starts. Arrow's row numbers ignore line ends in quotes and blank lines."""
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(file, strict=True)
        start = 1
        try:
            for record in reader:
                if record:
                    yield start, record
                start = reader.line_num + 1
        except csv.Error as error:
            raise InvalidInput(f"{path} line {start}: {error}", expected="CSV with closed quotes", remedy="fix the line") from None


def _parsed(path: str, name: str, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if not pa.types.is_string(kind) and not pa.types.is_binary(kind):
        # Programs that quote all fields write "" for a missing number.
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    chunks = []
    before = 0
    for chunk in column.chunks:
        try:
            chunks.append(column_from_text(chunk, kind))
        except BadValue as error:
            line, _ = next(itertools.islice(_records(path), 1 + before + error.index, None))
            raise InvalidInput(f"{path} line {line}: column {name!r} has {error.found}", expected=error.expected) from None
        before += len(chunk)
    return pa.chunked_array(chunks, kind)
