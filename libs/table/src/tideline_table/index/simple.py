"""The simple index: read the key columns of the files that can hold a key and look the incoming keys up.

Key ranges in the footers skip base files, key indexes skip log files; keys of immutable files are kept in a bounded cache, so that a writer that
comes back to the same partitions reads only what is new.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.file_group.slice import FileSlice
from tideline_table.reader.base_file import BaseFileFooter, read_base_file, read_footer
from tideline_table.reader.log_index import LogIndexes, WantedKeys
from tideline_table.reader.log_keys import held_keys
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage

CACHE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Location:
    """Where the keys of an input are: `slices[n]` holds the keys at the positions `hits[n]`.

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
    """Key look-up for one table: in the slices that are given, those of one partition or of all. Safe to share between threads.

    A slice holds the keys of its base file, and those of its log files that add keys.
    """

    def __init__(self, storage: Storage, cache_bytes: int = CACHE_BYTES, log_indexes: LogIndexes | None = None) -> None:
        self._storage = storage
        self._log_indexes = log_indexes or LogIndexes(storage)
        self._cache: OrderedDict[str, tuple[BaseFileFooter | None, pa.ChunkedArray | None]] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._held_bytes = 0
        self._mutex = threading.Lock()

    def locate(self, keys: pa.ChunkedArray, slices: Iterable[FileSlice]) -> Location:
        """Find each of `keys` (each once) among `slices` (visible ones)."""
        low, high = (str(v) for v in pc.min_max(keys).as_py().values())
        found: list[np.ndarray] = []
        kept: list[FileSlice] = []
        wanted = one_chunk(keys)
        names = WantedKeys(wanted)
        for file_slice in slices:
            held = self._log_keys(file_slice, names)
            if file_slice.base_file and self._footer(file_slice.path).may_hold(low, high):
                held.append(self._base_keys(file_slice.path))
            # The input is the small side: hash it once and stream the file's keys past it.
            hits = [np.asarray(pc.index_in(column, value_set=wanted).drop_null()) for column in held]
            positions = np.unique(np.concatenate(hits)) if hits else np.empty(0, dtype=np.int64)
            if len(positions):
                found.append(positions)
                kept.append(file_slice)
        return Location(tuple(kept), tuple(found), len(keys))

    def keys(self, file_slice: FileSlice) -> pa.ChunkedArray:
        """All keys that a slice holds; some more than once."""
        held = self._log_keys(file_slice, None)
        if file_slice.base_file:
            held.append(self._base_keys(file_slice.path))
        return pa.chunked_array([chunk for column in held for chunk in column.chunks], pa.string())

    def log_keys(self, file_slice: FileSlice) -> pa.ChunkedArray:
        """The keys in log files that may hold more of them than the base file; some more than once."""
        return pa.chunked_array([chunk for column in self._log_keys(file_slice, None) for chunk in column.chunks], pa.string())

    def _log_keys(self, file_slice: FileSlice, wanted: WantedKeys | None) -> list[pa.ChunkedArray]:
        """Keys of the log files that add any and can hold one of `wanted` (None: all)."""
        adding = [at for at, log in enumerate(file_slice.log_files) if log.adds_keys]
        if not adding:
            return []
        asked = replace(file_slice, log_files=file_slice.log_files[: adding[-1] + 1])
        paths = [asked.log_paths[at] for at in adding]
        if wanted is not None:
            paths = self._log_indexes.scan(asked, wanted).holding(paths)
        return [self._cached_keys(path, partial(held_keys, self._storage, path)) for path in paths]

    def _footer(self, path: str) -> BaseFileFooter:
        with self._mutex:
            known = self._cache.get(path)
            if known is not None and known[0] is not None:
                self._cache.move_to_end(path)
                return known[0]
        footer = read_footer(self._storage, path)
        self._keep(path, footer, None)
        return footer

    def _base_keys(self, path: str) -> pa.ChunkedArray:
        return self._cached_keys(path, lambda: read_base_file(self._storage, path, [MetaField.RECORD_KEY]).column(0))

    def _cached_keys(self, path: str, read: Callable[[], pa.ChunkedArray]) -> pa.ChunkedArray:
        with self._mutex:
            footer, keys = self._cache.get(path, (None, None))
        if keys is None:
            keys = read()
            self._keep(path, footer, keys)
        return keys

    def _keep(self, path: str, footer: BaseFileFooter | None, keys: pa.ChunkedArray | None) -> None:
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


def one_chunk(keys: pa.ChunkedArray) -> pa.Array:
    """The same values as one array."""
    combined = keys.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def partition_rows(paths: pa.ChunkedArray) -> Mapping[str, np.ndarray]:
    """Row numbers by partition path, ascending inside each."""
    codes = one_chunk(pc.dictionary_encode(paths))
    indices = codes.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(indices, kind="stable")
    bounds = np.searchsorted(indices[order], np.arange(len(codes.dictionary) + 1))
    return {str(name): order[bounds[i] : bounds[i + 1]] for i, name in enumerate(codes.dictionary.to_pylist())}
