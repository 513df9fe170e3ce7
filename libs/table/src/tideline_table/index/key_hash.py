"""Hashes of record keys, by which a commit detects that two writers inserted the same key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

MAX_CARRIED_HASHES = 65_536
"""A log entry carries no hashes if a write inserted more keys than this; a later upsert then reads the files instead."""
_CHUNK = 16_384
"""Rows per step, so that their Python objects stay in the processor's cache."""


def key_hashes(partition_path: str | None, keys: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return XXH3-64 of `<partition>NUL<key>` for each key, or of the key alone without a partition (keys unique in the table)."""
    hashes = np.empty(len(keys), dtype=np.uint64)
    for start in range(0, len(keys), _CHUNK):
        # Joined and encoded by Arrow, so that nothing but the hash itself runs once per key.
        texts = keys.slice(start, _CHUNK).cast(pa.binary())
        if partition_path is not None:
            texts = pc.binary_join_element_wise(pa.scalar(f"{partition_path}\x00".encode()), texts, pa.scalar(b""))
        hashes[start : start + len(texts)] = np.fromiter(
            map(xxhash.xxh3_64_intdigest, texts.to_pylist()), dtype=np.uint64, count=len(texts)
        )
    return hashes
