"""The records in log files of the record index, which a process that stays open reads once: log files never change."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.log.metadata import MetadataPartition
from tideline_table.log_format.hfile import ENTRY_SCHEMA, HFile
from tideline_table.metadata_table.layout import file_id_of, file_path, log_name
from tideline_table.metadata_table.partition import Records
from tideline_table.metadata_table.reading import log_changes
from tideline_table.storage import Storage

MOST_RECORDS = 500_000
"""Records that a process keeps, about 100 MB. Log files beyond that are read for each look-up."""
_RECORDS_PER_KEY = 8
"""A log file with more records for each wanted key is not kept: only the blocks that can hold a key are decoded."""
DELETED = b""
"""Stands for the datum of a deleted key."""

Changes = Sequence[tuple[Sequence[bytes], HFile | None]]
"""The blocks of a log file: the deleted keys, or the records, of each."""


@dataclass(slots=True)
class _Group:
    """The log files of a file group that were read, from the first of its slice on."""

    versions: list[int] = field(default_factory=list)
    records: dict[bytes, bytes] = field(default_factory=dict)
    mutex: threading.Lock = field(default_factory=threading.Lock)


class LogRecords:
    """Looks keys up in log files of the newest slice, and keeps their records until the next slice. Safe to share between threads."""

    def __init__(self, storage: Storage, most_records: int = MOST_RECORDS) -> None:
        self._storage = storage
        self._most_records = most_records
        self._base = ""
        self._groups: dict[int, _Group] = {}
        self._written: dict[tuple[int, int], Records] = {}
        self._mutex = threading.Lock()

    def add_written(self, part: MetadataPartition, group: int, version: int, records: Records) -> None:
        """Take the records of a log file that this process just wrote, so that the next look-up need not read it."""
        self._group(part.base, group)
        with self._mutex:
            if part.base == self._base and self._count() + len(records) <= self._most_records:
                self._written[group, version] = records

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
                data = pa.array(map(known.records.get, keys), pa.binary())
        held = data.is_valid()
        yield pa.array(keys, pa.binary()).filter(held), data.filter(held)
        for changes in rest:
            yield from _pieces(changes, keys)

    def _group(self, base: str, group: int) -> _Group:
        with self._mutex:
            if base > self._base:
                self._base, self._groups, self._written = base, {}, {}
            # A look-up in an older slice keeps nothing.
            return self._groups.setdefault(group, _Group()) if base == self._base else _Group()

    def _read_on(
        self, known: _Group, part: MetadataPartition, group: int, versions: Sequence[int], keys: Sequence[bytes]
    ) -> Iterable[Changes]:
        """Keep the records of further log files. Return the changes of those that are not kept."""
        for version in versions[len(known.versions) :]:
            written = self._taken(part.base, group, version)
            changes = self._changes(part, group, version) if written is None else ()
            count = sum(len(gone) + (content.entry_count if content is not None else 0) for gone, content in changes)
            if count > _RECORDS_PER_KEY * len(keys) or count + self._count() > self._most_records:
                later = versions[len(known.versions) + 1 :]
                return itertools.chain([changes], (self._changes(part, group, other) for other in later))
            # All blocks are read before the first one counts: a damaged one leaves nothing half done.
            for found, data in list(_pieces(changes)) if written is None else _pieces_of(written):
                values = pc.dictionary_encode(data)
                texts = values.dictionary.to_pylist()
                known.records.update(zip(found.to_pylist(), [texts[at] for at in values.indices.to_pylist()], strict=True))
            known.versions.append(version)
        return ()

    def _taken(self, base: str, group: int, version: int) -> Records | None:
        with self._mutex:
            return self._written.pop((group, version), None) if base == self._base else None

    def _count(self) -> int:
        kept = sum(len(known.records) for known in list(self._groups.values()))
        return kept + sum(len(records) for records in list(self._written.values()))

    def _changes(self, part: MetadataPartition, group: int, version: int) -> Changes:
        name = log_name(part.base, version, file_id_of(part.name, group))
        return list(log_changes(self._storage, file_path(name, part.name)))


def _pieces_of(records: Records) -> Iterator[tuple[pa.Array, pa.Array]]:
    yield records.updates.column("key"), records.updates.column("value")
    yield records.deletes.cast(pa.binary()), pa.array([DELETED] * len(records.deletes), pa.binary())


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
