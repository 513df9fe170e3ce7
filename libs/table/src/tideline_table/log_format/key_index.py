"""Key indexes of log files: a side file describes the record keys in the blocks of a log file and of the files before it (RFC-06).

A side file has a head and sections. The head, compressed JSON, describes an index window: the log file and up to N - 1 files before
it in the slice. It has the place, the header (without schema), and the least and greatest key of each block. The sections, each
compressed and with its own checksum, are in this order: a Bloom filter over all keys of the window, one filter per block, and the
sorted keys of each block of the newest file. So the first bytes of the newest side file usually show whether to read any log file.

An index only saves reads. An unusable index is treated as missing.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tideline_table.errors import MALFORMED, ObjectNotFound, TidelineError
from tideline_table.log_format.block import BlockType, HeaderKey, LogBlock
from tideline_table.storage import Storage

INDEX_FOLDER = ".hoodie/.tideline/log_index"
FIRST_READ_BYTES = 32 * 1024

_LOGGER = logging.getLogger(__name__)
MAGIC = b"TLKEYS1\n"
LEAD = struct.Struct("<8sIII")
_MOST_HEAD_BYTES = 16 * 1024 * 1024
_MOST_SECTION_BYTES = 512 * 1024 * 1024
_MOST_RANGE_CHARACTERS = 512
_UNUSABLE = (TidelineError, *MALFORMED, MemoryError, OSError, struct.error, pa.ArrowException)


def index_path(log_path: str) -> str:
    """Return the path of the side file of the log file at `log_path`."""
    return f"{INDEX_FOLDER}/{log_path}.keys"


def forget_index(storage: Storage, path: str) -> None:
    """Delete the side file of a log file that will be deleted. Does nothing for other data files."""
    if ".log." in path.rsplit("/", 1)[-1]:
        storage.delete(index_path(path))


class Section(NamedTuple):
    """Place of compressed bytes in the side file. `offset` counts from the end of the head."""

    offset: int
    stored_bytes: int
    raw_bytes: int
    checksum: int

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.offset + self.stored_bytes


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Number of keys, and the least and greatest key. None: the key is too long to store, so the range has no limit there."""

    keys: int
    low: str | None
    high: str | None

    def may_hold(self, low: str, high: str) -> bool:
        """Return whether a key between `low` and `high` (both inclusive) may be among the keys."""
        return self.keys > 0 and (self.low is None or self.low <= high) and (self.high is None or low <= self.high)

    def joined(self, other: KeySpan) -> KeySpan:
        """Return the span of both sets of keys."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return KeySpan(self.keys + other.keys, low, high)

    @classmethod
    def of(cls, ordered: pa.Array) -> KeySpan:
        """Return the span of keys, which must be in ascending order."""
        if not len(ordered):
            return cls(0, None, None)
        low, high = ordered[0].as_py(), ordered[-1].as_py()
        return cls(len(ordered), *(v if len(v) <= _MOST_RANGE_CHARACTERS else None for v in (low, high)))


@dataclass(frozen=True, slots=True)
class IndexedBlock:
    """A block in an index. `block` has no schema in its header and no place of its content."""

    block: LogBlock
    span: KeySpan
    filter: Section


@dataclass(frozen=True, slots=True)
class IndexedLog:
    """The blocks of one log file of `size_bytes`."""

    path: str
    size_bytes: int
    blocks: tuple[IndexedBlock, ...]


@dataclass(frozen=True, slots=True)
class LogIndex:
    """One side file: the log files of its index window, oldest first. `keys` are the sorted keys of the newest file's blocks."""

    path: str
    origin: int
    """Offset at which the sections begin."""
    logs: tuple[IndexedLog, ...]
    span: KeySpan
    capacity: int
    """Number of keys for which the filter over the index window is sized."""
    filter: Section
    keys: tuple[Section, ...]
    first: bytes
    """The first bytes of the file, unchanged."""


def read_index(storage: Storage, log_path: str) -> LogIndex | None:
    """Read the index of a log file, without sections. Usually costs one request. Return None if it is missing or unusable."""
    path = index_path(log_path)
    try:
        first = storage.read_range(path, 0, FIRST_READ_BYTES)
        known, stored = len(first), LEAD.size + _head(first).stored_bytes
        return parse_index(log_path, first + storage.read_range(path, known, stored - known) if stored > known else first)
    except ObjectNotFound:
        return None
    except _UNUSABLE as error:
        _LOGGER.warning("key index %s ignored: %s", path, error)
        return None


def parse_index(log_path: str, content: bytes) -> LogIndex:
    """Parse an index from the first bytes of the side file, at least the head. Raises `ValueError` and other errors if unusable."""
    head = _head(content)
    end = LEAD.size + head.stored_bytes
    document = json.loads(_expanded(content[LEAD.size : end], head, _MOST_HEAD_BYTES))
    folder = log_path.rpartition("/")[0]
    logs = tuple(_log(folder, *fields) for fields in document["logs"])
    count, low, high, capacity, window = document["clique"]
    keys = tuple(_section(*fields) for fields in document["keys"])
    if not logs or logs[-1].path != log_path or len(keys) != len(logs[-1].blocks):
        raise ValueError(f"an index of {logs[-1].path if logs else 'no log file'}")
    return LogIndex(index_path(log_path), end, logs, _span(count, low, high), int(capacity), _section(*window), keys, content)


def _head(content: bytes) -> Section:
    magic, stored, raw, checksum = LEAD.unpack_from(content)
    if magic != MAGIC or stored > _MOST_HEAD_BYTES:
        raise ValueError("another format")
    return Section(0, stored, raw, checksum)


def read_sections(storage: Storage, index: LogIndex, sections: Sequence[Section]) -> list[bytes] | None:
    """Return the content of sections, or None if they are unusable.

    Costs one request for the range from the first to the last section, and none if the first read of the index has that range.
    """
    if not sections:
        return []
    begin, end = index.origin + min(s.offset for s in sections), index.origin + max(s.end for s in sections)
    try:
        if end <= len(index.first):
            content = index.first[begin:end]
        elif end - begin > _MOST_SECTION_BYTES:
            raise ValueError(f"sections over {end - begin} bytes")
        else:
            content = storage.read_range(index.path, begin, end - begin)
        starts = [index.origin + s.offset - begin for s in sections]
        return [
            _expanded(content[at : at + s.stored_bytes], s, _MOST_SECTION_BYTES) for at, s in zip(starts, sections, strict=True)
        ]
    except _UNUSABLE as error:
        _LOGGER.warning("key index %s ignored: %s", index.path, error)
        return None


def read_keys(storage: Storage, index: LogIndex) -> list[pa.Array] | None:
    """Return the record keys of each block of the newest log file, ascending; None if they are unusable."""
    found = read_sections(storage, index, index.keys)
    if found is None:
        return None
    try:
        return [_keys_of(content) for content in found]
    except _UNUSABLE as error:
        _LOGGER.warning("keys of key index %s ignored: %s", index.path, error)
        return None


def _expanded(stored: bytes, section: Section, most_bytes: int) -> bytes:
    if len(stored) != section.stored_bytes or zlib.crc32(stored) != section.checksum:
        raise ValueError("a section whose size or checksum differs")
    if section.raw_bytes > most_bytes:
        raise ValueError(f"a section of {section.raw_bytes} bytes")
    raw = bytes(pa.Codec("zstd").decompress(stored, section.raw_bytes, asbytes=True))
    if len(raw) != section.raw_bytes:
        raise ValueError("a section that expands to another size")
    return raw


def _keys_of(content: bytes) -> pa.Array:
    (count,) = struct.unpack_from("<I", content)
    start = 4 + 4 * count
    if start > len(content):
        raise ValueError("fewer keys than the count says")
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.frombuffer(content, dtype="<i4", count=count, offset=4), out=offsets[1:])
    if offsets[-1] != len(content) - start or (np.diff(offsets) < 0).any():
        raise ValueError("keys whose lengths do not fill the section")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content[start:])]
    keys = pa.Array.from_buffers(pa.string(), count, buffers)
    keys.validate(full=True)
    return keys


def _log(folder: str, name: str, size_bytes: int, blocks: Sequence[Sequence[Any]]) -> IndexedLog:
    path = f"{folder}/{name}" if folder else str(name)
    found, end = [], 0
    for kind, offset, block_bytes, header, count, low, high, section in blocks:
        if offset != end or block_bytes <= 0:
            raise ValueError("a gap or overlap between blocks")
        end = offset + block_bytes
        texts = {int(key): str(text) for key, text in header.items()}
        if not texts[HeaderKey.INSTANT_TIME]:
            raise ValueError("a block without an instant")
        block = LogBlock(path, BlockType(kind), texts, int(offset), int(block_bytes), 0, 0)
        found.append(IndexedBlock(block, _span(count, low, high), _section(*section)))
    if end != size_bytes:
        raise ValueError("blocks that do not fill their file")
    return IndexedLog(path, int(size_bytes), tuple(found))


def _span(count: int, low: str | None, high: str | None) -> KeySpan:
    if not all(v is None or isinstance(v, str) for v in (low, high)) or int(count) < 0:
        raise ValueError("a key range that is not text")
    return KeySpan(int(count), low, high)


def _section(offset: int, stored_bytes: int, raw_bytes: int, checksum: int) -> Section:
    if min(offset, stored_bytes, raw_bytes) < 0:
        raise ValueError("a section of negative size")
    return Section(int(offset), int(stored_bytes), int(raw_bytes), int(checksum))
