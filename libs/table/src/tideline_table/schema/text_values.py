"""Conversion of text to Arrow values, for literals of predicates and cells of CSV and JSON files.

Dates `2024-12-31`; times `23:59:59.5`; timestamps `2024-12-31T23:59:59.5Z`, or with a blank for the T (no zone means UTC in a
column with a zone; a column without a zone accepts none); decimals with at most the digits of the column; bytes in base64.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

ZONED = r"[Tt ][0-9:.]+([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$"
"""A time of day with a zone."""
_DATE_ONLY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError, ValueError, TypeError)
"""Errors that conversions raise for a value that does not fit."""


def expected_text(kind: pa.DataType) -> str:
    """Return a description of values of type `kind`, for error messages."""
    if pa.types.is_timestamp(kind):
        digits = {"ms": " to the millisecond", "us": " to the microsecond"}.get(kind.unit, "")
        return f"a timestamp{digits} such as 2024-12-31T23:59:59{'Z' if kind.tz else ' without a zone'}"
    if pa.types.is_decimal(kind):
        return f"a decimal number of at most {kind.precision} digits, {kind.scale} of them after the decimal point"
    for matches, text in _EXPECTED:
        if matches(kind):
            return text
    return f"a value of type {kind}"


_EXPECTED: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_string, "text"),
    (pa.types.is_boolean, "true or false"),
    (pa.types.is_int32, "a whole number of 32 bits"),
    (pa.types.is_integer, "a whole number of 64 bits"),
    (pa.types.is_floating, "a number"),
    (pa.types.is_date, "a date such as 2024-12-31"),
    (pa.types.is_time, "a time such as 23:59:59.5"),
    (pa.types.is_binary, "bytes in base64"),
    (pa.types.is_fixed_size_binary, "bytes in base64 of the column's width"),
    (pa.types.is_struct, "a JSON object"),
    (pa.types.is_map, "a JSON object"),
    (pa.types.is_list, "a JSON array"),
    (pa.types.is_null, "null"),
)


def cast_text(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast texts to the non-nested type `kind`; null stays null. Raises one of `REFUSALS` for a value that does not fit."""
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        values = _without_zeros(values, kind.unit)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _with_zone(values).cast(kind)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.array([None if v is None else _decoded(v) for v in values.to_pylist()], kind)
    if pa.types.is_time(kind):
        # Cast through a timestamp: Arrow cannot parse times, and Python's parser drops zones and excess digits.
        return pc.binary_join_element_wise("1970-01-01", values, "T").cast(pa.timestamp(kind.unit)).cast(kind)
    return values.cast(kind)


def _without_zeros(values: pa.Array, unit: str) -> pa.Array:
    """Return texts of times without zeros behind the last digit that `unit` has: Arrow refuses them, whatever they say."""
    digits = {"s": 0, "ms": 3, "us": 6}.get(unit)
    if digits is None:
        return values
    kept, cut = (rf"(\.[0-9]{{{digits}}})", "0+") if digits else ("()", r"\.0+")
    return pc.replace_substring_regex(values, rf"{kept}{cut}([Zz]|[+-][0-9:]+)?$", r"\1\2")


def _with_zone(values: pa.Array) -> pa.Array:
    whole = pc.if_else(pc.match_substring_regex(values, _DATE_ONLY), pc.binary_join_element_wise(values, "T00:00:00", ""), values)
    return pc.if_else(pc.match_substring_regex(whole, ZONED), whole, pc.binary_join_element_wise(whole, "Z", ""))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(text) from error
