"""Reads the files of rows and schemas that commands accept. The file name's ending determines the format."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Iterable
from pathlib import PurePath

import pyarrow as pa
import pyarrow.parquet as pq

from tideline_cli.csv_input import infer_csv_schema, read_csv_rows
from tideline_cli.json_input import infer_json_schema, read_json_rows
from tideline_cli.report import print_warning
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
