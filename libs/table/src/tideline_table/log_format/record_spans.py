"""Where the records of a data block begin and end (format reference 9.6).

Each record stands behind its length, so a record is only found through the one before it. Large blocks are walked from many places at
once: places are guessed, and the walk counts only if every stretch ends exactly where the next one began.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt

from tideline_table.errors import CorruptMetadata
from tideline_table.log_format.avro.cursor import Ints

_LENGTH = struct.Struct(">i")
_LENGTH_BYTES = 4
_MOST_RECORD_BYTES = 1024 * 1024 * 1024
_LEAST_RECORDS_PER_BYTE = 160
"""Guessing pays for many small records: as many as this for each byte that a record has on average."""
_HOPS = 6
"""As many lengths in a row must look like lengths where a record is guessed. Whoever begins at none soon comes upon one, and goes on from there."""


def record_spans(content: bytes, first: int, count: int) -> tuple[Ints, Ints]:
    """Begin and end of each of the `count` records whose lengths start at `first` and fill `content`.

    Raises `CorruptMetadata` where they do not.
    """
    most = (len(content) - first) // _LENGTH_BYTES
    if not 0 <= count <= most:
        raise CorruptMetadata(f"a count of {count} records", expected=f"at most {most} in {len(content)} bytes")
    mean_bytes = (len(content) - first) // max(1, count)
    ends = None
    if count >= _LEAST_RECORDS_PER_BYTE * mean_bytes and mean_bytes > 2 * _LENGTH_BYTES:
        ends = _ends_from_many_places(content, first, count)
    if ends is None:
        ends = _ends_one_by_one(content, first, count)
    begins = np.concatenate((np.array([first]), ends))[:-1] + _LENGTH_BYTES
    lengths = ends - begins
    if count and (lengths.min() < 0 or lengths.max() > _MOST_RECORD_BYTES):
        raise CorruptMetadata("a record of impossible length", expected=f"0 to {_MOST_RECORD_BYTES} bytes")
    end = int(ends[-1]) if count else first
    if end != len(content):
        raise CorruptMetadata(f"{count} records that end at {end} of {len(content)} bytes", expected="records to the end")
    return begins, ends


def _ends_one_by_one(content: bytes, first: int, count: int) -> Ints:
    position, unpack, ends = first, _LENGTH.unpack_from, [0] * count
    try:
        for row in range(count):
            position += unpack(content, position)[0] + _LENGTH_BYTES
            ends[row] = position
    except struct.error:
        raise CorruptMetadata("records that run past the end", expected=f"{count} records") from None
    return np.array(ends, np.int64)


def _ends_from_many_places(content: bytes, first: int, count: int) -> Ints | None:
    """The same, or None where a guess was wrong or the block is damaged."""
    lengths = np.ndarray((len(content) - _LENGTH_BYTES + 1,), ">i4", content, strides=(1,))
    mean_bytes = (len(content) - first) // count
    # A place costs about as much as a step of all of them, times the bytes that are looked at.
    places = _places(lengths, first, mean_bytes, math.isqrt(750 * count // mean_bytes))
    limits = np.append(places[1:], len(content))
    active, found, left = np.arange(len(places)), [], count
    while len(active):
        before = places[active]
        if before.max() >= len(lengths):
            return None
        after = before + lengths[before] + _LENGTH_BYTES
        left -= len(active)
        if left < 0 or (after <= before).any() or (after > limits[active]).any():
            return None
        found.append(after)
        places[active] = after
        active = active[after < limits[active]]
    # Records follow each other, so the order of their ends is their order.
    return np.sort(np.concatenate(found)) if not left else None


def _places(lengths: npt.NDArray[np.signedinteger], first: int, mean_bytes: int, wanted: int) -> Ints:
    """Where records probably begin, spread over the block; the first one is certain."""
    window = 2 * mean_bytes
    starts = np.linspace(first, len(lengths) - window, wanted + 1).astype(np.int64)[1:-1]
    windows = np.lib.stride_tricks.sliding_window_view(lengths, window)[starts]
    stretch, within = np.nonzero((windows > mean_bytes // 8) & (windows < 8 * mean_bytes))
    position = starts[stretch] + within
    for _ in range(_HOPS):
        position = position + lengths[position] + _LENGTH_BYTES
        inside = position < len(lengths)
        position, stretch = position[inside], stretch[inside]
        length = lengths[position]
        likely = (length > mean_bytes // 8) & (length < 8 * mean_bytes)
        position, stretch = position[likely], stretch[likely]
    # Where most of a stretch have come to is a record.
    met, votes = np.unique(stretch * len(lengths) + position, return_counts=True)
    stretch, position = np.divmod(met, len(lengths))
    order = np.lexsort((-votes, stretch))
    _, firsts = np.unique(stretch[order], return_index=True)
    return np.unique(np.concatenate(([first], position[order][firsts])))
