"""Whether incoming rows fit the schema of a table, and the rows in that schema."""

from __future__ import annotations

import pyarrow as pa

from tideline_table.errors import SchemaMismatch
from tideline_table.schema.meta_fields import META_FIELDS

IS_DELETED = "_hoodie_is_deleted"
"""A boolean column that marks a row as a deletion (format reference 3.4); it may come with any input."""


def fit_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with exactly the columns of `schema`, in its order and types.

    Missing nullable columns become null; meta fields of the input are dropped; values are cast only where nothing is lost.
    Raises `SchemaMismatch` for unknown columns, missing required ones, nulls in required ones, and values that do not fit.
    """
    known = set(schema.names)
    unknown = [n for n in rows.column_names if n not in known and n not in META_FIELDS and n != IS_DELETED]
    if unknown:
        raise SchemaMismatch(
            f"column(s) {', '.join(map(repr, unknown))} that the table does not have",
            expected=f"columns among {', '.join(schema.names)}",
            remedy="drop or rename them",
        )
    columns: list[pa.ChunkedArray] = []
    for field in schema:
        if field.name in rows.column_names:
            columns.append(_fit_column(rows.column(field.name), field))
        elif field.nullable:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
        else:
            raise SchemaMismatch(f"no column {field.name!r}", expected=f"a column of type {field.type} (required by the table)")
    return pa.Table.from_arrays(columns, schema=schema)


def _fit_column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.null_count and not field.nullable:
        raise SchemaMismatch(
            f"{column.null_count} null(s) in column {field.name!r}", expected="a value in every row (required by the table)"
        )
    if column.type == field.type:
        return column
    loses_meaning = pa.types.is_string(field.type) != _is_text(column.type) and not pa.types.is_null(column.type)
    if not loses_meaning or _is_text(column.type):
        try:
            return column.cast(field.type, safe=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).split("\n", 1)[0]
            raise SchemaMismatch(f"column {field.name!r} of type {column.type} ({reason})", expected=f"type {field.type}") from None
    raise SchemaMismatch(f"column {field.name!r} of type {column.type}", expected=f"type {field.type}", remedy="cast the column")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
