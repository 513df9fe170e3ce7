"""Columns of an Avro schema in the words of Hive, and as the JSON that Spark keeps of a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tideline_catalogs.catalog import CatalogRefused, Column

_HIVE = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "enum": "string",
    "bytes": "binary",
    "fixed": "binary",
}
_SPARK = _HIVE | {"int": "integer", "long": "long"}
_LOGICAL = {
    "date": ("date", "date"),
    "timestamp-millis": ("timestamp", "timestamp"),
    "timestamp-micros": ("timestamp", "timestamp"),
    "local-timestamp-millis": ("timestamp", "timestamp_ntz"),
    "local-timestamp-micros": ("timestamp", "timestamp_ntz"),
}
"""Hive's and Spark's word for each logical type. Others (times, uuid) are registered as what they are stored as."""
_MOST_DIGITS = 38
_LONGEST_COMMENT = 255
"""Glue refuses more; the database of a metastore has 256."""


def columns_of(schema_json: str) -> tuple[Column, ...]:
    """Return the columns of an Avro record in its order, names in lower case as Hive holds them.

    Raises `CatalogRefused` for a type that Hive does not have, and for names that differ only in case.
    """
    known: dict[str, Any] = {}
    columns = [
        Column(field["name"].lower(), _hive(field["type"], known, field["name"]), (field.get("doc") or "")[:_LONGEST_COMMENT])
        for field in json.loads(schema_json)["fields"]
    ]
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CatalogRefused(
            f"columns that differ only in case: {', '.join(twice)}", expected="names that are different in lower case, as Hive's"
        )
    return tuple(columns)


def spark_schema(schema_json: str, last: Sequence[str]) -> str:
    """Return the schema as Spark's JSON, with the columns `last` at the end, as Spark expects those of partitions."""
    fields = json.loads(schema_json)["fields"]
    known: dict[str, Any] = {}
    by_name = {field["name"]: _spark_field(field, known) for field in fields}
    names = [*(name for name in by_name if name not in last), *(name for name in last if name in by_name)]
    return json.dumps({"type": "struct", "fields": [by_name[name] for name in names]}, separators=(",", ":"), ensure_ascii=False)


def _spark_field(field: Mapping[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    kind, nullable = _plain(field["type"], field["name"])
    metadata = {"comment": field["doc"]} if field.get("doc") else {}
    return {"name": field["name"], "type": _spark(kind, known, field["name"]), "nullable": nullable, "metadata": metadata}


def _plain(kind: Any, name: str) -> tuple[Any, bool]:
    """Return a type without its null, and whether it has one."""
    if not isinstance(kind, list):
        return kind, False
    others = [one for one in kind if one != "null"]
    if len(others) != 1:
        raise CatalogRefused(f"column {name!r} holds values of several types", expected="one type, or one type and null")
    return others[0], len(others) < len(kind)


def _resolved(kind: Any, known: dict[str, Any], name: str) -> Any:
    """Return the definition of a named type at each of its uses. A type that contains itself is refused."""
    if isinstance(kind, str):
        if kind in _HIVE:
            return {"type": kind}
        if kind not in known:
            raise CatalogRefused(f"column {name!r} has the type {kind!r}", expected="a type that Hive has, and that ends")
        return known[kind]
    if isinstance(kind.get("type"), dict):
        return _resolved(kind["type"], known, name)
    return kind


def _remember(found: Mapping[str, Any], known: dict[str, Any]) -> None:
    """Keep a named type once its parts are read: a use inside it is a recursion and stays unknown."""
    if "name" in found:
        known[found["name"]] = found
        if found.get("namespace"):
            known[f"{found['namespace']}.{found['name']}"] = found


def _hive(kind: Any, known: dict[str, Any], name: str) -> str:
    found = _resolved(_plain(kind, name)[0], known, name)
    match found["type"]:
        case "record":
            parts = ",".join(f"{part['name'].lower()}:{_hive(part['type'], known, name)}" for part in found["fields"])
            text = f"struct<{parts}>"
        case "array":
            text = f"array<{_hive(found['items'], known, name)}>"
        case "map":
            text = f"map<string,{_hive(found['values'], known, name)}>"
        case _:
            text = _simple(found, 0, name)
    _remember(found, known)
    return text


def _spark(kind: Any, known: dict[str, Any], name: str) -> Any:
    found = _resolved(kind, known, name)
    text: Any
    match found["type"]:
        case "record":
            text = {"type": "struct", "fields": [_spark_field(part, known) for part in found["fields"]]}
        case "array":
            inner, nullable = _plain(found["items"], name)
            text = {"type": "array", "elementType": _spark(inner, known, name), "containsNull": nullable}
        case "map":
            inner, nullable = _plain(found["values"], name)
            value = _spark(inner, known, name)
            text = {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": nullable}
        case _:
            text = _simple(found, 1, name)
    _remember(found, known)
    return text


def _simple(found: Mapping[str, Any], word: int, name: str) -> str:
    logical = found.get("logicalType", "")
    if logical == "decimal":
        precision, scale = int(found["precision"]), int(found.get("scale", 0))
        if precision > _MOST_DIGITS:
            raise CatalogRefused(f"column {name!r} is decimal({precision},{scale})", expected=f"at most {_MOST_DIGITS} digits")
        return f"decimal({precision},{scale})"
    if logical in _LOGICAL:
        return _LOGICAL[logical][word]
    kind = found["type"]
    if kind not in _HIVE:
        raise CatalogRefused(f"column {name!r} has the type {kind!r}", expected="a type that Hive has")
    return (_HIVE, _SPARK)[word][kind]
