"""Look record keys up in the record index: only the file groups, and in their base files only the blocks, that can hold them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import CorruptMetadata, MetadataDamaged, ObjectNotFound, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.properties import METADATA_PARTITIONS, read_properties
from tideline_table.index.java_hash import string_hashes
from tideline_table.index.simple import Location
from tideline_table.log.metadata import RECORD_INDEX, MetadataPartition
from tideline_table.log.state import TableState
from tideline_table.metadata_table.base_files import BaseFiles
from tideline_table.metadata_table.log_records import DELETED, LogRecords
from tideline_table.metadata_table.partition import groups_of_hashes
from tideline_table.metadata_table.reading import GroupFiles, recorded_group, recorded_names
from tideline_table.metadata_table.record_index import RecordLocation, decode_location
from tideline_table.schema.arrow import one_chunk
from tideline_table.storage import Storage

_LOGGER = logging.getLogger(__name__)
_AT_ONCE = 8
"""File groups of the index that are read at the same time."""
CREATE = "create it: tideline metadata create PATH --type record_index"
REPAIR = "make it anew: tideline check PATH --repair"


@dataclass(frozen=True, slots=True)
class LocatedKeys:
    """Where keys are, by the record index."""

    places: np.ndarray
    """The number of the location of each key in `locations`, -1 for a key that the table does not hold."""
    locations: tuple[RecordLocation, ...]


class RecordIndex:
    """Reads the record index of a table, and remembers which files its instants record, and the records of log files.

    Safe to share between threads.
    """

    def __init__(self, storage: Storage, logs: LogRecords) -> None:
        """`logs` keeps the records of log files; those that this process writes, too, if its timeline adds them."""
        self._storage = storage
        self._logs = logs
        self._bases = BaseFiles(storage)
        self._recorded: tuple[MetadataPartition, frozenset[str]] | None = None

    def locate(
        self,
        part: MetadataPartition | None,
        among: Callable[[Iterable[FileGroupId]], Iterable[FileSlice]],
        keys: pa.ChunkedArray | pa.Array,
    ) -> Location:
        """Return which slices of the table hold `keys` (each once). `among` returns the visible slices of some file groups.

        `part` is the index on the same state of the table, None if it has none; every entry of this state has its timeline
        files. Raises `MetadataDamaged` if the index is missing, cannot be read, or names a file group that is not visible; also if
        so many writes followed that files of `part` were deleted.
        """
        wanted = one_chunk(keys)
        by_group = self._by_group(_present(part), wanted)
        held = {found.group: found for found in among(by_group)}
        if unknown := by_group.keys() - held.keys():
            raise _contradiction(min(unknown))
        return Location(tuple(held[group] for group in by_group), tuple(by_group.values()), len(wanted))

    def narrowed(
        self, state: TableState, visible: Sequence[FileSlice], slices: Sequence[FileSlice], keys: pa.Array
    ) -> tuple[FileSlice, ...]:
        """Return those of `slices` that hold one of `keys`, where `slices` are some of the `visible` ones of a query.

        All of them if the query shows another state than `state`, or, with a warning, if the index cannot be used.
        """
        try:
            part = _present(record_index_of(state))
            if tuple(visible) != tuple(state.latest_slices()):
                return tuple(slices)
            groups = self._by_group(part, keys).keys()
            if unknown := groups - {found.group for found in visible}:
                raise _contradiction(min(unknown))
        except MetadataDamaged as error:
            _LOGGER.warning("keys are looked up without the record index: %s", error)
            return tuple(slices)
        return tuple(found for found in slices if found.group in groups)

    def _by_group(self, part: MetadataPartition, wanted: pa.Array) -> dict[FileGroupId, np.ndarray]:
        """Return file group → the numbers of the keys that are there, ascending. Raises `MetadataDamaged`."""
        try:
            found = self.look_up(part, wanted)
        except (CorruptMetadata, ObjectNotFound, UnsupportedTable) as error:
            raise MetadataDamaged(
                f"a record index that cannot be read ({error.found})", expected=error.expected, remedy=REPAIR
            ) from error
        if not found.locations:
            return {}
        hits: dict[FileGroupId, list[np.ndarray]] = {}
        order = np.argsort(found.places, kind="stable")
        bounds = np.searchsorted(found.places[order], np.arange(len(found.locations) + 1))
        for number, location in enumerate(found.locations):
            hits.setdefault(location.group, []).append(order[bounds[number] : bounds[number + 1]])
        joined = {group: np.sort(np.concatenate(pieces)) for group, pieces in hits.items()}
        return {group: numbers for group, numbers in joined.items() if len(numbers)}

    def look_up(self, part: MetadataPartition, wanted: pa.Array) -> LocatedKeys:
        """Return the location of each key in the newest slice of `part`. Raises `CorruptMetadata`, `ObjectNotFound`."""
        octets = wanted.cast(pa.string()).cast(pa.binary())
        groups, rows = self._possible(part, octets, self._names(part))

        def one(at: int) -> tuple[np.ndarray, list[bytes]]:
            number, held = groups[at]
            return self._in_group(part, number, held, octets.take(pa.array(rows[at])))

        if len(groups) > 1:
            with ThreadPoolExecutor(min(_AT_ONCE, len(groups)), thread_name_prefix="record-index") as pool:
                found = list(pool.map(one, range(len(groups))))
        else:
            found = [one(at) for at in range(len(groups))]
        places, data = np.full(len(wanted), -1, dtype=np.int64), dict[bytes, int]()
        for at, (codes, values) in enumerate(found):
            own = np.array([data.setdefault(value, len(data)) for value in values], dtype=np.int64)
            known = codes >= 0
            places[rows[at][known]] = own[codes[known]]
        return LocatedKeys(places, tuple(decode_location(datum) for datum in data))

    def _possible(
        self, part: MetadataPartition, wanted: pa.Array, names: AbstractSet[str]
    ) -> tuple[list[tuple[int, GroupFiles]], list[np.ndarray]]:
        """Return the file groups that may hold keys, and the numbers of these keys.

        Decides by what is in memory, and reads nothing.
        """
        hashes = string_hashes(wanted.cast(pa.string()))
        groups = groups_of_hashes(hashes, part.file_groups)
        held = [recorded_group(self._logs.form, part, group, names) for group in range(part.file_groups)]
        possible, unread = self._logs.possible(part, [[*files.versions] for files in held], hashes)
        low, high = pc.min_max(wanted).as_py().values()
        whole = np.zeros(part.file_groups, dtype=bool)
        whole[unread] = True
        for group, files in enumerate(held):
            if files.has_base and self._bases.may_hold(part, group, low, high):
                own = np.flatnonzero(groups == group)
                possible[own] |= self._bases.possible(part, group, hashes[own])
        chosen = np.flatnonzero(possible | whole[groups])
        of_group = groups[chosen]
        rows = [chosen[of_group == group] for group in range(part.file_groups)]
        found = [group for group in range(part.file_groups) if len(rows[group])]
        return [(group, held[group]) for group in found], [rows[group] for group in found]

    def _in_group(self, part: MetadataPartition, group: int, files: GroupFiles, wanted: pa.Array) -> tuple[np.ndarray, list[bytes]]:
        """Return for each key the number of its datum among the second value, or -1."""
        codes, data = np.full(len(wanted), -1, dtype=np.int64), {DELETED: -1}
        keys = wanted.take(pc.sort_indices(wanted)).to_pylist()

        def take(found: pa.Array, values: pa.Array) -> None:
            at = pc.index_in(found, value_set=wanted)
            held = np.flatnonzero(np.asarray(at.is_valid()))
            if len(held):
                coded = pc.dictionary_encode(values.take(pa.array(held)))
                own = [data.setdefault(value, len(data) - 1) for value in coded.dictionary.to_pylist()]
                codes[np.asarray(at.drop_null())] = np.array(own, dtype=np.int64)[np.asarray(coded.indices)]

        if files.has_base and self._bases.may_hold(part, group, keys[0], keys[-1]):
            for batch in self._bases.look_up(part, group, keys):
                take(batch.column("key"), batch.column("value"))
        for found, values in self._logs.look_up(part, group, [*files.versions], keys):
            take(found, values)
        return codes, [*data][1:]

    def _names(self, part: MetadataPartition) -> frozenset[str]:
        known = self._recorded
        if known is None or known[0] != part:
            self._recorded = known = (part, recorded_names(self._storage, self._logs.form, part, known=self._logs.recorded))
        return known[1]


def record_index_of(state: TableState) -> MetadataPartition | None:
    """Return the record index of a table, None if it has none."""
    return state.metadata.partition(RECORD_INDEX) if state.metadata is not None else None


def is_advertised(storage: Storage, part: MetadataPartition) -> bool:
    """Return whether the properties of the table name a partition.

    They cease to before its files are deleted, by a drop or a repair.
    """
    return part.name in read_properties(storage).get(METADATA_PARTITIONS, "").split(",")


def _present(part: MetadataPartition | None) -> MetadataPartition:
    if part is None:
        raise MetadataDamaged("a table without a record index", expected="one", remedy=CREATE)
    return part


def _contradiction(group: FileGroupId) -> MetadataDamaged:
    return MetadataDamaged(
        f"a record index that names file group {group.file_id} in {group.partition_path!r}",
        expected="file groups of the table that were not replaced",
        remedy=REPAIR,
    )
