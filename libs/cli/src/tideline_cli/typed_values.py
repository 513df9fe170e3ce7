"""Text and JSON values as Arrow columns of a given type: what the rows of CSV and JSON files mean in a table.

Text: dates `2024-12-31`, times `23:59:59.5`, timestamps `2024-12-31T23:59:59.5Z` (or a blank for the T; without a zone it is UTC where
the column has one, and must not have a zone where the column has none), decimals with no more digits than the column, bytes in base64,
nested values in JSON. JSON numbers and booleans stand only for columns of that kind, so that text never becomes a number by accident;
`"NaN"`, `"Infinity"` and `"-Infinity"` are numbers in floating-point columns.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
from collections.abc import Callable, Sequence
from datetime import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

ZONED = r"[Tt ][0-9:.]+([Zz]|[+-][0-9]{2}(:?[0-9]{2})?)$"
"""A time of day followed by a zone."""
_DATE_ONLY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_NUMBER_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_SHOWN = 60
_REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError, ValueError, TypeError)


class BadValue(Exception):
    """The value at `index` of a column does not fit; `found` and `expected` say what it is and should be."""

    def __init__(self, index: int, found: str, expected: str) -> None:
        super().__init__(index, found, expected)
        self.index = index
        self.found = found
        self.expected = expected


def expected_text(kind: pa.DataType) -> str:
    """What a value of type `kind` looks like, for error messages."""
    if pa.types.is_timestamp(kind):
        digits = {"ms": " to the millisecond", "us": " to the microsecond"}.get(kind.unit, "")
        return f"a timestamp{digits} such as 2024-12-31T23:59:59{'Z' if kind.tz else ' without a zone'}"
    if pa.types.is_decimal(kind):
        return f"a decimal number of at most {kind.precision} digits, {kind.scale} of them behind the point"
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


def holds_decimals(kind: pa.DataType) -> bool:
    """Whether `kind` is or contains a decimal: then JSON numbers have to be read exactly."""
    return bool(pa.types.is_decimal(kind)) or any(holds_decimals(kind.field(i).type) for i in range(kind.num_fields))


def loads(text: str, *, exact: bool) -> Any:
    """One JSON value; with `exact` fractions become `Decimal`. Raises `ValueError`, also for nesting too deep."""
    try:
        return json.loads(text, parse_float=Decimal) if exact else json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


# --- text ----------------------------------------------------------------------------------------------------------------


def column_from_text(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts (null stays null) in type `kind`. Raises `BadValue` for the first one that does not fit."""
    if pa.types.is_nested(kind):
        return column_from_json(_parsed_cells(values, kind), kind)
    return _all_or_first_bad(values, kind, _cast_text)


def _parsed_cells(values: pa.Array, kind: pa.DataType) -> list[Any]:
    exact = holds_decimals(kind)
    cells: list[Any] = []
    for index, text in enumerate(values.to_pylist()):
        try:
            cells.append(None if text is None else loads(text, exact=exact))
        except ValueError:
            raise BadValue(index, _shown(text), expected_text(kind)) from None
    return cells


def _cast_text(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _with_zone(values).cast(kind)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.array([None if v is None else _decoded(v) for v in values.to_pylist()], kind)
    if pa.types.is_time(kind):
        return pa.array([None if v is None else time.fromisoformat(v) for v in values.to_pylist()], kind)
    return values.cast(kind)


def _with_zone(values: pa.Array) -> pa.Array:
    whole = pc.if_else(pc.match_substring_regex(values, _DATE_ONLY), pc.binary_join_element_wise(values, "T00:00:00", ""), values)
    return pc.if_else(pc.match_substring_regex(whole, ZONED), whole, pc.binary_join_element_wise(whole, "Z", ""))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(text) from error


def _all_or_first_bad(values: Any, kind: pa.DataType, convert: Callable[[Any, pa.DataType], pa.Array]) -> pa.Array:
    """`convert` the whole; when that fails find the first value at fault by halving, so that a large file costs few conversions."""
    try:
        return convert(values, kind)
    except _REFUSALS:
        good, bad = 0, len(values)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            convert(values[good:middle], kind)
            good = middle
        except _REFUSALS:
            bad = middle
    found = values[good]
    raise BadValue(good, _shown(found.as_py() if isinstance(found, pa.Scalar) else found), expected_text(kind))


# --- JSON ----------------------------------------------------------------------------------------------------------------


def column_from_json(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Parsed JSON values (None is null) in type `kind`. Raises `BadValue` for the first one that does not fit."""
    if pa.types.is_struct(kind):
        _check_types(values, (dict,), kind)
        return _structs(values, kind)
    if pa.types.is_map(kind):
        _check_types(values, (dict,), kind)
        return _maps(values, kind)
    if pa.types.is_list(kind):
        _check_types(values, (list,), kind)
        return _lists(values, kind)
    _check_types(values, _accepted(kind), kind)
    if pa.types.is_floating(kind):
        return _all_or_first_bad(values, kind, _floats)
    if pa.types.is_decimal(kind):
        return column_from_text(pa.array([None if v is None else str(v) for v in values], pa.string()), kind)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return _all_or_first_bad(values, kind, pa.array)
    return column_from_text(_all_or_first_bad(values, pa.string(), pa.array), kind)


def _accepted(kind: pa.DataType) -> tuple[type, ...]:
    if pa.types.is_boolean(kind):
        return (bool,)
    if pa.types.is_integer(kind):
        return (int,)
    if pa.types.is_floating(kind):
        return (float, int, Decimal, str)
    if pa.types.is_decimal(kind):
        return (int, Decimal, str)
    return () if pa.types.is_null(kind) else (str,)


def _check_types(values: Sequence[Any], accepted: tuple[type, ...], kind: pa.DataType) -> None:
    allowed = {*accepted, type(None)}
    if not set(map(type, values)) <= allowed:  # exact types: a boolean is no number here
        index = next(i for i, v in enumerate(values) if type(v) not in allowed)
        raise BadValue(index, _shown(values[index]), expected_text(kind))


def _floats(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([_float(v) for v in values], kind)


def _float(value: Any) -> Any:
    if isinstance(value, str):
        if value not in _NUMBER_WORDS:
            raise ValueError(value)
        return _NUMBER_WORDS[value]
    return float(value) if isinstance(value, Decimal) else value


def _lists(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    flat = list(itertools.chain.from_iterable(v for v in values if v is not None))
    items = _items(flat, kind.value_field, values)
    return pa.ListArray.from_arrays(_offsets(values), items, type=kind)


def _maps(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    keys = [k for v in values if v is not None for k in v]
    flat = [item for v in values if v is not None for item in v.values()]
    items = _items(flat, kind.item_field, values)
    entries = pa.MapArray.from_arrays(_offsets(values), pa.array(keys, kind.key_type), items)
    return entries.cast(kind)


def _items(flat: Sequence[Any], item: pa.Field, values: Sequence[Any]) -> pa.Array:
    try:
        return _required(flat, item)
    except BadValue as error:
        owners = (i for i, v in enumerate(values) for _ in v or ())
        raise BadValue(next(itertools.islice(owners, error.index, None)), error.found, error.expected) from None


def _structs(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    known = {f.name for f in fields}
    for index, value in enumerate(values):
        unknown = next((name for name in value or () if name not in known), None)
        if unknown is not None:
            raise BadValue(index, f"field {_shown(unknown)}", f"fields among {', '.join(f.name for f in fields)}")
    present = [i for i, v in enumerate(values) if v is not None]
    positions = iter(range(len(present)))
    take = pa.array([None if v is None else next(positions) for v in values], pa.int64())
    columns = []
    for field in fields:
        try:
            columns.append(_required([values[i].get(field.name) for i in present], field).take(take))
        except BadValue as error:
            found = f"{error.found} in field {field.name!r}"
            raise BadValue(present[error.index], found, error.expected) from None
    return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array([v is None for v in values], pa.bool_()))


def _required(values: Sequence[Any], field: pa.Field) -> pa.Array:
    if not field.nullable:
        missing = next((i for i, v in enumerate(values) if v is None), None)
        if missing is not None:
            raise BadValue(missing, "null", expected_text(field.type))
    return column_from_json(values, field.type)


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Arrow's offsets; a null offset makes a null list."""
    offsets: list[int | None] = []
    at = 0
    for value in values:
        offsets.append(None if value is None else at)
        at += len(value or ())
    return pa.array([*offsets, at], pa.int32())


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
