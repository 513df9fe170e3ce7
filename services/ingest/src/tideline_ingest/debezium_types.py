"""The types of columns in Debezium's records, by the names of Kafka Connect's schemas (its JSON, and Avro's `connect.name`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tideline_ingest.forms import Form, form, list_form, scaled_decimal, struct_form

Json = Any
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
SCALED_DECIMAL = "io.debezium.data.VariableScaleDecimal"
_EPOCHS = {
    "io.debezium.time.Date": "epoch_days",
    "io.debezium.time.Time": "epoch_ms",
    "io.debezium.time.MicroTime": "epoch_us",
    "io.debezium.time.NanoTime": "epoch_ns",
    "io.debezium.time.Timestamp": "epoch_ms",
    "io.debezium.time.MicroTimestamp": "epoch_us",
    "io.debezium.time.NanoTimestamp": "epoch_ns",
    "org.apache.kafka.connect.data.Date": "epoch_days",
    "org.apache.kafka.connect.data.Time": "epoch_ms",
    "org.apache.kafka.connect.data.Timestamp": "epoch_ms",
}
_NATURAL = {
    "io.debezium.time.Date": pa.date32(),
    "io.debezium.time.Time": pa.time64("us"),
    "io.debezium.time.MicroTime": pa.time64("us"),
    "io.debezium.time.Timestamp": pa.timestamp("us", tz="UTC"),
    "io.debezium.time.MicroTimestamp": pa.timestamp("us", tz="UTC"),
    "io.debezium.time.ZonedTimestamp": pa.timestamp("us", tz="UTC"),
    "org.apache.kafka.connect.data.Date": pa.date32(),
    "org.apache.kafka.connect.data.Time": pa.time64("us"),
    "org.apache.kafka.connect.data.Timestamp": pa.timestamp("us", tz="UTC"),
}
"""Types of columns that a table gets for a field. Nanoseconds stay whole numbers, because no column holds them without loss."""
_PLAIN = {
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_MOST_DIGITS = 38
_USUAL = {pa.types.is_date: "epoch_days", pa.types.is_decimal: "base64", pa.types.is_binary: "base64"}


def declared_form(declared: Mapping[str, Json], kind: pa.DataType) -> Form | None:
    """Return the form of a field's values in a column of type `kind`; None if `kind` takes them as they are.

    `declared` is Kafka Connect's schema of the field: `type`, `name`, `parameters`.
    """
    name = declared.get("name")
    if name == SCALED_DECIMAL:
        return scaled_decimal(kind) if pa.types.is_decimal(kind) else None
    if name in _EPOCHS:
        return form(_EPOCHS[name], kind)
    if declared.get("type") == "bytes":
        return form("base64", kind, _number(declared, "scale") if name == _DECIMAL else None)
    if declared.get("type") == "array" and pa.types.is_list(kind):
        return list_form(declared_form(declared["items"], kind.value_type))
    if declared.get("type") == "struct" and pa.types.is_struct(kind):
        members = {f["field"]: f for f in declared["fields"]}
        return struct_form(kind, {f.name: declared_form(members[f.name], f.type) for f in kind if f.name in members})
    return None


def usual_form(kind: pa.DataType) -> Form | None:
    """Return the form of values without a schema in a column of type `kind`, by Debezium's default settings."""
    if pa.types.is_list(kind):
        return list_form(usual_form(kind.value_type))
    if pa.types.is_struct(kind):
        return struct_form(kind, {f.name: usual_form(f.type) for f in kind})
    return next((form(name, kind) for fits, name in _USUAL.items() if fits(kind)), None)


def declared_type(declared: Mapping[str, Json]) -> pa.DataType:
    """Return the type of a column for a field that the table lacks. Raises `ValueError` for fields that have none."""
    name, wire = declared.get("name"), declared.get("type")
    if name in _NATURAL:
        return _NATURAL[name]
    if name == _DECIMAL:
        return pa.decimal128(_number(declared, "connect.decimal.precision") or _MOST_DIGITS, _number(declared, "scale") or 0)
    if wire == "array":
        return pa.list_(declared_type(declared["items"]))
    if wire == "struct" and name != SCALED_DECIMAL:
        return pa.struct([(str(f["field"]), declared_type(f)) for f in declared["fields"]])
    if wire not in _PLAIN:
        raise ValueError(f"a field of type {name or wire}")
    return _PLAIN[wire]


def natural_type(declared: Mapping[str, Json], plain: pa.DataType) -> pa.DataType:
    """Return the type of a new column for values of a declared meaning, which have the type `plain` in a record."""
    if pa.types.is_list(plain) and "items" in declared:
        return pa.list_(natural_type(declared["items"], plain.value_type))
    if pa.types.is_struct(plain) and "fields" in declared:
        members = {f["field"]: f for f in declared["fields"]}
        return pa.struct([pa.field(f.name, natural_type(members.get(f.name, {}), f.type)) for f in plain])
    return _NATURAL.get(declared.get("name") or "", plain)


def _number(declared: Mapping[str, Json], parameter: str) -> int | None:
    found = (declared.get("parameters") or {}).get(parameter)
    return None if found is None else int(found)
