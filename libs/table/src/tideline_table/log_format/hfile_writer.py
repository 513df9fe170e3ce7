"""Write HFiles, version 3, in the layout of HBase 2.4, which Apache Hudi reads (format reference 15.4).

The index has one level: 1,000,000 entries of 100 bytes take about 1,600 data blocks. Equal input gives equal bytes, apart from the
gzip stream, which depends on the release of ISA-L.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import igzip

from tideline_table.errors import InvalidRecord
from tideline_table.log_format.avro.encode import octets_of
from tideline_table.log_format.hfile import is_ascending
from tideline_table.log_format.hfile_entries import ENTRY_SCHEMA
from tideline_table.log_format.protobuf import bytes_field, number_field, varint

BLOCK_BYTES = 64 * 1024
"""A data block ends with the entry that reaches this size."""
_JOINED_BYTES = 256 * BLOCK_BYTES
MOST_KEY_BYTES = 2**15 - 1 - 10
"""The longest key that an HFile holds: HBase stores the length of a whole key in 15 bits."""
_BYTES_PER_CHECKSUM = 16384
_CRC32 = 1
_GZIP, _NONE = 1, 2
_DATA_BLOCK = b"DATABLK*"
_GZIP_LEVEL = 1
"""Of ISA-L. Levels 2 and 3 take longer, and their files of keys and of Bloom filters are no smaller."""
_TRAILER_BYTES = 4096
_HEADER = struct.Struct(">8siiqbii")
_LENGTHS = np.dtype([("key", ">i4"), ("value", ">i4"), ("row", ">u2")])
"""What comes before a row: the lengths of the key, of the value, and of the row, which is a part of the key."""
_REFERENCE = struct.Struct(">qi")
_ROW_SUFFIX = b"\0" + b"\x7f" + b"\xff" * 7 + b"\x04"
"""After the row: an empty column family, the latest timestamp, and the type `put`."""
_NO_MVCC = b"\0"
"""After the value: version number 0."""
_VERSION = b"\x03\0\0\x03"
"""Minor version 3 and major version 3."""
_COMPARATOR = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"


@dataclass(frozen=True, slots=True)
class JoinedEntries:
    """Entries as data blocks hold them, one after the other. Many files are made faster from slices of one than each on its own."""

    keys: pa.Array
    key_lengths: np.ndarray
    value_lengths: np.ndarray
    rises: np.ndarray
    """Whether each key but the first is greater than the key before it."""
    content: memoryview
    ends: np.ndarray
    """Where each entry ends in `content`, which begins with the first one."""

    @classmethod
    def of(cls, entries: pa.RecordBatch) -> JoinedEntries:
        """Join a batch with `ENTRY_SCHEMA`, whose values may be encoded by dictionary."""
        keys, values = entries.columns
        rows, lengths = _lengths(keys), _lengths(values)
        heads = np.empty(entries.num_rows, dtype=_LENGTHS)
        heads["key"], heads["value"], heads["row"] = rows + 2 + len(_ROW_SUFFIX), lengths, rows
        ends = np.cumsum(_sizes(rows, lengths))
        rises = np.asarray(pc.greater(keys[1:], keys[:-1]))
        return cls(keys, rows, lengths, rises, _joined(heads, keys, values), ends)

    def slice(self, first: int, last: int) -> JoinedEntries:
        """Return the entries from `first` to before `last`, which are not empty."""
        begin, part = int(self.ends[first - 1]) if first else 0, slice(first, last)
        content, ends = self.content[begin : int(self.ends[last - 1])], self.ends[part] - begin
        keys = self.keys.slice(first, last - first)
        return JoinedEntries(keys, self.key_lengths[part], self.value_lengths[part], self.rises[first : last - 1], content, ends)


def hfile_bytes(
    entries: JoinedEntries | pa.RecordBatch | Iterable[tuple[bytes, bytes]],
    info: Mapping[str, bytes],
    *,
    created_ms: int = 0,
    compressed: bool = True,
) -> bytes:
    """Return an HFile of `entries`, whose keys ascend strictly: joined, a batch with `ENTRY_SCHEMA`, or pairs of key and value.

    The values of a batch may be encoded by dictionary. `info` is added to the file info. Raises `InvalidRecord` for keys out of
    order, a key longer than the format allows, and a file without entries.
    """
    writer = _Writer(compressed=compressed)
    if isinstance(entries, JoinedEntries):
        _check(entries.keys, entries.key_lengths, is_ascending=bool(entries.rises.all()))
        return writer.write([entries], info, created_ms)
    batch = entries if isinstance(entries, pa.RecordBatch) else batch_of(entries)
    keys, values = batch.columns
    rows = _lengths(keys)
    _check(keys, rows, is_ascending=is_ascending(keys))
    # Entries are joined many at a time, because a block of them costs as many steps.
    parts = np.flatnonzero(np.diff(np.cumsum(_sizes(rows, _lengths(values))) // _JOINED_BYTES, prepend=-1))
    slices = (batch.slice(first, last - first) for first, last in pairwise([*parts.tolist(), batch.num_rows]))
    return writer.write(map(JoinedEntries.of, slices), info, created_ms)


def batch_of(entries: Iterable[tuple[bytes, bytes]]) -> pa.RecordBatch:
    """Return pairs of key and value as a batch with `ENTRY_SCHEMA`."""
    pairs = list(entries)
    columns = [pa.array([pair[at] for pair in pairs], pa.binary()) for at in (0, 1)]
    return pa.RecordBatch.from_arrays(columns, schema=ENTRY_SCHEMA)


class _Writer:
    def __init__(self, *, compressed: bool) -> None:
        self._compressed = compressed
        self._out = bytearray()
        self._root: list[tuple[int, int, bytes]] = []
        self._unpacked_bytes = 0
        self._previous = -1

    def write(self, parts: Iterable[JoinedEntries], info: Mapping[str, bytes], created_ms: int) -> bytes:
        count = key_bytes = value_bytes = 0
        last_key = b""
        for part in parts:
            self._data_blocks(part)
            count += len(part.keys)
            key_bytes += int(part.key_lengths.sum()) + (2 + len(_ROW_SUFFIX)) * len(part.keys)
            value_bytes += int(part.value_lengths.sum())
            last_key = part.keys[-1].as_py()
        first_data, last_data = self._root[0][0], self._root[-1][0]
        root = b"".join(_REFERENCE.pack(at, size) + _vlong(len(key)) + key for at, size, key in self._root)
        load_on_open = self._block(b"IDXROOT2", root)[0]
        self._block(b"IDXROOT2", b"")
        standard = {
            "KEY_VALUE_VERSION": struct.pack(">i", 1),
            "MAX_MEMSTORE_TS_KEY": struct.pack(">q", 0),
            "hfile.AVG_KEY_LEN": struct.pack(">i", key_bytes // count),
            "hfile.AVG_VALUE_LEN": struct.pack(">i", value_bytes // count),
            "hfile.CREATE_TIME_TS": struct.pack(">q", created_ms),
            "hfile.LASTKEY": _full_key(last_key),
        }
        pairs = sorted({**info, **standard}.items())
        message = b"".join(bytes_field(1, bytes_field(1, key.encode()) + bytes_field(2, value)) for key, value in pairs)
        info_at = self._block(b"FILEINF2", b"PBUF" + varint(len(message)) + message)[0]
        fields = [
            (1, info_at),
            (2, load_on_open),
            (3, len(root)),
            (4, self._unpacked_bytes),
            (5, len(self._root)),
            (6, 0),
            (7, count),
            (8, 1),
            (9, first_data),
            (10, last_data),
        ]
        trailer = b"".join(number_field(at, value) for at, value in fields)
        trailer += bytes_field(11, _COMPARATOR) + number_field(12, _GZIP if self._compressed else _NONE)
        tail = b'TRABLK"$' + varint(len(trailer)) + trailer
        return bytes(self._out) + tail.ljust(_TRAILER_BYTES - len(_VERSION), b"\0") + _VERSION

    def _data_blocks(self, part: JoinedEntries) -> None:
        start, written, ends = 0, 0, part.ends
        while start < len(ends):
            end = min(int(np.searchsorted(ends, written + BLOCK_BYTES)) + 1, len(ends))
            upto = int(ends[end - 1])
            self._data_block(part.content[written:upto], _full_key(part.keys[start].as_py()))
            start, written = end, upto

    def _data_block(self, data: memoryview, first: bytes) -> None:
        at, size = self._block(_DATA_BLOCK, data, previous=self._previous)
        self._previous = at
        self._root.append((at, size, first))

    def _block(self, magic: bytes, data: bytes | memoryview, *, previous: int = -1) -> tuple[int, int]:
        """Append a block. Return its offset and size."""
        packed = igzip.compress(data, _GZIP_LEVEL, mtime=0) if self._compressed else data
        with_header = _HEADER.size + len(packed)
        pieces = -(-with_header // _BYTES_PER_CHECKSUM)
        head = _HEADER.pack(magic, len(packed) + 4 * pieces, len(data), previous, _CRC32, _BYTES_PER_CHECKSUM, with_header)
        content = head + packed
        sums = (zlib.crc32(content[at : at + _BYTES_PER_CHECKSUM]) for at in range(0, with_header, _BYTES_PER_CHECKSUM))
        at = len(self._out)
        self._out += content + struct.pack(f">{pieces}I", *sums)
        self._unpacked_bytes += _HEADER.size + len(data)
        return at, len(self._out) - at


def _check(keys: pa.Array, lengths: np.ndarray, *, is_ascending: bool) -> None:
    if not len(keys):
        raise InvalidRecord("an HFile without entries", expected="at least one")
    if not 1 <= lengths.min() <= lengths.max() <= MOST_KEY_BYTES:
        wrong = lengths[(lengths == 0) | (lengths > MOST_KEY_BYTES)]
        raise InvalidRecord(f"an HFile key of {wrong[0]} bytes", expected=f"1 to {MOST_KEY_BYTES}")
    if not is_ascending:
        at = int(np.flatnonzero(np.asarray(pc.less_equal(keys[1:], keys[:-1])))[0])
        found = f"HFile key {keys[at + 1].as_py()!r} after {keys[at].as_py()!r}"
        raise InvalidRecord(found, expected="keys in ascending order, each once")


def _sizes(key_lengths: np.ndarray, value_lengths: np.ndarray) -> np.ndarray:
    """Return the bytes of each entry in a data block."""
    found: np.ndarray = key_lengths + value_lengths + (_LENGTHS.itemsize + len(_ROW_SUFFIX) + len(_NO_MVCC))
    return found


def _lengths(octets: pa.Array) -> np.ndarray:
    if isinstance(octets, pa.DictionaryArray):
        found: np.ndarray = _lengths(octets.dictionary)[np.asarray(octets.indices)]
        return found
    return np.asarray(pc.binary_length(octets)).astype(np.int64)


def _joined(heads: np.ndarray, keys: pa.Array, values: pa.Array) -> memoryview:
    """Return entries as a data block holds them: lengths, row, the rest of its key, value, version."""
    ends = np.arange(0, heads.nbytes + 1, heads.itemsize, dtype=np.int32)
    before = pa.Array.from_buffers(pa.binary(), len(heads), [None, pa.py_buffer(ends), pa.py_buffer(heads.view(np.uint8))])
    suffix, after, nothing = (pa.scalar(part, pa.binary()) for part in (_ROW_SUFFIX, _NO_MVCC, b""))
    if isinstance(values, pa.DictionaryArray):
        # What comes after the rows is joined once for each distinct value.
        tails = pc.binary_join_element_wise(suffix, values.dictionary, after, nothing).take(values.indices)
        return memoryview(octets_of(pc.binary_join_element_wise(before, keys, tails, nothing)))
    return memoryview(octets_of(pc.binary_join_element_wise(before, keys, suffix, values, after, nothing)))


def _full_key(row: bytes) -> bytes:
    return struct.pack(">H", len(row)) + row + _ROW_SUFFIX


def _vlong(number: int) -> bytes:
    """Encode a length as `WritableUtils.writeVLong` does."""
    if number <= 127:
        return bytes([number])
    body = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return struct.pack("b", -112 - len(body)) + body
