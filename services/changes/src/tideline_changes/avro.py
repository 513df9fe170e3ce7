"""Avro schemas of Kafka Connect's types, as the Avro converter of Kafka Connect writes and reads them. Pure."""

from __future__ import annotations

import re
from typing import Any

from tideline_table.errors import UnsupportedTable

_PLAIN = {"int32": "int", "int64": "long", "float": "float", "double": "double"}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_INVALID = re.compile(r"[^A-Za-z0-9_]")
Schema = dict[str, Any]


def avro_schema(connect: Schema) -> Schema:
    """Return the Avro schema of a struct in Kafka Connect's JSON. Raises `UnsupportedTable` for what Avro lacks.

    Optional fields have the default null, so that a table gets columns by compatible schemas.
    """
    found = _of(connect, str(connect["name"]), set())
    assert isinstance(found, dict), "a record that is defined here"
    return found


def avro_name(text: str) -> str:
    """Return a name that Avro allows: other characters become underscores, as Debezium does."""
    name = _INVALID.sub("_", text)
    return name if name and not name[0].isdigit() else f"_{name}"


def _of(connect: Schema, path: str, defined: set[str]) -> Any:
    """Return the schema of a type. `path` names records: one in another one, or in a list, by the way to it."""
    kind = connect["type"]
    if kind == "struct":
        return _record(connect, path, defined)
    if kind == "array":
        return {"type": "array", "items": _optional(connect["items"], f"{path}.item", defined)}
    if kind == "map":
        if connect["keys"]["type"] != "string":
            raise UnsupportedTable(f"a map in {path} with other keys than texts", expected="what Avro has")
        return {"type": "map", "values": _optional(connect["values"], f"{path}.value", defined)}
    if kind in {"int8", "int16"}:
        return {"type": "int", "connect.type": kind}
    plain = _PLAIN.get(kind, kind)
    if "name" not in connect:
        return plain
    found = {"type": plain, "connect.version": connect["version"], "connect.name": connect["name"]}
    if connect["name"] == _DECIMAL:
        parameters = found["connect.parameters"] = connect["parameters"]
        precision, scale = int(parameters["connect.decimal.precision"]), int(parameters["scale"])
        found |= {"logicalType": "decimal", "precision": precision, "scale": scale}
    return found


def _record(connect: Schema, path: str, defined: set[str]) -> Any:
    name = ".".join(map(avro_name, path.split(".")))
    if name in defined:
        return name
    defined.add(name)
    fields = []
    for field in connect["fields"]:
        # The row before and the row after have one schema with a name of its own.
        inner = field["name"] if field["type"] == "struct" and field["field"] in {"before", "after"} else f"{path}.{field['field']}"
        if field["optional"]:
            fields.append({"name": avro_name(field["field"]), "type": _optional(field, inner, defined), "default": None})
        else:
            fields.append({"name": avro_name(field["field"]), "type": _of(field, inner, defined)})
    if len({field["name"] for field in fields}) < len(fields):
        raise UnsupportedTable(f"columns of {path} that have one name in Avro", expected="names of letters, digits and _")
    namespace, _, last = name.rpartition(".")
    return {"type": "record", "name": last, "namespace": namespace, "fields": fields, "connect.name": connect["name"]}


def _optional(connect: Schema, path: str, defined: set[str]) -> list[Any]:
    return ["null", _of(connect, path, defined)]
