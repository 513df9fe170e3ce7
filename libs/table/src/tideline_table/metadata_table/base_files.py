"""The base files of the record index that a process which stays open keeps: they never change.

Random keys lie in all blocks of a file. After a look-up that decoded most blocks, later ones decode only those that hold a key
by its hash.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from tideline_table.index.java_hash import string_hashes
from tideline_table.log.metadata import MetadataPartition
from tideline_table.log_format.hfile import HFile
from tideline_table.metadata_table.layout import base_name, file_id_of, file_path
from tideline_table.metadata_table.reading import open_base
from tideline_table.storage import Storage

MOST_BYTES = 64 * 1024 * 1024
"""Bytes of base files that a process keeps. Others are read for each look-up whose keys are in their range."""
MOST_HASHES = 8_000_000
"""Hashes of their keys that a process keeps, of four bytes each."""
_JOINED_ENTRIES = 65_536
"""Entries of a file that are joined, about 6 MB."""


class BaseFiles:
    """Opens base files of the newest slice, and keeps them and their key ranges until the next slice.

    Safe to share between threads.
    """

    def __init__(self, storage: Storage, most_bytes: int = MOST_BYTES, most_hashes: int = MOST_HASHES) -> None:
        self._storage = storage
        self._most_hashes = most_hashes
        self._hashes: dict[int, np.ndarray] = {}
        self._most_bytes = most_bytes
        self._base = ""
        self._files: dict[int, HFile] = {}
        self._ranges: dict[int, tuple[bytes, bytes | None]] = {}
        self._mutex = threading.Lock()

    def may_hold(self, part: MetadataPartition, group: int, low: bytes, high: bytes) -> bool:
        """Return whether the base file of a file group may hold a key between `low` and `high` (both inclusive). Reads nothing."""
        with self._mutex:
            known = self._ranges.get(group) if part.base == self._base else None
        return known is None or (known[0] <= high and (known[1] is None or low <= known[1]))

    def possible(self, part: MetadataPartition, group: int, hashes: np.ndarray) -> np.ndarray:
        """Return whether the base file of a file group may hold each key, by its hash as `string_hashes` returns it.

        Reads nothing.
        """
        with self._mutex:
            known = self._hashes.get(group) if part.base == self._base else None
        if known is None:
            return np.ones(len(hashes), dtype=bool)
        found: np.ndarray = known[np.minimum(np.searchsorted(known, hashes), len(known) - 1)] == hashes
        return found

    def look_up(self, part: MetadataPartition, group: int, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of the blocks that can hold one of `keys` (ascending), many blocks at a time. Errors as `open_base`."""
        file = self.open(part, group)
        with self._mutex:
            room = self._most_hashes - sum(map(len, self._hashes.values()))
            is_wanted = part.base == self._base and group not in self._hashes and file.entry_count <= room
        decoded, hashes = 0, list[np.ndarray]()
        for batch in _joined(file.blocks_of(keys)):
            decoded += batch.num_rows
            hashes += [_hashes_of(batch)] if is_wanted else []
            yield batch
        if is_wanted and decoded and 2 * decoded >= file.entry_count:
            known = hashes if decoded == file.entry_count else list(map(_hashes_of, _joined(file.entries())))
            with self._mutex:
                if part.base == self._base:
                    self._hashes[group] = np.sort(np.concatenate(known))

    def open(self, part: MetadataPartition, group: int) -> HFile:
        """Return the base file of a file group. Errors as `open_base`."""
        with self._mutex:
            if part.base == self._base and group in self._files:
                return self._files[group]
        found = open_base(self._storage, file_path(base_name(part.base, file_id_of(part.name, group)), part.name))
        with self._mutex:
            if part.base > self._base:
                self._base, self._files, self._ranges, self._hashes = part.base, {}, {}, {}
            # A look-up in an older slice keeps nothing.
            if part.base == self._base:
                self._ranges[group] = (found.first_key, found.last_key)
                if sum(file.size_bytes for file in self._files.values()) + found.size_bytes <= self._most_bytes:
                    self._files[group] = found
        return found


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join blocks: what a look-up does for each batch takes as long as to decode a block."""
    held, count = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= _JOINED_ENTRIES:
            yield from _combined(held)
            held, count = [], 0
    if held:
        yield from _combined(held)


def _combined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


def _hashes_of(entries: pa.RecordBatch) -> np.ndarray:
    return string_hashes(entries.column("key").cast(pa.string()))
