"""Mapping of Arrow types to the types that tables store: one encoding per value type, and no units finer than Avro's."""

from __future__ import annotations

import re

import pyarrow as pa

from tideline_table.errors import SchemaMismatch
from tideline_table.schema.meta_fields import without_meta_fields

_NEAREST: dict[pa.DataType, pa.DataType] = {
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time32("ms"),
    pa.time64("ns"): pa.time64("us"),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.bool8(): pa.bool_(),
}
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""Names of the columns that pandas adds for an index without a name."""
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view, pa.types.is_large_list_view)


def storable_field(field: pa.Field, empty: pa.DataType | None = None) -> pa.Field:
    """Return `field` with the nearest type that tables store. A type without one is kept, and the engine rejects it by name.

    Timestamps become milliseconds or microseconds, in UTC if they have a zone. Columns of type null become `empty`, if given.
    """
    return pa.field(field.name, _storable(field.type, empty), nullable=field.nullable)


def _storable(kind: pa.DataType, empty: pa.DataType | None) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms" if kind.unit == "ms" else "us", "UTC" if kind.tz is not None else None)
    if pa.types.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_dictionary(kind):
        return _storable(kind.value_type, empty)
    if pa.types.is_struct(kind):
        return pa.struct([storable_field(kind.field(i), empty) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_storable(kind.key_type, empty), storable_field(kind.item_field, empty))
    if any(is_list(kind) for is_list in _LISTS):
        return pa.list_(storable_field(kind.value_field, empty))
    if pa.types.is_null(kind):
        return kind if empty is None else empty
    if kind in _NEAREST:
        return _NEAREST[kind]
    return _storable(kind.storage_type, empty) if isinstance(kind, pa.BaseExtensionType) else kind


def storable_schema(schema: pa.Schema, empty: pa.DataType | None = None) -> pa.Schema:
    """Return the columns of a table for rows with `schema`.

    `storable_field` of each, without meta fields and an unnamed pandas index.
    """
    fields = [storable_field(field, empty) for field in without_meta_fields(schema) if not _UNNAMED_INDEX.fullmatch(field.name)]
    return pa.schema(fields)


def storable_rows(rows: pa.Table) -> pa.Table:
    """Return `rows` in types that a table can store. An unnamed pandas index is dropped.

    Raises `SchemaMismatch` for values that the conversion would change: timestamps finer than a microsecond, and unsigned
    numbers that are too large.
    """
    found = rows.select([at for at, name in enumerate(rows.column_names) if not _UNNAMED_INDEX.fullmatch(name)])
    fields = [storable_field(field) for field in found.schema]
    columns = [_cast(column, field) for column, field in zip(found.columns, fields, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)) if columns else found.replace_schema_metadata()


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        if pa.types.is_dictionary(column.type):
            # Polars stores categories as string views, and Arrow 26 cannot take these by index.
            chunks = [pa.DictionaryArray.from_arrays(c.indices, c.dictionary.cast(field.type)) for c in column.chunks]
            column = pa.chunked_array(chunks, pa.dictionary(column.type.index_type, field.type))
        found = column.cast(field.type)
        found.validate()  # Arrow 26 casts list views to invalid lists
    except pa.ArrowException as error:
        reason = str(error).split("\n", 1)[0]
        raise SchemaMismatch(
            f"column {field.name!r} of type {column.type} ({reason})",
            expected=f"values that fit into {field.type}",
            remedy="round or cast the column",
        ) from None
    return found
