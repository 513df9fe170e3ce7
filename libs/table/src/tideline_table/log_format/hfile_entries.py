"""The entries in data blocks of HFiles.

Keys (rows) and values, decoded without a step of Python for each where all rows are as long.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from tideline_table.errors import CorruptMetadata

_LENGTHS = struct.Struct(">ii")
_ROW_SUFFIX_BYTES = 10
"""Size of the fields after the row in a key: family length, timestamp and type."""
_ROW_SUFFIX = b"\0\x7f" + b"\xff" * 7 + b"\x04"
"""These fields as HBase's writer and Tideline's set them: no family, the latest timestamp, the type `put`."""
ENTRY_SCHEMA = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)])
"""The columns of the entries of an HFile."""
_Places = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of each entry: the offset of its key, and the lengths of key and value."""
_BYTES_AT_ONCE = 1024 * 1024
"""Blocks of a look-up are decoded together up to this size."""


def corrupt(found: str, expected: str) -> CorruptMetadata:
    """Return the error for malformed bytes of an HFile."""
    return CorruptMetadata(f"an HFile with {found}", expected=expected, remedy="restore the file")


def hadoop_length(content: memoryview, at: int) -> tuple[int, int]:
    """Read a number in the encoding of `WritableUtils.writeVLong`. Return it and the offset after it."""
    first = int.from_bytes(content[at : at + 1], "big", signed=True)
    if first >= -112:
        return first, at + 1
    size = -112 - first
    if size > 8 or at + 1 + size > len(content):
        raise corrupt(f"a truncated or negative number at {at}", "a length")
    return int.from_bytes(content[at + 1 : at + 1 + size], "big"), at + 1 + size


def entries_of_block(content: memoryview, *, has_mvcc: bool) -> pa.RecordBatch:
    """Return the rows and values of a data block. `has_mvcc`: a version number follows each value. Raises `CorruptMetadata`."""
    found = _even_entries(content) if has_mvcc else None
    return _entries_at(content, found or _each_entry(content, has_mvcc=has_mvcc))


def entries_of_blocks(blocks: Iterable[memoryview], *, has_mvcc: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows and values of data blocks, those of several blocks in a batch. Raises `CorruptMetadata`.

    To decode a block takes most of its time for steps that take hardly longer for many blocks.
    """
    held, size_bytes = list[memoryview](), 0
    for block in blocks:
        if held and size_bytes + len(block) > _BYTES_AT_ONCE:
            yield from _entries_together(held, has_mvcc=has_mvcc)
            held, size_bytes = [], 0
        held.append(block)
        size_bytes += len(block)
    yield from _entries_together(held, has_mvcc=has_mvcc)


def _entries_together(blocks: Sequence[memoryview], *, has_mvcc: bool) -> Iterator[pa.RecordBatch]:
    """Yield one batch if all rows have the same length, else one for each block."""
    joined = memoryview(b"".join(blocks)) if has_mvcc and len(blocks) > 1 else memoryview(b"")
    places = _even_entries(joined)
    starts = np.cumsum([len(block) for block in blocks[:-1]], dtype=np.int64) + _LENGTHS.size
    # An entry that reaches into the next block is corrupt.
    if places is not None and np.isin(starts, places[0]).all():
        yield _entries_at(joined, places)
    else:
        yield from (entries_of_block(block, has_mvcc=has_mvcc) for block in blocks)


def _entries_at(content: memoryview, places: _Places) -> pa.RecordBatch:
    data = np.frombuffer(content, dtype=np.uint8)
    begins, keys, values = places
    rows = data[begins].astype(np.int64) << 8 | data[begins + 1]
    families = data[np.minimum(begins + 2 + rows, len(content) - 1)] if len(begins) else begins
    if (rows + 2 + _ROW_SUFFIX_BYTES != keys).any() or families.any():
        raise corrupt("a key with a column or a malformed row", "the length of a row, the row and ten bytes")
    # One array of rows, values and what is between them: Arrow picks the pieces without an index for each octet.
    bounds = np.stack([begins + 2, begins + 2 + rows, begins + keys, begins + keys + values], axis=1).ravel()
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(content)]
    pieces = pa.Array.from_buffers(pa.binary(), max(len(bounds) - 1, 0), buffers)
    columns = [pieces.take(pa.array(np.arange(first, len(pieces), 4))) for first in (0, 2)]
    return pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)


def _even_entries(content: memoryview) -> _Places | None:
    """Find entries whose rows have the length of the first one, without a step of Python for each of them.

    None unless each entry begins where the one before it ends: octets in a value that look like the end of a key do not mislead.
    """
    data = np.frombuffer(content, dtype=np.uint8)
    row = int.from_bytes(content[_LENGTHS.size : _LENGTHS.size + 2], "big")
    # Few octets but those in the ends of keys have this value.
    found = np.flatnonzero(data[1 : 2 - _ROW_SUFFIX_BYTES] == _ROW_SUFFIX[1])
    found = found[_numbers(content, ">u8", found) == int.from_bytes(_ROW_SUFFIX[:8], "big")]
    begins = found[_numbers(content, ">u2", found + 8) == int.from_bytes(_ROW_SUFFIX[8:], "big")] - (row + 2)
    heads = begins - _LENGTHS.size
    if not len(heads) or heads[0] != 0 or (np.diff(heads) < row + 2 + _LENGTHS.size + _ROW_SUFFIX_BYTES).any():
        return None
    keys, values = (_numbers(content, ">i4", heads + at).astype(np.int64) for at in (0, 4))
    ends = begins + keys + values
    fits = (
        (keys == row + 2 + _ROW_SUFFIX_BYTES).all()
        and (values >= 0).all()
        and np.array_equal(ends + 1, np.append(heads[1:], len(content)))
    )
    return (begins, keys, values) if fits and (data[ends] <= 127).all() else None


def _numbers(content: memoryview, kind: str, places: np.ndarray) -> np.ndarray:
    """Return the number of NumPy's type `kind` at each of these places."""
    dtype = np.dtype(kind)
    at_each_octet = np.ndarray(max(len(content) - dtype.itemsize + 1, 0), dtype, content, strides=(1,))
    found: np.ndarray = at_each_octet[places]
    return found


def _each_entry(content: memoryview, *, has_mvcc: bool) -> _Places:
    """Find the entries one after the other."""
    starts: list[int] = []
    lengths: list[tuple[int, int]] = []
    at, end = 0, len(content)
    while at < end:
        if at + _LENGTHS.size > end:
            raise corrupt("a truncated entry", "two lengths")
        key, value = pair = _LENGTHS.unpack_from(content, at)
        starts.append(at + _LENGTHS.size)
        lengths.append(pair)
        if key < 2 + _ROW_SUFFIX_BYTES or value < 0:
            raise corrupt(f"an entry with a key of {key} and a value of {value} bytes", "a row with its suffix, and a value")
        at += _LENGTHS.size + key + value
        if has_mvcc:
            if at >= end:
                raise corrupt("a truncated entry", "a version number after it")
            at = hadoop_length(content, at)[1] if content[at] > 127 else at + 1
    if at != end:
        raise corrupt(f"entries of {at} bytes in a block of {end}", "entries that fill their block")
    keys, values = np.array(lengths, dtype=np.int64).reshape(-1, 2).T
    return np.array(starts, dtype=np.int64), keys, values
