"""Positions in many datums at once: each read moves all positions past one value.

A mask marks the datums that have the value. In other datums the position does not move, and the result is arbitrary.
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
"""Padding around the datums. Reads may touch it, but never use its content, so that they need no bounds checks."""

_CONTINUED = np.uint64(0x8080808080808080)
_PAYLOAD = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE = np.uint64(1)
# Three steps that join the 7-bit groups of a varint: pairs, then fours, then all eight.
_CLOSE = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), _ONE),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)


class Octets:
    """The bytes of datums, padded at both ends, as bytes and as a NumPy array."""

    def __init__(self, content: bytes | memoryview) -> None:
        pad = b"\x00" * PAD_BYTES
        self.raw = b"".join((pad, content, pad))
        self.limit = PAD_BYTES + len(content)
        """Offset at which the datums end."""
        self.bytes = np.frombuffer(self.raw, np.uint8)

    def at(self, positions: Ints, dtype: str) -> npt.NDArray[np.generic]:
        """Return the value of `dtype` (at most `PAD_BYTES` wide) at each of `positions`."""
        width = np.dtype(dtype).itemsize
        overlapping = np.ndarray((len(self.raw) - width + 1,), dtype, self.raw, strides=(1,))
        return overlapping[positions]


class Cursor:
    """The current position and the end of each datum. Both count from the start of `octets`, including the padding.

    The ends stop a damaged datum from reading into the next one, so the work is limited by the number of bytes.
    """

    __slots__ = ("ends", "octets", "position")

    def __init__(self, octets: Octets, position: Ints, ends: Ints) -> None:
        self.octets = octets
        self.position = position
        self.ends = ends

    def __len__(self) -> int:
        return len(self.position)

    def part(self, rows: Ints) -> Cursor:
        """Return an independent cursor over some of the datums."""
        return Cursor(self.octets, self.position[rows], self.ends[rows])

    def move(self, by: int | npt.NDArray[np.integer], mask: Mask = None) -> Ints:
        """Move forward. Return the positions before. Raises `CorruptMetadata` past the end of a datum."""
        before = self.position
        self.position = before + (by if mask is None else by * mask)
        if (self.position > self.ends).any():
            raise CorruptMetadata("a value beyond the end of its record", expected="whole records")
        return before

    def varints(self, mask: Mask = None) -> Ints:
        """Read the next int or long of each datum."""
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
        """Read the next int of each datum. Returns bytes if all values are below 64: the usual case, and about ten times faster."""
        first = self.octets.bytes[self.position]
        if (first & 0x81).any():
            return self.varints(mask)
        self.move(1, mask)
        return first >> 1

    def _read_long_tails(self, stop: Words, payload: Words, size: Ints, mask: Mask) -> None:
        """Complete, in place, the values that are longer than eight bytes."""
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
        """Read the next string or bytes of each datum. Return start and end, which are equal for datums outside the mask."""
        length = self.varints(mask)
        if mask is not None:
            length = length * mask
        if len(length) and (length.min() < 0 or length.max() > self.octets.limit):
            raise CorruptMetadata("a string or bytes value of impossible length", expected="whole records")
        return self.move(length), self.position
