"""Statistics of files as JSON: one list of columns, and for each file the values in this order."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tideline_table.statistics.column import ColumnStatistics, FileStatistics
from tideline_table.statistics.kinds import Stored, type_of


def statistics_json(files: Mapping[str, FileStatistics]) -> dict[str, Any]:
    """Return the JSON document of statistics by path of a file."""
    columns = list(dict.fromkeys((name, held.kind) for file in files.values() for name, held in file.columns.items()))
    return {
        "columns": [list(column) for column in columns],
        "files": {path: [file.rows, [_values(file, *column) for column in columns]] for path, file in files.items()},
    }


def _values(file: FileStatistics, name: str, kind: str) -> list[Any] | None:
    held = file.columns.get(name)
    if held is None or held.kind != kind:
        return None
    return [_written(held.minimum), _written(held.maximum), held.nulls, held.nans, held.size_bytes, held.uncompressed_bytes]


def _written(value: Stored | None) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    # JSON has no infinity, and no decimals of more than 17 digits.
    return str(value) if isinstance(value, float | Decimal) else value


def statistics_from(document: Mapping[str, Any]) -> dict[str, FileStatistics]:
    """Parse the document. Raises `ValueError`, `KeyError`, `TypeError` or another exception in `errors.MALFORMED`."""
    columns = [(str(name), str(kind)) for name, kind in document["columns"]]
    return {
        str(path): FileStatistics(
            int(rows),
            {name: _column(kind, values) for (name, kind), values in zip(columns, found, strict=True) if values is not None},
        )
        for path, (rows, found) in document["files"].items()
    }


def _column(kind: str, values: list[Any]) -> ColumnStatistics:
    low, high, nulls, nans, size, plain = values
    return ColumnStatistics(kind, _read(low, kind), _read(high, kind), int(nulls), int(nans), int(size), int(plain))


def _read(value: Any, kind: str) -> Stored | None:
    if value is None:
        return None
    arrow = type_of(kind)
    if pa.types.is_boolean(arrow):
        return bool(value)
    if pa.types.is_integer(arrow) or pa.types.is_temporal(arrow):
        return int(value)
    if pa.types.is_floating(arrow):
        return float(value)
    if pa.types.is_decimal(arrow):
        if not (found := Decimal(str(value))).is_finite():
            raise ValueError(f"a decimal {value!r}")
        return found
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        return str(value)
    return base64.b64decode(str(value), validate=True)
