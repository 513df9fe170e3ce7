"""Write the key index of a log file: its own blocks, and the filters carried over from its index window (RFC-06)."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.bloom import BloomFilter, KeyBytes
from tideline_table.errors import CorruptMetadata
from tideline_table.log_format.block import BlockType, HeaderKey, LogBlock
from tideline_table.log_format.key_index import (
    LEAD,
    MAGIC,
    IndexedBlock,
    IndexedLog,
    KeySpan,
    LogIndex,
    Section,
    read_keys,
    read_sections,
)
from tideline_table.storage import Storage

FALSE_POSITIVES = 0.001
"""False positive rate of the Bloom filters: 14.4 bits per key."""
_LEAST_CAPACITY = 1_000
_MOST_CAPACITY = 1 << 20


@dataclass(frozen=True, slots=True)
class WrittenBlock:
    """A block that was just written: its place in the file, its header and its record keys."""

    type: BlockType
    offset: int
    size_bytes: int
    header: Mapping[int, str]
    keys: pa.Array
    digest: str = ""
    """The digest of its bytes, as of `ByteRange`; empty if it was not just encoded."""


def read_blocks(storage: Storage, index: LogIndex) -> list[WrittenBlock] | None:
    """Return the blocks of the newest log file of an index with their keys, or None if the keys are unusable."""
    keys = read_keys(storage, index)
    if keys is None:
        return None
    blocks = [indexed.block for indexed in index.logs[-1].blocks]
    return [WrittenBlock(b.type, b.offset, b.size_bytes, b.header, k) for b, k in zip(blocks, keys, strict=True)]


def index_bytes(
    storage: Storage, log_path: str, blocks: Sequence[WrittenBlock], previous: LogIndex | None, window_files: int
) -> bytes:
    """Return the index of a new log file. `previous` is the index of the log file before it in the slice.

    The index window has at most `window_files` files. A new window begins if `previous` is None, unusable, or full by files or by
    keys: a Bloom filter with more keys than it is sized for reports every key as present.
    """
    ordered = [block.keys.sort() for block in blocks]
    hashed = [KeyBytes(keys) for keys in ordered]
    own = sum(map(len, ordered))
    filters = [
        BloomFilter.sized(len(keys), FALSE_POSITIVES).with_keys(octets) for keys, octets in zip(ordered, hashed, strict=True)
    ]
    spans = [KeySpan.of(keys) for keys in ordered]
    earlier = _carried(storage, previous, own, window_files) if previous is not None else None
    if earlier is None:
        capacity = max(_LEAST_CAPACITY, own, min(own * window_files, _MOST_CAPACITY))
        earlier = _Carried((), KeySpan(0, "", ""), capacity, BloomFilter.sized(capacity, FALSE_POSITIVES), [])
    whole, span = earlier.filter, earlier.span if earlier.logs else None
    for octets, mine in zip(hashed, spans, strict=True):
        whole = whole.with_keys(octets)
        span = mine if span is None else span.joined(mine)
    writer = _SectionWriter()
    window_filter = writer.add(whole.to_bytes())
    folder = log_path.rpartition("/")[0]
    own_log = IndexedLog(
        log_path,
        sum(b.size_bytes for b in blocks),
        tuple(
            IndexedBlock(_stub(log_path, b.type, b.header, b.offset, b.size_bytes), s, writer.add(f.to_bytes()))
            for b, s, f in zip(blocks, spans, filters, strict=True)
        ),
    )
    members = [_moved(log, writer, earlier.sections) for log in earlier.logs]
    keys = [writer.add(_keys_bytes(array)) for array in ordered]
    assert span is not None
    document = {
        "logs": [_log_json(log, folder) for log in (*members, own_log)],
        "clique": [span.keys, span.low, span.high, earlier.capacity, window_filter],
        "keys": keys,
    }
    raw = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    head = _compressed(raw)
    return b"".join([LEAD.pack(MAGIC, len(head), len(raw), zlib.crc32(head)), head, *writer.pieces])


@dataclass(frozen=True, slots=True)
class _Carried:
    """Parts of the previous index that the next one repeats: the filter of the window, and the stored filters of its blocks."""

    logs: tuple[IndexedLog, ...]
    span: KeySpan
    capacity: int
    filter: BloomFilter
    sections: list[bytes]


def _carried(storage: Storage, previous: LogIndex, own: int, window_files: int) -> _Carried | None:
    if len(previous.logs) >= window_files or previous.span.keys + own > previous.capacity:
        return None
    sections = [previous.filter, *(b.filter for log in previous.logs for b in log.blocks)]
    found = read_sections(storage, previous, sections)
    if found is None:
        return None
    try:
        return _Carried(previous.logs, previous.span, previous.capacity, BloomFilter.from_bytes(found[0]), found[1:])
    except CorruptMetadata:
        return None


def _moved(log: IndexedLog, writer: _SectionWriter, sections: list[bytes]) -> IndexedLog:
    return replace(log, blocks=tuple(replace(b, filter=writer.add(sections.pop(0))) for b in log.blocks))


class _SectionWriter:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._end = 0

    def add(self, raw: bytes) -> Section:
        stored = _compressed(raw)
        section = Section(self._end, len(stored), len(raw), zlib.crc32(stored))
        self.pieces.append(stored)
        self._end = section.end
        return section


def _compressed(raw: bytes) -> bytes:
    return bytes(pa.Codec("zstd", 1).compress(raw, asbytes=True))


def _keys_bytes(ordered: pa.Array) -> bytes:
    lengths = np.asarray(pc.binary_length(ordered)).astype("<i4")
    _, offsets, content = ordered.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)
    begin, end = int(places[ordered.offset]), int(places[ordered.offset + len(ordered)])
    text = content.slice(begin, end - begin).to_pybytes() if end > begin else b""
    return struct.pack("<I", len(ordered)) + lengths.tobytes() + text


def _stub(path: str, kind: BlockType, header: Mapping[int, str], offset: int, size_bytes: int) -> LogBlock:
    kept = {int(key): text for key, text in header.items() if key != HeaderKey.SCHEMA}
    return LogBlock(path, kind, kept, offset, size_bytes, 0, 0)


def _log_json(log: IndexedLog, folder: str) -> list[object]:
    name = log.path[len(folder) + 1 :] if folder else log.path
    blocks = [
        [
            int(b.block.type),
            b.block.offset,
            b.block.size_bytes,
            {str(int(k)): v for k, v in b.block.header.items()},
            b.span.keys,
            b.span.low,
            b.span.high,
            b.filter,
        ]
        for b in log.blocks
    ]
    return [name, log.size_bytes, blocks]
