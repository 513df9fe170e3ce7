"""Files of rows and of schemas that commands take, by the ending of their names."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Sequence
from pathlib import PurePath

import pyarrow as pa
import pyarrow.parquet as pq

from tideline_cli.csv_input import infer_csv_schema, read_csv_rows
from tideline_cli.errors import InvalidInput
from tideline_cli.json_input import infer_json_schema, read_json_rows
from tideline_table.errors import CorruptMetadata
from tideline_table.schema import arrow_from_avro, without_meta_fields
from tideline_table.schema.fit import IS_DELETED

STDIN = "-"


class FileFormat(enum.StrEnum):
    """Formats of files."""

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


def read_rows(files: Sequence[str], schema: pa.Schema) -> pa.Table:
    """The rows of all `files` (`-` is JSON lines on stdin), text parsed to the types of `schema`.

    Raises `InvalidInput` naming the file, the line and the column.
    """
    kinds = {field.name: field.type for field in schema} | {IS_DELETED: pa.bool_()}
    tables = [_read_file(file, kinds) for file in files]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidInput(f"the files do not fit together ({error})", expected="equal types in columns of one name") from None


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
            return pq.ParquetFile(file).read()
        return _open_arrow(file).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInput(f"{file} cannot be read ({error})", expected=f"a file of format {kind}") from None


def read_schema(file: str) -> pa.Schema:
    """The schema of a file of rows (inferred for CSV and JSON) or of an Avro schema, in types that tables hold, without meta fields.

    Timestamps become microseconds, columns without any value text. Raises `InvalidInput`.
    """
    kind = _checked_format(file, f"{_ROWS}, or an Avro schema .avsc", schema_only=True)
    try:
        found = _schema_of(file, kind)
    except CorruptMetadata as error:
        raise InvalidInput(f"{file}: {error.found}", expected=error.expected) from None
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        raise InvalidInput(f"{file} cannot be read ({error})", expected=f"a file of format {kind}") from None
    return pa.schema([_storable_field(field) for field in without_meta_fields(found)])


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
        raise InvalidInput(f"{file} has an ending that says no format", expected=expected)
    if not os.path.exists(file):
        raise InvalidInput(f"no file {file}", expected="a file that exists", remedy="check the path")
    if os.path.isdir(file):
        raise InvalidInput(f"{file} is a folder", expected="a file", remedy="name its files one by one")
    return kind


def _storable_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _storable(field.type), nullable=field.nullable)


def _storable(kind: pa.DataType) -> pa.DataType:
    """The nearest type that tables hold; types that have none are left for the engine to refuse by name."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms" if kind.unit == "ms" else "us", "UTC" if kind.tz is not None else None)
    if pa.types.is_struct(kind):
        return pa.struct([_storable_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_storable(kind.key_type), _storable_field(kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_storable_field(kind.value_field))
    return _NEAREST.get(kind, kind)


_NEAREST: dict[pa.DataType, pa.DataType] = {
    pa.null(): pa.string(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time32("ms"),
    pa.time64("ns"): pa.time64("us"),
    pa.float16(): pa.float32(),
}
