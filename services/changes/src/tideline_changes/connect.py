"""Values and schemas of Arrow types as Kafka Connect's JSON converter and Debezium write them."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from typing import Any, Literal

import pyarrow as pa

from tideline_table.errors import UnsupportedTable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
_US = 1_000_000
_EVERY_DIGIT = Context(prec=76)
"""Of the widest decimal of Arrow. The context of the process rounds to 28 digits."""
Json = Callable[[Any], Any]
Encoding = Literal["json", "connect", "avro"]
"""Plain JSON, JSON for Kafka Connect's converter with schemas, Avro."""


@dataclass(frozen=True, slots=True)
class Form:
    """The schema of a type in Kafka Connect's JSON, and the function that makes its values from those of Arrow's `to_pylist`.

    The values are of JSON or, for the encoding "avro", those that Avro has.
    """

    schema: dict[str, Any]
    json: Json


def form_of(kind: pa.DataType, *, name: str = "row", encoding: Encoding = "json") -> Form:
    """Return the form of a type. `name` is that of a struct's schema. Raises `UnsupportedTable` for a type that has none.

    Numbers that JSON lacks are texts, or null for "connect": Kafka Connect's JSON converter writes them as texts, and reads 0.
    """
    found = _simple(kind)
    if found is not None and encoding == "connect" and pa.types.is_floating(kind):
        return Form(found.schema, lambda value: value if math.isfinite(value) else None)
    if found is not None:
        return Form(found.schema, _same) if encoding == "avro" and found.json in {_base64, _finite} else found
    if pa.types.is_decimal(kind):
        parameters = {"scale": str(kind.scale), "connect.decimal.precision": str(kind.precision)}
        schema = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "version": 1, "parameters": parameters}
        of_bytes: Json = _same if encoding == "avro" else _base64
        return Form(schema, lambda value: of_bytes(_unscaled(value, kind.scale)))
    if pa.types.is_struct(kind):
        fields = [(f.name, form_of(f.type, name=f"{name}.{f.name}", encoding=encoding), f.nullable) for f in kind]
        return struct_of(name, fields)
    if pa.types.is_map(kind):
        keys = form_of(kind.key_type, name=f"{name}.key", encoding=encoding)
        items = form_of(kind.item_type, name=f"{name}.value", encoding=encoding)
        schema = {"type": "map", "keys": {**keys.schema, "optional": False}, "values": {**items.schema, "optional": True}}
        return Form(schema, lambda value: {k: _or_null(items.json, v) for k, v in value})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of = form_of(kind.value_type, name=f"{name}.item", encoding=encoding)
        return Form(
            {"type": "array", "items": {**of.schema, "optional": True}}, lambda value: [_or_null(of.json, v) for v in value]
        )
    raise UnsupportedTable(f"column {name} of type {kind}", expected="types that Kafka Connect has")


def struct_of(name: str, fields: list[tuple[str, Form, bool]]) -> Form:
    """Return the form of a struct with fields by name, form, and whether they may be null."""
    described = [{**form.schema, "optional": optional, "field": field} for field, form, optional in fields]
    makers = [(field, form.json) for field, form, _ in fields]
    return Form(
        {"type": "struct", "fields": described, "name": name},
        lambda value: {field: _or_null(make, value[field]) for field, make in makers},
    )


def dumps(value: Any) -> str:
    """Return JSON in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _or_null(make: Json, value: Any) -> Any:
    return None if value is None else make(value)


def _simple(kind: pa.DataType) -> Form | None:
    for test, connect, name, make in _SIMPLE:
        if test(kind):
            return Form({"type": connect} | ({"name": name, "version": 1} if name else {}), make)
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        if kind.tz is not None:
            return Form({"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1}, _zoned)
        if kind.unit in {"s", "ms"}:
            return Form({"type": "int64", "name": "io.debezium.time.Timestamp", "version": 1}, lambda v: _micros(v) // 1000)
        return Form({"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1}, _micros)
    return None


def _same(value: Any) -> Any:
    return value


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _days(value: date) -> int:
    return (value - _EPOCH_DAY).days


def _of_day(value: time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * _US + value.microsecond


def _micros(value: datetime) -> int:
    passed = value.replace(tzinfo=UTC) - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * _US + passed.microseconds


def _zoned(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _unscaled(value: Decimal, scale: int) -> bytes:
    number = int(value.scaleb(scale, _EVERY_DIGIT))
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


_SIMPLE: tuple[tuple[Callable[[pa.DataType], bool], str, str, Json], ...] = (
    (pa.types.is_boolean, "boolean", "", _same),
    (pa.types.is_int8, "int8", "", _same),
    (pa.types.is_int16, "int16", "", _same),
    (pa.types.is_int32, "int32", "", _same),
    (pa.types.is_int64, "int64", "", _same),
    (pa.types.is_float32, "float", "", _finite),
    (pa.types.is_float64, "double", "", _finite),
    (pa.types.is_string, "string", "", _same),
    (pa.types.is_large_string, "string", "", _same),
    (pa.types.is_binary, "bytes", "", _base64),
    (pa.types.is_large_binary, "bytes", "", _base64),
    (pa.types.is_fixed_size_binary, "bytes", "", _base64),
    (pa.types.is_date32, "int32", "io.debezium.time.Date", _days),
    (pa.types.is_time, "int64", "io.debezium.time.MicroTime", _of_day),
)
