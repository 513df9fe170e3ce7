"""The frame around the content of a block: magic, sizes, header and footer maps (format reference 9.2 to 9.5)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from tideline_table.errors import InvalidRecord
from tideline_table.log_format.block import MAGIC, BlockType, HeaderKey

LOG_FORMAT_VERSION = 1
BLOCK_VERSION = 3
"""Version number at the start of the content of data and delete blocks."""
ROLLBACK_COMMAND = "0"

_MAX_INT = 2**31 - 1
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_PAIR = struct.Struct(">ii")


def frame_block(kind: BlockType, header: Mapping[HeaderKey, str], content: bytes) -> bytes:
    """Return a complete block of log format version 1, ready to append to a log file.

    Raises `InvalidRecord` for a header value larger than the format allows.
    """
    entries = [_INT.pack(len(header))]
    for key, value in sorted(header.items()):
        text = value.encode()
        if len(text) > _MAX_INT:
            raise InvalidRecord(f"a header entry {key.name} of {len(text)} bytes", expected=f"at most {_MAX_INT} bytes")
        entries += [_PAIR.pack(key, len(text)), text]
    body = [_PAIR.pack(LOG_FORMAT_VERSION, kind), *entries, _LONG.pack(len(content)), content, _INT.pack(0)]
    size = sum(map(len, body)) + _LONG.size
    # The leading length counts from its own end to the block's end, the trailing one from the magic to its own start: 6 bytes more.
    return b"".join([MAGIC, _LONG.pack(size), *body, _LONG.pack(size + len(MAGIC))])


def block_header(
    instant: str, merged: Sequence[str] = (), avro_schema_json: str | None = None, *, partial: bool = False
) -> dict[HeaderKey, str]:
    """Return the header of a data or delete block.

    A log compaction names the instants whose blocks it merged (format reference 9.5). `partial`: rows have changed columns only.
    """
    header = {HeaderKey.INSTANT_TIME: instant}
    if avro_schema_json is not None:
        header[HeaderKey.SCHEMA] = avro_schema_json
    if partial:
        header[HeaderKey.IS_PARTIAL] = "true"
    if merged:
        header[HeaderKey.COMPACTED_BLOCK_TIMES] = ",".join(merged)
    return header


def command_block(instant: str, target_instant: str) -> bytes:
    """Return a rollback block of the rollback `instant`. It voids earlier blocks of `target_instant` (format reference 9.7)."""
    header = {
        HeaderKey.INSTANT_TIME: instant,
        HeaderKey.TARGET_INSTANT_TIME: target_instant,
        HeaderKey.COMMAND_BLOCK_TYPE: ROLLBACK_COMMAND,
    }
    return frame_block(BlockType.COMMAND, header, b"")
