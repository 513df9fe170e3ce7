"""Paths of data files, with what the commits that name a file recorded about its bytes."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

from tideline_table.errors import DamagedFile


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of a file that a completed commit wrote.

    `digest` is their XXH3 in 16 hexadecimal digits, empty if the commit has none.
    """

    start: int
    size_bytes: int
    digest: str = ""

    @property
    def end(self) -> int:
        """The offset behind the last byte."""
        return self.start + self.size_bytes


NOTHING_RECORDED = "0+0"
"""The record of a log file that no known commit names: any part of it may be the rest of a failed write."""


def digest_of(content: bytes | memoryview) -> str:
    """Return the XXH3 of some bytes, as records hold it."""
    return xxhash.xxh3_64_hexdigest(content)


def record_text(ranges: tuple[ByteRange, ...] | list[ByteRange]) -> str:
    """Return the text of a record, as commits, entries and checkpoints hold it. `recorded_ranges` parses it."""
    return ",".join(f"{r.start}+{r.size_bytes}{':' if r.digest else ''}{r.digest}" for r in ranges)


@functools.lru_cache(maxsize=4096)
def recorded_ranges(record: str) -> tuple[ByteRange, ...]:
    """Parse a record. Raises `ValueError` for another text."""
    found = []
    for item in record.split(",") if record else ():
        place, _, digest = item.partition(":")
        start, size = place.split("+")
        if not (start.isdecimal() and size.isdecimal()):
            raise ValueError(f"{item!r} is no range of bytes")
        found.append(ByteRange(int(start), int(size), digest))
    return tuple(found)


class DataPath(str):
    """The path of a data file, a text as any path, with its recorded size and bytes: whoever opens the file compares them.

    `size_bytes` of 0 or less is unknown. `record` is the text of ranges. Without one, commits wrote all `size_bytes`. Ranges
    with digests are the whole file. Ranges without are what completed commits of Apache Hudi appended: the file may hold more,
    also between them.
    """

    __slots__ = ("record", "size_bytes")
    size_bytes: int
    record: str

    def __new__(cls, path: str, size_bytes: int = 0, record: str = "") -> DataPath:
        """Return the path with its recorded size and bytes."""
        found = super().__new__(cls, path)
        found.size_bytes = size_bytes
        found.record = record
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return DataPath, (str(self), self.size_bytes, self.record)

    @property
    def ranges(self) -> tuple[ByteRange, ...]:
        """The bytes that completed commits wrote, as far as they are known."""
        if self.record or self.size_bytes <= 0:
            return recorded_ranges(self.record)
        return (ByteRange(0, self.size_bytes),)


def ranges_of(path: str) -> tuple[ByteRange, ...]:
    """Return the recorded ranges of a path; none if it is a plain text."""
    return path.ranges if isinstance(path, DataPath) else ()


def check_size(path: str, size_bytes: int) -> None:
    """Raise `DamagedFile` if a file of this size is not what the commits recorded."""
    ranges = ranges_of(path)
    if not ranges:
        return
    assert isinstance(path, DataPath)
    end = max([r.start + r.size_bytes for r in ranges])
    may_be_longer = bool(path.record) and not ranges[0].digest
    if size_bytes < end or (size_bytes > end and not may_be_longer):
        least = "at least " if may_be_longer else ""
        raise DamagedFile(path, f"has {size_bytes} bytes", expected=f"{least}the {end} bytes that a completed commit recorded")


def check_bytes(path: str, expected: ByteRange, content: bytes | memoryview) -> None:
    """Raise `DamagedFile` if `content` are not the bytes of a recorded range."""
    check_pieces(path, expected, [content])


def check_pieces(path: str, expected: ByteRange, pieces: Iterable[bytes | memoryview]) -> None:
    """Raise `DamagedFile` if these pieces, joined, are not the bytes of a recorded range."""
    digest, size_bytes = xxhash.xxh3_64(), 0
    for piece in pieces:
        digest.update(piece)
        size_bytes += len(piece)
    if size_bytes != expected.size_bytes or expected.digest not in ("", digest.hexdigest()):
        found = f"{size_bytes} bytes with the digest {digest.hexdigest()}"
        wanted = f"{expected.size_bytes} bytes with the digest {expected.digest or 'of any value'}, as a completed commit recorded"
        raise DamagedFile(path, f"has other bytes from offset {expected.start} on: {found}", expected=wanted)
