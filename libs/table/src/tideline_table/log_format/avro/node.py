"""The structure of a datum: an Avro schema with resolved references."""

from __future__ import annotations

import enum
import functools
import json
from dataclasses import dataclass
from typing import Any

from tideline_table.errors import CorruptMetadata, UnsupportedTable

Json = Any
_MAX_DEPTH = 64
# Limit for resolved references, because a schema of a few lines can expand to millions of fields.
_MAX_NODES = 50_000
_MAX_FIXED_BYTES = 1024 * 1024


class Kind(enum.Enum):
    """Encoding of a value. Logical types have the encoding of their base type."""

    NULL = "null"
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"
    FIXED = "fixed"
    ENUM = "enum"
    RECORD = "record"
    ARRAY = "array"
    MAP = "map"
    UNION = "union"


@dataclass(frozen=True, slots=True)
class Node:
    """Structure of a value. `children` are the fields of a record, branches of a union, item of an array, or entry record of a map.

    `least_bytes` is the minimum size of a value. `fixed_bytes` is the size if all values have the same size, otherwise -1.
    """

    kind: Kind
    least_bytes: int
    fixed_bytes: int
    children: tuple[Node, ...] = ()
    names: tuple[str, ...] = ()
    """Field names of a record, or symbols of an enum."""

    @property
    def null_branch(self) -> int:
        """Index of the null branch of a union, -1 if there is none."""
        return next((i for i, branch in enumerate(self.children) if branch.kind is Kind.NULL), -1)


_WIDTH = {Kind.NULL: 0, Kind.BOOLEAN: 1, Kind.FLOAT: 4, Kind.DOUBLE: 8}
_PLAIN = {
    kind.value: Node(kind, _WIDTH.get(kind, 1), _WIDTH.get(kind, -1))
    for kind in (Kind.NULL, Kind.BOOLEAN, Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE, Kind.STRING, Kind.BYTES)
}
_KEY = _PLAIN["string"]


@functools.lru_cache(maxsize=16)
def parse_schema(text: str) -> Node:
    """Parse the Avro schema JSON `text` of a record.

    Raises `CorruptMetadata` for anything that is not an Avro record schema, and `UnsupportedTable` for recursive types.
    """
    try:
        node = _Parser().node(json.loads(text), "", 0)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptMetadata(f"an Avro schema that cannot be read ({error})", expected="Avro schema JSON") from None
    if node.kind is not Kind.RECORD:
        raise CorruptMetadata("an Avro schema that is not a record", expected="a record schema")
    return node


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, tuple[Node, int, int] | None] = {}
        """Name → node, number of its nodes, number of levels below it. None while the type is being parsed."""
        self._nodes = 0
        self._deepest = 0

    def node(self, avro: Json, namespace: str, depth: int) -> Node:
        self._count(1)
        self._descend(depth)
        if isinstance(avro, str):
            return _PLAIN.get(avro) or self._reference(avro, namespace, depth)
        if isinstance(avro, list):
            return _union(tuple(self.node(branch, namespace, depth + 1) for branch in avro))
        kind = avro["type"]
        if not isinstance(kind, str):
            return self.node(kind, namespace, depth + 1)
        if kind == "array":
            return Node(Kind.ARRAY, 1, -1, (self.node(avro["items"], namespace, depth + 1),))
        if kind == "map":
            return Node(Kind.MAP, 1, -1, (_record((_KEY, self.node(avro["values"], namespace, depth + 1)), ("key", "value")),))
        if kind in ("record", "error", "enum", "fixed"):
            return self._named_type(kind, avro, namespace, depth)
        return _PLAIN.get(kind) or self._reference(kind, namespace, depth)

    def _named_type(self, kind: str, avro: dict[str, Json], namespace: str, depth: int) -> Node:
        name = str(avro["name"])
        if "." not in name:
            space = str(avro.get("namespace") or namespace)
            name = f"{space}.{name}" if space else name
        space = name.rpartition(".")[0]
        before, deepest = self._nodes, self._deepest
        self._deepest = depth
        # None marks a type that is being parsed: a reference to it is recursive.
        self._named[name] = None
        if kind == "fixed":
            size = int(avro["size"])
            if not 0 <= size <= _MAX_FIXED_BYTES:
                raise CorruptMetadata(f"an Avro fixed of {size} bytes", expected=f"0 to {_MAX_FIXED_BYTES} bytes")
            node = Node(Kind.FIXED, size, size)
        elif kind == "enum":
            symbols = tuple(map(str, avro["symbols"]))
            node = Node(Kind.ENUM, 1, -1, names=symbols)
        else:
            fields = avro["fields"]
            names = tuple(str(field["name"]) for field in fields)
            if len(set(names)) < len(names):
                raise CorruptMetadata(f"an Avro record {name!r} with a duplicate field name", expected="unique names")
            node = _record(tuple(self.node(field["type"], space, depth + 1) for field in fields), names)
        self._named[name] = (node, self._nodes - before, self._deepest - depth)
        self._deepest = max(self._deepest, deepest)
        return node

    def _reference(self, name: str, namespace: str, depth: int) -> Node:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        known = full if full in self._named else name
        if known not in self._named:
            raise CorruptMetadata(f"Avro type {name!r}", expected="a primitive or a type that was named before")
        found = self._named[known]
        if found is None:
            raise UnsupportedTable(
                f"Avro type {known!r} that contains itself", expected="a type without recursion", remedy="flatten the schema"
            )
        node, nodes, below = found
        self._count(nodes)
        self._descend(depth + below)
        return node

    def _descend(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise CorruptMetadata(f"an Avro schema nested deeper than {_MAX_DEPTH} levels", expected="a flatter schema")
        self._deepest = max(self._deepest, depth)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > _MAX_NODES:
            raise CorruptMetadata(f"an Avro schema of more than {_MAX_NODES} values", expected="a smaller schema")


def _record(fields: tuple[Node, ...], names: tuple[str, ...]) -> Node:
    fixed = sum(field.fixed_bytes for field in fields) if all(field.fixed_bytes >= 0 for field in fields) else -1
    return Node(Kind.RECORD, sum(field.least_bytes for field in fields), fixed, fields, names)


def _union(branches: tuple[Node, ...]) -> Node:
    if not branches:
        raise CorruptMetadata("an Avro union without branches", expected="a type or a nullable type")
    return Node(Kind.UNION, 1 + min(branch.least_bytes for branch in branches), -1, branches)
