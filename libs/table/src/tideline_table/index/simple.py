"""The simple index: read the key columns of the files that can hold a key and look the incoming keys up.

Key ranges in the footers skip files; key columns of immutable base files are kept in a bounded cache, so that a writer that
comes back to the same partitions reads only what is new.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.file_group.slice import FileSlice
from tideline_table.reader.base_file import BaseFileFooter, read_base_file, read_footer
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

CACHE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Location:
    """Where the keys of one partition's input are: `slices[n]` holds the keys at the positions `hits[n]`.

    A key that plain inserts added twice is in more than one of them.
    """

    slices: tuple[FileSlice, ...]
    hits: tuple[np.ndarray, ...]
    keys: int

    @property
    def absent(self) -> np.ndarray:
        """True for each key that no file holds."""
        missing = np.ones(self.keys, dtype=bool)
        for positions in self.hits:
            missing[positions] = False
        return missing


class SimpleIndex:
    """Key look-up for one table, by partition (keys are unique inside a partition, as in Hudi's SIMPLE index). Safe to share between threads."""

    def __init__(self, storage: Storage, cache_bytes: int = CACHE_BYTES) -> None:
        self._storage = storage
        self._cache: OrderedDict[str, tuple[BaseFileFooter, pa.ChunkedArray | None]] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._held_bytes = 0
        self._mutex = threading.Lock()

    def locate(self, keys: pa.ChunkedArray, slices: Iterable[FileSlice]) -> Location:
        """Find each of `keys` (one partition's, each once) among `slices` (that partition's visible ones)."""
        low, high = (str(v) for v in pc.min_max(keys).as_py().values())
        found: list[np.ndarray] = []
        kept: list[FileSlice] = []
        wanted = _one_chunk(keys)
        for file_slice in slices:
            if not self._footer(file_slice.path).may_hold(low, high):
                continue
            # The input is the small side: hash it once and stream the file's keys past it.
            hits = pc.index_in(self._keys(file_slice.path), value_set=wanted).drop_null()
            if len(hits):
                found.append(np.unique(np.asarray(hits)))
                kept.append(file_slice)
        return Location(tuple(kept), tuple(found), len(keys))

    def _footer(self, path: str) -> BaseFileFooter:
        with self._mutex:
            known = self._cache.get(path)
            if known is not None:
                self._cache.move_to_end(path)
                return known[0]
        footer = read_footer(self._storage, path)
        self._keep(path, footer, None)
        return footer

    def _keys(self, path: str) -> pa.ChunkedArray:
        with self._mutex:
            footer, keys = self._cache.get(path, (None, None))
        if keys is not None:
            return keys
        keys = read_base_file(self._storage, path, [MetaField.RECORD_KEY]).column(0)
        self._keep(path, footer or read_footer(self._storage, path), keys)
        return keys

    def _keep(self, path: str, footer: BaseFileFooter, keys: pa.ChunkedArray | None) -> None:
        with self._mutex:
            old = self._cache.pop(path, None)
            self._held_bytes -= _held(old[1]) if old else 0
            self._cache[path] = (footer, keys)
            self._held_bytes += _held(keys)
            while self._held_bytes > self._cache_bytes and len(self._cache) > 1:
                _, (_, dropped) = self._cache.popitem(last=False)
                self._held_bytes -= _held(dropped)


def _held(keys: pa.ChunkedArray | None) -> int:
    return 256 + (keys.nbytes if keys is not None else 0)


def _one_chunk(keys: pa.ChunkedArray) -> pa.Array:
    combined = keys.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def partition_rows(paths: pa.ChunkedArray) -> Mapping[str, np.ndarray]:
    """Row numbers by partition path, ascending inside each."""
    codes = _one_chunk(pc.dictionary_encode(paths))
    indices = codes.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(indices, kind="stable")
    bounds = np.searchsorted(indices[order], np.arange(len(codes.dictionary) + 1))
    return {str(name): order[bounds[i] : bounds[i + 1]] for i, name in enumerate(codes.dictionary.to_pylist())}
