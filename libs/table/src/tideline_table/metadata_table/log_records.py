"""The records in log files of the record index, which a process that stays open reads once: log files never change."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, Instant, State
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.index.java_hash import string_hashes
from tideline_table.log.metadata import Delta, MetadataPartition
from tideline_table.log_format.hfile import HFile
from tideline_table.log_format.hfile_entries import ENTRY_SCHEMA
from tideline_table.metadata_table.layout import file_id_of, file_path, log_name, timeline_path
from tideline_table.metadata_table.partition import Records
from tideline_table.metadata_table.reading import log_changes, names_in
from tideline_table.storage import Storage

MOST_RECORDS = 500_000
"""Records that a process keeps, about 100 MB. Log files beyond that are read for each look-up."""
_RECORDS_PER_KEY = 8
"""A log file with more records for each wanted key is not kept: only the blocks that can hold a key are decoded."""
_FEW_KEYS = 4
"""For so many keys of a file group, records that this process wrote are searched as they are, without a mapping of all of them."""
DELETED = b""
"""Stands for the datum of a deleted key."""

Changes = Sequence[tuple[Sequence[bytes], HFile | None]]
"""The blocks of a log file: the deleted keys, or the records, of each."""


class _HashFilter:
    """Which hashes were added: one that was not is reported for about 1 in 5,000 at 180,000 hashes, 1 in 50 at 500,000."""

    _BITS = 22
    _MULTIPLIERS = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F, 0x165667B1)

    def __init__(self) -> None:
        # Made by the first hash: a service holds thousands of tables open, most of which have no metadata table.
        self._held: np.ndarray | None = None
        self._mutex = threading.Lock()

    def add(self, hashes: np.ndarray) -> None:
        with self._mutex:  # threads that read the log files of several groups add at the same time
            if self._held is None:
                # Bytes instead of bits, which NumPy sets without a loop. Untouched pages take no memory.
                self._held = np.zeros(1 << self._BITS, dtype=bool)
        for multiplier in self._MULTIPLIERS:
            self._held[self._places(hashes, multiplier)] = True

    def may_hold(self, hashes: np.ndarray) -> np.ndarray:
        found, left = np.zeros(len(hashes), dtype=bool), np.arange(len(hashes))
        if self._held is None:
            return found
        for multiplier in self._MULTIPLIERS:
            left = left[self._held[self._places(hashes[left], multiplier)]]
        found[left] = True
        return found

    def _places(self, hashes: np.ndarray, multiplier: int) -> np.ndarray:
        # Near keys have near hashes; a product spreads them over the upper bits.
        places: np.ndarray = hashes * np.uint32(multiplier) >> np.uint32(32 - self._BITS)
        return places


@dataclass(slots=True)
class _Group:
    """The log files of a file group that were read, from the first of its slice on."""

    filter: _HashFilter
    """Of the file groups of one slice together: it has the hashes of all keys that are here."""
    versions: list[int] = field(default_factory=list)
    records: dict[bytes, bytes] = field(default_factory=dict)
    written: list[tuple[pa.Array, pa.Array]] = field(default_factory=list)
    """Newer keys (each array ascends) and data, not in `records` yet: most look-ups of new keys need none of them."""
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def add(self, keys: pa.Array, data: pa.Array, hashes: np.ndarray | None = None) -> None:
        self.filter.add(string_hashes(keys.cast(pa.string())) if hashes is None else hashes)
        self.written.append((keys, data))

    def look_up(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the datum of each key, None for a key without a record."""
        if len(keys) > _FEW_KEYS:
            self.merge()
        return [self._one(key) for key in keys] if self.written else list(map(self.records.get, keys))

    def merge(self) -> None:
        """Add `written` to `records`."""
        for keys, data in self.written:
            values = data if isinstance(data, pa.DictionaryArray) else pc.dictionary_encode(data)
            texts = values.dictionary.to_pylist()
            self.records.update(zip(keys.to_pylist(), [texts[at] for at in values.indices.to_pylist()], strict=True))
        self.written = []

    def _one(self, key: bytes) -> bytes | None:
        for keys, data in reversed(self.written):
            at = _place(keys, key)
            if at < len(keys) and keys[at].as_py() == key:
                found: bytes = data[at].as_py()
                return found
        return self.records.get(key)

    def __len__(self) -> int:
        return len(self.records) + sum(len(keys) for keys, _ in self.written)


def _place(keys: pa.Array, key: bytes) -> int:
    """Return the number of the first key that is not less than `key`. `keys` ascend."""
    return bisect.bisect_left(range(len(keys)), key, key=lambda each: bytes(keys[each].as_py()))


class LogRecords:
    """Looks keys up in log files of the newest slice, and keeps their records until the next slice.

    Safe to share between threads.
    """

    def __init__(self, storage: Storage, form: TableFormat, most_records: int = MOST_RECORDS) -> None:
        self._storage = storage
        self.form = form
        self._most_records = most_records
        self._base = ""
        self._filter = _HashFilter()
        self._groups: dict[int, _Group] = {}
        self._written: dict[tuple[int, int], Records] = {}
        self._mutex = threading.Lock()
        self.recorded: dict[str, frozenset[str]] = {}
        """The names of the files that completed instants of the newest slice record, by path, as far as this process knows them."""

    def add_written(self, part: MetadataPartition, group: int, version: int, records: Records) -> None:
        """Take the records of a log file that this process just wrote, so that the next look-up need not read it."""
        self._group(part.base, group)
        with self._mutex:
            if part.base == self._base and self._count() + len(records) <= self._most_records:
                self._written[group, version] = replace(records, joined=None)

    def add_recorded(self, part: MetadataPartition, delta: Delta, stats: Sequence[WriteStat]) -> None:
        """Take the names of the files that an instant records which this process completed."""
        with self._mutex:
            if part.base == self._base:
                path = timeline_path(self.form, Instant(delta.instant, Action.DELTA_COMMIT, State.COMPLETED), delta.completion)
                self.recorded[path] = names_in(stats, part.name)

    def possible(
        self, part: MetadataPartition, versions: Sequence[Sequence[int]], hashes: np.ndarray
    ) -> tuple[np.ndarray, list[int]]:
        """Return whether each key may have a record, by its hash, and the file groups whose log files must be read to know it.

        `versions` are those of the log files of each file group, ascending, and `hashes` the keys' as Java computes them. Reads
        nothing.
        """
        unread, found = [], np.zeros(len(hashes), dtype=bool)
        filters: list[_HashFilter] = []
        for group, wanted in enumerate(versions):
            known = self._group(part.base, group)
            with known.mutex:
                if known.versions == list(wanted[: len(known.versions)]):
                    self._take_written(known, part, group, wanted)
                if known.versions == list(wanted):
                    filters += [] if known.filter in filters else [known.filter]
                else:
                    unread.append(group)
        for each in filters:
            found |= each.may_hold(hashes)
        return found, unread

    def look_up(
        self, part: MetadataPartition, group: int, versions: Sequence[int], keys: Sequence[bytes]
    ) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield keys and data of records that can concern `keys` (ascending), older ones first; `DELETED` for deleted keys.

        `versions` are those of the log files of the file group, ascending. Errors as `read_group`.
        """
        known = self._group(part.base, group)
        rest: Iterable[Changes] = (self._changes(part, group, version) for version in versions)
        data = pa.nulls(len(keys), pa.binary())
        with known.mutex:
            # Another thread may already have read files of a newer state, which the caller does not ask for.
            if list(versions[: len(known.versions)]) == known.versions:
                rest = self._read_on(known, part, group, versions, keys)
                data = pa.array(known.look_up(keys), pa.binary())
        held = data.is_valid()
        yield pa.array(keys, pa.binary()).filter(held), data.filter(held)
        for changes in rest:
            yield from _pieces(changes, keys)

    def _group(self, base: str, group: int) -> _Group:
        with self._mutex:
            if base > self._base:
                self._base, self._filter, self._groups, self._written = base, _HashFilter(), {}, {}
                self.recorded = {}
            # A look-up in an older slice keeps nothing.
            own = base == self._base
            return self._groups.setdefault(group, _Group(self._filter)) if own else _Group(_HashFilter())

    def _take_written(self, known: _Group, part: MetadataPartition, group: int, versions: Sequence[int]) -> None:
        """Keep the records of further log files up to the first one that must be read."""
        for version in versions[len(known.versions) :]:
            with self._mutex:
                written = self._written.pop((group, version), None) if part.base == self._base else None
            if written is None:
                return
            for found, data, hashes in _pieces_of(written):
                known.add(found, data, hashes)
            known.versions.append(version)

    def _read_on(
        self, known: _Group, part: MetadataPartition, group: int, versions: Sequence[int], keys: Sequence[bytes]
    ) -> Iterable[Changes]:
        """Keep the records of further log files. Return the changes of those that are not kept."""
        while True:
            self._take_written(known, part, group, versions)
            if len(known.versions) == len(versions):
                return ()
            version = versions[len(known.versions)]
            changes = self._changes(part, group, version)
            count = sum(len(gone) + (content.entry_count if content is not None else 0) for gone, content in changes)
            if count > _RECORDS_PER_KEY * len(keys) or count + self._count() > self._most_records:
                later = versions[len(known.versions) + 1 :]
                return itertools.chain([changes], (self._changes(part, group, other) for other in later))
            # All blocks are read before the first one counts: a damaged one leaves nothing half done.
            for found, data in list(_pieces(changes)):
                known.add(found, data)
            # Only what this process wrote is known to ascend.
            known.merge()
            known.versions.append(version)

    def _count(self) -> int:
        kept = sum(len(known) for known in list(self._groups.values()))
        return kept + sum(len(records) for records in list(self._written.values()))

    def _changes(self, part: MetadataPartition, group: int, version: int) -> Changes:
        delta = next((known for known in part.deltas if known.version == version), Delta(part.base, version))
        name = log_name(self.form, part.base, delta, file_id_of(part.name, group))
        return list(log_changes(self._storage, file_path(name, part.name)))


def _pieces_of(records: Records) -> Iterator[tuple[pa.Array, pa.Array, np.ndarray | None]]:
    count, hashes = records.updates.num_rows, records.hashes
    if count:
        yield records.updates.column("key"), records.updates.column("value"), hashes if hashes is None else hashes[:count]
    if len(records.deletes):
        gone = records.deletes.cast(pa.binary())
        yield gone, pa.array([DELETED] * len(gone), pa.binary()), hashes if hashes is None else hashes[count:]


def _pieces(changes: Changes, keys: Sequence[bytes] | None = None) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield keys and data of each block; with `keys`, of those parts that can hold one of them."""
    for gone, content in changes:
        if len(gone):
            yield pa.array(gone, pa.binary()), pa.array([DELETED] * len(gone), pa.binary())
        if content is not None:
            batches = content.entries() if keys is None else content.blocks_of(keys)
            entries = pa.Table.from_batches(batches, schema=ENTRY_SCHEMA).combine_chunks()
            for batch in entries.to_batches():
                yield batch.column("key"), batch.column("value")
