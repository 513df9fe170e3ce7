"""Conversion between Avro record schemas and Arrow schemas (format reference 5.1, 8.2).

Arrow types that Avro lacks are widened (small integers, large strings, dictionaries). Types without a counterpart raise
`SchemaMismatch`. Nested types get the names and namespaces that Spark's converter, and so Hudi, gives them.
"""

from __future__ import annotations

import functools
import json
import re
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tideline_table.errors import CorruptMetadata, SchemaMismatch
from tideline_table.schema.arrow import is_list, is_text
from tideline_table.schema.avro_types import parse_record, record_to_arrow
from tideline_table.schema.meta_fields import META_FIELDS, without_meta_fields

Json = Any
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_MAX_DECIMAL_PRECISION = 38
"""The limit of Spark, and so of Hudi."""


def avro_from_arrow(schema: pa.Schema, table_name: str) -> str:
    """Return the Avro JSON text of `schema` without meta fields: record `<table>_record` in namespace `hoodie.<table>`.

    Raises `SchemaMismatch` for names or types that Avro does not support.
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", table_name)
    if name[:1].isdigit():
        name = f"_{name}"
    record = f"{name}_record"
    fields = [_avro_field(field, f"hoodie.{name}.{record}") for field in schema if field.name not in META_FIELDS]
    return json.dumps({"type": "record", "name": record, "namespace": f"hoodie.{name}", "fields": fields}, separators=(",", ":"))


def avro_with_meta_fields(text: str) -> str:
    """Return the record schema `text` with the five meta fields first. All else (names, docs, defaults, enums) is unchanged.

    Raises `CorruptMetadata` if the text is not an Avro record schema.
    """
    record = parse_record(text)
    meta = [{"name": f, "type": ["null", "string"], "doc": "", "default": None} for f in META_FIELDS]
    rest = [f for f in record["fields"] if f.get("name") not in META_FIELDS]
    return json.dumps({**record, "fields": [*meta, *rest]}, separators=(",", ":"))


def avro_evolved(text: str, schema: pa.Schema, table_name: str) -> str:
    """Return the Avro text of `schema`, which evolved from the record schema `text`.

    Unchanged fields keep their Avro declaration (enums, fixed names, docs, defaults); other fields get a new one. Raises
    `SchemaMismatch` for names or types that Avro does not support.
    """
    fresh = avro_from_arrow(schema, table_name)
    if not text:
        return fresh
    record = parse_record(text)
    known = {f.name: f for f in record_to_arrow(record)}
    before = {f["name"]: f for f in record["fields"]}
    renewed = {f["name"]: f for f in json.loads(fresh)["fields"]}
    fields = [
        before[f.name] if f.name in known and f.equals(known[f.name]) else renewed[f.name]
        for f in schema
        if f.name not in META_FIELDS
    ]
    merged = json.dumps({**record, "fields": fields}, separators=(",", ":"))
    # A kept declaration may refer to a type that a changed or moved field declared.
    return merged if _is_same(merged, schema) else fresh


def _is_same(text: str, schema: pa.Schema) -> bool:
    try:
        return bool(arrow_from_avro(text).equals(without_meta_fields(schema)))
    except CorruptMetadata:
        return False


@functools.lru_cache(maxsize=256)
@lru_cache(maxsize=256)
def arrow_from_avro(text: str) -> pa.Schema:
    """Return the Arrow schema of an Avro record schema, without meta fields.

    Raises `CorruptMetadata` if the text is not an Avro record schema or Arrow cannot represent it. The error names recursive types
    and unions of several types.
    """
    return without_meta_fields(record_to_arrow(parse_record(text)))


def _avro_field(field: pa.Field, namespace: str) -> Json:
    if not _NAME.match(field.name):
        raise SchemaMismatch(
            f"column name {field.name!r}",
            expected="a letter or '_' followed by letters, digits and '_' (Avro's rule for names)",
            remedy="rename the column",
        )
    kind = _avro_type(field.type, f"{namespace}.{field.name}", field.name)
    if kind == "null":
        return {"name": field.name, "type": kind, "default": None}
    if field.nullable:
        return {"name": field.name, "type": ["null", kind], "default": None}
    return {"name": field.name, "type": kind}


def _avro_type(kind: pa.DataType, namespace: str, column: str) -> Json:
    if pa.types.is_dictionary(kind):
        return _avro_type(kind.value_type, namespace, column)
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _MAX_DECIMAL_PRECISION:
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
        if not len(kind):
            raise SchemaMismatch(
                f"column {column!r} is a struct without members", expected="at least one", remedy="drop the column"
            )
        return {"type": "record", "name": last, "namespace": name, "fields": [_avro_field(f, namespace) for f in kind]}
    if is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, namespace, column)}
    if pa.types.is_map(kind):
        if not is_text(kind.key_type):
            raise SchemaMismatch(f"column {column!r} is a map with keys of type {kind.key_type}", expected="keys of type string")
        return {"type": "map", "values": _nullable(kind.item_field, namespace, column)}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": "fixed", "namespace": namespace, "size": kind.byte_width}
    plain = _PLAIN.get(kind)
    if plain is None:
        raise SchemaMismatch(
            f"column {column!r} has the type {kind}", expected="a type that Avro supports", remedy="cast the column"
        )
    return plain


def _nullable(field: pa.Field, namespace: str, column: str) -> Json:
    inner = _avro_type(field.type, namespace, column)
    return ["null", inner] if field.nullable and inner != "null" else inner


def decimal_width_bytes(precision: int) -> int:
    """Return the least number of bytes that hold `precision` decimal digits with a sign."""
    largest: int = 10**precision - 1
    return largest.bit_length() // 8 + 1


def _logical(base: str, logical: str) -> Json:
    return {"type": base, "logicalType": logical}


_PLAIN: dict[pa.DataType, Json] = {
    pa.null(): "null",
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
    pa.time32("s"): _logical("int", "time-millis"),
    pa.time64("us"): _logical("long", "time-micros"),
    pa.timestamp("ms", tz="UTC"): _logical("long", "timestamp-millis"),
    pa.timestamp("us", tz="UTC"): _logical("long", "timestamp-micros"),
    pa.timestamp("ms"): _logical("long", "local-timestamp-millis"),
    pa.timestamp("us"): _logical("long", "local-timestamp-micros"),
    pa.timestamp("s"): _logical("long", "local-timestamp-millis"),
    pa.timestamp("s", tz="UTC"): _logical("long", "timestamp-millis"),
}
