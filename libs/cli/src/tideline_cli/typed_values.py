"""Converts text and JSON values of CSV and JSON files to Arrow columns of a given type.

Text is parsed by `tideline_table.schema.text_values`; nested values are JSON. JSON numbers and booleans are accepted only for
columns of that kind, so text never becomes a number by accident. Floating-point columns accept "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tideline_table.schema import REFUSALS, cast_text, expected_text

_NUMBER_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_SHOWN = 60


class BadValue(Exception):
    """The value at `index` of a column does not fit. `found` describes the value, `expected` says which values are allowed."""

    def __init__(self, index: int, found: str, expected: str) -> None:
        super().__init__(index, found, expected)
        self.index = index
        self.found = found
        self.expected = expected


def holds_decimals(kind: pa.DataType) -> bool:
    """Return whether `kind` is or contains a decimal, so that JSON numbers must be read exactly."""
    return bool(pa.types.is_decimal(kind)) or any(holds_decimals(kind.field(i).type) for i in range(kind.num_fields))


def loads(text: str, *, exact: bool) -> Any:
    """Parse one JSON value. With `exact`, fractions become `Decimal`. Raises `ValueError`, also for nesting that is too deep."""
    try:
        return json.loads(text, parse_float=Decimal) if exact else json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


# --- text ----------------------------------------------------------------------------------------------------------------


def column_from_text(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert texts to type `kind`; null stays null. Raises `BadValue` for the first text that does not fit."""
    if pa.types.is_nested(kind):
        return column_from_json(_parsed_cells(values, kind), kind)
    return _all_or_first_bad(values, kind, cast_text)


def _parsed_cells(values: pa.Array, kind: pa.DataType) -> list[Any]:
    exact = holds_decimals(kind)
    cells: list[Any] = []
    for index, text in enumerate(values.to_pylist()):
        try:
            cells.append(None if text is None else loads(text, exact=exact))
        except ValueError:
            raise BadValue(index, _shown(text), expected_text(kind)) from None
    return cells


def _all_or_first_bad(values: Any, kind: pa.DataType, convert: Callable[[Any, pa.DataType], pa.Array]) -> pa.Array:
    """Convert all values at once. If that fails, find the first bad value by bisection, which needs few conversions."""
    try:
        return convert(values, kind)
    except REFUSALS:
        good, bad = 0, len(values)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            convert(values[good:middle], kind)
            good = middle
        except REFUSALS:
            bad = middle
    found = values[good]
    raise BadValue(good, _shown(found.as_py() if isinstance(found, pa.Scalar) else found), expected_text(kind))


# --- JSON ----------------------------------------------------------------------------------------------------------------


def column_from_json(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Convert parsed JSON values to type `kind`; None becomes null. Raises `BadValue` for the first value that does not fit."""
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
    if not set(map(type, values)) <= allowed:  # exact types, because bool is a subclass of int
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
    """Return Arrow's list offsets. A null offset makes a null list."""
    offsets: list[int | None] = []
    at = 0
    for value in values:
        offsets.append(None if value is None else at)
        at += len(value or ())
    return pa.array([*offsets, at], pa.int32())


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
