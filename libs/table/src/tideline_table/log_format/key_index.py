"""Side files of log files: which record keys each block holds, and all blocks of the files before it in its clique (RFC-06).

A file is a head and sections behind it. The head, compressed JSON, describes the log file and up to N - 1 before it in the slice, a clique:
where their blocks are, what their headers say (schemas left out) and the least and greatest key of each. The sections, each compressed and
with a checksum of its own, are in this order: a Bloom filter over all keys of the clique, one for each block, and the sorted keys of each
block of the newest file. So the first bytes of the newest file decide whether the rest, or any log file of the clique, has to be read at all.

Everything here only spares reading. Whatever cannot be used counts as absent.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tideline_table.errors import ObjectNotFound, TidelineError
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
_UNUSABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError, MemoryError, struct.error)
_UNUSABLE_ARROW = (pa.ArrowException, OSError)


def index_path(log_path: str) -> str:
    """The side file of the log file at `log_path`."""
    return f"{INDEX_FOLDER}/{log_path}.keys"


def forget_index(storage: Storage, path: str) -> None:
    """Remove the side file of a log file that is about to be deleted; nothing for other data files."""
    if ".log." in path.rsplit("/", 1)[-1]:
        storage.delete(index_path(path))


@dataclass(frozen=True, slots=True)
class Section:
    """Where compressed bytes lie in the side file, counted from the end of the head."""

    offset: int
    stored_bytes: int
    raw_bytes: int
    checksum: int

    @property
    def end(self) -> int:
        """Behind the last byte."""
        return self.offset + self.stored_bytes


@dataclass(frozen=True, slots=True)
class KeySpan:
    """How many keys, and the least and greatest of them (None: too long to keep, so any may be there)."""

    keys: int
    low: str | None
    high: str | None

    def may_hold(self, low: str, high: str) -> bool:
        """Whether a key between `low` and `high` (both in) can be among them."""
        return self.keys > 0 and (self.low is None or self.low <= high) and (self.high is None or low <= self.high)

    def joined(self, other: KeySpan) -> KeySpan:
        """Over both."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return KeySpan(self.keys + other.keys, low, high)

    @classmethod
    def of(cls, ordered: pa.Array) -> KeySpan:
        """Of keys in ascending order."""
        if not len(ordered):
            return cls(0, None, None)
        low, high = ordered[0].as_py(), ordered[-1].as_py()
        return cls(len(ordered), *(v if len(v) <= _MOST_RANGE_CHARACTERS else None for v in (low, high)))


@dataclass(frozen=True, slots=True)
class IndexedBlock:
    """A block as its index knows it: `block` lacks the schema of its header, and where in it the content lies."""

    block: LogBlock
    span: KeySpan
    filter: Section


@dataclass(frozen=True, slots=True)
class IndexedLog:
    """The blocks of one log file, of so many bytes."""

    path: str
    size_bytes: int
    blocks: tuple[IndexedBlock, ...]


@dataclass(frozen=True, slots=True)
class LogIndex:
    """One side file: the clique up to its log file, oldest first. `keys` are the sorted keys of the newest file's blocks."""

    path: str
    origin: int
    """Where the sections begin."""
    logs: tuple[IndexedLog, ...]
    span: KeySpan
    capacity: int
    """Keys that the filter over the clique is made for."""
    filter: Section
    keys: tuple[Section, ...]
    first: bytes
    """The first bytes of the file, as they were read."""

    @property
    def filters_end(self) -> int:
        """Behind the last filter."""
        return max(self.filter.end, *(b.filter.end for log in self.logs for b in log.blocks), 0)


def read_index(storage: Storage, log_path: str) -> LogIndex | None:
    """The index of a log file, None where there is none that can be used. One request as a rule; sections are read by `read_sections`."""
    path = index_path(log_path)
    try:
        first = storage.read_range(path, 0, FIRST_READ_BYTES)
        known, stored = len(first), LEAD.size + _head(first).stored_bytes
        return parse_index(log_path, first + storage.read_range(path, known, stored - known) if stored > known else first)
    except ObjectNotFound:
        return None
    except (TidelineError, *_UNUSABLE, *_UNUSABLE_ARROW) as error:
        _LOGGER.warning("the key index %s is not used: %s", path, error)
        return None


def parse_index(log_path: str, content: bytes) -> LogIndex:
    """The index of a log file from its first bytes, the whole head at least. Raises `ValueError` and other errors of what cannot be used."""
    head = _head(content)
    end = LEAD.size + head.stored_bytes
    document = json.loads(_expanded(content[LEAD.size : end], head, _MOST_HEAD_BYTES))
    return _understood(index_path(log_path), log_path, end, document, content)


def _head(content: bytes) -> Section:
    magic, stored, raw, checksum = LEAD.unpack_from(content)
    if magic != MAGIC or stored > _MOST_HEAD_BYTES:
        raise ValueError("no index of this format")
    return Section(0, stored, raw, checksum)


def read_sections(storage: Storage, index: LogIndex, sections: Sequence[Section]) -> list[bytes] | None:
    """The content of sections, by one request for all from the first to the last of them (none where the first read has them).

    None where they cannot be used.
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
    except (TidelineError, *_UNUSABLE, *_UNUSABLE_ARROW) as error:
        _LOGGER.warning("the key index %s is not used: %s", index.path, error)
        return None


def read_keys(storage: Storage, index: LogIndex) -> list[pa.Array] | None:
    """The record keys in each block of the index's log file, ascending; None where they cannot be used."""
    found = read_sections(storage, index, index.keys)
    if found is None:
        return None
    try:
        return [_keys_of(content) for content in found]
    except (*_UNUSABLE, *_UNUSABLE_ARROW) as error:
        _LOGGER.warning("the keys of %s are not used: %s", index.path, error)
        return None


def _expanded(stored: bytes, section: Section, most_bytes: int) -> bytes:
    if len(stored) != section.stored_bytes or zlib.crc32(stored) != section.checksum:
        raise ValueError("a section that is not what was written")
    if section.raw_bytes > most_bytes:
        raise ValueError(f"a section of {section.raw_bytes} bytes")
    raw = bytes(pa.Codec("zstd").decompress(stored, section.raw_bytes, asbytes=True))
    if len(raw) != section.raw_bytes:
        raise ValueError("a section of another size")
    return raw


def _keys_of(content: bytes) -> pa.Array:
    (count,) = struct.unpack_from("<I", content)
    start = 4 + 4 * count
    if start > len(content):
        raise ValueError("fewer keys than told")
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.frombuffer(content, dtype="<i4", count=count, offset=4), out=offsets[1:])
    if offsets[-1] != len(content) - start or (np.diff(offsets) < 0).any():
        raise ValueError("keys of other lengths")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content[start:])]
    keys = pa.Array.from_buffers(pa.string(), count, buffers)
    keys.validate(full=True)
    return keys


def _understood(path: str, log_path: str, origin: int, document: Mapping[str, Any], first: bytes) -> LogIndex:
    folder = log_path.rpartition("/")[0]
    logs = tuple(_log(folder, *fields) for fields in document["logs"])
    count, low, high, capacity, clique = document["clique"]
    keys = tuple(_section(*fields) for fields in document["keys"])
    if not logs or logs[-1].path != log_path or len(keys) != len(logs[-1].blocks):
        raise ValueError(f"an index of {logs[-1].path if logs else 'nothing'}")
    return LogIndex(path, origin, logs, _span(count, low, high), int(capacity), _section(*clique), keys, first)


def _log(folder: str, name: str, size_bytes: int, blocks: Sequence[Sequence[Any]]) -> IndexedLog:
    path = f"{folder}/{name}" if folder else str(name)
    found, end = [], 0
    for kind, offset, block_bytes, header, count, low, high, section in blocks:
        if offset != end or block_bytes <= 0:
            raise ValueError("blocks that do not follow on each other")
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
        raise ValueError("a key range of no text")
    return KeySpan(int(count), low, high)


def _section(offset: int, stored_bytes: int, raw_bytes: int, checksum: int) -> Section:
    section = Section(int(offset), int(stored_bytes), int(raw_bytes), int(checksum))
    if min(section.offset, section.stored_bytes, section.raw_bytes) < 0:
        raise ValueError("a section of negative size")
    return section
