"""Hashes of record keys, by which commits tell whether two writers inserted the same key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

MAX_CARRIED_HASHES = 65_536
"""Inserted keys beyond this are not carried in the log entry; a later upsert looks into the files instead."""
_CHUNK = 16_384
"""Rows at a time: their Python objects stay in the processor's cache."""


def key_hashes(partition_path: str | None, keys: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """XXH3-64 of `<partition>NUL<key>` for each key; without a partition of the key alone, for keys that are unique in the table."""
    prefix, nothing = pa.scalar(b"" if partition_path is None else f"{partition_path}\x00".encode()), pa.scalar(b"")
    hashes = np.empty(len(keys), dtype=np.uint64)
    for start in range(0, len(keys), _CHUNK):
        # Joined and encoded by Arrow, so that nothing but the hash itself runs once per key.
        texts = pc.binary_join_element_wise(prefix, keys.slice(start, _CHUNK).cast(pa.binary()), nothing)
        hashes[start : start + len(texts)] = np.fromiter(
            map(xxhash.xxh3_64_intdigest, texts.to_pylist()), dtype=np.uint64, count=len(texts)
        )
    return hashes
