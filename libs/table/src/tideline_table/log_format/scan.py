"""Find the blocks of a log file, and its damaged ranges (format reference 9.3, 9.9).

A length is used only after checking that the file has that many bytes.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, replace

from tideline_table.errors import CorruptMetadata, DamagedFile, UnsupportedTable
from tideline_table.log_format.block import MAGIC, BlockType, CorruptGap, HeaderKey, LogBlock, ScannedLog
from tideline_table.log_format.framing import LOG_FORMAT_VERSION, ROLLBACK_COMMAND
from tideline_table.storage import ByteRange, Storage, check_bytes, check_size, ranges_of

_FIRST_READ_BYTES = 4 * 1024 * 1024
_LEAST_READ_BYTES = 64 * 1024
_MOST_READ_BYTES = 8 * 1024 * 1024
_MAX_HEADER_ENTRIES = 256
_MAX_GAPS = 10_000

_HEAD = struct.Struct(">6sqii")
_TRAILER = struct.Struct(">q")
_INT = struct.Struct(">i")
_PAIR = struct.Struct(">ii")
_LEADING_BYTES = len(MAGIC) + 8
_TAIL_BYTES = _INT.size + _TRAILER.size
# Version, type, empty header, content length, empty footer, trailing length.
_LEAST_SIZE = 4 + 4 + 4 + 8 + 4 + 8


def scan_log(storage: Storage, path: str, *, needs_instant: bool = True) -> ScannedLog:
    """Return the blocks and damaged ranges of the log file at `path`. Reads headers, not contents.

    Pass `needs_instant=False` for archive files, whose blocks have no instant in the header; elsewhere such a block is damaged.

    Files up to 4 MiB take one request, larger ones about one per block. A damaged block ends at the next magic after its own.
    Raises `UnsupportedTable` for log format versions, block types and commands that this release does not know,
    `CorruptMetadata` for a file with more than 10,000 damaged places, and `DamagedFile` if bytes that a completed commit
    recorded (a `DataPath`) are missing or not in intact blocks.
    """
    source = _Source(storage, path)
    check_size(path, source.size_bytes)
    recorded = ranges_of(path)
    blocks: list[LogBlock] = []
    gaps: list[CorruptGap] = []
    offset = 0
    while offset < source.size_bytes:
        try:
            block = _block_at(source, offset, needs_instant=needs_instant)
        except _Damage as damage:
            end = source.find(MAGIC, offset + (len(MAGIC) if source.at(offset, len(MAGIC)) == MAGIC else 1))
            _check_unrecorded(path, recorded, offset, end, damage.reason)
            gaps.append(CorruptGap(path, offset, end - offset, damage.reason))
            if len(gaps) > _MAX_GAPS:
                raise CorruptMetadata(
                    f"log file {path!r} with more than {_MAX_GAPS} damaged places", expected="log blocks", remedy="restore the file"
                ) from None
            offset = end
        except UnsupportedTable:
            # What no release writes may be a damaged byte, which a digest shows.
            _check_digest(storage, path, offset)
            raise
        else:
            blocks.append(block)
            offset += block.size_bytes
    return ScannedLog(_recorded_blocks(path, blocks), tuple(gaps))


def _check_unrecorded(path: str, recorded: tuple[ByteRange, ...], start: int, end: int, reason: str) -> None:
    """Raise `DamagedFile` if a completed commit wrote bytes of this range, which is no intact block."""
    if any(start < known.end and known.start < end for known in recorded):
        raise DamagedFile(
            path, f"is no log block from offset {start} to {end}: {reason}", expected="blocks that a completed commit recorded"
        )


def _check_digest(storage: Storage, path: str, offset: int) -> None:
    """Raise `DamagedFile` if the bytes at `offset` are not what a completed commit recorded with a digest."""
    for known in digests_of(path):
        if known.start <= offset < known.end:
            check_bytes(path, known, storage.read_range(path, known.start, known.size_bytes))


def _recorded_blocks(path: str, blocks: list[LogBlock]) -> tuple[LogBlock, ...]:
    """Return the blocks, each with its recorded digest. Raises `DamagedFile` if they are not those of a record with digests."""
    written = digests_of(path)
    if not written:
        return tuple(blocks)
    places = [(block.offset, block.size_bytes) for block in blocks]
    if places != [(known.start, known.size_bytes) for known in written]:
        raise DamagedFile(path, f"has log blocks at {places}", expected=f"{len(written)} block(s) that a completed commit recorded")
    return tuple(replace(block, written=known) for block, known in zip(blocks, written, strict=True))


def digests_of(path: str) -> tuple[ByteRange, ...]:
    """Return the recorded blocks of a log file; none if their writer took no digests."""
    return tuple(known for known in ranges_of(path) if known.digest)


def read_block(storage: Storage, path: str, offset: int, size_bytes: int) -> LogBlock | None:
    """Read the block of `size_bytes` at `offset` with its content, in one request. Return None if there is no such intact block.

    Raises `DamagedFile` if the block is not what a completed commit recorded there.
    """
    content = storage.read_range(path, offset, size_bytes)
    for known in digests_of(path):
        if (known.start, known.size_bytes) == (offset, size_bytes):
            check_bytes(path, known, content)
    source = _Range(path, offset, content)
    try:
        block = _block_at(source, offset, needs_instant=True)
    except _Damage:
        return None
    if block.size_bytes != size_bytes:
        return None
    return replace(block, content=source.at(block.content_offset, block.content_bytes))


class _Damage(Exception):
    """There is no intact block at an offset."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _block_at(source: _Source | _Range, offset: int, *, needs_instant: bool) -> LogBlock:
    head = source.at(offset, _HEAD.size)
    if not head.startswith(MAGIC):
        raise _Damage("no magic")
    if len(head) < _HEAD.size:
        raise _Damage("the file ends inside a block")
    _, size, version, kind = _HEAD.unpack(head)
    end = offset + _LEADING_BYTES + size
    if size < _HEAD.size - _LEADING_BYTES or end > source.size_bytes:
        raise _Damage(f"block size {size} runs past the end of the file" if size > 0 else f"block size {size}")
    # Start before the footer, almost always an empty map, so that the end of the block and the next magic take one request.
    tail = source.at(end - _TAIL_BYTES, _TAIL_BYTES + len(MAGIC))[_INT.size :]
    # Fewer bytes than a magic after the block are the truncated start of another block.
    next_is_sound = len(tail) < _TRAILER.size + len(MAGIC) or tail.endswith(MAGIC)
    trailing = _TRAILER.unpack_from(tail)[0]
    if version == 0 and kind == BlockType.AVRO and next_is_sound:
        raise _unknown(source.path, offset, "log format version 0")
    if trailing - len(MAGIC) != size:
        raise _Damage(f"block size {size} at the start, trailing length {trailing} at the end")
    if not next_is_sound:
        raise _Damage("no magic after the block")
    if version != LOG_FORMAT_VERSION:
        raise _unknown(source.path, offset, f"log format version {version}")
    if kind not in BlockType.__members__.values():
        raise _unknown(source.path, offset, f"block type {kind}")
    if size < _LEAST_SIZE:
        raise _Damage(f"block size {size}")
    body = _Body(source, offset + _HEAD.size, end - _TRAILER.size)
    header = body.read_map()
    content_bytes = body.read_long()
    content_offset = body.position
    body.skip(content_bytes, "content")
    body.read_map()
    if body.position != body.end:
        raise _Damage(f"{body.end - body.position} bytes between footer and trailing length")
    block = LogBlock(source.path, BlockType(kind), header, offset, _LEADING_BYTES + size, content_offset, content_bytes)
    _check_header(block, needs_instant=needs_instant)
    return block


def _check_header(block: LogBlock, *, needs_instant: bool) -> None:
    if block.type is BlockType.CORRUPT:
        raise _Damage("a block that is marked as corrupt")
    if needs_instant and not block.header.get(HeaderKey.INSTANT_TIME):
        raise _Damage("a header without an instant")
    if block.type is BlockType.COMMAND:
        command = block.header.get(HeaderKey.COMMAND_BLOCK_TYPE)
        if command != ROLLBACK_COMMAND:
            raise _unknown(block.path, block.offset, f"command {command!r}")
        if not block.target_instant:
            raise _Damage("a rollback block without a target instant")


def _unknown(path: str, offset: int, what: str) -> UnsupportedTable:
    return UnsupportedTable(
        f"{what} at {offset} of log file {path!r}",
        expected=f"log format version {LOG_FORMAT_VERSION} with the block types and commands of Hudi 1.2",
        remedy="compact the file group with the release that wrote it",
    )


@dataclass(slots=True)
class _Body:
    """A cursor over the bytes of a block between its type and its trailing length."""

    source: _Source | _Range
    position: int
    end: int

    def take(self, length: int, what: str) -> bytes:
        start = self.position
        self.skip(length, what)
        return self.source.at(start, length)

    def skip(self, length: int, what: str) -> None:
        if not 0 <= length <= self.end - self.position:
            raise _Damage(f"{what} of {length} bytes where the block has {self.end - self.position} left")
        self.position += length

    def read_long(self) -> int:
        return int(_TRAILER.unpack(self.take(8, "a length"))[0])

    def read_map(self) -> dict[int, str]:
        count = _INT.unpack(self.take(4, "a map"))[0]
        if not 0 <= count <= _MAX_HEADER_ENTRIES:
            raise _Damage(f"a map of {count} entries")
        spans: dict[int, tuple[int, int]] = {}
        for _ in range(count):
            key, length = _PAIR.unpack(self.take(8, "a map entry"))
            spans[key] = (self.position, length)
            self.skip(length, "a map entry")
        try:
            return {_header_key(key): self.source.at(start, length).decode() for key, (start, length) in spans.items()}
        except UnicodeDecodeError:
            raise _Damage("a map entry that is not UTF-8") from None


def _header_key(key: int) -> int:
    return HeaderKey(key) if key in HeaderKey.__members__.values() else key


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of bytes of a file from `start` on, treated as the end of the file."""

    path: str
    start: int
    content: bytes

    @property
    def size_bytes(self) -> int:
        return self.start + len(self.content)

    def at(self, offset: int, length: int) -> bytes:
        return self.content[offset - self.start : offset - self.start + length]


class _Source:
    """A file that is read by ranges. Keeps the last two ranges; sequential reads grow in size."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.path = path
        self._storage = storage
        first = storage.read_range(path, 0, _FIRST_READ_BYTES)
        self.size_bytes = len(first) if len(first) < _FIRST_READ_BYTES else storage.stat(path).size_bytes
        self._ranges: deque[tuple[int, bytes]] = deque([(0, first)], maxlen=2)
        self._read_ahead = _LEAST_READ_BYTES

    def at(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`, fewer at the end of the file."""
        length = min(length, self.size_bytes - offset)
        for start, content in self._ranges:
            if start <= offset and offset + length <= start + len(content):
                return content[offset - start : offset - start + length]
        return self._load(offset, length)[:length]

    def find(self, wanted: bytes, offset: int) -> int:
        """Return the first offset of `wanted` at or after `offset`, or the end of the file if there is none."""
        while offset < self.size_bytes:
            held = next(((s, c) for s, c in self._ranges if s <= offset < s + len(c) - len(wanted)), None)
            if held is None:
                held = (offset, self._load(offset, min(_MOST_READ_BYTES, self.size_bytes - offset)))
            start, content = held
            found = content.find(wanted, offset - start)
            if found >= 0:
                return start + found
            following = start + len(content)
            # The wanted bytes may cross the border of two ranges.
            offset = following if following >= self.size_bytes else following - len(wanted) + 1
        return self.size_bytes

    def _load(self, offset: int, length: int) -> bytes:
        follows = any(start <= offset < start + len(content) + _LEAST_READ_BYTES for start, content in self._ranges)
        self._read_ahead = min(2 * self._read_ahead, _MOST_READ_BYTES) if follows else _LEAST_READ_BYTES
        content = self._storage.read_range(self.path, offset, max(length, self._read_ahead))
        if len(content) < length:
            raise CorruptMetadata(f"log file {self.path!r} became shorter while it was read", expected="a file that only grows")
        self._ranges.append((offset, content))
        return content
