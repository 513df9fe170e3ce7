"""What a partition of the metadata table is: its keys, its file groups, and its records, from an entry or from the whole table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import ObjectNotFound
from tideline_table.hudi.format import TableFormat
from tideline_table.index.java_hash import string_hashes
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import MetadataPartition
from tideline_table.log.state import TableState
from tideline_table.log_format.hfile_entries import ENTRY_SCHEMA
from tideline_table.log_format.hfile_writer import JoinedEntries, batch_of
from tideline_table.metadata_table.finding import Finding
from tideline_table.reader.read_plan import LogRule
from tideline_table.storage import Storage

Result = TypeVar("Result")
_SHORT = 2**16
_MOST_JOINED = 100_000
"""Records that are joined for all file groups together, about 10 MB of the record index. More are joined for one file group at a
time."""
_MOST_OCTETS = 2**31 - 1
NO_RECORDS = pa.RecordBatch.from_arrays([pa.nulls(0, pa.binary())] * 2, schema=ENTRY_SCHEMA)


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one delta commit or of one base file."""

    updates: pa.RecordBatch = field(default_factory=lambda: NO_RECORDS)
    """Key and Avro datum (`HoodieMetadataRecord` with an empty `key`), in ascending order of key, each key once.

    The data may be encoded by dictionary: those of the record index are few.
    """
    deletes: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    """Keys that a delete block removes, in ascending order; none of them is in `updates`."""
    hashes: np.ndarray | None = field(default=None, compare=False)
    """The hashes of the keys of `updates`, then those of `deletes`, as `string_hashes` returns them; None if they were not
    computed."""
    joined: JoinedEntries | None = field(default=None, compare=False, repr=False)
    """`updates` as an HFile holds them; None if they were not joined."""

    def __len__(self) -> int:
        return int(self.updates.num_rows) + len(self.deletes)

    @classmethod
    def of(cls, updates: Iterable[tuple[bytes, bytes]] = (), deletes: Iterable[str] = ()) -> Records:
        """Return these records. Both arguments may be in any order."""
        return cls(batch_of(sorted(updates)), pa.array(sorted(deletes), pa.string()))


def newest_records(pieces: Sequence[tuple[pa.Array, pa.Array]]) -> pa.RecordBatch:
    """Merge keys and data, the oldest first: of several data of a key the last counts.

    A key whose last datum is null has no record.

    Keys are of the type `large_binary` if they do not fit into `binary`; `by_group` makes `binary` of them.
    """
    if not pieces:
        return NO_RECORDS
    keys, data = joined_octets([piece[0] for piece in pieces]), _concatenated([piece[1] for piece in pieces])
    order = pc.sort_indices(keys)  # equal keys stay in their order
    keys, data = keys.take(order), data.take(order)
    last = np.append(np.asarray(pc.not_equal(keys[1:], keys[:-1])), True) if len(keys) else np.empty(0, dtype=bool)
    if not last.all() or data.null_count:
        kept = pa.array(np.flatnonzero(last & np.asarray(data.is_valid())))
        keys, data = keys.take(kept), data.take(kept)
    return pa.RecordBatch.from_arrays([keys, data], names=ENTRY_SCHEMA.names)


def joined_octets(pieces: Sequence[pa.Array]) -> pa.Array:
    """Concatenate arrays of octets: as `binary`, or as `large_binary` if they are more than the offsets of the former can reach."""
    kind = pa.binary() if sum(piece.nbytes for piece in pieces) <= _MOST_OCTETS else pa.large_binary()
    return pa.concat_arrays([piece.cast(kind) for piece in pieces])


def _concatenated(data: Sequence[pa.Array]) -> pa.Array:
    """Concatenate data. All encoded by dictionary stay so, with the dictionaries one after the other."""
    if not all(isinstance(piece, pa.DictionaryArray) for piece in data):
        return joined_octets([piece.dictionary_decode() if isinstance(piece, pa.DictionaryArray) else piece for piece in data])
    firsts = np.cumsum([0, *(len(piece.dictionary) for piece in data[:-1])])
    codes = np.concatenate([np.asarray(piece.indices) + first for piece, first in zip(data, firsts, strict=True)])
    values = pa.concat_arrays([piece.dictionary for piece in data])
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), values)


def mapping_of(records: pa.RecordBatch) -> dict[bytes, bytes]:
    """Return key → datum."""
    return dict(zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True))


@dataclass(frozen=True, slots=True)
class IndexedColumns:
    """The columns of which a partition of column statistics has records."""

    required: tuple[str, ...]
    """A file has a record of each of them, or no record at all: Apache Hudi takes a column without a record for one of nulls
    only."""
    further: tuple[str, ...] | None = None
    """Other columns that Tideline's writers take statistics of. A file has records of all its statistics then, because Apache Hudi
    may index more columns later; None: of the required columns only."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(dict.fromkeys((*self.required, *(self.further or ()))))

    def of_file(self, known: Iterable[str]) -> tuple[str, ...]:
        """Return the columns of a file with statistics of the columns `known`."""
        return self.required if self.further is None else tuple(dict.fromkeys((*self.required, *known)))


@dataclass(frozen=True, slots=True)
class Source:
    """The table from which records are derived, as of one entry of its log."""

    storage: Storage
    form: TableFormat
    state: TableState
    """The state after the entry."""
    rule: LogRule = field(default_factory=LogRule)
    """How the log files of the table are merged."""
    indexed: IndexedColumns | None = None
    """The columns with statistics in a table that Apache Hudi also writes; None in others, whose table log names them."""


def unless_gone(path: str, leaving: Collection[str], read: Callable[[], Result | None]) -> Result | None:
    """Return what `read` returns for the data file at `path`.

    None if it is gone and among `leaving`, which a pending clean deletes.

    Another process that derives the records at another moment may find such a file, and its records: the end of the clean
    deletes them.
    """
    try:
        return read()
    except ObjectNotFound:
        if path not in leaving:
            raise
        return None


class PartitionKind(Protocol):
    """A kind of partition.

    Its methods depend on their arguments and on files named by the entry or state: equal input, equal records.
    """

    name: str
    """The name of the partition, and of its folder."""
    writes_every_delta: bool
    """Whether each delta commit has a log file in each file group, even without records."""

    def changed_by(self, source: Source, entry: Entry) -> Records:
        """Return what `entry`, the last one of the state, changes. Raises `ObjectNotFound` if a file of the entry is gone."""
        ...

    def whole(self, source: Source) -> Records:
        """Return what the partition holds after the last entry, from the table itself."""
        ...

    def compacted(self, source: Source, part: MetadataPartition, group: int) -> pa.RecordBatch | None:
        """Return what file group `group` holds when `part` begins its newest slice, without the delta commit of the last entry.

        None if only `whole` knows it.
        """
        ...

    def differences(self, source: Source, held: Mapping[bytes, bytes]) -> Iterable[Finding]:
        """Compare the live records `held` (key → datum) with the table. Not asked of the partition `files`."""
        ...


def groups_of_keys(keys: pa.ChunkedArray | pa.Array, file_groups: int) -> np.ndarray:
    """Return the number of the file group of each key.

    Abs(abs(h) rem groups), h the 32-bit hash of Java (format reference 15.2).
    """
    return groups_of_hashes(string_hashes(keys), file_groups)


def groups_of_hashes(hashes: np.ndarray, file_groups: int) -> np.ndarray:
    """Return the number of the file group of each key, by its hash as `string_hashes` returns it."""
    # In Java, the absolute value of the smallest int is negative; the outer abs makes its remainder positive.
    found: np.ndarray = np.abs(hashes.view(np.int32).astype(np.int64)) % file_groups
    return found


def by_group(records: Records, file_groups: int) -> list[Records]:
    """Return the records of each file group, with the hashes of their keys if there are several."""
    if file_groups == 1:
        return [replace(records, updates=_small(records.updates), deletes=records.deletes.cast(pa.string()))]
    updates, updates_from, held_hashes = _grouped(_texts(records.updates.column("key")), file_groups)
    deletes, deletes_from, gone_hashes = _grouped(records.deletes, file_groups)
    held, gone = records.updates.take(updates), records.deletes.take(deletes)
    is_joined = 0 < held.num_rows <= _MOST_JOINED and not any(pa.types.is_large_binary(column.type) for column in held.columns)
    joined = JoinedEntries.of(held) if is_joined else None
    return [
        Records(
            _small(held.slice(first, last - first)),
            gone.slice(begin, end - begin).cast(pa.string()),
            np.concatenate([held_hashes[first:last], gone_hashes[begin:end]]),
            joined.slice(first, last) if joined is not None and last > first else None,
        )
        for (first, last), (begin, end) in zip(pairwise(updates_from), pairwise(deletes_from), strict=True)
    ]


def _texts(octets: pa.Array) -> pa.Array:
    return octets.cast(pa.large_string() if pa.types.is_large_binary(octets.type) else pa.string())


def _small(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records of one file group, whose octets fit into `binary`: HFiles are smaller than 2 GiB."""
    columns = [held.cast(pa.binary()) if pa.types.is_large_binary(held.type) else held for held in records.columns]
    return pa.RecordBatch.from_arrays(columns, names=ENTRY_SCHEMA.names)


def _grouped(keys: pa.Array, file_groups: int) -> tuple[pa.Array, list[int], np.ndarray]:
    """Return the numbers of the keys, one file group after the other; where each group begins and the last one ends.

    And the hashes.
    """
    hashes = string_hashes(keys)
    groups = groups_of_hashes(hashes, file_groups)
    # NumPy sorts short integers without comparing them.
    order = np.argsort(groups.astype(np.uint16) if file_groups <= _SHORT else groups, kind="stable")
    return pa.array(order), np.searchsorted(groups[order], np.arange(file_groups + 1)).tolist(), hashes[order]
