"""Fields inside of struct columns, named by dotted paths such as `address.city`. A column of exactly that name comes first."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


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


def top_columns(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Return the columns that hold the fields `names`, each once."""
    return list(dict.fromkeys(field_path(schema, name)[0] for name in names))


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
