"""JSON schemas of the documents that HTTP APIs of services return, for their OpenAPI documents."""

from __future__ import annotations

from typing import Any

TEXT, NUMBER, WHOLE, FLAG, ANY = ({"type": name} for name in ("string", "number", "integer", "boolean", "object"))


def record(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that always has these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a value or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def array(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def named(name: str) -> dict[str, Any]:
    """Return a reference to a schema of the same OpenAPI document."""
    return {"$ref": f"#/components/schemas/{name}"}
