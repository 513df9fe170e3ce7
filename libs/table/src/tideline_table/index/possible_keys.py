"""Which keys of a look-up a base file may hold, by its footer alone: by its key range, or by range and Bloom filter."""

from __future__ import annotations

import bisect
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.bloom import KeyBytes
from tideline_table.reader.base_file import BaseFileFooter, read_footer
from tideline_table.schema.arrow import one_chunk
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
