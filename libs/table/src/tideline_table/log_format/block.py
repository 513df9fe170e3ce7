"""Blocks of a log file, as a scan returns them (format reference 9.2 to 9.5)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.storage import ByteRange, Storage, check_bytes

MAGIC = b"#HUDI#"


class BlockType(enum.IntEnum):
    """Content type of a block, with the numbers of the format."""

    COMMAND = 0
    DELETE = 1
    CORRUPT = 2
    AVRO = 3
    HFILE = 4
    PARQUET = 5
    CDC = 6


class HeaderKey(enum.IntEnum):
    """Keys of a block header, with the numbers of the format."""

    INSTANT_TIME = 0
    TARGET_INSTANT_TIME = 1
    SCHEMA = 2
    COMMAND_BLOCK_TYPE = 3
    COMPACTED_BLOCK_TIMES = 4
    RECORD_POSITIONS = 5
    BLOCK_IDENTIFIER = 6
    IS_PARTIAL = 7
    BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class LogBlock:
    """One intact block. Offsets count from the start of the file; `offset` is the position of the magic.

    `header` holds all entries. Keys that this release does not know are plain numbers.
    """

    path: str
    type: BlockType
    header: Mapping[int, str]
    offset: int
    size_bytes: int
    content_offset: int
    content_bytes: int
    content: bytes | None = field(default=None, compare=False, repr=False)
    """The content, if it was read together with the frame."""
    written: ByteRange | None = field(default=None, compare=False, repr=False)
    """What a completed commit recorded about the bytes of the whole block; None without a digest."""

    @property
    def instant(self) -> str:
        """The instant that wrote the block. `scan_log` returns no block without one unless `needs_instant` is false."""
        return self.header[HeaderKey.INSTANT_TIME]

    @property
    def target_instant(self) -> str:
        """The instant that a rollback block invalidates; empty for other blocks."""
        return self.header.get(HeaderKey.TARGET_INSTANT_TIME, "")

    @property
    def schema_json(self) -> str:
        """The Avro schema of the rows; empty if the header has none."""
        return self.header.get(HeaderKey.SCHEMA, "")

    @property
    def is_partial(self) -> bool:
        """Whether rows hold changed columns only (tables of version 8 and later)."""
        return self.header.get(HeaderKey.IS_PARTIAL, "").lower() == "true"


@dataclass(frozen=True, slots=True)
class CorruptGap:
    """A range of bytes of a log file that is not an intact block. The next block, if any, begins at its end."""

    path: str
    offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class ScannedLog:
    """The intact blocks of a log file and the damaged ranges between them, both in file order."""

    blocks: tuple[LogBlock, ...]
    gaps: tuple[CorruptGap, ...]


def read_content(storage: Storage, block: LogBlock, *kinds: BlockType) -> bytes:
    """Return the content of `block`. Raises `UnsupportedTable` for types not in `kinds`, `CorruptMetadata` if bytes are missing."""
    if block.type not in kinds:
        raise UnsupportedTable(
            f"a {block.type.name} block at {block.offset} of {block.path!r}",
            expected=f"a block of type {' or '.join(kind.name for kind in kinds)}",
        )
    if block.content is not None:
        return block.content
    if block.written is not None:
        start = block.content_offset - block.offset
        return whole_block(storage, block, block.written)[start : start + block.content_bytes]
    content = storage.read_range(block.path, block.content_offset, block.content_bytes)
    if len(content) != block.content_bytes:
        raise damaged(block, f"ends after {len(content)} of {block.content_bytes} bytes of content")
    return content


def whole_block(storage: Storage, block: LogBlock, written: ByteRange) -> bytes:
    """Return the bytes of a block with its frame. Raises `DamagedFile` if they are not those that were written."""
    content = storage.read_range(block.path, block.offset, block.size_bytes)
    check_bytes(block.path, written, content)
    return content


def damaged(block: LogBlock, what: str) -> CorruptMetadata:
    """Return the error for a block with an intact frame and malformed content."""
    return CorruptMetadata(
        f"the {block.type.name} block at {block.offset} of {block.path!r} {what}",
        expected="content as its header says",
        remedy=f"roll back instant {block.header.get(HeaderKey.INSTANT_TIME, '')!r} or restore the file",
    )
