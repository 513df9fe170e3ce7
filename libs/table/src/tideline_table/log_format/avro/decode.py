"""Decode Avro datums to Arrow columns (format reference 9.6)."""

from __future__ import annotations

import functools
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.log_format.avro.cursor import PAD_BYTES, Cursor, Ints, Mask, Octets
from tideline_table.log_format.avro.node import Kind, Node, parse_schema
from tideline_table.log_format.avro.walk import branches, list_items, skip
from tideline_table.schema import META_FIELDS, arrow_from_avro
from tideline_table.schema.promotion import vectors

_MOST_FIXED_BYTES = 1024 * 1024 * 1024
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


@functools.lru_cache(maxsize=16)
def row_schema(schema_json: str) -> pa.Schema:
    """Return the Arrow schema of an Avro record schema, in the same column order. Meta fields are nullable strings.

    Raises `CorruptMetadata` if the text is not a record schema or has types that Arrow lacks.
    """
    own = {field.name: field for field in arrow_from_avro(schema_json)}
    return pa.schema([pa.field(n, pa.string()) if n in META_FIELDS else own[n] for n in parse_schema(schema_json).names])


def decode_datums(
    content: bytes | memoryview, begins: Ints, ends: Ints, node: Node, schema: pa.Schema, wanted: Collection[str]
) -> list[pa.Array]:
    """Decode the `wanted` columns (in the order of `schema`) of the records from `begins` to `ends` of `content`.

    `schema` and `node` must be from the same Avro schema. Raises `CorruptMetadata` for a record that does not fit the schema.
    """
    cursor = Cursor(Octets(content), begins + PAD_BYTES, ends + PAD_BYTES)
    columns: list[pa.Array] = []
    for field, kind in zip(node.children, schema, strict=True):
        if len(columns) == len(wanted):
            # The remaining fields need not be walked: the lengths of the records give their ends.
            return columns
        if kind.name in wanted:
            columns.append(decode(field, kind.type, cursor))
        else:
            skip(field, cursor)
    if (cursor.position != cursor.ends).any():
        raise CorruptMetadata("a record that is longer than its fields", expected="whole records")
    return columns


def decode(node: Node, kind: pa.DataType, cursor: Cursor, mask: Mask = None, *, nulls: bool = False) -> pa.Array:
    """Decode a value of each datum to an array of `kind`. Outside `mask`, it has nulls if `nulls`, otherwise placeholders."""
    if not len(cursor):
        return pa.array([], kind)
    if node.kind is Kind.UNION:
        return _decode_union(node, kind, cursor, mask, nulls=nulls)
    if node.kind is Kind.RECORD:
        fields = zip(node.children, kind, strict=True)
        members = [decode(child, field.type, cursor, mask) for child, field in fields]
        return pa.Array.from_buffers(kind, len(cursor), [_bitmap(mask) if nulls else None], children=members)
    if node.kind in (Kind.ARRAY, Kind.MAP):
        return _decode_list(node, kind, cursor, mask, nulls=nulls)
    if node.kind is Kind.NULL:
        return pa.nulls(len(cursor)) if kind == pa.null() else pa.nulls(len(cursor), kind)
    values = _decode_plain(node, kind, cursor, mask, _bitmap(mask) if nulls else None)
    if node.kind is Kind.FIXED and pa.types.is_list(kind):
        return vectors(values, kind)
    return values if values.type == kind else values.cast(kind)


def _decode_union(node: Node, kind: pa.DataType, cursor: Cursor, mask: Mask, *, nulls: bool) -> pa.Array:
    taken = branches(node, cursor, mask)
    values = [index for index, branch in enumerate(node.children) if branch.kind is not Kind.NULL]
    if not values:
        return pa.nulls(len(cursor), kind)
    if len(values) > 1:
        raise UnsupportedTable(f"an Avro union of {len(values)} types", expected="a type or a nullable type")
    if len(values) == len(node.children):
        return decode(node.children[0], kind, cursor, mask, nulls=nulls)
    there = taken == values[0]
    if mask is not None:
        there &= mask
    if there.all():
        return decode(node.children[values[0]], kind, cursor)
    return decode(node.children[values[0]], kind, cursor, there, nulls=True)


def _decode_list(node: Node, kind: pa.DataType, cursor: Cursor, mask: Mask, *, nulls: bool) -> pa.Array:
    items, counts = list_items(node.children[0], cursor, mask)
    offsets = np.zeros(len(cursor) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    if node.kind is Kind.MAP:
        entry = node.children[0]
        keys = decode(entry.children[0], kind.key_type, items)
        values: pa.Array = pa.StructArray.from_arrays(
            [keys, decode(entry.children[1], kind.item_type, items)], fields=[kind.key_field, kind.item_field]
        )
    else:
        values = decode(node.children[0], kind.value_type, items)
    buffers = [_bitmap(mask) if nulls else None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(cursor), buffers, children=[values])


def _decode_plain(node: Node, kind: pa.DataType, cursor: Cursor, mask: Mask, bitmap: pa.Buffer | None) -> pa.Array:
    rows = len(cursor)
    if node.kind in (Kind.INT, Kind.LONG):
        integers = cursor.varints(mask)
        _blank(integers, mask)
        if node.kind is Kind.INT:
            return _integers(_narrow(integers), pa.int32(), kind, bitmap)
        return _integers(integers, pa.int64(), kind, bitmap)
    if node.kind in (Kind.FLOAT, Kind.DOUBLE):
        begins = cursor.move(node.fixed_bytes, mask)
        single = node.kind is Kind.FLOAT
        numbers = cursor.octets.at(begins, "<f4" if single else "<f8")
        _blank(numbers, mask)
        return pa.Array.from_buffers(pa.float32() if single else pa.float64(), rows, [bitmap, pa.py_buffer(numbers)])
    if node.kind is Kind.BOOLEAN:
        flags = cursor.octets.bytes[cursor.move(1, mask)]
        _blank(flags, mask)
        if (flags > 1).any():
            raise CorruptMetadata("a boolean that is neither 0 nor 1", expected="whole records")
        return pa.Array.from_buffers(pa.bool_(), rows, [bitmap, _bitmap(flags != 0)])
    if node.kind is Kind.ENUM:
        return _symbols(node, cursor.varints(mask), mask, bitmap)
    if node.kind is Kind.FIXED:
        begins = cursor.move(node.fixed_bytes, mask)
        if pa.types.is_decimal(kind):
            width = node.fixed_bytes if mask is None else node.fixed_bytes * mask
            return _decimals(cursor.octets, begins, begins + width, kind, bitmap)
        return _fixed(cursor.octets, begins, node.fixed_bytes, mask, bitmap)
    begins, ends = cursor.spans(mask)
    if pa.types.is_decimal(kind):
        return _decimals(cursor.octets, begins, ends, kind, bitmap)
    return _texts(cursor.octets, begins, ends, bitmap, utf8=node.kind is Kind.STRING)


def _bitmap(mask: Mask) -> pa.Buffer | None:
    return None if mask is None else pa.py_buffer(np.packbits(mask, bitorder="little"))


def _integers(values: npt.NDArray[np.signedinteger], own: pa.DataType, kind: pa.DataType, bitmap: pa.Buffer | None) -> pa.Array:
    """Return an array of `kind` if that is a type of the same width, otherwise of the integer type `own`."""
    fits = pa.types.is_primitive(kind) and kind.bit_width == own.bit_width
    if pa.types.is_time(kind) and (values.min() < 0 or values.max() >= _DAY[kind.unit]):
        raise CorruptMetadata("a time outside one day", expected=str(kind))
    return pa.Array.from_buffers(kind if fits else own, len(values), [bitmap, pa.py_buffer(values)])


def _blank(values: npt.NDArray[np.generic], mask: Mask) -> None:
    """Set values outside the mask to zero: they are arbitrary, and not every consumer respects the null of an enclosing struct."""
    if mask is not None:
        values[~mask] = 0


def _narrow(values: Ints) -> npt.NDArray[np.int32]:
    narrow = values.astype(np.int32)
    if (narrow != values).any():
        raise CorruptMetadata("an int of more than 32 bits", expected="whole records")
    return narrow


def _symbols(node: Node, index: Ints, mask: Mask, bitmap: pa.Buffer | None) -> pa.Array:
    _blank(index, mask)
    if index.min() < 0 or index.max() >= max(len(node.names), 1):
        raise CorruptMetadata("an enum symbol that the schema does not have", expected=f"one of {len(node.names)} symbols")
    indices = pa.Array.from_buffers(pa.int64(), len(index), [bitmap, pa.py_buffer(index)])
    return pa.array(node.names or ("",), pa.string()).take(indices)


def _fixed(octets: Octets, begins: Ints, width: int, mask: Mask, bitmap: pa.Buffer | None) -> pa.Array:
    if len(begins) * width > _MOST_FIXED_BYTES:
        raise UnsupportedTable(f"{len(begins)} Avro fixed values of {width} bytes in one batch", expected="smaller values")
    kind = pa.binary(width)
    if not width:
        return pa.Array.from_buffers(kind, len(begins), [bitmap, pa.py_buffer(b"")])
    # A value outside the mask may begin closer to the end than its width.
    last = len(octets.raw) - width
    if last < 0:
        values = np.zeros((len(begins), width), np.uint8)
    else:
        values = np.lib.stride_tricks.sliding_window_view(octets.bytes, width)[np.minimum(begins, last)]
        _blank(values, mask)
    return pa.Array.from_buffers(kind, len(begins), [bitmap, pa.py_buffer(values)])


def _texts(octets: Octets, begins: Ints, ends: Ints, bitmap: pa.Buffer | None, *, utf8: bool) -> pa.Array:
    """Let Arrow copy the values: take every second element of an array of the values and the bytes between them."""
    offsets = np.empty(2 * len(begins) + 1, np.int32)
    offsets[0:-1:2] = begins
    offsets[1::2] = ends
    offsets[-1] = offsets[-2]
    both = pa.Array.from_buffers(pa.binary(), 2 * len(begins), [None, pa.py_buffer(offsets), pa.py_buffer(octets.raw)])
    values = both.take(pa.array(np.arange(0, 2 * len(begins), 2, dtype=np.int32)))
    _, own_offsets, own_bytes = values.buffers()
    values = pa.Array.from_buffers(pa.binary(), len(begins), [bitmap, own_offsets, own_bytes or pa.py_buffer(b"")])
    if not utf8:
        return values
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        raise CorruptMetadata("a string that is not UTF-8", expected="whole records") from None


def _decimals(octets: Octets, begins: Ints, ends: Ints, kind: pa.DataType, bitmap: pa.Buffer | None) -> pa.Array:
    """Convert big-endian two's complement to the 128 or 256 bits of `kind`. The input may have additional leading sign bytes."""
    width, count = ends - begins, kind.bit_width // 64
    words = np.empty((len(begins), count), np.int64)
    for index in range(count):
        here = octets.at(ends - 8 * (index + 1), ">u8").astype(np.uint64)
        words[:, index] = _sign_extended(here, np.clip(width - 8 * index, 0, 8))
        if index:
            words[:, index] = np.where(width > 8 * index, words[:, index], words[:, index - 1] >> 63)
    for row in np.flatnonzero(width > 8 * count).tolist():
        value = int.from_bytes(octets.raw[begins[row] : ends[row]], "big", signed=True)
        if value.bit_length() >= kind.bit_width:
            raise CorruptMetadata(f"a decimal of more than {kind.bit_width} bits", expected=str(kind))
        words[row] = np.frombuffer(value.to_bytes(8 * count, "little", signed=True), np.int64)
    values = pa.Array.from_buffers(kind, len(begins), [bitmap, pa.py_buffer(words)])
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        raise CorruptMetadata("a decimal of more digits than its precision", expected=str(kind)) from None
    return values


def _sign_extended(words: npt.NDArray[np.uint64], width: Ints) -> Ints:
    # A shift by 64 is undefined. A value without bytes is 0.
    unused = np.minimum(64 - 8 * width, 63)
    shifted = np.where(width > 0, words << unused.astype(np.uint64), np.uint64(0)).view(np.int64)
    return shifted >> unused
