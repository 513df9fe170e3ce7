"""Fields inside of struct columns, named by dotted paths such as `address.city`. A column of exactly that name comes first.

No table has a column with a dot in its name, because Avro names have none. Rows of keys may: `a.b` is then the value of the field.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import SchemaMismatch


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
