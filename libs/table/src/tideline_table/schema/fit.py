"""Conversion of incoming rows to the schema of a table, with a check that they match it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import SchemaMismatch
from tideline_table.schema.arrow import is_text
from tideline_table.schema.meta_fields import META_FIELDS, OPERATION_FIELD

IS_DELETED = "_hoodie_is_deleted"
"""A boolean column that marks a row as a deletion (format reference 3.4). Every input may contain it."""
PURGED = "_tideline_purged"
"""A boolean column of prepared input that marks a deletion which wins over every ordering value."""


def fit_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `rows` with exactly the columns of `schema`, in its order and types.

    Missing nullable columns become null. Meta fields are dropped. Values are cast only without loss. Raises `SchemaMismatch` for
    unknown or duplicate columns, for missing columns or nulls where the table requires a value, and for values that do not fit.
    """
    known = set(schema.names)
    if len(set(rows.column_names)) < len(rows.column_names):
        twice = sorted({n for n in rows.column_names if rows.column_names.count(n) > 1})
        raise SchemaMismatch(f"column(s) {', '.join(map(repr, twice))} occur more than once", expected="each column once")
    beside = {*META_FIELDS, OPERATION_FIELD, IS_DELETED}
    unknown = [n for n in rows.column_names if n not in known and n not in beside]
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
        fitted = column
    else:
        _check_cast(column.type, field.type, field.name)
        try:
            fitted = column.cast(field.type, safe=True)
        except pa.ArrowException as error:
            reason = str(error).split("\n", 1)[0]
            raise SchemaMismatch(f"column {field.name!r} of type {column.type} ({reason})", expected=f"type {field.type}") from None
        if _may_round(column.type, field.type) and not _same_values(fitted.cast(column.type, safe=False), column):
            raise SchemaMismatch(
                f"column {field.name!r} of type {column.type} with values that the conversion would change",
                expected=f"type {field.type}",
                remedy="round the values or cast the column",
            )
    for chunk in fitted.chunks:
        _check_members(chunk, field.type, field.name)
    return fitted


def _check_cast(source: pa.DataType, target: pa.DataType, name: str) -> None:
    """Raise `SchemaMismatch` where Arrow's cast would silently lose or change values."""
    refusal = SchemaMismatch(f"column {name!r} of type {source}", expected=f"type {target}", remedy="cast the column")
    if pa.types.is_null(source):
        return
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        known = {f.name: f for f in target}
        for member in source:
            if member.name not in known:
                raise refusal
            _check_member(member.type, known[member.name].type, f"{name}.{member.name}")
    elif pa.types.is_map(source) and pa.types.is_map(target):
        _check_member(source.item_type, target.item_type, f"{name}.value")
    elif pa.types.is_list(target) and (pa.types.is_list(source) or pa.types.is_large_list(source)):
        _check_member(source.value_type, target.value_type, f"{name}.array")
    elif (pa.types.is_boolean(target) or pa.types.is_string(target)) and not (
        source == target or is_text(source) or (pa.types.is_dictionary(source) and is_text(source.value_type))
    ):
        raise refusal


def _check_member(source: pa.DataType, target: pa.DataType, name: str) -> None:
    # Nested values are not compared after the cast, so casts that may round are rejected.
    if source != target and _may_round(source, target):
        raise SchemaMismatch(f"column {name!r} of type {source}", expected=f"type {target}", remedy="cast the column")
    _check_cast(source, target, name)


def _may_round(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a cast that Arrow considers safe may change values."""
    if pa.types.is_floating(target):
        return bool(pa.types.is_decimal(source) or (pa.types.is_floating(source) and source.bit_width > target.bit_width))
    return bool(pa.types.is_date(target) and pa.types.is_timestamp(source))


def _same_values(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    same = pc.equal(one, other)
    if pa.types.is_floating(other.type):
        same = pc.or_(same, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return pc.all(same).as_py() is not False


def _check_members(values: pa.Array, kind: pa.DataType, name: str) -> None:
    """Raise `SchemaMismatch` for a null in a required member of a nested column, which Arrow does not check."""
    if pa.types.is_list(kind):
        members = [(kind.value_field, values.flatten())]
    elif pa.types.is_map(kind):
        # `items` covers the complete buffer. Use only the part that the visible rows span.
        first, last = (values.offsets[0].as_py(), values.offsets[len(values)].as_py()) if len(values) else (0, 0)
        members = [(kind.item_field, values.items.slice(first, last - first))]
    elif pa.types.is_struct(kind):
        present = values.filter(values.is_valid()) if values.null_count else values
        members = [(kind.field(at), present.field(at)) for at in range(kind.num_fields)]
    else:
        return
    for member, inside in members:
        if inside.null_count and not member.nullable:
            raise SchemaMismatch(
                f"{inside.null_count} null(s) in column {name!r}, member {member.name!r}",
                expected="a value (required by the table)",
            )
        _check_members(inside, member.type, f"{name}.{member.name}")
