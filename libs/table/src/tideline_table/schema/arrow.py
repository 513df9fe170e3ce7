"""Families of Arrow types that differ in layout only, and columns as one array."""

from __future__ import annotations

import pyarrow as pa


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
