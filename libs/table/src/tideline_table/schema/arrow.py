"""Families of Arrow types that differ in layout only, columns as one array, and fields inside of struct columns.

Such a field is named by a dotted path as `address.city`. A column of exactly that name comes first. No table has a column with a
dot in its name, because Avro names have none. Rows of keys may: `a.b` is then the value of the field.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import SchemaMismatch


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of this type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether values of this type are bytes, of a fixed width or not."""
    is_variable = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return bool(is_variable or pa.types.is_fixed_size_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of this type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of this type are whole or floating numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_numeric(kind: pa.DataType) -> bool:
    """Return whether values of this type are whole, floating or decimal numbers."""
    return bool(is_number(kind) or pa.types.is_decimal(kind))


def one_chunk(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return `values` as one array. A single chunk is not copied."""
    if isinstance(values, pa.Array):
        return values
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()


def with_column(rows: pa.Table, name: str, values: pa.ChunkedArray | pa.Array) -> pa.Table:
    """Return `rows` with `values` as column `name`, in place of a column of that name or else as the last one."""
    at = rows.schema.get_field_index(name)
    return rows.append_column(name, values) if at < 0 else rows.set_column(at, name, values)


def field_path(schema: pa.Schema, name: str) -> tuple[str, ...]:
    """Return the names from a column to the field `name`, one for a plain column; empty if there is no such field."""
    if name in schema.names:
        return (name,)
    path = tuple(name.split("."))
    kind = pa.struct(list(schema)) if path[0] in schema.names else pa.null()
    for part in path:
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            return ()
        kind = kind.field(part).type
    return path


def field_of(schema: pa.Schema, path: Sequence[str]) -> pa.Field:
    """Return the field at a path that `field_path` found, with the dotted path as its name; nullable if a struct above it is."""
    found = schema.field(path[0])
    nullable = found.nullable
    for part in path[1:]:
        found = found.type.field(part)
        nullable = nullable or found.nullable
    return found if len(path) == 1 else pa.field(".".join(path), found.type, nullable)


def named_field(schema: pa.Schema, name: str) -> pa.Field:
    """Return the column or the field of a struct called `name`, as `field_of`. Raises `SchemaMismatch` if there is none."""
    return field_of(schema, _known_path(schema, name))


def field_values(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """Return the values of a column, or of a field of a struct, which are null where a struct above it is.

    Raises `SchemaMismatch` if there is no such field.
    """
    if name in rows.column_names:
        return rows.column(name)
    named_field(rows.schema, name)
    first, *inner = name.split(".")
    return pc.struct_field(rows.column(first), inner)


def in_null_struct(rows: pa.Table, name: str) -> pa.Array | pa.ChunkedArray | None:
    """Return True for each row in which a struct above the field `name` is null; None for a column, which no struct is above."""
    if name in rows.column_names:
        return None
    named_field(rows.schema, name)
    first, *inner = name.split(".")
    above = rows.column(first)
    return pc.is_null(pc.struct_field(above, inner[:-1]) if inner[1:] else above)


def named_values(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return those of the columns and fields of structs `names` that `rows` have, as columns of these names, each once."""
    if set(names) <= set(rows.column_names):
        return rows.select(list(dict.fromkeys(names)))
    present = [name for name in dict.fromkeys(names) if field_path(rows.schema, name)]
    return pa.table([field_values(rows, name) for name in present], names=present) if present else rows.select([])


def top_columns(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Return the columns that hold the fields `names`, each once. Raises `SchemaMismatch` for a name that is not there."""
    return list(dict.fromkeys(_known_path(schema, name)[0] for name in names))


def with_fields(batch: pa.RecordBatch, chosen: pa.Schema) -> pa.RecordBatch:
    """Return the fields `chosen` (as `field_of` names them) of a batch of their columns; null where a struct is null."""
    columns = []
    for field in chosen:
        first, *inner = field_path(batch.schema, field.name)
        column = batch.column(first)
        for part in inner:
            column = pc.struct_field(column, part)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=chosen)


def _known_path(schema: pa.Schema, name: str) -> tuple[str, ...]:
    path = field_path(schema, name)
    if not path:
        raise SchemaMismatch(f"no column or field of a struct {name!r}", expected=f"one in the columns {', '.join(schema.names)}")
    return path
