"""Begin and end of the records of a data block (format reference 9.6).

Each record follows its length, so a record is found only through the record before it. Large blocks are walked from many guessed
places at once. The result is used only if each walk ends exactly where the next one began.
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
"""Minimum ratio of the number of records to their mean size in bytes for guessing, which is faster only for many small records."""
_HOPS = 6
"""Plausible lengths in a row that a guess needs. A chain from a wrong place soon reaches a record and then follows the records."""


def record_spans(content: bytes, first: int, count: int) -> tuple[Ints, Ints]:
    """Return begin and end of each of the `count` records, the first of which has its length at `first`.

    Raises `CorruptMetadata` unless the records fill `content` exactly.
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
        raise CorruptMetadata("records beyond the end of the block", expected=f"{count} records") from None
    return np.array(ends, np.int64)


def _ends_from_many_places(content: bytes, first: int, count: int) -> Ints | None:
    """Return the ends of the records, or None if a guess was wrong or the block is damaged."""
    lengths = np.ndarray((len(content) - _LENGTH_BYTES + 1,), ">i4", content, strides=(1,))
    mean_bytes = (len(content) - first) // count
    # More places need more guessing (per byte of their windows) but fewer steps of the walk; this number balances both.
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
    # Records do not overlap, so sorting their ends gives the order of the records.
    return np.sort(np.concatenate(found)) if not left else None


def _places(lengths: npt.NDArray[np.signedinteger], first: int, mean_bytes: int, wanted: int) -> Ints:
    """Return offsets where records probably begin, spread over the block. The first one is certain."""
    window = 2 * mean_bytes
    starts = np.linspace(first, len(lengths) - window, wanted + 1).astype(np.int64)[1:-1]
    windows = np.lib.stride_tricks.sliding_window_view(lengths, window)[starts]
    owner, within = np.nonzero((windows > mean_bytes // 8) & (windows < 8 * mean_bytes))
    position = starts[owner] + within
    for _ in range(_HOPS):
        position = position + lengths[position] + _LENGTH_BYTES
        inside = position < len(lengths)
        position, owner = position[inside], owner[inside]
        length = lengths[position]
        likely = (length > mean_bytes // 8) & (length < 8 * mean_bytes)
        position, owner = position[likely], owner[likely]
    # The place that most chains of a window have reached is taken as a record.
    met, votes = np.unique(owner * len(lengths) + position, return_counts=True)
    owner, position = np.divmod(met, len(lengths))
    order = np.lexsort((-votes, owner))
    _, firsts = np.unique(owner[order], return_index=True)
    return np.unique(np.concatenate(([first], position[order][firsts])))
