"""Reads rows of JSON: one object per line, or one array of objects in a `.json` file. Missing fields are null.

Values pass through Python objects: `pyarrow.json` reads no maps, dates or NaN and reports no line numbers. DuckDB rounds numbers
and drops digits, zones and unknown fields that do not fit, without an error.
"""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from tideline_cli.typed_values import BadValue, column_from_json, column_from_text, holds_decimals, loads
from tideline_table.errors import InvalidInput
from tideline_table.schema import ZONED

CHUNK_ROWS = 50_000
"""Number of rows that exist as Python objects at a time."""
_ROW = "one JSON object per line"

Numbered = tuple[str, dict[str, Any]]
"""The position of a row (`line 3`) and its fields."""


def read_json_rows(stream: BinaryIO, name: str, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    """Return all rows, with the columns in `kinds` parsed to their types. Other columns have the type null.

    Raises `InvalidInput` with the number of the line or of the array element.
    """
    exact = any(holds_decimals(kind) for kind in kinds.values())
    tables: list[pa.Table] = []
    rows = _numbered_rows(stream, name, exact=exact)
    while chunk := list(itertools.islice(rows, CHUNK_ROWS)):
        tables.append(_table(chunk, name, kinds))
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


def _table(chunk: list[Numbered], name: str, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    names = list(dict.fromkeys(key for _, row in chunk for key in row))
    columns: dict[str, pa.Array] = {}
    for column in names:
        if column not in kinds:
            columns[column] = pa.nulls(len(chunk))
            continue
        try:
            columns[column] = column_from_json([row.get(column) for _, row in chunk], kinds[column])
        except BadValue as error:
            place = chunk[error.index][0]
            raise InvalidInput(f"{name} {place}: column {column!r} has {error.found}", expected=error.expected) from None
    # Keep the row count for a file of empty objects, so that the engine reports the missing columns.
    return pa.table(columns) if columns else pa.table({"": pa.nulls(len(chunk))}).select([])


def _numbered_rows(stream: BinaryIO, name: str, *, exact: bool) -> Iterator[Numbered]:
    lines = iter(stream)
    first = next(lines, b"").removeprefix(codecs.BOM_UTF8)
    if name.endswith(".json") and first.lstrip().startswith(b"["):
        return _elements(first + b"".join(lines), name, exact=exact)
    return _lines(itertools.chain([first], lines), name, exact=exact)


def _lines(lines: Iterable[bytes], name: str, *, exact: bool) -> Iterator[Numbered]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = loads(line.decode(), exact=exact)
        except ValueError as error:
            raise InvalidInput(
                f"{name} line {number} is not JSON ({_reason(error)})", expected=_ROW, remedy="fix the line"
            ) from None
        if not isinstance(row, dict):
            raise InvalidInput(f"{name} line {number} is not a JSON object", expected=_ROW, remedy="fix the line")
        yield f"line {number}", row


def _elements(content: bytes, name: str, *, exact: bool) -> Iterator[Numbered]:
    try:
        rows = loads(content.decode(), exact=exact)
    except ValueError as error:
        place = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidInput(
            f"{name}{place} is not JSON ({_reason(error)})", expected="an array of objects", remedy="fix the file"
        ) from None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InvalidInput(f"{name} element {number} is not a JSON object", expected="an array of objects")
        yield f"element {number}", row


def _reason(error: ValueError) -> str:
    return f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


# --- inference -----------------------------------------------------------------------------------------------------------


def infer_json_schema(stream: BinaryIO, name: str) -> pa.Schema:
    """Return a schema that fits all rows: Arrow's inference, with dates and timestamps (in UTC) recognized in text columns.

    Raises `InvalidInput` for content that is no JSON, for no rows, and for columns with values of several types.
    """
    rows = [row for _, row in _numbered_rows(stream, name, exact=False)]
    if not rows:
        raise InvalidInput(f"{name} has no rows", expected="rows to infer a schema from")
    try:
        inferred = pa.array(rows)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise InvalidInput(
            f"{name} has a column with values of several types ({error})",
            expected="one type per column",
            remedy="use a schema file (.avsc)",
        ) from None
    fields = [inferred.type.field(i) for i in range(inferred.type.num_fields)]
    return pa.schema([field.with_type(_refined(inferred.field(i), field.type)) for i, field in enumerate(fields)])


_UTC = pa.timestamp("us", "UTC")
_TIMES = (pa.date32(), pa.timestamp("us"), _UTC)


def _refined(values: pa.Array, kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_string(kind) or values.null_count == len(values):
        return kind
    for candidate in _TIMES:
        try:
            column_from_text(values, candidate)
        except BadValue:
            continue
        if candidate != _UTC or pc.all(pc.match_substring_regex(values, ZONED)).as_py():
            # Without zones, too: hudi-rs reads no table with local timestamps, and a write reads text without a zone as UTC.
            return _UTC if pa.types.is_timestamp(candidate) else candidate
    return kind
