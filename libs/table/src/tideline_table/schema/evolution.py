"""Rows in the schema of a table: incoming ones, which must fit, and older ones; and the schema changes that a write may make.

Older rows are converted as by Apache Hudi (observed with Hudi 1.2.0): whole numbers widen to larger ones, to floating numbers,
to decimals and to text; floating numbers to wider ones, to decimals and to text; decimals to wider decimals and to text; dates to
text; text and bytes to each other. Columns and struct members are matched by name, so their order does not matter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import SchemaMismatch
from tideline_table.schema.arrow import is_list, is_number, is_numeric, is_text
from tideline_table.schema.meta_fields import META_FIELDS, OPERATION_FIELD
from tideline_table.schema.promotion import can_become, promoted

IS_DELETED = "_hoodie_is_deleted"
"""A boolean column that marks a row as a deletion (format reference 3.4). Every input may contain it."""
PURGED = "_tideline_purged"
"""A boolean column of prepared input that marks a deletion which wins over every ordering value."""
PARTIAL = "_tideline_partial"
"""A boolean column of prepared input that marks a row of which a log file needs `PreparedInput.parts` only."""


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
            columns.append(pa.chunked_array([nulls(rows.num_rows, field.type)]))
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


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `rows` of an older schema in `schema`: its columns in its order, missing columns null, older types widened.

    Structs, lists and maps are converted recursively. Columns that have the target type are not copied. Raises `SchemaMismatch` for
    a type that cannot be converted, a missing required column, and values that do not fit.
    """
    columns: list[pa.ChunkedArray] = []
    for field in schema:
        if field.name in rows.column_names:
            column = rows.column(field.name)
            columns.append(column if column.type == field.type else _conformed(column, field))
        else:
            _check_absent(field, field.name, rows.num_rows)
            columns.append(pa.chunked_array([nulls(rows.num_rows, field.type)], field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _conformed(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    return pa.chunked_array([_convert(chunk, field.type, field.name) for chunk in column.chunks], field.type)


def nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """Return an array of nulls, as `settled`."""
    return pa.array([None], kind).take(pa.array(np.zeros(rows, np.int32))) if _requires_members(kind) else pa.nulls(rows, kind)


def settled(rows: pa.Table) -> pa.Table:
    """Return `rows` with some value for each required member behind a null struct, where Arrow may hold a null.

    Arrow refuses to write or cast such a null, and makes it itself: for null indices, rows that lack a column, and files of Apache
    Hudi's compactions, which declare no member as required.
    """
    for at, field in enumerate(rows.schema):
        if _requires_members(field.type):
            rows = rows.set_column(at, field, _conformed(rows.column(at), field))
    return rows


@functools.lru_cache(maxsize=1024)
def _requires_members(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(not member.nullable or _requires_members(member.type) for member in kind)
    if pa.types.is_map(kind):
        return _requires_members(kind.item_type)
    return bool(is_list(kind)) and _requires_members(kind.value_type)


def _convert(values: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    source = values.type
    if source == target and not _requires_members(target):
        return values
    if pa.types.is_dictionary(source):
        return _convert(values.dictionary_decode(), target, path)
    if pa.types.is_null(source):
        return nulls(len(values), target)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        return _convert_struct(values, target, path)
    if is_list(source) and pa.types.is_list(target):
        members = _convert(values.flatten(), target.value_type, f"{path}.array")
        return pa.ListArray.from_arrays(_offsets(values), members, type=target, mask=_null_mask(values))
    if pa.types.is_map(source) and pa.types.is_map(target):
        return _convert_map(values, target, path)
    if not can_become(source, target):
        raise SchemaMismatch(
            f"column {path!r} of type {source}",
            expected=f"type {target} or a type that converts to it",
            remedy="rewrite the files that contain it",
        )
    try:
        return promoted(values, target)
    except (pa.ArrowException, ValueError) as error:
        reason = str(error).split("\n", 1)[0]
        raise SchemaMismatch(f"column {path!r} of type {source} ({reason})", expected=f"type {target}") from None


def _convert_struct(values: pa.StructArray, target: pa.StructType, path: str) -> pa.Array:
    known = {values.type.field(at).name: at for at in range(values.type.num_fields)}
    members: list[pa.Array] = []
    for member in target:
        if member.name in known:
            found = _convert(values.field(known[member.name]), member.type, f"{path}.{member.name}")
        else:
            _check_absent(member, f"{path}.{member.name}", len(values) - values.null_count)
            found = nulls(len(values), member.type)
        if not member.nullable and found.null_count and values.null_count:
            some = pa.array([None], pa.struct([member])).field(0)
            places = pc.if_else(pc.and_(values.is_null(), found.is_null()), len(found), pa.array(range(len(found)), pa.int64()))
            found = pa.concat_arrays([found, some]).take(places)
        members.append(found)
    return pa.StructArray.from_arrays(members, fields=list(target), mask=_null_mask(values))


def _convert_map(values: pa.MapArray, target: pa.MapType, path: str) -> pa.Array:
    # `keys` and `items` cover the complete buffer. Use only the part that the visible rows span.
    first, last = (values.offsets[0].as_py(), values.offsets[len(values)].as_py()) if len(values) else (0, 0)
    keys = _convert(values.keys.slice(first, last - first), target.key_type, f"{path}.key")
    items = _convert(values.items.slice(first, last - first), target.item_type, f"{path}.value")
    offsets = pa.array(values.offsets.to_numpy() - first, pa.int32())
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=_null_mask(values))


def _offsets(values: pa.Array) -> pa.Array:
    """Return offsets into `values.flatten()`, which omits the elements behind null lists."""
    lengths = pa.compute.fill_null(pa.compute.list_value_length(values), 0).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), pa.compute.cumulative_sum_checked(lengths)])


def _null_mask(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None


def _check_absent(field: pa.Field, path: str, rows: int) -> None:
    if rows and not field.nullable:
        raise SchemaMismatch(
            f"rows without column {path!r}",
            expected="a value in every row (required by the table)",
            remedy="make the column nullable",
        )


# --- what a write changes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EvolutionRule:
    """The changes that a write may make to the schema of a table."""

    missing_is_null: bool = False
    """The input may lack nullable columns (`hoodie.write.set.null.for.missing.columns`)."""
    keep_types: bool = False
    """Types never widen. The input may lack nullable columns (`hoodie.datasource.write.reconcile.schema`)."""

    def evolve(self, table: pa.Schema, incoming: pa.Schema) -> pa.Schema:
        """Return the schema of the table after a write of rows with the schema `incoming`. Meta fields of `incoming` are ignored.

        New columns and new struct members are appended as nullable; columns that the input may lack stay. A column type widens to
        the incoming type if every stored value fits. Types inside nested columns stay, because Spark cannot read such files by
        default. For types that stay, `fit_rows` checks the values. Raises `SchemaMismatch` for columns that the input must have.
        """
        return pa.schema(self._fields(list(table), [f for f in incoming if f.name not in META_FIELDS], ""))

    def _fields(self, table: Sequence[pa.Field], incoming: Sequence[pa.Field], path: str) -> list[pa.Field]:
        given = {f.name: f for f in incoming}
        known = {f.name for f in table}
        self._check_missing([f for f in table if f.name not in given], path)
        fields = [f.with_type(self._type(f.type, given[f.name].type, f"{path}{f.name}.")) if f.name in given else f for f in table]
        return fields + [f.with_nullable(nullable=True) for f in incoming if f.name not in known]

    def _check_missing(self, missing: Sequence[pa.Field], path: str) -> None:
        allowed = self.missing_is_null or self.keep_types
        refused = [f for f in missing if not (allowed and f.nullable)]
        if refused:
            names = ", ".join(repr(path + f.name) for f in refused)
            raise SchemaMismatch(
                f"rows without column(s) {names}",
                expected="every column of the table" if not allowed else "a value in every row (required by the table)",
                remedy="add them"
                if allowed
                else "add them, or set hoodie.write.set.null.for.missing.columns=true if they may become null",
            )

    def _type(self, table: pa.DataType, incoming: pa.DataType, path: str) -> pa.DataType:
        if pa.types.is_dictionary(incoming):
            incoming = incoming.value_type
        if table == incoming:
            return table
        if pa.types.is_struct(table) and pa.types.is_struct(incoming):
            return pa.struct(self._fields(list(table), list(incoming), path))
        if pa.types.is_list(table) and is_list(incoming):
            item = self._type(table.value_type, incoming.value_type, f"{path}array.")
            return pa.list_(table.value_field.with_type(item))
        if pa.types.is_map(table) and pa.types.is_map(incoming):
            item = self._type(table.item_type, incoming.item_type, f"{path}value.")
            return pa.map_(table.key_type, table.item_field.with_type(item))
        return incoming if is_wider(incoming, table) and not (self.keep_types or "." in path.rstrip(".")) else table


def is_wider(incoming: pa.DataType, table: pa.DataType) -> bool:
    """Return whether `incoming` is wider than column type `table`: numbers widen to numbers or text, decimals to decimals."""
    if incoming == table or not (is_numeric(table)):
        return False
    if is_text(incoming):
        return is_number(table)
    if pa.types.is_decimal(table) or pa.types.is_decimal(incoming):
        return bool(pa.types.is_decimal(table) and pa.types.is_decimal(incoming)) and can_become(table, incoming)
    return is_number(incoming) and can_become(table, incoming) and not can_become(incoming, table)
