"""What a partition of the metadata table is: its keys, its file groups, and its records, from an entry or from the whole table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from tideline_table.index.java_hash import string_hashes
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import MetadataPartition
from tideline_table.log.state import TableState
from tideline_table.metadata_table.finding import Finding
from tideline_table.reader.read_plan import LogRule
from tideline_table.storage import Storage

MetadataRecord = tuple[bytes, bytes]
"""The key of a record, and its Avro datum (`HoodieMetadataRecord` with an empty `key`)."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one delta commit or of one base file."""

    updates: Sequence[MetadataRecord] = ()
    """In ascending order of key, each key once."""
    deletes: Sequence[str] = ()
    """Keys that a delete block removes; none of them is in `updates`."""

    def __bool__(self) -> bool:
        return bool(self.updates or self.deletes)


@dataclass(frozen=True, slots=True)
class Source:
    """The table from which records are derived, as of one entry of its log."""

    storage: Storage
    state: TableState
    """The state after the entry."""
    rule: LogRule = field(default_factory=LogRule)
    """How the log files of the table are merged."""


class PartitionKind(Protocol):
    """A kind of partition. Its methods depend on their arguments and on files named by the entry or state: equal input, equal records."""

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

    def compacted(self, source: Source, part: MetadataPartition, group: int) -> Sequence[MetadataRecord] | None:
        """Return what file group `group` holds when `part` begins its newest slice, without the delta commit of the last entry.

        None if only `whole` knows it.
        """
        ...

    def differences(self, source: Source, held: Mapping[bytes, bytes]) -> Iterable[Finding]:
        """Compare the live records `held` (key → datum) with the table. Not asked of the partition `files`."""
        ...


def groups_of_keys(keys: pa.ChunkedArray | pa.Array, file_groups: int) -> np.ndarray:
    """Return the number of the file group of each key: abs(abs(h) rem groups), h the 32-bit hash of Java (format reference 15.2)."""
    hashes = string_hashes(keys).view(np.int32).astype(np.int64)
    # In Java, the absolute value of the smallest int is negative; the outer abs makes its remainder positive.
    found: np.ndarray = np.abs(hashes) % file_groups
    return found


def by_group(records: Records, file_groups: int) -> list[Records]:
    """Return the records of each file group."""
    if file_groups == 1:
        return [records]
    updates: list[list[MetadataRecord]] = [[] for _ in range(file_groups)]
    deletes: list[list[str]] = [[] for _ in range(file_groups)]
    keys = pa.array([key for key, _ in records.updates], pa.binary()).cast(pa.string())
    for group, record in zip(groups_of_keys(keys, file_groups).tolist(), records.updates, strict=True):
        updates[group].append(record)
    for group, key in zip(
        groups_of_keys(pa.array(records.deletes, pa.string()), file_groups).tolist(), records.deletes, strict=True
    ):
        deletes[group].append(key)
    return [Records(found, gone) for found, gone in zip(updates, deletes, strict=True)]
