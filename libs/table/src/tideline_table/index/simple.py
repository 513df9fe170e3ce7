"""The simple and the Bloom index: read the key columns of the files that can hold a key and look the incoming keys up.

Key ranges in footers skip base files, with the Bloom index also the Bloom filters there; key indexes skip log files. Keys of
immutable files are kept in a bounded cache, so that a writer that returns to the same partitions reads only new files.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.bloom import KeyBytes
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.file_names import bucket_of_file_id, in_bucket
from tideline_table.reader.base_file import BaseFileFooter, read_base_file, read_footer
from tideline_table.reader.log_index import LogIndexes, WantedKeys
from tideline_table.reader.log_keys import held_keys
from tideline_table.schema.arrow import one_chunk
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import Storage


def read_plain_footer(storage: Storage, path: str) -> BaseFileFooter:
    """Return the footer without its Bloom filter."""
    return read_footer(storage, path)


def read_filtered_footer(storage: Storage, path: str) -> BaseFileFooter:
    """Return the footer with its Bloom filter."""
    return read_footer(storage, path, with_bloom=True)


class RangedKeys:
    """Wanted keys, compared with key ranges: a file may hold all of them or none."""

    read_footer = staticmethod(read_plain_footer)

    def __init__(self, keys: pa.ChunkedArray) -> None:
        self._low, self._high = (str(v) for v in pc.min_max(keys).as_py().values())
        self._all = np.arange(len(keys))

    def possible(self, footer: BaseFileFooter) -> np.ndarray:
        """Return the numbers of the keys that the file may hold."""
        return self._all if footer.rows and footer.may_hold(self._low, self._high) else self._all[:0]


class FilteredKeys:
    """Wanted keys, each compared with the key range and the Bloom filter of a file. They are hashed once, for all files."""

    read_footer = staticmethod(read_filtered_footer)

    def __init__(self, keys: pa.ChunkedArray) -> None:
        self._keys = one_chunk(keys)

    def possible(self, footer: BaseFileFooter) -> np.ndarray:
        """Return the numbers of the keys that the file may hold: all of its range if it has no usable filter."""
        begin, end = 0, len(self._keys)
        if footer.bounds is not None:
            begin = bisect.bisect_left(range(end), footer.bounds[0], key=self._sorted_key)
            end = bisect.bisect_right(range(end), footer.bounds[1], key=self._sorted_key)
        if not footer.rows or begin >= end:
            return self._order[:0]
        if footer.bloom is None:
            return self._order[begin:end]
        held: np.ndarray = self._order[footer.bloom.held(self._octets, np.arange(begin, end))]
        return held

    def _sorted_key(self, place: int) -> str:
        return str(self._ordered[place].as_py())

    @cached_property
    def _order(self) -> np.ndarray:
        order: np.ndarray = np.asarray(pc.sort_indices(self._keys)).astype(np.int64)
        return order

    @cached_property
    def _ordered(self) -> pa.Array:
        return self._keys.take(pa.array(self._order))

    @cached_property
    def _octets(self) -> KeyBytes:
        return KeyBytes(self._ordered)


CACHE_BYTES = 256 * 1024 * 1024
_Cached = TypeVar("_Cached", bound=BaseFileFooter | pa.ChunkedArray)


@dataclass(frozen=True, slots=True)
class Location:
    """The slices that hold the keys of an input: `slices[n]` holds the keys at the positions `hits[n]`.

    A key that plain inserts added twice is in more than one slice.
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
    """Key look-up for one table, in the given slices: of one partition or of all. Safe to share between threads.

    A slice holds the keys of its base file, and those of its log files that add keys.
    """

    def __init__(self, storage: Storage, cache_bytes: int = CACHE_BYTES, log_indexes: LogIndexes | None = None) -> None:
        self._storage = storage
        self._log_indexes = log_indexes or LogIndexes(storage)
        self._cache: OrderedDict[tuple[Callable[..., Any], str], BaseFileFooter | pa.ChunkedArray] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._held_bytes = 0
        self._mutex = threading.Lock()

    def locate(self, keys: pa.ChunkedArray, slices: Iterable[FileSlice], *, by_filters: bool = False) -> Location:
        """Return which of `slices` (visible ones) hold each of `keys` (each once).

        With `by_filters`, a base file is read only if its Bloom filter may hold a key; a file without a usable filter is read.
        """
        asked = FilteredKeys(keys) if by_filters else RangedKeys(keys)
        found: list[np.ndarray] = []
        kept: list[FileSlice] = []
        wanted = one_chunk(keys)
        slices = tuple(slices)
        names = WantedKeys(wanted) if any(file_slice.log_files for file_slice in slices) else None
        for file_slice in slices:
            held = self._log_keys(file_slice, names)
            # The input is the smaller side: hash it and stream the file's keys past it.
            hits = [np.asarray(pc.index_in(column, value_set=wanted).drop_null()) for column in held]
            if file_slice.base_file:
                possible = asked.possible(self._cached(asked.read_footer, file_slice.path))
                if len(possible):
                    some = wanted.take(pa.array(possible))
                    column = self._cached(_base_keys, file_slice.path)
                    hits.append(possible[np.asarray(pc.index_in(column, value_set=some).drop_null())])
            positions = np.unique(np.concatenate(hits)) if hits else np.empty(0, dtype=np.int64)
            if len(positions):
                found.append(positions)
                kept.append(file_slice)
        return Location(tuple(kept), tuple(found), len(keys))

    def keys(self, file_slice: FileSlice) -> pa.ChunkedArray:
        """Return all keys that a slice holds; keys may repeat."""
        base = self._cached(_base_keys, file_slice.path).chunks if file_slice.base_file else []
        return pa.chunked_array([*self.log_keys(file_slice).chunks, *base], pa.string())

    def log_keys(self, file_slice: FileSlice) -> pa.ChunkedArray:
        """Return the keys in log files that may add keys to those of the base file; keys may repeat."""
        return pa.chunked_array([chunk for column in self._log_keys(file_slice, None) for chunk in column.chunks], pa.string())

    def _log_keys(self, file_slice: FileSlice, wanted: WantedKeys | None) -> list[pa.ChunkedArray]:
        """Return the keys of the log files that add any and can hold one of `wanted` (None: all)."""
        file_slice = file_slice.applied
        adding = [at for at, log in enumerate(file_slice.log_files) if log.adds_keys]
        if not adding:
            return []
        asked = replace(file_slice, log_files=file_slice.log_files[: adding[-1] + 1])
        paths: list[str] = [asked.log_paths[at] for at in adding]
        if wanted is not None:
            paths = self._log_indexes.scan(asked, wanted).holding(paths)
        return [self._cached(held_keys, path) for path in paths]

    def _cached(self, read: Callable[[Storage, str], _Cached], path: str) -> _Cached:
        with self._mutex:
            known = self._cache.get((read, path))
            if known is not None:
                self._cache.move_to_end((read, path))
                return cast("_Cached", known)
        found = read(self._storage, path)
        with self._mutex:
            self._held_bytes += _size_bytes(found) - _size_bytes(self._cache.pop((read, path), None))
            self._cache[read, path] = found
            while self._held_bytes > self._cache_bytes and len(self._cache) > 1:
                _, dropped = self._cache.popitem(last=False)
                self._held_bytes -= _size_bytes(dropped)
        return found


def _base_keys(storage: Storage, path: str) -> pa.ChunkedArray:
    return read_base_file(storage, path, [MetaField.RECORD_KEY]).column(0)


def _size_bytes(cached: BaseFileFooter | pa.ChunkedArray | None) -> int:
    if cached is None:
        return 0
    if isinstance(cached, BaseFileFooter):
        return 256 + (sum(map(len, cached.bloom.rows)) if cached.bloom is not None else 0)
    return 256 + int(cached.nbytes)


def partition_rows(paths: pa.ChunkedArray) -> Mapping[str, np.ndarray]:
    """Return row numbers by partition path, ascending in each."""
    codes = one_chunk(pc.dictionary_encode(paths))
    indices = codes.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(indices, kind="stable")
    bounds = np.searchsorted(indices[order], np.arange(len(codes.dictionary) + 1))
    return {str(name): order[bounds[i] : bounds[i + 1]] for i, name in enumerate(codes.dictionary.to_pylist())}


class BucketPlace(NamedTuple):
    """A bucket of a partition, where a bucket index allows several file groups in a bucket."""

    partition_path: str
    bucket: int

    @classmethod
    def of(cls, group: FileGroupId) -> BucketPlace:
        """Return the bucket of a file group, whose id begins with its number."""
        bucket = bucket_of_file_id(group.file_id)
        assert bucket is not None, "checked by BucketIndex.groups"
        return cls(group.partition_path, bucket)


PlaceT = TypeVar("PlaceT", str, BucketPlace)
"""A partition path, or a bucket."""


def partition_of(place: str | BucketPlace) -> str:
    """Return the partition path of a place."""
    return place if isinstance(place, str) else place.partition_path


def file_id_in(place: str | BucketPlace, file_id: str) -> str:
    """Return the id of a new file group of a place: `file_id`, with the bucket number in it."""
    return file_id if isinstance(place, str) else in_bucket(file_id, place.bucket)
