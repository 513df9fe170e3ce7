"""Forms of values in records: numbers since the epoch and base64, besides those that columns have by themselves."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FormName = Literal["text", "epoch_days", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns", "base64"]
_ZONE = r":\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$"
_UNITS: Mapping[str, str] = {"epoch_s": "s", "epoch_ms": "ms", "epoch_us": "us", "epoch_ns": "ns"}
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_DIGITS = 76
_EXACT = Context(prec=_DIGITS)
_MOST_DECIMAL_BYTES = 31
"""Every number of so many bytes has fewer digits than `_DIGITS`."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the values of one column: `wire` is their type in a record, `restore` converts them to values of the column.

    `restore` raises `ValueError` for values that the column cannot hold.
    """

    name: str
    wire: pa.DataType
    restore: Callable[[pa.Array], pa.Array]


def form(name: str, kind: pa.DataType, scale: int | None = None) -> Form | None:
    """Return the form `name` of values of a column of type `kind`; None if `kind` has no such form.

    `scale` is that of base64 decimals, by default the one of the column.
    """
    if name in _UNITS:
        unit = _UNITS[name]
        if pa.types.is_timestamp(kind):
            return Form(name, pa.int64(), lambda values: values.cast(pa.timestamp(unit, kind.tz)).cast(kind))
        if pa.types.is_time(kind):
            return Form(name, pa.int64(), lambda values: _time_of_day(values, unit).cast(kind))
        if pa.types.is_date(kind):
            return Form(name, pa.int64(), lambda values: values.cast(pa.timestamp(unit)).cast(kind))
    elif name == "epoch_days" and pa.types.is_date(kind):
        return Form(name, pa.int32(), lambda values: values.cast(pa.date32()).cast(kind))
    elif name == "epoch_days" and pa.types.is_timestamp(kind):
        return Form(name, pa.int32(), lambda values: values.cast(pa.date32()).cast(pa.timestamp("s", kind.tz)).cast(kind))
    elif name == "base64" and pa.types.is_decimal(kind):
        by = kind.scale if scale is None else scale
        return Form(name, pa.string(), lambda values: _decimals(values, by, kind))
    elif name == "base64" and pa.types.is_binary(kind):
        return Form(name, pa.string(), lambda values: pa.array([_bytes(v) for v in values.to_pylist()], kind))
    return None


def scaled_decimal(kind: pa.DataType) -> Form:
    """Return the form of decimals that each carry their own scale: `{"scale": 2, "value": base64}`."""
    wire = pa.struct([("scale", pa.int32()), ("value", pa.string())])

    def restored(values: pa.Array) -> pa.Array:
        found = (v and _decimal(v["value"], v["scale"]) for v in values.to_pylist())
        return pa.array(list(found), pa.decimal256(_DIGITS, kind.scale)).cast(kind)

    return Form("base64", wire, restored)


def list_form(inner: Form | None) -> Form | None:
    """Return the form of lists whose items have the form `inner`; None if they have none."""
    return None if inner is None else Form("nested", pa.list_(inner.wire), lambda values: over_items(values, inner.restore))


def struct_form(kind: pa.DataType, members: Mapping[str, Form | None]) -> Form | None:
    """Return the form of structs of type `kind` of which some members have forms; None if none has."""
    known = {name: found for name, found in members.items() if found is not None}
    wire = pa.struct([pa.field(f.name, known[f.name].wire) if f.name in known else wire_field(f) for f in kind])

    def restored(values: pa.Array) -> pa.Array:
        return over_members(values, lambda name, member: known[name].restore(member) if name in known else member)

    return Form("nested", wire, restored) if known else None


def over_items(values: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return lists with converted items."""
    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(values), 0)), dtype=np.int32)
    offsets = pa.array(np.concatenate((np.zeros(1, np.int32), ends)))
    return pa.ListArray.from_arrays(offsets, convert(values.flatten()), mask=values.is_null())


def over_members(values: pa.Array, convert: Callable[[str, pa.Array], pa.Array]) -> pa.Array:
    """Return structs with converted members."""
    names = [field.name for field in values.type]
    members = [convert(name, member) for name, member in zip(names, values.flatten(), strict=True)]
    return pa.StructArray.from_arrays(members, names=names, mask=values.is_null())


def wire_field(field: pa.Field) -> pa.Field:
    """Return what a column without a form is in JSON, as Arrow reads it."""
    return pa.field(field.name, _wire_type(field.type))


def _wire_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([wire_field(f) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(wire_field(kind.value_field))
    return kind


def from_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values of `kind` from texts: ISO 8601 for times, with or without a zone. Raises `ArrowInvalid`."""
    if pa.types.is_timestamp(kind):
        # Arrow wants a zone in all texts or in none. Without one, the time is UTC.
        whole = pc.if_else(
            pc.equal(pc.utf8_length(texts), len("1970-01-01")), pc.binary_join_element_wise(texts, "T00:00", ""), texts
        )
        zoned = pc.if_else(pc.match_substring_regex(whole, _ZONE), whole, pc.binary_join_element_wise(whole, "Z", ""))
        return zoned.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
    if pa.types.is_time(kind):
        return pc.binary_join_element_wise("1970-01-01T", texts, "").cast(pa.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)


def first_line(error: Exception) -> str:
    """Return the beginning of an error's text."""
    return str(error).strip().split("\n", 1)[0][:300]


def _time_of_day(values: pa.Array, unit: str) -> pa.Array:
    wrong = next((v for v in values.to_pylist() if v is not None and not 0 <= v < _PER_DAY[unit]), None)
    if wrong is not None:
        raise ValueError(f"{wrong} {unit} are no time of day")
    return values.cast(pa.int32()).cast(pa.time32(unit)) if unit in ("s", "ms") else values.cast(pa.time64(unit))


def _bytes(value: str | bytes | None) -> bytes | None:
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


def _decimal(value: str | bytes | None, scale: int) -> Decimal | None:
    content = _bytes(value)
    if content is None:
        return None
    if len(content) > _MOST_DECIMAL_BYTES or abs(scale) > _DIGITS:
        raise ValueError(f"a decimal of {len(content)} bytes with scale {scale}")
    return _EXACT.scaleb(Decimal(int.from_bytes(content, "big", signed=True)), -scale)


def _decimals(values: pa.Array, scale: int, kind: Any) -> pa.Array:
    found = [_decimal(text, scale) for text in values.to_pylist()]
    return pa.array(found, pa.decimal256(_DIGITS, max(scale, 0))).cast(kind)
