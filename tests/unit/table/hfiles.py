"""A plain HFile writer: what the reader is tried on beyond the files that HBase and Hudi wrote."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence

Entry = tuple[bytes, bytes]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def hadoop_length(number: int) -> bytes:
    if number <= 127:
        return bytes([number])
    body = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return struct.pack("b", -112 - len(body)) + body


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def block(magic: bytes, data: bytes, *, gz: bool = False, checksum: int = 1, per_checksum: int = 16384, claimed: int = -1) -> bytes:
    packed = gzip.compress(data, mtime=0) if gz else data
    with_header = 33 + len(packed)
    pieces = -(-with_header // per_checksum)
    sizes = (len(packed) + 4 * pieces, len(data) if claimed < 0 else claimed, -1)
    head = struct.pack(">8siiqbii", magic, *sizes, checksum, per_checksum, with_header)
    content = head + packed
    cuts = range(0, len(content), per_checksum)
    sums = [zlib.crc32(content[at : at + per_checksum]) if checksum else 0 for at in cuts]
    return content + struct.pack(f">{pieces}I", *sums)


def full_key(row: bytes) -> bytes:
    return struct.pack(">H", len(row)) + row + b"\0" + b"\x7f" + b"\xff" * 7 + b"\x04"


def cell(entry: Entry, mvcc: bytes) -> bytes:
    key = full_key(entry[0])
    return struct.pack(">ii", len(key), len(entry[1])) + key + entry[1] + mvcc


def hfile(
    blocks: Sequence[Sequence[Entry]],
    *,
    levels: int = 1,
    gz: bool = False,
    mvcc: bytes | None = b"\0",
    metas: Mapping[str, bytes] | None = None,
    info: Mapping[str, bytes] | None = None,
    length: Callable[[int], bytes] = hadoop_length,
    count: int | None = None,
    trailer: Mapping[int, int | bytes] | None = None,
    checksum: int = 1,
) -> bytes:
    """A whole file. With more than one level each index block names two blocks of the level below."""
    out = bytearray()

    def put(magic: bytes, data: bytes) -> tuple[int, int]:
        made = block(magic, data, gz=gz, checksum=checksum)
        at = len(out)
        out.extend(made)
        return at, len(made)

    references = [
        (
            *put(b"DATABLK*", b"".join(cell(e, mvcc if mvcc is not None else b"") for e in part)),
            full_key(part[0][0] if part else b""),
        )
        for part in blocks
    ]
    for level in range(levels - 1):
        magic = b"IDXINTE2" if level else b"IDXLEAF2"
        above = []
        for at in range(0, len(references), 2):
            some = references[at : at + 2]
            entries = [struct.pack(">qi", o, s) + k for o, s, k in some]
            places = [sum(map(len, entries[:n])) for n in range(len(entries) + 1)]
            above.append((*put(magic, struct.pack(f">i{len(places)}i", len(some), *places) + b"".join(entries)), some[0][2]))
        references = above
    meta_references = [(*put(b"METABLKc", data), name.encode()) for name, data in sorted((metas or {}).items())]

    def root(found: Sequence[tuple[int, int, bytes]]) -> bytes:
        return b"".join(struct.pack(">qi", o, s) + length(len(k)) + k for o, s, k in found)

    load = put(b"IDXROOT2", root(references) + (bytes(16) if levels > 1 else b""))[0]
    put(b"IDXROOT2", root(meta_references))
    pairs = {"KEY_VALUE_VERSION": struct.pack(">i", 1)} if mvcc is not None else {}
    message = b"".join(field(1, field(1, k.encode()) + field(2, v)) for k, v in {**pairs, **(info or {})}.items())
    info_at = put(b"FILEINF2", b"PBUF" + varint(len(message)) + message)[0]
    numbers: dict[int, int | bytes] = {
        1: info_at,
        2: load,
        5: len(references),
        6: len(meta_references),
        7: sum(map(len, blocks)) if count is None else count,
        8: levels,
        12: 1 if gz else 2,
    }
    content = b"".join(field(n, v) for n, v in {**numbers, **(trailer or {})}.items())
    tail = b'TRABLK"$' + varint(len(content)) + content
    return bytes(out) + tail.ljust(4092, b"\0") + b"\x03\0\0\x03"
