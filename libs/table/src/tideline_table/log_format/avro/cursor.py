"""Positions in many datums at once: every read moves all of them past one value.

A mask says in which datums the value is there at all; the others stay where they are and what is read for them means nothing.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tideline_table.errors import CorruptMetadata

Ints: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_] | None

PAD_BYTES = 32
"""Bytes around the datums that may be looked at (never trusted), so that no look needs a bounds check of its own."""

_CONTINUED = np.uint64(0x8080808080808080)
_PAYLOAD = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE = np.uint64(1)
# Three steps that close the gaps between the 7-bit groups: pairs, then fours, then all eight.
_CLOSE = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), _ONE),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)


class Octets:
    """The bytes of some datums, padded at both ends, in the shapes that reading wants."""

    def __init__(self, content: bytes | memoryview) -> None:
        pad = b"\x00" * PAD_BYTES
        self.raw = b"".join((pad, content, pad))
        self.limit = PAD_BYTES + len(content)
        """Where the datums end."""
        self.bytes = np.frombuffer(self.raw, np.uint8)

    def at(self, positions: Ints, dtype: str) -> npt.NDArray[np.generic]:
        """The value of `dtype` (at most `PAD_BYTES` wide) that begins at each of `positions`."""
        width = np.dtype(dtype).itemsize
        overlapping = np.ndarray((len(self.raw) - width + 1,), dtype, self.raw, strides=(1,))
        return overlapping[positions]


class Cursor:
    """Where each of many datums has got to, and where it ends; both count from the start of `octets`, pad included.

    Ends keep a damaged datum out of its neighbours: the work of reading never exceeds the bytes that are there.
    """

    __slots__ = ("ends", "octets", "position")

    def __init__(self, octets: Octets, position: Ints, ends: Ints) -> None:
        self.octets = octets
        self.position = position
        self.ends = ends

    def __len__(self) -> int:
        return len(self.position)

    def part(self, rows: Ints) -> Cursor:
        """A cursor over some of the datums, to be moved on its own."""
        return Cursor(self.octets, self.position[rows], self.ends[rows])

    def move(self, by: int | npt.NDArray[np.integer], mask: Mask = None) -> Ints:
        """Move on and tell where the datums were before."""
        before = self.position
        self.position = before + (by if mask is None else by * mask)
        if (self.position > self.ends).any():
            raise CorruptMetadata("a value that runs past the end", expected="whole records")
        return before

    def varints(self, mask: Mask = None) -> Ints:
        """The next int or long of each datum."""
        first = self.octets.bytes[self.position]
        if not len(first) or first.max() < 128:
            self.move(1, mask)
            small = first.astype(np.int64)
            return (small >> 1) ^ -(small & 1)
        words: Words = self.octets.at(self.position, "<u8")  # type: ignore[assignment]
        stop = ~words & _CONTINUED
        lowest = stop & (~stop + _ONE)
        span = lowest ^ (lowest - _ONE)
        payload = words & span & _PAYLOAD
        for keep, close, by in _CLOSE:
            payload = (payload & keep) | ((payload & close) >> by)
        size = np.bitwise_count(span).astype(np.int64) >> 3
        self._read_long_tails(stop, payload, size, mask)
        self.move(size, mask)
        return ((payload >> _ONE) ^ (~(payload & _ONE) + _ONE)).view(np.int64)

    def small_counts(self, mask: Mask = None) -> npt.NDArray[np.integer]:
        """The next int of each datum, as bytes where all are below 64: an order faster for what nearly always is."""
        first = self.octets.bytes[self.position]
        if (first & 0x81).any():
            return self.varints(mask)
        self.move(1, mask)
        return first >> 1

    def _read_long_tails(self, stop: Words, payload: Words, size: Ints, mask: Mask) -> None:
        """Complete, in place, the values that go on after eight bytes."""
        unfinished = stop == 0
        if mask is not None:
            unfinished &= mask
        if not unfinished.any():
            return
        rows = np.flatnonzero(unfinished)
        ninth = self.octets.bytes[self.position[rows] + 8].astype(np.uint64)
        tenth = self.octets.bytes[self.position[rows] + 9].astype(np.uint64)
        goes_on = ninth > 127
        if (tenth[goes_on] > 1).any():
            raise CorruptMetadata("an integer of more than 64 bits", expected="Avro integers of at most 10 bytes")
        payload[rows] |= (ninth & np.uint64(127)) << np.uint64(56)
        payload[rows] |= np.where(goes_on, tenth, np.uint64(0)) << np.uint64(63)
        size[rows] = 9 + goes_on

    def spans(self, mask: Mask = None) -> tuple[Ints, Ints]:
        """Start and end of the next string or bytes of each datum; empty where the mask says that there is none."""
        length = self.varints(mask)
        if mask is not None:
            length = length * mask
        if len(length) and (length.min() < 0 or length.max() > self.octets.limit):
            raise CorruptMetadata("a text or bytes of impossible length", expected="whole records")
        return self.move(length), self.position
