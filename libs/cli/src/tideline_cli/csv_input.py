"""Reads rows of CSV files: a heading line, then one record per row. An empty unquoted field is null, `""` is empty text."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from tideline_cli.typed_values import BadValue, column_from_text
from tideline_table.errors import InvalidInput

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
