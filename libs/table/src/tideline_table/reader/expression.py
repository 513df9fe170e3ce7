"""What an Arrow expression demands of columns: the only values that a column can have in rows for which the expression is true.

Arrow has no calls that show the parts of an expression. Its serialised form (`Expression.__reduce__`, an IPC file) does: the
metadata of the schema lists the nodes in order, the columns of the one batch hold literals and options. The C data interface is
the only way to metadata with repeated names. A form that this module does not know demands nothing.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.schema.arrow import field_of, field_path

Values: TypeAlias = frozenset[Any]
Demands: TypeAlias = Mapping[str, Values]
"""By column, the values that it can have, in its own type. A column that is not listed can have any."""

_NOTHING: Demands = {}


@dataclass(frozen=True, slots=True)
class Column:
    """A reference to a column by name, or to a field of a struct by its dotted path."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an Arrow function. `options` are its options as a struct, None without."""

    function: str
    arguments: tuple[Node, ...]
    options: pa.Scalar | None = None


Node: TypeAlias = Column | Literal | Call | None
"""None: a part in a form that is not known here."""


class _Unknown(Exception):
    """The serialised form is not the known one."""


def parts_of(expression: pc.Expression) -> Node:
    """Return the expression as a tree; None if Arrow serialises it in a form that is not known here."""
    try:
        _, (content,) = expression.__reduce__()
        with pa.ipc.open_file(pa.py_buffer(content)) as reader:
            parser = _Parser(_metadata(reader.schema)[::-1], reader.get_batch(0))
            return parser.whole()
    except (_Unknown, ValueError, IndexError, TypeError, RecursionError, pa.ArrowException):
        return None


def columns_in(expression: pc.Expression) -> frozenset[str]:
    """Return the columns that the known parts of an expression name."""
    return frozenset(_columns(parts_of(expression)))


def _columns(node: Node) -> set[str]:
    if isinstance(node, Column):
        return {node.name}
    return set().union(*map(_columns, node.arguments)) if isinstance(node, Call) else set()


def top_columns_in(expression: pc.Expression, schema: pa.Schema) -> frozenset[str] | None:
    """Return the columns of `schema` that an expression names, or in which it names a field.

    These may be too many where a column and a field of a struct have the same dotted name. None if the expression has a part that
    is not known here, or names a column that `schema` does not have.
    """
    known = frozenset(schema.names)
    found: set[str] = set()
    nodes = [parts_of(expression)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, Call):
            nodes += node.arguments
        elif isinstance(node, Column):
            named = {node.name[: end.start()] for end in re.finditer(r"\.|$", node.name)} & known
            if not named:
                return None
            found |= named
        elif node is None:
            return None
    return frozenset(found)


def demands(expression: pc.Expression | None, schema: pa.Schema) -> Demands:
    """Return which values columns of `schema` have in all rows for which `expression` is true.

    Only comparisons count whose meaning does not depend on a conversion: texts, whole numbers, booleans and dates, each compared by
    `=` or IN with values of their own kind, joined by AND and OR.
    """
    if expression is None:
        return _NOTHING
    try:
        return _demands(parts_of(expression), schema)
    except (ValueError, OverflowError, RecursionError, pa.ArrowException):  # a value that Python or the column's type cannot hold
        return _NOTHING


def _demands(node: Node, schema: pa.Schema) -> Demands:
    if not isinstance(node, Call):
        return _NOTHING
    if node.function in ("and_kleene", "and", "or_kleene", "or") and len(node.arguments) == 2:
        left, right = (_demands(argument, schema) for argument in node.arguments)
        if node.function.startswith("and"):
            both = {name: left[name] & right[name] for name in left.keys() & right.keys()}
            return {**left, **right, **both}
        return {name: left[name] | right[name] for name in left.keys() & right.keys()}
    if node.function == "equal" and len(node.arguments) == 2:
        column, other = node.arguments if isinstance(node.arguments[0], Column) else reversed(node.arguments)
        if isinstance(column, Column) and isinstance(other, Literal):
            return _of_values(column.name, pa.array([other.value.as_py()], other.value.type), schema)
    if node.function == "is_in" and node.options is not None and isinstance(node.arguments[0], Column):
        members = node.options["value_set"].values
        if members is not None:
            return _of_values(node.arguments[0].name, members, schema)
    return _NOTHING


def _of_values(name: str, values: pa.Array, schema: pa.Schema) -> Demands:
    path = field_path(schema, name)
    if not path or schema.names.count(path[0]) != 1 or values.null_count:
        return _NOTHING
    kind = field_of(schema, path).type
    for is_kind in (_is_text, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32):
        if is_kind(kind) and is_kind(values.type):
            return {name: frozenset(values.cast(kind).to_pylist())}
    return _NOTHING


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


@dataclass(slots=True)
class _Parser:
    """Reads nodes from the front of `tokens`, given in reverse."""

    tokens: list[tuple[str, str]]
    literals: pa.RecordBatch

    def whole(self) -> Node:
        found = self.node()
        if self.tokens:
            raise _Unknown
        return found

    def node(self) -> Node:
        kind, value = self.tokens.pop()
        if kind == "field_ref":
            return Column(value)
        if kind == "nested_field_ref":
            parts = [self.node() for _ in range(int(value))]
            names = [part.name for part in parts if isinstance(part, Column)]
            return Column(".".join(names)) if len(names) == len(parts) else None
        if kind == "literal":
            return Literal(self.literals.column(int(value))[0])
        if kind != "call":
            raise _Unknown
        arguments: list[Node] = []
        options = None
        while self.tokens[-1] != ("end", value):
            if self.tokens[-1][0] == "options":
                options = self.literals.column(int(self.tokens.pop()[1]))[0]
            else:
                arguments.append(self.node())
        self.tokens.pop()
        return Call(value, tuple(arguments), options)


class _ArrowSchema(ctypes.Structure):
    """The beginning of `ArrowSchema` in Arrow's C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the names and values of the metadata in order; `Schema.metadata` keeps one value for each name."""
    capsule = schema.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    at = _ArrowSchema.from_address(pointer(capsule, b"arrow_schema")).metadata
    if not at:
        return []

    def number() -> int:
        nonlocal at
        (found,) = struct.unpack("=i", ctypes.string_at(at, 4))
        at += 4
        return int(found)

    def text() -> str:
        nonlocal at
        length = number()
        found = ctypes.string_at(at, length).decode()
        at += length
        return found

    return [(text(), text()) for _ in range(number())]
