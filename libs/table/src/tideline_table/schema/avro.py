"""Conversion between Avro record schemas and Arrow schemas (format reference 5.1, 8.2).

Arrow types that Avro lacks are widened (small integers, large strings, dictionaries). Types without a counterpart raise
`SchemaMismatch`. Nested types get the names and namespaces that Spark's converter, and so Hudi, gives them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tideline_table.errors import CorruptMetadata, SchemaMismatch, UnsupportedTable
from tideline_table.schema.arrow import is_list, is_text
from tideline_table.schema.meta_fields import META_FIELDS, without_meta_fields

Json = Any
_MAX_DEPTH = 64
_MAX_TEXT = 16 * 1024 * 1024
_MAX_NODES = 100_000
"""Maximum number of types with all references expanded. A few named types that refer to each other can expand to very many."""
_MAX_FIXED_BYTES = 2**31 - 1
VECTOR, VARIANT = "vector", "variant"
_VECTOR_ITEMS = {"FLOAT": pa.float32(), "DOUBLE": pa.float64(), "INT8": pa.int8()}

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


def parse_record(text: str) -> dict[str, Json]:
    """Return the JSON of a record schema, whose `fields` is a list of objects. Raises `CorruptMetadata` for any other text."""
    if len(text) > _MAX_TEXT:
        raise _corrupt(f"an Avro schema of {len(text)} characters", f"at most {_MAX_TEXT}")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _corrupt(f"an Avro schema that cannot be read ({error})", "Avro schema JSON") from None
    if not isinstance(record, dict) or record.get("type") != "record":
        raise _corrupt("an Avro schema that is not a record", "a record schema")
    fields = record.get("fields")
    if not isinstance(fields, list) or not all(isinstance(f, dict) for f in fields):
        raise _corrupt("an Avro record schema without a list of fields", '"fields": [...]')
    return record


def record_to_arrow(record: dict[str, Json]) -> pa.Schema:
    """Return the Arrow schema of a result of `parse_record`, including meta fields.

    Raises `CorruptMetadata`, which names the malformed or recursive type or the union of several types.
    """
    try:
        found = _Reader().record(record, "", 0).kind
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise _corrupt(f"an Avro schema that cannot be read ({error})", "Avro schema JSON") from None
    return pa.schema(list(found))


def _corrupt(found: str, expected: str) -> CorruptMetadata:
    return CorruptMetadata(found, expected=expected)


@dataclass(frozen=True, slots=True)
class _Type:
    """An Arrow type and the number of types that it contains, including itself."""

    kind: pa.DataType
    nodes: int = 1


@dataclass(slots=True)
class _Reader:
    """The state of parsing one schema: the named types that were declared so far."""

    named: dict[str, _Type | None] = field(default_factory=dict)
    """The value is None while the type is parsed; a reference to it is then a recursion."""

    def type(self, avro: Json, namespace: str, depth: int) -> tuple[_Type, bool]:
        """Return the type and whether it may be null."""
        if depth > _MAX_DEPTH:
            raise _corrupt(f"an Avro schema nested deeper than {_MAX_DEPTH} levels", "a flatter schema")
        if isinstance(avro, list):
            branches = [b for b in avro if b not in ("null", {"type": "null"})]
            if len(branches) != 1:
                names = ", ".join(_name_of(b) for b in branches[:4]) or "null"
                raise _corrupt(f"an Avro union of {len(branches)} types ({names})", "a type or a nullable type")
            return self.type(branches[0], namespace, depth + 1)[0], len(branches) < len(avro)
        if isinstance(avro, str):
            found = self._reference(avro, namespace)
        elif isinstance(avro, dict):
            found = self._declared(avro, namespace, depth)
        else:
            raise _corrupt(f"Avro type {avro!r:.40}", "a name, a union or a declaration")
        return found, pa.types.is_null(found.kind)

    def record(self, avro: dict[str, Json], namespace: str, depth: int) -> _Type:
        """Return a record as a struct. Its members may refer to types that were declared before."""
        full = _full_name(avro, namespace)
        self.named[full] = None
        inside = full.rpartition(".")[0]
        members: list[pa.Field] = []
        nodes = 1
        for member in avro["fields"]:
            name = member["name"]
            if not isinstance(name, str):
                raise _corrupt(f"an Avro field named {name!r:.40}", "text")
            kind, nullable = self.type(member["type"], inside, depth + 1)
            members.append(pa.field(name, kind.kind, nullable=nullable))
            nodes = _counted(nodes + kind.nodes)
        if len({m.name for m in members}) < len(members):
            raise _corrupt(f"Avro record {full!r} that names a field twice", "each name once")
        return self._define(full, _Type(pa.struct(members), nodes))

    def _reference(self, name: str, namespace: str) -> _Type:
        primitive = _PRIMITIVE.get(name)
        if primitive is not None:
            return _Type(primitive)
        for full in (f"{namespace}.{name}" if namespace and "." not in name else name, name):
            if full in self.named:
                found = self.named[full]
                if found is None:
                    raise _corrupt(
                        f"Avro type {full!r} that contains itself", "no recursive types, which Arrow and Parquet do not support"
                    )
                return found
        raise _corrupt(f"Avro type {name!r:.80}", "a primitive or a type that was declared before")

    def _declared(self, avro: dict[str, Json], namespace: str, depth: int) -> _Type:
        kind = avro["type"]
        if kind == "record":
            if avro.get("logicalType") == VARIANT and any(member["name"] == "typed_value" for member in avro["fields"]):
                raise UnsupportedTable("a column of type VARIANT that is shredded", expected="variants of metadata and value alone")
            return self.record(avro, namespace, depth)
        if kind == "array":
            item, nullable = self.type(avro["items"], namespace, depth + 1)
            return _Type(pa.list_(pa.field("array", item.kind, nullable=nullable)), _counted(item.nodes + 1))
        if kind == "map":
            item, nullable = self.type(avro["values"], namespace, depth + 1)
            return _Type(pa.map_(pa.string(), pa.field("value", item.kind, nullable=nullable)), _counted(item.nodes + 1))
        if kind == "enum":
            return self._define(_full_name(avro, namespace), _Type(pa.string()))
        if kind == "fixed":
            return self._define(_full_name(avro, namespace), _Type(_decimal(avro) or _vector(avro) or _fixed(avro)))
        if kind == "bytes":
            return _Type(_decimal(avro) or pa.binary())
        logical = avro.get("logicalType")
        if isinstance(kind, str) and isinstance(logical, str) and (kind, logical) in _LOGICAL:
            return _Type(_LOGICAL[kind, logical])
        return self.type(kind, namespace, depth + 1)[0]

    def _define(self, full: str, found: _Type) -> _Type:
        self.named[full] = found
        return found


def _counted(nodes: int) -> int:
    if nodes > _MAX_NODES:
        raise _corrupt(f"an Avro schema of more than {_MAX_NODES} types", "a smaller schema")
    return nodes


def _full_name(avro: dict[str, Json], namespace: str) -> str:
    name = avro["name"]
    own = avro.get("namespace", namespace)
    if not isinstance(name, str) or not name or not isinstance(own, str):
        raise _corrupt(f"an Avro {avro['type']} named {name!r:.40} in namespace {own!r:.40}", "text")
    return name if "." in name or not own else f"{own}.{name}"


def _name_of(avro: Json) -> str:
    if isinstance(avro, dict):
        avro = avro.get("name") or avro.get("type")
    return f"{avro!s:.40}"


def _decimal(avro: dict[str, Json]) -> pa.DataType | None:
    if avro.get("logicalType") != "decimal":
        return None
    precision, scale = avro["precision"], avro.get("scale", 0)
    if not (_is_count(precision) and _is_count(scale) and scale <= precision and 1 <= precision <= 76):
        raise _corrupt(
            f"an Avro decimal of precision {precision!r:.20} and scale {scale!r:.20}", "a precision of 1 to 76 and a scale up to it"
        )
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _vector(avro: dict[str, Json]) -> pa.DataType | None:
    """Return the type of a vector of Apache Hudi 1.2, whose numbers one after the other are the bytes; None for other types."""
    if avro.get("logicalType") != VECTOR:
        return None
    item = _VECTOR_ITEMS.get(avro.get("elementType", "FLOAT"))
    if item is None or avro.get("size") != avro.get("dimension", 0) * item.bit_width // 8:
        raise _corrupt(
            f"an Avro vector of {avro.get('dimension')!r:.9} times {avro.get('elementType')!r:.9} in {avro.get('size')!r:.9} bytes",
            f"numbers of type {', '.join(_VECTOR_ITEMS)} that fill the bytes",
        )
    return pa.list_(pa.field("array", item, nullable=False))


def check_writable_types(text: str, table: str) -> None:
    """Raise `UnsupportedTable` if a schema has vectors or variants, which Tideline reads only."""
    if found := re.search(rf'"logicalType"\s*:\s*"({VECTOR}|{VARIANT})"', text):
        raise UnsupportedTable(
            f"table {table!r} with columns of Apache Hudi's type {found[1].upper()}",
            expected="none for writing, and for services, which write files: Tideline would store arrays, and structs",
            remedy="read it, or write it with Apache Hudi",
        )


def _fixed(avro: dict[str, Json]) -> pa.DataType:
    size = avro["size"]
    if not (_is_count(size) and 1 <= size <= _MAX_FIXED_BYTES):
        raise _corrupt(f"an Avro fixed of size {size!r:.20}", f"1 to {_MAX_FIXED_BYTES} bytes")
    return pa.binary(size)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


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


def avro_part(text: str, names: Collection[str]) -> str | None:
    """Return the record schema `text` with these fields only, None if one of them refers to a type that another one declares."""
    record = parse_record(text)
    part = json.dumps({**record, "fields": [f for f in record["fields"] if f.get("name") in names]}, separators=(",", ":"))
    try:
        record_to_arrow(parse_record(part))
    except CorruptMetadata:
        return None
    return part


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
