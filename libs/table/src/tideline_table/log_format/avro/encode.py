"""Encode Arrow columns as Avro datums (format reference 9.6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import SchemaMismatch, UnsupportedTable
from tideline_table.log_format.avro.cursor import Ints, Mask
from tideline_table.log_format.avro.node import Kind, Node
from tideline_table.log_format.avro.pieces import Pieces

_BATCH_ROWS = 16_384
_BATCH_BYTES = 64 * 1024 * 1024


def encode_datums(rows: pa.Table, node: Node) -> Iterator[pa.Buffer]:
    """Yield batches of encoded records. Each record follows its length, a big-endian int32.

    `rows` must have the columns of `node`, in its order and with the types of `row_schema`. Raises `SchemaMismatch` for nulls in
    required places and for values that the schema cannot hold.
    """
    per_batch = max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for batch in rows.combine_chunks().to_batches(max_chunksize=per_batch):
        pieces = Pieces(batch.num_rows)
        for name, field, column in zip(node.names, node.children, batch.columns, strict=True):
            encode(field, column, pieces, name)
        yield octets_of(pieces.join(lengths=True))


def octets_of(values: pa.Array) -> pa.Buffer:
    """Return all bytes of a binary array, one value after the other."""
    octets = values.buffers()[2]
    bounds = _buffer(values, np.int32, len(values) + 1)
    return octets.slice(int(bounds[0]), int(bounds[-1] - bounds[0])) if octets is not None else pa.py_buffer(b"")


def encode(node: Node, values: pa.Array, out: Pieces, column: str, mask: Mask = None) -> None:
    """Add `values` to the records in `mask`. `column` is the name for error texts."""
    if not len(values):
        return
    if node.kind is Kind.UNION:
        _encode_union(node, values, out, column, mask)
        return
    if values.null_count and node.kind is not Kind.NULL:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        missing = missing if mask is None else missing & mask
        if missing.any():
            raise SchemaMismatch(
                f"{np.count_nonzero(missing)} null(s) in column {column!r}", expected="a value (required by the schema)"
            )
    if node.kind is Kind.RECORD:
        for index, (name, field) in enumerate(zip(node.names, node.children, strict=True)):
            encode(field, values.field(index), out, f"{column}.{name}", mask)
    elif node.kind in (Kind.ARRAY, Kind.MAP):
        _encode_list(node, values, out, column, mask)
    elif node.kind in (Kind.STRING, Kind.BYTES, Kind.FIXED) and not pa.types.is_decimal(values.type):
        _encode_octets(node, values, out, mask)
    elif node.kind is not Kind.NULL:
        _encode_number(node, values, out, column, mask)


def _buffer(values: pa.Array, dtype: type[np.generic], count: int, width: int = 1) -> npt.NDArray[Any]:
    """Return the second buffer of an array, from its first row on: `width` elements of `dtype` per row."""
    start = values.offset * width * np.dtype(dtype).itemsize
    return np.frombuffer(values.buffers()[1], dtype, count=count * width, offset=start)


def _encode_union(node: Node, values: pa.Array, out: Pieces, column: str, mask: Mask) -> None:
    taken = [index for index, branch in enumerate(node.children) if branch.kind is not Kind.NULL]
    if len(taken) > 1:
        raise UnsupportedTable(f"column {column!r} is an Avro union of {len(taken)} types", expected="a type or a nullable type")
    branch = taken[0] if taken else 0
    if values.null_count and node.null_branch >= 0:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        out.add_varints(np.where(valid, branch, node.null_branch).astype(np.int64), mask)
        mask = valid if mask is None else valid & mask
    else:
        out.add_varints(np.full(len(values), branch, np.int64), mask)
    if taken:
        encode(node.children[branch], values, out, column, mask)


def _encode_list(node: Node, values: pa.Array, out: Pieces, column: str, mask: Mask) -> None:
    rows = len(values)
    bounds = _buffer(values, np.int32, rows + 1)
    first, last = int(bounds[0]), int(bounds[-1])
    counts = np.diff(bounds).astype(np.int64)
    # Lists that are not written may still hold items: null lists, and lists inside null structs.
    within = None if mask is None or mask.all() else np.repeat(mask, counts)
    inner = Pieces(last - first)
    # Do not use Arrow's flatten, take or cast to get the items: they copy, and some of them break lists of nulls inside maps.
    members = (values.keys, values.items) if node.kind is Kind.MAP else (values.values,)
    kinds = node.children[0].children if node.kind is Kind.MAP else node.children
    for kind, member in zip(kinds, members, strict=True):
        encode(kind, member.slice(first, last - first), inner, f"{column}[]", within)
    encoded = inner.join()
    out.add_varints(counts, counts > 0 if mask is None else (counts > 0) & mask)
    out.add_texts(_buffer(encoded, np.int32, len(encoded) + 1)[bounds - first], encoded.buffers()[2])
    out.add_slots(np.zeros((rows, 1), np.uint8), None, mask)


def _encode_octets(node: Node, values: pa.Array, out: Pieces, mask: Mask) -> None:
    rows = len(values)
    if node.kind is Kind.FIXED:
        width = node.fixed_bytes
        out.add_slots(_buffer(values, np.uint8, rows, width).reshape(rows, width), None, mask)
        return
    offsets = _buffer(values, np.int32, rows + 1)
    out.add_varints(np.diff(offsets).astype(np.int64), mask)
    out.add_texts(offsets, values.buffers()[2], mask)


def _encode_number(node: Node, values: pa.Array, out: Pieces, column: str, mask: Mask) -> None:
    rows = len(values)
    if pa.types.is_decimal(values.type):
        _encode_decimals(node, values, out, column, mask)
    elif node.kind is Kind.BOOLEAN:
        out.add_slots(values.cast(pa.uint8()).fill_null(0).to_numpy()[:, None], None, mask)
    elif node.kind is Kind.ENUM:
        indices = pc.index_in(values, pa.array(node.names, pa.string()))
        index = indices.fill_null(-1).to_numpy().astype(np.int64)
        if (index < 0 if mask is None else (index < 0) & mask).any():
            raise SchemaMismatch(
                f"a value of column {column!r} that is not a symbol of its enum", expected=f"one of {', '.join(node.names)}"
            )
        out.add_varints(index, mask)
    else:
        single = node.kind in (Kind.INT, Kind.FLOAT)
        numbers = _buffer(values, np.int32 if single else np.int64, rows)
        if node.kind in (Kind.INT, Kind.LONG):
            out.add_varints(numbers.astype(np.int64), mask)
        else:
            out.add_slots(numbers.view(np.uint8).reshape(rows, 4 if single else 8), None, mask)


def _encode_decimals(node: Node, values: pa.Array, out: Pieces, column: str, mask: Mask) -> None:
    rows, held = len(values), values.type.bit_width // 8
    little = _buffer(values, np.uint8, rows, held).reshape(rows, held)
    if node.kind is Kind.BYTES:
        size = _least_bytes(little)
        out.add_varints(size, mask)
        out.add_slots(np.ascontiguousarray(little[:, ::-1]), np.arange(held) >= (held - size)[:, None], mask)
        return
    width = node.fixed_bytes
    if width < held:
        too_wide = _least_bytes(little) > width
        if (too_wide if mask is None else too_wide & mask).any():
            raise SchemaMismatch(f"a value of column {column!r} that does not fit into {width} bytes", expected=str(values.type))
    sign = np.where(little[:, -1:] > 127, np.uint8(255), np.uint8(0))
    padding = np.repeat(sign, max(0, width - held), axis=1)
    out.add_slots(np.concatenate([padding, little[:, : min(width, held)][:, ::-1]], axis=1), None, mask)


def _least_bytes(little: npt.NDArray[np.uint8]) -> Ints:
    """Return the minimum number of two's complement bytes for each number."""
    words = little.view(np.int64)
    sign = words[:, -1] >> 63
    size = np.ones(len(little), np.int64)
    above = np.zeros(len(little), np.bool_)
    for index in range(words.shape[1] - 1, -1, -1):
        magnitude = (words[:, index] ^ sign).view(np.uint64)
        for bits in range(7, 64, 8):
            size += above | (magnitude >= np.uint64(1 << bits))
        above |= magnitude > 0
    return size
