"""Avro record schemas ↔ Arrow schemas (format reference 5.1, 8.2).

Arrow types that Avro lacks are widened on the way out (small integers, large strings, dictionaries); types that have no
counterpart are refused with `SchemaMismatch`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from tideline_table.errors import CorruptMetadata, SchemaMismatch
from tideline_table.schema.meta_fields import META_FIELDS

Json = Any
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_MAX_DEPTH = 64


def avro_from_arrow(schema: pa.Schema, table_name: str, *, meta_fields: bool = False) -> str:
    """The Avro JSON text of `schema`, record `<table>_record` in namespace `hoodie.<table>`.

    With `meta_fields` the five meta fields come first. Raises `SchemaMismatch` for names or types that Avro cannot hold.
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", table_name)
    if name[:1].isdigit():
        name = f"_{name}"
    record = f"{name}_record"
    fields: list[Json] = []
    if meta_fields:
        fields += [{"name": f, "type": ["null", "string"], "doc": "", "default": None} for f in META_FIELDS]
    fields += [_avro_field(field, f"hoodie.{name}.{record}") for field in schema if field.name not in META_FIELDS]
    return json.dumps({"type": "record", "name": record, "namespace": f"hoodie.{name}", "fields": fields}, separators=(",", ":"))


def _avro_field(field: pa.Field, namespace: str) -> Json:
    if not _NAME.match(field.name):
        raise SchemaMismatch(
            f"column name {field.name!r}",
            expected="a letter or '_' followed by letters, digits and '_' (Avro's rule for names)",
            remedy="rename the column",
        )
    kind = _avro_type(field.type, f"{namespace}.{field.name}", field.name)
    if field.nullable:
        return {"name": field.name, "type": ["null", kind], "default": None}
    return {"name": field.name, "type": kind}


def _avro_type(kind: pa.DataType, namespace: str, column: str) -> Json:
    if pa.types.is_dictionary(kind):
        return _avro_type(kind.value_type, namespace, column)
    if pa.types.is_decimal(kind):
        size = decimal_width_bytes(kind.precision)
        return {
            "type": "fixed",
            "name": "fixed",
            "namespace": namespace,
            "size": size,
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_struct(kind):
        name, _, last = namespace.rpartition(".")
        return {"type": "record", "name": last, "namespace": name, "fields": [_avro_field(f, namespace) for f in kind]}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, f"{namespace}.array", column)}
    if pa.types.is_map(kind):
        if not (pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type)):
            raise SchemaMismatch(f"column {column!r} is a map with keys of type {kind.key_type}", expected="keys of type string")
        return {"type": "map", "values": _nullable(kind.item_field, f"{namespace}.map", column)}
    plain = _PLAIN.get(kind)
    if plain is None:
        raise SchemaMismatch(
            f"column {column!r} has the type {kind}", expected="a type that Avro can hold", remedy="cast the column"
        )
    return plain


def _nullable(field: pa.Field, namespace: str, column: str) -> Json:
    inner = _avro_type(field.type, namespace, column)
    return ["null", inner] if field.nullable else inner


def decimal_width_bytes(precision: int) -> int:
    """Least number of bytes that hold `precision` decimal digits with a sign."""
    size = 1
    while 10**precision - 1 > 2 ** (8 * size - 1) - 1:
        size += 1
    return size


def _logical(base: str, logical: str) -> Json:
    return {"type": base, "logicalType": logical}


_PLAIN: dict[pa.DataType, Json] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): _logical("int", "date"),
    pa.time32("ms"): _logical("int", "time-millis"),
    pa.time64("us"): _logical("long", "time-micros"),
    pa.timestamp("ms", tz="UTC"): _logical("long", "timestamp-millis"),
    pa.timestamp("us", tz="UTC"): _logical("long", "timestamp-micros"),
    pa.timestamp("ms"): _logical("long", "local-timestamp-millis"),
    pa.timestamp("us"): _logical("long", "local-timestamp-micros"),
    pa.timestamp("s"): _logical("long", "local-timestamp-millis"),
    pa.timestamp("s", tz="UTC"): _logical("long", "timestamp-millis"),
}

_PRIMITIVE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "null": pa.null(),
}
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


def arrow_from_avro(text: str) -> pa.Schema:
    """The Arrow schema of an Avro record schema, meta fields left out.

    Raises `CorruptMetadata` when the text is not an Avro record schema.
    """
    try:
        record = json.loads(text)
        if not isinstance(record, dict) or record.get("type") != "record":
            raise CorruptMetadata("an Avro schema that is no record", expected="a record schema")
        named: dict[str, pa.DataType] = {}
        fields = [_arrow_field(f, named, str(record.get("namespace", "")), 0) for f in record["fields"]]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptMetadata(f"an Avro schema that cannot be read ({error})", expected="Avro schema JSON") from None
    return pa.schema([f for f in fields if f.name not in META_FIELDS])


def _arrow_field(field: Json, named: dict[str, pa.DataType], namespace: str, depth: int) -> pa.Field:
    kind, nullable = _arrow_type(field["type"], named, namespace, depth + 1)
    return pa.field(str(field["name"]), kind, nullable=nullable)


def _arrow_type(avro: Json, named: dict[str, pa.DataType], namespace: str, depth: int) -> tuple[pa.DataType, bool]:
    if depth > _MAX_DEPTH:
        raise CorruptMetadata(f"an Avro schema nested deeper than {_MAX_DEPTH} levels", expected="a flatter schema")
    if isinstance(avro, list):
        branches = [b for b in avro if b != "null"]
        if len(branches) != 1:
            raise CorruptMetadata(f"an Avro union of {len(branches)} types", expected="a type or a nullable type")
        return _arrow_type(branches[0], named, namespace, depth + 1)[0], len(branches) < len(avro)
    if isinstance(avro, str):
        known = _PRIMITIVE.get(avro) or named.get(avro) or named.get(f"{namespace}.{avro}")
        if known is None:
            raise CorruptMetadata(f"Avro type {avro!r}", expected="a primitive or a type that was named before")
        return known, False
    return _arrow_complex(avro, named, namespace, depth), False


def _arrow_complex(avro: dict[str, Json], named: dict[str, pa.DataType], namespace: str, depth: int) -> pa.DataType:
    kind, logical = avro["type"], avro.get("logicalType", "")
    if isinstance(kind, dict | list):
        return _arrow_type(kind, named, namespace, depth + 1)[0]
    own = str(avro.get("namespace", namespace))
    if kind == "array":
        item, nullable = _arrow_type(avro["items"], named, own, depth + 1)
        return pa.list_(pa.field("array", item, nullable=nullable))
    if kind == "map":
        item, nullable = _arrow_type(avro["values"], named, own, depth + 1)
        return pa.map_(pa.string(), pa.field("value", item, nullable=nullable))
    result: pa.DataType
    if kind == "record":
        result = pa.struct([_arrow_field(f, named, own, depth + 1) for f in avro["fields"]])
    elif kind == "enum":
        result = pa.string()
    elif logical == "decimal":
        result = pa.decimal128(int(avro["precision"]), int(avro.get("scale", 0)))
    elif kind == "fixed":
        result = pa.binary(int(avro["size"]))
    else:
        return _LOGICAL.get((kind, logical)) or _arrow_type(kind, named, own, depth + 1)[0]
    if "name" in avro:
        name = str(avro["name"])
        named[name if "." in name else f"{own}.{name}" if own else name] = result
    return result
