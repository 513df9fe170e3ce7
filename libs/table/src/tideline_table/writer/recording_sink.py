"""A sink for Parquet files that takes the digests of what is written, for the commit."""

from __future__ import annotations

import struct
from typing import BinaryIO

import xxhash

from tideline_table.storage import ByteRange, digest_of, record_text

_TRAILER = struct.Struct("<I4s")


class RecordingSink:
    """Passes bytes on to another sink. Closes nothing: the context of that sink publishes the object or discards it."""

    closed = False

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._body = xxhash.xxh3_64()
        self._tail: list[bytes] | None = None
        self.size_bytes = 0
        """The number of bytes written."""

    def write(self, data: bytes | memoryview) -> int:
        """Write bytes."""
        self._sink.write(data)
        self.size_bytes += len(data)
        if self._tail is None:
            self._body.update(data)
        else:
            self._tail.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing, as `close`."""

    def close(self) -> None:
        """Do nothing: the object is published when the context of its sink ends."""

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size_bytes

    def begin_end(self) -> None:
        """Say that only the end of the file follows: page indexes and the footer."""
        self._tail = []

    def record(self) -> str:
        """Return the record of the complete file: what is before its footer, then the footer with its length and magic."""
        tail = b"".join(self._tail or ())
        footer_bytes = _TRAILER.unpack(tail[-_TRAILER.size :])[0] + _TRAILER.size
        self._body.update(tail[:-footer_bytes])
        start = self.size_bytes - footer_bytes
        footer = ByteRange(start, footer_bytes, digest_of(tail[-footer_bytes:]))
        return record_text([ByteRange(0, start, self._body.hexdigest()), footer])
