"""Write HFiles, version 3, in the layout of HBase 2.4, which Apache Hudi reads (format reference 15.4).

The index has one level: 1,000,000 entries of 100 bytes take about 1,600 data blocks. Equal input gives equal bytes, apart from the
gzip stream, which depends on the release of zlib.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Mapping

from tideline_table.errors import InvalidRecord

BLOCK_BYTES = 64 * 1024
"""A data block ends with the entry that reaches this size."""
_MAX_ROW_BYTES = 2**15 - 1 - 10
_BYTES_PER_CHECKSUM = 16384
_CRC32 = 1
_GZIP, _NONE = 1, 2
_TRAILER_BYTES = 4096
_HEADER = struct.Struct(">8siiqbii")
_LENGTHS = struct.Struct(">ii")
_REFERENCE = struct.Struct(">qi")
_ROW_SUFFIX = b"\0" + b"\x7f" + b"\xff" * 7 + b"\x04"
"""After the row: an empty column family, the latest timestamp, and the type `put`."""
_VERSION = b"\x03\0\0\x03"
"""Minor version 3 and major version 3."""
_COMPARATOR = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"


def hfile_bytes(
    entries: Iterable[tuple[bytes, bytes]], info: Mapping[str, bytes], *, created_ms: int = 0, compressed: bool = True
) -> bytes:
    """Return an HFile of `entries` (key and value), whose keys ascend strictly. `info` is added to the file info.

    Raises `InvalidRecord` for keys out of order, a key longer than the format allows, and a file without entries.
    """
    return _Writer(compressed=compressed).write(entries, info, created_ms)


class _Writer:
    def __init__(self, *, compressed: bool) -> None:
        self._compressed = compressed
        self._out = bytearray()
        self._root: list[tuple[int, int, bytes]] = []
        self._unpacked_bytes = 0
        self._previous = -1

    def write(self, entries: Iterable[tuple[bytes, bytes]], info: Mapping[str, bytes], created_ms: int) -> bytes:
        count, key_bytes, value_bytes, last = self._data(entries)
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
            "hfile.LASTKEY": _full_key(last),
        }
        pairs = sorted({**info, **standard}.items())
        message = b"".join(_field(1, _field(1, key.encode()) + _field(2, value)) for key, value in pairs)
        info_at = self._block(b"FILEINF2", b"PBUF" + _varint(len(message)) + message)[0]
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
        trailer = b"".join(_number(at, value) for at, value in fields)
        trailer += _field(11, _COMPARATOR) + _number(12, _GZIP if self._compressed else _NONE)
        tail = b'TRABLK"$' + _varint(len(trailer)) + trailer
        return bytes(self._out) + tail.ljust(_TRAILER_BYTES - len(_VERSION), b"\0") + _VERSION

    def _data(self, entries: Iterable[tuple[bytes, bytes]]) -> tuple[int, int, int, bytes]:
        """Write the data blocks. Return the number of entries, the bytes of their keys and values, and the last key."""
        cells: list[bytes] = []
        size = count = key_bytes = value_bytes = 0
        first = last = b""
        for row, value in entries:
            if count and row <= last:
                raise InvalidRecord(f"HFile key {row!r} after {last!r}", expected="keys in ascending order, each once")
            key = _full_key(row)
            if not cells:
                first = key
            cells += [_LENGTHS.pack(len(key), len(value)), key, value, b"\0"]
            size += _LENGTHS.size + len(key) + len(value) + 1
            count, last = count + 1, row
            key_bytes, value_bytes = key_bytes + len(key), value_bytes + len(value)
            if size >= BLOCK_BYTES:
                self._data_block(b"".join(cells), first)
                cells, size = [], 0
        if cells:
            self._data_block(b"".join(cells), first)
        if not count:
            raise InvalidRecord("an HFile without entries", expected="at least one")
        return count, key_bytes, value_bytes, last

    def _data_block(self, data: bytes, first: bytes) -> None:
        at, size = self._block(b"DATABLK*", data, previous=self._previous)
        self._previous = at
        self._root.append((at, size, first))

    def _block(self, magic: bytes, data: bytes, *, previous: int = -1) -> tuple[int, int]:
        """Append a block. Return its offset and size."""
        packed = gzip.compress(data, mtime=0) if self._compressed else data
        with_header = _HEADER.size + len(packed)
        pieces = -(-with_header // _BYTES_PER_CHECKSUM)
        head = _HEADER.pack(magic, len(packed) + 4 * pieces, len(data), previous, _CRC32, _BYTES_PER_CHECKSUM, with_header)
        content = head + packed
        sums = (zlib.crc32(content[at : at + _BYTES_PER_CHECKSUM]) for at in range(0, with_header, _BYTES_PER_CHECKSUM))
        at = len(self._out)
        self._out += content + struct.pack(f">{pieces}I", *sums)
        self._unpacked_bytes += _HEADER.size + len(data)
        return at, len(self._out) - at


def _full_key(row: bytes) -> bytes:
    if not 0 < len(row) <= _MAX_ROW_BYTES:
        raise InvalidRecord(f"an HFile key of {len(row)} bytes", expected=f"1 to {_MAX_ROW_BYTES}")
    return struct.pack(">H", len(row)) + row + _ROW_SUFFIX


def _vlong(number: int) -> bytes:
    """Encode a length as `WritableUtils.writeVLong` does."""
    if number <= 127:
        return bytes([number])
    body = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return struct.pack("b", -112 - len(body)) + body


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
