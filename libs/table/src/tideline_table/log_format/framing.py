"""The frame around a block's content: magic, sizes, header and footer map (format reference 9.2 to 9.5)."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from tideline_table.errors import InvalidRecord
from tideline_table.log_format.block import MAGIC, BlockType, HeaderKey

LOG_FORMAT_VERSION = 1
BLOCK_VERSION = 3
"""Version that data and delete blocks carry at the start of their content."""
ROLLBACK_COMMAND = "0"

_MAX_INT = 2**31 - 1
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_PAIR = struct.Struct(">ii")


def frame_block(kind: BlockType, header: Mapping[HeaderKey, str], content: bytes) -> bytes:
    """A whole block of log format version 1, ready to be appended to a log file.

    Raises `InvalidRecord` for a header value that the format cannot hold.
    """
    entries = [_INT.pack(len(header))]
    for key, value in sorted(header.items()):
        text = value.encode()
        if len(text) > _MAX_INT:
            raise InvalidRecord(f"a header entry {key.name} of {len(text)} bytes", expected=f"at most {_MAX_INT} bytes")
        entries += [_PAIR.pack(key, len(text)), text]
    body = [_PAIR.pack(LOG_FORMAT_VERSION, kind), *entries, _LONG.pack(len(content)), content, _INT.pack(0)]
    size = sum(map(len, body)) + _LONG.size
    # The trailing length counts from the magic to itself, the leading one from behind itself to the end: 6 bytes apart.
    return b"".join([MAGIC, _LONG.pack(size), *body, _LONG.pack(size + len(MAGIC))])


def command_block(instant: str, target_instant: str) -> bytes:
    """A rollback block: written by the rollback `instant`, it voids the earlier blocks of `target_instant` (format reference 9.7)."""
    header = {
        HeaderKey.INSTANT_TIME: instant,
        HeaderKey.TARGET_INSTANT_TIME: target_instant,
        HeaderKey.COMMAND_BLOCK_TYPE: ROLLBACK_COMMAND,
    }
    return frame_block(BlockType.COMMAND, header, b"")
