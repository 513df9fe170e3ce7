"""Texts of values in keys and partition paths, as Hudi writes them (format reference 3.2, 3.3)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import SchemaMismatch


def key_text(column: pa.ChunkedArray, name: str, *, logical_timestamps: bool = False) -> pa.ChunkedArray:
    """Return Java's `toString` of the values, dates as yyyy-MM-dd and timestamps as epoch numbers.

    With `logical_timestamps` (`hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled`), timestamps with a zone
    are written as `yyyy-MM-dd HH:mm:ss.S` in UTC, truncated to milliseconds as in Hudi. Raises `SchemaMismatch` for other types.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_timestamp(kind):
        if logical_timestamps and kind.tz is not None:
            return _sql_timestamps(column)
        return column.cast(pa.int64()).cast(pa.string())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
        # For decimals, Arrow writes the same exponents as Java (0E-12, but 0.000001).
        return column.cast(pa.string())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    raise SchemaMismatch(
        f"column {name!r} of type {kind} as a key or partition column",
        expected="text, a whole number, a boolean, a date, a decimal or a timestamp",
    )


def truncated_division(numbers: pa.ChunkedArray, divisor: int) -> pa.ChunkedArray:
    """Divide whole numbers as Java does, towards zero."""
    return pc.divide(numbers, pa.scalar(divisor, pa.int64()))


def _sql_timestamps(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the text of `java.sql.Timestamp`: at least one fractional digit, without further trailing zeros."""
    per_milli = {"us": 1000, "ns": 1_000_000}.get(column.type.unit, 1)
    millis = (
        truncated_division(column.cast(pa.int64()), per_milli)
        if per_milli > 1
        else column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    )
    text = millis.cast(pa.timestamp("ms")).cast(pa.string())
    return pc.replace_substring_regex(text, r"(\.\d)(\d*?)0+$", r"\1\2")
