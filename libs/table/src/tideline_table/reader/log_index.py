"""Selection of the log blocks of a slice that can hold given keys, by key indexes.

The look-up begins with the newest log file. Its index covers all files of its index window. So a slice costs one request per
window, and one more for the filters of the blocks if a file can hold a key. A file without a usable index is read once to build one
in memory; a file with damage or with blocks of other kinds is scanned.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.bloom import BloomFilter, KeyBytes
from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.slice import FileSlice, LogFile
from tideline_table.log_format import BlockType, LogBlock, ScannedLog, read_block, scan_log
from tideline_table.log_format.block import HeaderKey
from tideline_table.log_format.key_index import IndexedBlock, IndexedLog, LogIndex, Section, parse_index, read_index, read_sections
from tideline_table.log_format.key_index_file import WrittenBlock, index_bytes
from tideline_table.reader.log_keys import block_keys, holds_keys
from tideline_table.storage import Storage

_INDEXED = (BlockType.AVRO, BlockType.PARQUET, BlockType.DELETE)
_MOST_KEYS = 4096
"""More keys than this are compared with key ranges only: nearly every block holds one of them."""
_HELD_BYTES = 32 * 1024 * 1024


class WantedKeys:
    """The distinct record keys of a look-up. Of more than `_MOST_KEYS`, only the least and the greatest are used."""

    def __init__(self, keys: pa.Array | pa.ChunkedArray) -> None:
        self._keys = keys

    @property
    def asks_filters(self) -> bool:
        """Whether the keys are few enough for Bloom filters to help."""
        return len(self._keys) <= _MOST_KEYS

    def within(self, low: str | None, high: str | None) -> slice:
        """Return the places of the keys between `low` and `high` (both inclusive; None: no bound)."""
        begin = 0 if low is None else bisect.bisect_left(self._ordered, low)
        end = len(self._ordered) if high is None else bisect.bisect_right(self._ordered, high)
        # Of very many keys, only both ends are known: any key between them may be wanted.
        return slice(begin, end) if self.asks_filters or begin != 1 or end != 1 else slice(0, 2)

    def among(self, places: slice, content: bytes) -> bool:
        """Return whether one of the keys at `places` may be in this filter. A filter that cannot be read may hold any."""
        try:
            found = BloomFilter.from_bytes(content)
        except CorruptMetadata:
            return True
        return bool(found.may_hold(self._octets)[places].any())

    @cached_property
    def _ordered(self) -> list[str]:
        if self.asks_filters:
            return sorted(self._keys.to_pylist())
        return list(pc.min_max(self._keys).as_py().values())

    @cached_property
    def _octets(self) -> KeyBytes:
        return KeyBytes(pa.array(self._ordered, pa.string()))


class LogIndexes:
    """A cache of key indexes of one table's log files, read or built from blocks. Entries stay valid: log files do not change.

    Safe to share between threads.
    """

    def __init__(self, storage: Storage, held_bytes: int = _HELD_BYTES) -> None:
        self._storage = storage
        self._held: OrderedDict[str, _Known] = OrderedDict()
        self._held_bytes = held_bytes
        self._mutex = threading.Lock()

    def scan(self, file_slice: FileSlice, wanted: WantedKeys) -> NarrowedLogs:
        """Return the blocks of all log files of a slice, each with whether it can hold one of `wanted`."""
        files = [*zip(file_slice.log_paths, file_slice.log_files, strict=True)]
        indexed_blocks: dict[str, list[tuple[LogBlock, bool]]] = {}
        while files:
            known = self._known(*files[-1])
            if known is None:
                files.pop()
                continue
            covered = _covered(known.index, files)
            for log, holding in zip(covered, known.holding(self._storage, covered, wanted), strict=True):
                indexed_blocks[log.path] = [(indexed.block, holds) for indexed, holds in zip(log.blocks, holding, strict=True)]
            del files[-len(covered) :]
        return NarrowedLogs(self._storage, file_slice.log_paths, indexed_blocks)

    def _known(self, path: str, log: LogFile) -> _Known | None:
        with self._mutex:
            known = self._held.get(path)
            if known is not None:
                self._held.move_to_end(path)
        if known is None:
            index = read_index(self._storage, path) or _indexed_on_demand(self._storage, path)
            if index is None:
                return None
            known = _Known(index)
            with self._mutex:
                self._held[path] = known
                while len(self._held) > 1 and sum(k.size_bytes for k in self._held.values()) > self._held_bytes:
                    self._held.popitem(last=False)
        # Size 0: the file slice does not know the size.
        return known if log.size_bytes in (0, known.index.logs[-1].size_bytes) else None


def _indexed_on_demand(storage: Storage, path: str) -> LogIndex | None:
    """Return an index built from the blocks of a log file; None if only a scan shows which blocks apply."""
    scanned = scan_log(storage, path)
    if scanned.gaps or not all(block.type in _INDEXED for block in scanned.blocks):
        return None
    blocks = []
    for block in scanned.blocks:
        keys = block_keys(storage, block).combine_chunks()
        if keys.null_count:
            return None
        blocks.append(WrittenBlock(block.type, block.offset, block.size_bytes, block.header, keys))
    return parse_index(path, index_bytes(storage, path, blocks, None, 1)) if blocks else None


def _covered(index: LogIndex, files: Sequence[tuple[str, LogFile]]) -> list[IndexedLog]:
    """Return the newest files of the slice that the index covers, newest last: as far back as both name the same file."""
    covered: list[IndexedLog] = []
    for indexed, (path, log) in zip(reversed(index.logs), reversed(files), strict=False):
        if indexed.path != path or log.size_bytes not in (0, indexed.size_bytes):
            break
        covered.insert(0, indexed)
    return covered


@dataclass(slots=True)
class _Known:
    """An index with the filters read so far."""

    index: LogIndex
    filters: dict[Section, bytes] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return len(self.index.first) + sum(map(len, self.filters.values()))

    def holding(self, storage: Storage, logs: Sequence[IndexedLog], wanted: WantedKeys) -> list[list[bool]]:
        """Return, for each block of these log files, whether it can hold one of `wanted`."""
        places = wanted.within(self.index.span.low, self.index.span.high)
        nothing = [[False] * len(log.blocks) for log in logs]
        if places.start >= places.stop:
            return nothing
        in_range = [[_in_range(b, wanted) for b in log.blocks] for log in logs]
        if not wanted.asks_filters:
            return in_range
        whole = self._read(storage, [self.index.filter])
        if whole is not None and not wanted.among(places, whole[0]):
            return nothing
        asked = [b for log, fits in zip(logs, in_range, strict=True) for b in itertools.compress(log.blocks, fits)]
        filters = self._read(storage, [b.filter for b in asked])
        if filters is None:
            return in_range
        hits = {
            b.filter.offset
            for b, content in zip(asked, filters, strict=True)
            if wanted.among(wanted.within(b.span.low, b.span.high), content)
        }
        return [[b.filter.offset in hits for b in log.blocks] for log in logs]

    def _read(self, storage: Storage, sections: Sequence[Section]) -> list[bytes] | None:
        missing = [s for s in sections if s not in self.filters]
        found = read_sections(storage, self.index, missing)
        if found is None:
            return None
        self.filters |= dict(zip(missing, found, strict=True))
        return [self.filters[s] for s in sections]


def _in_range(block: IndexedBlock, wanted: WantedKeys) -> bool:
    places = wanted.within(block.span.low, block.span.high)
    return block.span.keys > 0 and places.start < places.stop


class IndexMismatch(Exception):
    """A log file does not have the blocks that its index lists."""


class NarrowedLogs:
    """Log files of a slice as `counting_blocks` takes them; the blocks of indexed files come from their indexes."""

    def __init__(self, storage: Storage, paths: Sequence[str], indexed_blocks: dict[str, list[tuple[LogBlock, bool]]]) -> None:
        self._storage = storage
        self._paths = {path: path for path in paths}
        self._indexed = indexed_blocks
        self._holds = {(b.path, b.offset): holds for blocks in indexed_blocks.values() for b, holds in blocks}

    def scanned(self) -> list[ScannedLog]:
        """Return all log files in merge order; files without an index are scanned."""
        return [
            ScannedLog(tuple(b for b, _ in self._indexed[path]), ()) if path in self._indexed else scan_log(self._storage, path)
            for path in self._paths
        ]

    def holding(self, paths: Iterable[str]) -> list[str]:
        """Return those of `paths` with a block that can hold a key (`holds_keys`)."""
        return [
            path for path in paths if path not in self._indexed or any(holds for b, holds in self._indexed[path] if holds_keys(b))
        ]

    def fetched(self, block: LogBlock) -> LogBlock | None:
        """Return `block` ready to be read, None if it cannot hold a key. Raises `IndexMismatch`."""
        holds = self._holds.get((block.path, block.offset))
        if holds is None:
            return block
        if not holds:
            return None
        # The slice knows what its commit recorded about the file, the index does not.
        found = read_block(self._storage, self._paths[block.path], block.offset, block.size_bytes)
        if found is None or found.type is not block.type or _without_schema(found) != block.header:
            raise IndexMismatch(block.path)
        return found


def _without_schema(block: LogBlock) -> dict[int, str]:
    return {key: text for key, text in block.header.items() if key != HeaderKey.SCHEMA}
