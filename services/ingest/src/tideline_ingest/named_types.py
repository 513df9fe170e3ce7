"""Resolves named types across several Avro schemas (Avro specification, names; Confluent's references)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from tideline_ingest.errors import Undecodable

Json = Any
_T = TypeVar("_T")
_MAX_DEPTH = 64
"""Greatest nesting depth of a schema that the readers of the completed schema support."""
_PRIMITIVE = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes"})
_OF_VALUES = ("symbols", "size", "logicalType", "precision", "scale")
"""Attributes that determine how values are encoded, besides nested types."""


def whole_schema(text: str, referenced: Sequence[str]) -> str:
    """Return the Avro schema `text`, completed with the types of `referenced` that it uses.

    All schemas are read as by one parser of Avro's Java library, `referenced` first: a name may refer to any type defined before
    it, also a nested one. Documentation, defaults and aliases are dropped. Raises `Undecodable` for text that is not an Avro
    schema, a name without a type or with two, and a type that contains itself.
    """
    try:
        types = _NamedTypes()
        for other in referenced:
            types.resolved(json.loads(other), "", 0)
        return json.dumps(types.expanded(types.resolved(json.loads(text), "", 0), 0))
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"invalid JSON ({error})", expected="an Avro schema") from None


class _NamedTypes:
    def __init__(self) -> None:
        self._defined: dict[str, dict[str, Json]] = {}
        """Definitions by full name. A name without a namespace begins with a dot, so that it means the same inside every namespace.
        Nested types are stored as names. A type that is still being read is empty."""
        self._open: set[str] = set()
        self._written: set[str] = set()

    def resolved(self, avro: Json, namespace: str, depth: int) -> Json:
        """Return `avro` with types replaced by their full names, and store the definitions."""
        _check_depth(depth)
        if isinstance(avro, str):
            return avro if avro in _PRIMITIVE else self._known(avro, namespace)
        if isinstance(avro, list):
            return [self.resolved(branch, namespace, depth + 1) for branch in avro]
        kind = _member(avro, "type", object)
        if not isinstance(kind, str):
            return self.resolved(kind, namespace, depth + 1)
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            return {"type": kind, inner: self.resolved(_member(avro, inner, object), namespace, depth + 1)}
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(kind, avro, namespace, depth)
        if kind in _PRIMITIVE:
            return {"type": kind, **_of_values(avro)}
        return self._known(kind, namespace)

    def expanded(self, avro: Json, depth: int) -> Json:
        """Return the result of `resolved` with the first use of each name replaced by its definition."""
        _check_depth(depth)
        if isinstance(avro, list):
            return [self.expanded(branch, depth + 1) for branch in avro]
        if isinstance(avro, dict):
            return {part: self.expanded(kind, depth + 1) if part in ("items", "values") else kind for part, kind in avro.items()}
        if avro in _PRIMITIVE or avro in self._written:
            return avro
        if avro in self._open:
            raise Undecodable(f"type {_shown(avro)} contains itself", expected="types without recursion")
        found = self._defined[avro]
        if "fields" in found:
            self._open.add(avro)
            fields = [{"name": f["name"], "type": self.expanded(f["type"], depth + 1)} for f in found["fields"]]
            self._open.remove(avro)
            found = {**found, "fields": fields}
        self._written.add(avro)
        return found

    def _define(self, kind: str, avro: Json, namespace: str, depth: int) -> str:
        name, own = _member(avro, "name", str), avro.get("namespace")
        if not isinstance(own, (str, type(None))):
            raise Undecodable(f"type {name:.80} in a namespace that is not text", expected="an Avro schema")
        full = _full(name, namespace if own is None else own)
        found = {"type": kind, "name": full, **_of_values(avro)}
        self._defined.setdefault(full, {})
        if kind in ("record", "error"):
            inside = full.rpartition(".")[0]
            found["fields"] = [
                {"name": _member(f, "name", str), "type": self.resolved(_member(f, "type", object), inside, depth + 1)}
                for f in _member(avro, "fields", list)
            ]
        if self._defined[full] not in ({}, found):
            raise Undecodable(f"type {_shown(full)} has two different definitions", expected="one definition per name")
        self._defined[full] = found
        return full

    def _known(self, name: str, namespace: str) -> str:
        for full in (_full(name, namespace), _full(name, "")):
            if full in self._defined:
                return full
        raise Undecodable(f"unknown type {name[:200]!r}", expected="a primitive or a type that is defined before")


def _full(name: str, namespace: str) -> str:
    space, _, last = name.rpartition(".") if "." in name else (namespace, "", name)
    return f"{space}.{last}"


def _shown(full: str) -> str:
    return repr(full.removeprefix(".")[:200])


def _of_values(avro: dict[str, Json]) -> dict[str, Json]:
    return {part: avro[part] for part in _OF_VALUES if part in avro}


def _member(avro: Json, name: str, kind: type[_T]) -> _T:
    found = avro.get(name) if isinstance(avro, dict) else None
    if found is None or not isinstance(found, kind):
        raise Undecodable(f"a part without a usable {name!r}", expected="an Avro schema")
    return found


def _check_depth(depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise Undecodable(f"an Avro schema nested deeper than {_MAX_DEPTH} levels", expected="a flatter schema")
