"""An order-free digest of record keys: the proof that a clustering dropped, added and changed no key.

The digest is the number of rows and the sum of a 64-bit hash of each key, modulo 2^64. It is compared within one task only, so the
hash needs no stable definition. Keys are hashed in bulk over Arrow buffers, eight bytes of all keys at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from tideline_table.schema.meta_fields import MetaField

_BULK_BYTES = 256
"""Keys up to this length are hashed in bulk, longer ones by xxHash, one at a time."""
_WORD = 8
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0xFF51AFD7ED558CCD))
_SHIFT = np.uint64(32)


@dataclass(slots=True)
class KeyDigest:
    """The digest of the rows added so far."""

    rows: int = 0
    total: int = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows that have the meta field of the record key."""
        self.rows += rows.num_rows
        for chunk in rows.column(MetaField.RECORD_KEY).chunks:
            self.total = (self.total + int(_hashes(chunk).sum(dtype=np.uint64))) % 2**64


def _hashes(keys: pa.Array) -> np.ndarray:
    """Return a hash of each key; a null has the hash of no key."""
    texts = keys.cast(pa.large_string())
    count = len(texts)
    if not count:
        return np.empty(0, dtype=np.uint64)
    _, offsets_buffer, data = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64, count=count + 1, offset=texts.offset * 8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    present = texts.is_valid().to_numpy(zero_copy_only=False)
    hashes = np.where(present, lengths, -1).astype(np.uint64) * _ODD[0]
    if data is not None and lengths.any():
        begin, end = int(offsets[0]), int(offsets[-1])
        # The last word of a key is read beyond the end of the key, and of the last key beyond the data.
        padded = np.zeros(end - begin + _WORD, dtype=np.uint8)
        padded[: end - begin] = np.frombuffer(data, dtype=np.uint8, count=end - begin, offset=begin)
        short = np.where(lengths <= _BULK_BYTES, lengths, 0)
        _fold_words(hashes, padded, starts - begin, short)
        for row in np.flatnonzero(lengths > _BULK_BYTES):
            start = int(starts[row]) - begin
            hashes[row] ^= np.uint64(xxhash.xxh3_64_intdigest(padded[start : start + int(lengths[row])].tobytes()))
    hashes ^= hashes >> _SHIFT
    hashes *= _ODD[1]
    hashes ^= hashes >> np.uint64(29)
    return hashes


def _fold_words(hashes: np.ndarray, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
    words = np.lib.stride_tricks.as_strided(
        data[:_WORD].view(np.uint64), shape=(len(data) - _WORD + 1,), strides=(1,), writeable=False
    )
    for at in range(0, int(lengths.max()), _WORD):
        rows = np.flatnonzero(lengths > at)
        left = np.minimum(lengths[rows] - at, _WORD).astype(np.uint64)
        word = words[starts[rows] + at] & (np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - left * np.uint64(8)))
        mixed = (hashes[rows] ^ word) * _ODD[2]
        hashes[rows] = (mixed ^ (mixed >> _SHIFT)) * _ODD[0]
