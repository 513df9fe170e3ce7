"""HFiles, version 3, as HBase and Apache Hudi write them for the metadata table (format reference 15.4).

`HFile` reads the trailer, indexes and meta blocks; `HFile.entries` then streams the data blocks in index order. Memory is
limited to the declared, capped size of one block, and each byte of the file is read only once, even if the file is malicious.
`open_hfile` reads of a large file what is asked for.
"""

from __future__ import annotations

import bisect
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.log_format.checksum import crc32c
from tideline_table.log_format.hfile_entries import ENTRY_SCHEMA, corrupt, entries_of_block, entries_of_blocks, hadoop_length
from tideline_table.log_format.protobuf import read_fields, read_varint
from tideline_table.storage import Storage

TRAILER_BYTES = 4096
MAX_BLOCK_BYTES = 256 * 1024 * 1024
"""Limit for the decompressed size of a block. Writers aim at 64 KB to 1 MB."""
MAX_FILE_BYTES = 2**31 - 1
_HEADER = struct.Struct(">8siiqbii")
_ENTRY = struct.Struct(">qi")
_DATA, _META = b"DATABLK*", b"METABLKc"
_ROOT, _LEAF, _INNER = b"IDXROOT2", b"IDXLEAF2", b"IDXINTE2"
_FILE_INFO, _TRAILER, _PROTOBUF = b"FILEINF2", b'TRABLK"$', b"PBUF"
_MAX_LEVELS = 8
_UNPACKING_ERROR = cast("type[Exception]", isal_zlib.error)
"""The type stub of ISA-L declares an instance."""
_GZIP, _NONE = 1, 2
_ENCRYPTION_KEY = 13
_CHECKSUMS: dict[int, Callable[[memoryview], int]] = {1: zlib.crc32, 2: crc32c}
_MID_KEY_BYTES = 16
_ORDERED = re.compile(rb"[^\xee-\xff]*")
"""What is before the first character from U+E000 on. Apache Hudi up to 1.2.0 sorts keys by UTF-16 units, not by octets: these
characters behind those from U+10000 on."""
_WITH_MVCC = (1).to_bytes(4, "big")
_WHOLE_BYTES = 1024 * 1024
"""A file of this size or less is read with one request."""
_END_BYTES = 256 * 1024
"""What is read first of a larger file: its indexes, if it is not very large."""
_GAP_BYTES = 64 * 1024
"""Blocks with less than this between them are read with one request."""

ByteSource = bytes | memoryview
Fetch = Callable[[list[tuple[int, int]]], None]
"""Fills ranges (start, end) of the content of a file that is not in memory yet."""


@dataclass(frozen=True, slots=True)
class _Reference:
    """An index entry: place and size of a block, and its first key."""

    offset: int
    size_bytes: int
    key: bytes


@dataclass(frozen=True, slots=True)
class _Trailer:
    file_info_offset: int
    load_on_open_offset: int
    index_entries: int
    meta_entries: int
    entries: int
    levels: int
    codec: int


class HFile:
    """An open HFile in memory.

    Its methods raise `CorruptMetadata` for malformed bytes, and `UnsupportedTable` for features that files of Hudi never have: a
    codec other than gzip and none, encryption, cell tags.
    """

    def __init__(self, content: ByteSource, fetch: Fetch | None = None) -> None:
        """With `fetch`, `content` has the trailer and the parts that are read with it; the meta blocks are left out."""
        self._fetch = fetch
        if len(content) > MAX_FILE_BYTES:
            raise corrupt(f"{len(content)} bytes", f"at most {MAX_FILE_BYTES}")
        self._content = memoryview(content)
        self.size_bytes = len(content)
        self._trailer = _read_trailer(self._content)
        self._end = len(content) - TRAILER_BYTES
        trailer = self._trailer
        root, after = self._block(trailer.load_on_open_offset, _ROOT)
        self._root = _root_index(root, trailer.index_entries, _MID_KEY_BYTES if trailer.levels > 1 else 0)
        metas, _ = self._block(after, _ROOT)
        info, _ = self._block(trailer.file_info_offset, _FILE_INFO)
        self.file_info: dict[str, bytes] = _file_info(info)
        self._has_mvcc = self.file_info.get("KEY_VALUE_VERSION") == _WITH_MVCC
        if "hfile.MAX_TAGS_LEN" in self.file_info:
            raise UnsupportedTable("an HFile whose cells have tags", expected="cells without tags")
        self.meta_blocks: dict[str, bytes] = {}
        room_bytes = MAX_BLOCK_BYTES
        for reference, block in self._blocks(_root_index(metas, trailer.meta_entries, 0) if fetch is None else [], _META):
            room_bytes -= len(block)
            if room_bytes < 0:
                raise corrupt("meta blocks above the size limit", f"at most {MAX_BLOCK_BYTES} bytes in total")
            self.meta_blocks[reference.key.decode("utf-8", "replace")] = bytes(block)

    @property
    def entry_count(self) -> int:
        """Number of entries according to the trailer. `entries` checks it."""
        return self._trailer.entries

    @property
    def last_key(self) -> bytes | None:
        """The greatest key, or a greater one, according to the file info, None without one."""
        full = self.file_info.get("hfile.LASTKEY")
        return None if full is None else _bounds(_row(full))[1]

    @property
    def first_key(self) -> bytes:
        """The least key, or a lesser one, according to the index; empty if it has levels."""
        return self._key_bounds[0][0] if self._trailer.levels == 1 and self._root else b""

    @cached_property
    def _key_bounds(self) -> list[tuple[bytes, bytes]]:
        """Bounds of the first key of each block."""
        return [_bounds(_row(reference.key)) for reference in self._root]

    def entries(self) -> Iterator[pa.RecordBatch]:
        """Yield keys (rows) and values, one batch per data block, keys strictly ascending: by octets, or all by UTF-16 units."""
        found = 0
        last: bytes | None = None
        ranked = _by_octets
        for reference, block in self._data_blocks():
            batch = entries_of_block(block, has_mvcc=self._has_mvcc)
            if not batch.num_rows:
                continue
            keys = batch.column(0)
            joined = keys if last is None else pa.concat_arrays([pa.array([last], keys.type), keys])
            if not is_ascending(ranked(joined)):
                ranked = _by_utf16_units
                if not is_ascending(ranked(joined)):
                    raise corrupt(f"a data block at {reference.offset} with keys out of order", "each key once, in order")
            last = keys[-1].as_py()
            found += batch.num_rows
            if found > self.entry_count:
                break
            yield batch
        if found != self.entry_count:
            raise corrupt(f"{found} entries or more" if found > self.entry_count else f"{found} entries", f"{self.entry_count}")

    def blocks_of(self, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of the data blocks that can hold one of `keys` (ascending); of all blocks if the index has levels.

        A batch has the entries of several blocks. Keys of the file may be sorted by UTF-16 units.
        """
        if self._trailer.levels > 1:
            yield from self.entries()
            return
        # From the first key of a block to that of the next one, or to the last key. There are fewer blocks than keys.
        end = len(keys) if self.last_key is None else bisect.bisect_right(keys, self.last_key)
        begins = [bisect.bisect_left(keys, low) for low, _ in self._key_bounds]
        ends = [*(bisect.bisect_left(keys, high) for _, high in self._key_bounds[1:]), end]
        wanted = [number for number, (begin, end) in enumerate(zip(begins, ends, strict=False)) if begin < end]
        blocks = (block for _, block in self._blocks([self._root[number] for number in wanted], _DATA))
        yield from entries_of_blocks(blocks, has_mvcc=self._has_mvcc)

    def read(self) -> pa.Table:
        """Return all entries as a table with the columns `key` and `value`."""
        return pa.Table.from_batches(self.entries(), schema=ENTRY_SCHEMA)

    def _data_blocks(self) -> Iterator[tuple[_Reference, memoryview]]:
        references: Iterable[_Reference] = self._root
        for level in range(self._trailer.levels - 1, 0, -1):
            references = self._below(references, _LEAF if level == 1 else _INNER)
        return self._blocks(references, _DATA)

    def _below(self, references: Iterable[_Reference], magic: bytes) -> Iterator[_Reference]:
        for _, block in self._blocks(references, magic):
            yield from _leaf_index(block)

    def _blocks(self, references: Iterable[_Reference], magic: bytes) -> Iterator[tuple[_Reference, memoryview]]:
        """Yield blocks, with ascending offsets only: an index that repeats a block could make a small file expand without limit."""
        free = 0
        if self._fetch is not None:
            references = list(references)
            # Some writers give the size without checksums, of four bytes for 16 KB.
            self._fetch([(r.offset, r.offset + _HEADER.size + r.size_bytes + r.size_bytes // 1024 + 64) for r in references])
        for reference in references:
            if reference.offset < free:
                raise corrupt(f"an index entry for a block at {reference.offset}", f"an offset of at least {free}")
            block, free = self._block(reference.offset, magic)
            yield reference, block

    def _block(self, offset: int, magic: bytes) -> tuple[memoryview, int]:
        """Return the decompressed data of the block at `offset`, and the offset of the next block."""
        place = f"the block {magic.decode('latin-1')} at {offset}"
        if not 0 <= offset <= self._end - _HEADER.size:
            raise corrupt(place, f"offsets inside the {self._end} bytes before the trailer")
        found, on_disk, unpacked, _, kind, per_checksum, with_header = _HEADER.unpack_from(self._content, offset)
        if found != magic:
            raise corrupt(f"{bytes(found)!r} at {offset}", f"{magic!r}")
        end = offset + _HEADER.size + on_disk
        data_end = offset + with_header
        if on_disk < 0 or end > self._end or not _HEADER.size <= with_header <= on_disk + _HEADER.size:
            raise corrupt(f"{place} of {on_disk} bytes with {with_header} bytes of data", "sizes that fit into the file")
        if not 0 <= unpacked <= MAX_BLOCK_BYTES:
            raise corrupt(f"{place} that unpacks to {unpacked} bytes", f"0 to {MAX_BLOCK_BYTES}")
        self._verify(place, self._content[offset:data_end], self._content[data_end:end], kind, per_checksum)
        return self._unpacked(place, self._content[offset + _HEADER.size : data_end], unpacked), end

    def _verify(self, place: str, data: memoryview, checksums: memoryview, kind: int, per_checksum: int) -> None:
        if kind not in (0, *_CHECKSUMS) or per_checksum <= 0:
            raise corrupt(f"{place} with checksums of kind {kind} per {per_checksum} bytes", "kind 0, 1 or 2")
        pieces = -(-len(data) // per_checksum)
        if len(checksums) != 4 * pieces:
            raise corrupt(f"{place} with {len(checksums)} bytes of checksums", f"{4 * pieces}")
        compute = _CHECKSUMS.get(kind)
        if compute is None:
            return
        for number in range(pieces):
            piece = data[number * per_checksum : (number + 1) * per_checksum]
            if compute(piece) != int.from_bytes(checksums[4 * number : 4 * number + 4], "big"):
                raise corrupt(f"{place} with a wrong checksum", "the bytes that were written")

    def _unpacked(self, place: str, packed: memoryview, size_bytes: int) -> memoryview:
        if self._trailer.codec == _NONE:
            data = packed
        else:
            unpacker = isal_zlib.decompressobj(wbits=31)
            try:
                # One byte more than the declared size is enough to detect a wrong declaration.
                data = memoryview(unpacker.decompress(packed, size_bytes + 1))
            except _UNPACKING_ERROR as error:
                raise corrupt(f"{place} that cannot be unpacked ({error})", "gzip") from None
            if len(data) <= size_bytes and not unpacker.eof:
                raise corrupt(f"{place} whose gzip data ends early", f"{size_bytes} bytes")
        if len(data) != size_bytes:
            raise corrupt(f"{place} that unpacks to another size", f"{size_bytes} bytes")
        return data


def open_hfile(storage: Storage, path: str, size_bytes: int) -> HFile:
    """Return the HFile at `path` of that size, whose data blocks are read when they are asked for if it is large.

    Raises `CorruptMetadata` also for a file of another size.
    """
    if size_bytes <= _WHOLE_BYTES or size_bytes > MAX_FILE_BYTES:
        return HFile(storage.read(path))
    content = bytearray(size_bytes)
    held = size_bytes

    def fetch(ranges: list[tuple[int, int]]) -> None:
        joined: list[tuple[int, int]] = []
        for start, end in ((max(0, start), min(end, held)) for start, end in ranges):
            if joined and joined[-1][0] <= start <= joined[-1][1] + _GAP_BYTES:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            elif start < end:
                joined.append((start, end))
        for start, end in joined:
            read = storage.read_range(path, start, end - start)
            if len(read) != end - start:
                raise corrupt(f"{len(read)} bytes of {path} at {start}", f"{end - start}")
            content[start:end] = read

    begin = size_bytes - _END_BYTES
    fetch([(begin, held)])
    load = _read_trailer(memoryview(content)).load_on_open_offset
    if 0 <= load < begin:
        fetch([(load, begin)])
    held = max(0, min(load, begin))
    return HFile(memoryview(content), fetch)


def _row(key: bytes) -> bytes:
    """Return the row in an index entry: after its length, and before the suffix that HBase's writer adds."""
    return key[2 : 2 + int.from_bytes(key[:2], "big")]


def _bounds(key: bytes) -> tuple[bytes, bytes]:
    """Return a key that no later key of a file is below, and one that no earlier key is above, in either order of keys."""
    found = _ORDERED.match(key)
    end = found.end() if found else 0
    return (key, key) if end == len(key) else (key[:end], key[:end] + b"\xff")


def _read_trailer(content: memoryview) -> _Trailer:
    start = len(content) - TRAILER_BYTES
    if start < 0 or content[start : start + 8] != _TRAILER:
        raise corrupt("no trailer", f"a trailer in the last {TRAILER_BYTES} bytes")
    major = int.from_bytes(content[-3:], "big")
    if major != 3:
        raise corrupt(f"version {major}", "version 3")
    fields = dict(_delimited(content[start + 8 : -4]))
    if _ENCRYPTION_KEY in fields:
        raise UnsupportedTable("an encrypted HFile", expected="no encryption")
    numbers = {12: _NONE} | {number: value for number, value in fields.items() if isinstance(value, int)}
    trailer = _Trailer(*(numbers.get(number, 0) for number in (1, 2, 5, 6, 7, 8, 12)))
    if trailer.codec not in (_GZIP, _NONE):
        raise UnsupportedTable(f"an HFile with codec {trailer.codec}", expected="gzip or no codec")
    if not 1 <= trailer.levels <= _MAX_LEVELS:
        raise corrupt(f"an index of {trailer.levels} levels", f"1 to {_MAX_LEVELS}")
    return trailer


def _delimited(content: memoryview) -> list[tuple[int, int | memoryview]]:
    """Read the fields of a message that follows its length."""
    length, at = read_varint(content, 0)
    if length > len(content) - at:
        raise corrupt(f"a message of {length} bytes", f"at most {len(content) - at}")
    return list(read_fields(content[at : at + length]))


def _file_info(content: memoryview) -> dict[str, bytes]:
    if content[:4] != _PROTOBUF:
        raise corrupt("file info in another encoding", f"{_PROTOBUF!r} at the start")
    found: dict[str, bytes] = {}
    for number, pair in _delimited(content[4:]):
        if number != 1 or isinstance(pair, int):
            continue
        parts = {n: bytes(v) for n, v in read_fields(pair) if not isinstance(v, int)}
        found[parts.get(1, b"").decode("utf-8", "replace")] = parts.get(2, b"")
    return found


def _root_index(content: memoryview, count: int, tail_bytes: int) -> list[_Reference]:
    """Read the entries of a root or meta index.

    HBase encodes the length of a key as Hadoop does. That encoding and the one of protobuf agree below 128. Protobuf lengths are
    used if the entries fit the size of the index only with them.
    """
    for length_of in (hadoop_length, read_varint):
        found = _index_entries(content, count, length_of)
        if found is not None and found[1] in (len(content), len(content) - tail_bytes):
            return found[0]
    raise corrupt(f"an index of {len(content)} bytes that does not hold {count} entries", "as many as the trailer says")


def _index_entries(
    content: memoryview, count: int, length_of: Callable[[memoryview, int], tuple[int, int]]
) -> tuple[list[_Reference], int] | None:
    if count > len(content) // (_ENTRY.size + 1):
        return None
    found: list[_Reference] = []
    at = 0
    for _ in range(count):
        if at + _ENTRY.size >= len(content):
            return None
        offset, size_bytes = _ENTRY.unpack_from(content, at)
        try:
            length, at = length_of(content, at + _ENTRY.size)
        except CorruptMetadata:
            return None
        if not 0 <= length <= len(content) - at:
            return None
        found.append(_Reference(offset, size_bytes, bytes(content[at : at + length])))
        at += length
    return found, at


def _leaf_index(content: memoryview) -> list[_Reference]:
    """Read the entries of a leaf or intermediate index: a count, count + 1 offsets, then the entries."""
    count = int.from_bytes(content[:4], "big", signed=True) if len(content) >= 4 else -1
    start = 4 * (count + 2)
    if count < 0 or start > len(content):
        raise corrupt(f"a leaf index of {len(content)} bytes for {count} entries", "as many as it says")
    places = np.frombuffer(content, dtype=">i4", count=count + 1, offset=4).astype(np.int64)
    if places[0] != 0 or (np.diff(places) < _ENTRY.size).any() or places[-1] != len(content) - start:
        raise corrupt("a leaf index whose entries overlap", "entries one after the other")
    found = []
    for begin, end in zip((places[:-1] + start).tolist(), (places[1:] + start).tolist(), strict=True):
        offset, size_bytes = _ENTRY.unpack_from(content, begin)
        found.append(_Reference(offset, size_bytes, bytes(content[begin + _ENTRY.size : end])))
    return found


def _by_octets(keys: pa.Array) -> pa.Array:
    return keys


def _by_utf16_units(keys: pa.Array) -> pa.Array:
    return pa.array([key.decode("utf-8", "replace").encode("utf-16-be") for key in keys.to_pylist()], pa.binary())


def is_ascending(keys: pa.Array) -> bool:
    """Return whether each key is greater than the one before it."""
    return bool(pc.all(pc.less(keys[:-1], keys[1:])).as_py()) if len(keys) > 1 else True
