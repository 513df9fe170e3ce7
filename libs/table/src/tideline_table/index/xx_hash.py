"""xxHash32 with seed 0 (`xxhash_spec.md` of the xxHash project), for whole columns of texts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_P1, _P2, _P3, _P4, _P5 = (np.uint32(n) for n in (2654435761, 2246822519, 3266489917, 668265263, 374761393))
_STRIPE = 16
_CHUNK_BYTES = 1 << 22
"""Bytes of text hashed in one step, which bounds the memory of the intermediate arrays."""


def text_hashes(texts: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return the hash of the UTF-8 bytes of each text as a uint32. Raises `ValueError` for a null text."""
    if texts.null_count:
        raise ValueError("a null text has no hash")
    column = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    column = (pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column).cast(pa.large_string())
    found = np.empty(len(column), dtype=np.uint32)
    if not len(column):
        return found
    buffers = column.buffers()
    offsets = np.frombuffer(buffers[1], dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    raw = np.frombuffer(buffers[2], dtype=np.uint8) if buffers[2] is not None else np.empty(0, dtype=np.uint8)
    lengths = np.diff(offsets)
    order = np.argsort(lengths, kind="stable")
    sizes, starts = np.unique(lengths[order], return_index=True)
    for size, rows in zip(sizes.tolist(), np.split(order, starts[1:]), strict=True):
        step = max(1, _CHUNK_BYTES // max(1, size))
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            found[some] = _hashes(raw[offsets[some][:, None] + np.arange(size)])
    return found


def _hashes(data: np.ndarray) -> np.ndarray:
    """Return the hash of each row of `data`, whose columns are the bytes of texts of one length."""
    count, size = data.shape
    words = size // 4
    lanes = np.ascontiguousarray(data[:, : words * 4]).view("<u4").astype(np.uint32, copy=False) if words else data[:, :0]
    at = 0
    if size >= _STRIPE:
        start = np.array([(int(_P1) + int(_P2)) % 2**32, int(_P2), 0, -int(_P1) % 2**32], dtype=np.uint32)
        sums = np.repeat(start[None, :], count, axis=0)
        for at in range(0, size - size % _STRIPE, _STRIPE):
            sums = _rotated(sums + lanes[:, at // 4 : at // 4 + 4] * _P2, 13) * _P1
        at += _STRIPE
        code = _rotated(sums[:, 0], 1) + _rotated(sums[:, 1], 7) + _rotated(sums[:, 2], 12) + _rotated(sums[:, 3], 18)
    else:
        code = np.full(count, _P5, dtype=np.uint32)
    code = code + np.uint32(size % 2**32)
    for word in range(at // 4, words):
        code = _rotated(code + lanes[:, word] * _P3, 17) * _P4
    for byte in range(words * 4, size):
        code = _rotated(code + data[:, byte].astype(np.uint32) * _P5, 11) * _P1
    code = (code ^ (code >> np.uint32(15))) * _P2
    code = (code ^ (code >> np.uint32(13))) * _P3
    mixed: np.ndarray = code ^ (code >> np.uint32(16))
    return mixed


def _rotated(code: np.ndarray, bits: int) -> np.ndarray:
    turned: np.ndarray = (code << np.uint32(bits)) | (code >> np.uint32(32 - bits))
    return turned
