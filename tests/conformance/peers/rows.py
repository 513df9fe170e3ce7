"""Tables compared as keyed sets of rows, whichever engine read them.

Readers may legally differ in the order of rows and columns, in the width of offsets (`string`, `large_string`, `string_view`), in
dictionary encoding, in nullability, and in unit and zone of timestamps (all count from the UTC epoch). Everything else must be
equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

OPTIONAL_COLUMNS = frozenset({"_hoodie_file_name"})
"""Compared only when both tables have them: not every reader fills them in."""

SHOWN_DIFFERENCES = 5

Key = tuple[Any, ...]
Row = dict[str, Any]


def difference(
    left: pa.Table,
    right: pa.Table,
    key: str | Sequence[str],
    *,
    ignore: Collection[str] = (),
    names: tuple[str, str] = ("left", "right"),
) -> str | None:
    """None when both tables hold the same rows, otherwise a text that shows the first differences.

    `key` names the columns that identify a row; a key that occurs twice in one table is a difference. Columns in `ignore`
    are left out, those in OPTIONAL_COLUMNS too where one of the tables lacks them.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if problem := _column_difference(left, right, keys, ignore, names):
        return problem
    columns = sorted((set(left.column_names) & set(right.column_names)) - set(ignore))
    one, other = _normal(left.select(columns)), _normal(right.select(columns))
    if problem := _type_difference(one, other, names):
        return problem
    # Equality of sorted tables is decided without making Python objects; it is false for NaN, which the rows below settle.
    if _unique(one, keys) and _sorted(one, keys).equals(_sorted(other, keys)):
        return None
    lines = list(_row_differences(one, other, keys, names))
    if not lines:
        return None
    more = len(lines) - SHOWN_DIFFERENCES
    shown = lines[:SHOWN_DIFFERENCES] + ([f"… and {more} more"] if more > 0 else [])
    counts = f"{len(lines)} keys differ ({names[0]} has {one.num_rows} rows, {names[1]} {other.num_rows})"
    return "\n  ".join([counts, *shown])


def _column_difference(
    left: pa.Table, right: pa.Table, keys: tuple[str, ...], ignore: Collection[str], names: tuple[str, str]
) -> str | None:
    for table, name in ((left, names[0]), (right, names[1])):
        if missing := [column for column in keys if column not in table.column_names or column in ignore]:
            return f"{name} lacks the key columns {missing}; it has {table.column_names}"
        if len(set(table.column_names)) != len(table.column_names):
            return f"{name} has a column twice: {table.column_names}"
    apart = (set(left.column_names) ^ set(right.column_names)) - OPTIONAL_COLUMNS - set(ignore)
    if apart:
        only = [sorted(apart & set(table.column_names)) for table in (left, right)]
        return f"columns differ: only {names[0]} has {only[0]}, only {names[1]} has {only[1]}"
    return None


def _type_difference(one: pa.Table, other: pa.Table, names: tuple[str, str]) -> str | None:
    lines = [
        f"column {field.name}: {names[0]} {field.type}, {names[1]} {other.schema.field(field.name).type}"
        for field in one.schema
        if field.type != other.schema.field(field.name).type
    ]
    return "\n  ".join(["types differ", *lines]) if lines else None


# --- normal form -----------------------------------------------------------------------------------------------------------


def _normal(table: pa.Table) -> pa.Table:
    schema = pa.schema([pa.field(field.name, _normal_type(field.type)) for field in table.schema])
    return table.cast(schema).combine_chunks()


def _normal_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _normal_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us")
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _normal_type(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(_normal_type(kind.key_type), _normal_type(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _normal_type(field.type)) for field in kind])
    return kind


# --- rows ------------------------------------------------------------------------------------------------------------------


def _sorted(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    return table.sort_by([(column, "ascending") for column in keys])


def _unique(table: pa.Table, keys: tuple[str, ...]) -> bool:
    return bool(table.group_by(list(keys)).aggregate([]).num_rows == table.num_rows)


def _row_differences(one: pa.Table, other: pa.Table, keys: tuple[str, ...], names: tuple[str, str]) -> Iterator[str]:
    rows, others = _by_key(one, keys), _by_key(other, keys)
    for key in sorted(rows.keys() | others.keys(), key=repr):
        here, there = rows.get(key, []), others.get(key, [])
        label = ", ".join(f"{column}={value!r}" for column, value in zip(keys, key, strict=True))
        if len(here) > 1 or len(there) > 1:
            yield f"{label}: {len(here)} rows in {names[0]}, {len(there)} in {names[1]}; expected one at most"
        elif not there:
            yield f"{label}: only in {names[0]}: {here[0]}"
        elif not here:
            yield f"{label}: only in {names[1]}: {there[0]}"
        elif cells := [column for column in here[0] if not _same(here[0][column], there[0][column])]:
            told = ", ".join(
                f"{column} is {here[0][column]!r} in {names[0]}, {there[0][column]!r} in {names[1]}" for column in cells
            )
            yield f"{label}: {told}"


def _by_key(table: pa.Table, keys: tuple[str, ...]) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    for row in table.to_pylist():
        found.setdefault(tuple(row[column] for column in keys), []).append(row)
    return found


def _same(here: Any, there: Any) -> bool:
    if isinstance(here, float) and isinstance(there, float):
        return here == there or (here != here and there != there)  # noqa: PLR0124 - NaN alone differs from itself
    if isinstance(here, dict) and isinstance(there, dict):
        return here.keys() == there.keys() and all(_same(value, there[name]) for name, value in here.items())
    if isinstance(here, list | tuple) and isinstance(there, list | tuple):
        return len(here) == len(there) and all(_same(*pair) for pair in zip(here, there, strict=True))
    return bool(here == there)
