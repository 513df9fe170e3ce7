"""Java's `String.hashCode`, for whole columns of texts."""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import pyarrow as pa

_INVERSE_OF_31 = pow(31, -1, 2**32)
_CHUNK_BYTES = 1 << 20
"""Bytes of text hashed in one step, so that the intermediate arrays stay in the processor's cache."""


def string_hashes(texts: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return `String.hashCode` of each text as a wrapped uint32: the sum of UTF-16 unit i times 31^(length - 1 - i). Null: 0."""
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    pieces = [_hashes(part) for chunk in chunks for part in _parts(chunk.cast(pa.large_string()))]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.uint32)


def _parts(texts: pa.Array) -> list[pa.Array]:
    """Return slices of `texts` of about `_CHUNK_BYTES` each."""
    ends = _offsets(texts)[1:]
    if not len(ends):
        return []
    steps = (ends - _offsets(texts)[0]) // _CHUNK_BYTES
    starts = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(texts)]
    return [texts.slice(start, end - start) for start, end in pairwise(starts)]


def _offsets(texts: pa.Array) -> np.ndarray:
    buffer = texts.buffers()[1]
    return np.frombuffer(buffer, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1] if buffer else np.zeros(1, np.int64)


def _hashes(texts: pa.Array) -> np.ndarray:
    offsets, data = _offsets(texts), texts.buffers()[2]
    raw = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.empty(0, dtype=np.uint8)
    bounds = offsets - offsets[0]
    units: np.ndarray = raw
    if len(raw) and raw.max() >= 0x80:
        # A UTF-8 sequence of four bytes is two UTF-16 units, any other sequence is one.
        starts_unit = ((raw & 0xC0) != 0x80).astype(np.int64) + (raw >= 0xF0)
        bounds = np.concatenate([[0], np.cumsum(starts_unit)])[bounds]
        units = np.frombuffer(raw.tobytes().decode().encode("utf-16-le"), dtype="<u2")
    # All sums at once: weigh unit i by 31^-i, which exists modulo 2^32, and scale the sum over a text by 31^(last unit).
    sums = np.concatenate(
        [np.zeros(1, np.uint32), np.cumsum(units.astype(np.uint32) * _powers(_INVERSE_OF_31, len(units)), dtype=np.uint32)]
    )
    found: np.ndarray = (sums[bounds[1:]] - sums[bounds[:-1]]) * _powers(31, len(units) + 1)[np.maximum(bounds[1:] - 1, 0)]
    return found


def _powers(base: int, count: int) -> np.ndarray:
    """Return the first `count` powers of `base` modulo 2^32."""
    # Longer arrays are for one text of more than a chunk; they are not kept.
    return _kept_powers(base)[:count] if count <= _CHUNK_BYTES + 1 else _computed_powers(base, count)


@functools.cache
def _kept_powers(base: int) -> np.ndarray:
    return _computed_powers(base, _CHUNK_BYTES + 1)


def _computed_powers(base: int, count: int) -> np.ndarray:
    powers = np.full(count, base, dtype=np.uint32)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint32)
