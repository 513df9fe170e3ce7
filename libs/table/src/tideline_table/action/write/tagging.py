"""Tagging: which rows of an input belong to which partition, and which file groups hold their keys there.

With a global index, keys are looked up in all partitions. If another partition holds a row's key, the options decide: the row
moves, deleted there regardless of ordering values and written to its own partition, or it is written where the key is. Where
ordering values decide, a row that loses to the stored row changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.action.write.choices import meets_record_index
from tideline_table.action.write.executor import WriteExecutor
from tideline_table.action.write.live_keys import deleted_keys, split_by_life, without_deleted
from tideline_table.config import INSERT_DUP_POLICY, Options, bulk_order
from tideline_table.errors import DuplicateKey, MetadataDamaged, WriteConflict
from tideline_table.file_group.slice import FileSlice
from tideline_table.index.bucket import BucketIndex, rows_by_bucket
from tideline_table.index.scope import KeyScope, asks_filters, asks_record_index, moves_rows
from tideline_table.index.simple import BucketPlace, Location, PlaceT, partition_rows
from tideline_table.log.metadata import MetadataPartition
from tideline_table.log.state import TableState
from tideline_table.merge import MergeMode, deleted_mask, lies_on_top
from tideline_table.metadata_table import is_advertised, record_index_of
from tideline_table.reader.file_slice import read_slice
from tideline_table.schema.arrow import one_chunk, top_columns
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.table.definition import TableView
from tideline_table.table.facade import Table
from tideline_table.writer import Operation, PreparedInput
from tideline_table.writer.input import with_purges


@dataclass(frozen=True, slots=True)
class TaggedInput(Generic[PlaceT]):
    """The rows of one attempt, with places and locations in the form that `route_input` takes."""

    rows: pa.Table
    """The rows of `PreparedInput.rows`, followed by deletions of rows that move away."""
    by_place: Mapping[PlaceT, np.ndarray]
    locations: Mapping[PlaceT, Location]
    slices: Mapping[PlaceT, Sequence[FileSlice]]


@dataclass(frozen=True, slots=True)
class _IndexedState:
    """The state of a table and its record index at the same sequence, of which each entry had its timeline files."""

    part: MetadataPartition | None
    state: TableState

    @classmethod
    def of(cls, table: Table) -> _IndexedState:
        """Complete the last entry of the log, which this may read first, and return what the table is then."""
        with table.timeline.healed() as state:
            return cls(record_index_of(state), state.copy())

    def locate(self, table: Table, keys: pa.ChunkedArray) -> Location:
        """Return which slices hold these keys, by the record index."""
        return table.record_index.locate(self.part, self.state.latest_among, keys)


def tag_input(
    table: Table, view: TableView, prepared: PreparedInput, operation: Operation, executor: WriteExecutor
) -> TaggedInput[str]:
    """Tag `prepared` on the current state of `table`, with the options of `view`.

    Raises `DuplicateKey` if the duplicate policy refuses a key.

    With the record index: raises `MetadataDamaged` if it cannot be used, `WriteConflict` if it is dropped or repaired meanwhile.
    Threads that share the table may go on writing to it.
    """
    if not asks_record_index(view.options) or not view.capabilities.log_is_truth:
        # Apache Hudi's writers may have compacted and cleaned the index of a shared table since: its keys are looked up in data
        # files.
        return _tagged(table, view, prepared, operation, executor, None)
    indexed = _IndexedState.of(table)
    while True:
        try:
            return _tagged(table, view, prepared, operation, executor, indexed)
        except MetadataDamaged as error:
            if indexed.part is not None and not is_advertised(table.storage, indexed.part):
                raise WriteConflict(
                    "the record index is dropped or made anew while this write runs",
                    with_instant="",
                    expected="the index by which this write began to look keys up",
                    remedy="retry; if the process that does it died: tideline check PATH --repair",
                ) from error
            # Files of the index are deleted after some more writes.
            now = _IndexedState.of(table)
            if now.part == indexed.part:
                raise
            indexed = now


def _tagged(
    table: Table,
    view: TableView,
    prepared: PreparedInput,
    operation: Operation,
    executor: WriteExecutor,
    indexed: _IndexedState | None,
) -> TaggedInput[str]:
    """`indexed` is the state to tag on, None without a record index of Tideline."""
    options = view.options
    by_partition = dict(partition_rows(prepared.partition_paths)) if prepared.rows.num_rows else {}
    if operation is Operation.BULK_INSERT:
        by_partition = {name: _sorted(prepared.rows, numbers, options) for name, numbers in by_partition.items()}
    policy = "none" if operation.overwrites else options[INSERT_DUP_POLICY]
    looks_up = operation.looks_up_keys or policy != "none"
    everywhere = looks_up and prepared.scope is KeyScope.TABLE
    slices: dict[str, list[FileSlice]] = {name: [] for name in by_partition}
    found: Location | None = None
    asked = set(by_partition)
    if everywhere and by_partition and indexed is not None:
        found = indexed.locate(table, prepared.keys)  # it has no keys that log files deleted
        asked.update(file_slice.group.partition_path for file_slice in found.slices)
    state = table.state if indexed is None else indexed.state
    for file_slice in state.latest_slices(partitions=None if everywhere and indexed is None else asked):
        slices.setdefault(file_slice.group.partition_path, []).append(file_slice)
    rows, locations = prepared.rows, dict[str, Location]()
    if operation.overwrites and meets_record_index(view):
        _check_overwrite(table, prepared, operation, by_partition, indexed, executor)
    if everywhere and by_partition:
        if found is None:
            found = _found_anywhere(table, prepared, slices, executor, by_filters=asks_filters(options))
        if operation.looks_up_keys:
            placed = _Placement(prepared, found)
            if moves_rows(options) and operation is not Operation.DELETE:
                placed.move(table)
            rows, by_partition = placed.rows, placed.by_partition()
            locations = placed.locations(by_partition)
        else:
            known = ~found.absent
            _refuse(int(known.sum()), policy)
            by_partition = {name: numbers[~known[numbers]] for name, numbers in by_partition.items()}
    elif looks_up:
        wanted = {name: prepared.keys.take(pa.array(numbers)) for name, numbers in by_partition.items()}
        within = executor.locate(table, wanted, slices, by_filters=asks_filters(options))
        locations = {name: without_deleted(table, within[name], keys) for name, keys in wanted.items()}
        if not operation.looks_up_keys:
            by_partition, locations = without_known(table, wanted, by_partition, locations, policy)
    return TaggedInput(rows, by_partition, locations, slices)


def tag_for_buckets(
    table: Table, prepared: PreparedInput, named: Operation, operation: Operation, options: Options, executor: WriteExecutor
) -> TaggedInput[str]:
    """Return the rows by partition, for a table with a bucket index.

    Reads no file, unless a duplicate policy asks which keys exist.

    `named` is the operation that the caller chose, `operation` the one by which rows are written. Raises as `tag_input`.
    """
    by_partition, slices = _by_partition(table, prepared, named, options)
    if not operation.looks_up_keys and not operation.overwrites:
        wanted = {name: prepared.keys.take(pa.array(numbers)) for name, numbers in by_partition.items()}
        located = executor.locate(table, wanted, slices)
        by_partition, _ = without_known(table, wanted, by_partition, located, options[INSERT_DUP_POLICY])
    return TaggedInput(prepared.rows, by_partition, {}, slices)


def tag_in_buckets(
    table: Table,
    prepared: PreparedInput,
    named: Operation,
    operation: Operation,
    options: Options,
    executor: WriteExecutor,
    index: BucketIndex,
) -> TaggedInput[BucketPlace]:
    """Look the keys of each bucket up in its file groups, by key ranges and Bloom filters: no file of another bucket is read.

    Arguments and errors as for `tag_for_buckets`; raises `UnsupportedTable` for file groups that the index does not allow.
    """
    by_partition, of_partition = _by_partition(table, prepared, named, options)
    codes = index.hash_codes(prepared.keys)
    by_place: dict[BucketPlace, np.ndarray] = {}
    slices: dict[BucketPlace, Sequence[FileSlice]] = {}
    for partition, rows in by_partition.items():
        own = index.in_partition(partition)
        held = {} if operation.overwrites else own.groups(of_partition[partition])
        for bucket, positions in rows_by_bucket(own.buckets_of(codes[rows])):
            place = BucketPlace(partition, bucket)
            by_place[place] = rows[positions]
            slices[place] = held.get(bucket, ())
    locations: Mapping[BucketPlace, Location] = {}
    policy = "none" if operation.overwrites else options[INSERT_DUP_POLICY]
    if operation.looks_up_keys or policy != "none":
        wanted = {place: prepared.keys.take(pa.array(numbers)) for place, numbers in by_place.items()}
        found = executor.locate(table, wanted, slices, by_filters=True)
        locations = {place: without_deleted(table, found[place], keys) for place, keys in wanted.items()}
        if not operation.looks_up_keys:
            by_place, locations = without_known(table, wanted, by_place, locations, policy)
    return TaggedInput(prepared.rows, by_place, locations, slices)


def _by_partition(
    table: Table, prepared: PreparedInput, named: Operation, options: Options
) -> tuple[dict[str, np.ndarray], dict[str, list[FileSlice]]]:
    """Return the numbers of the rows of each partition, in the order in which `named` writes them, and its visible slices."""
    by_partition = dict(partition_rows(prepared.partition_paths)) if prepared.rows.num_rows else {}
    if named is Operation.BULK_INSERT:
        by_partition = {name: _sorted(prepared.rows, numbers, options) for name, numbers in by_partition.items()}
    slices: dict[str, list[FileSlice]] = {name: [] for name in by_partition}
    for file_slice in table.state.latest_slices(partitions=by_partition):
        slices[file_slice.group.partition_path].append(file_slice)
    return by_partition, slices


def _found_anywhere(
    table: Table, prepared: PreparedInput, slices: Mapping[str, Sequence[FileSlice]], executor: WriteExecutor, *, by_filters: bool
) -> Location:
    """Return where the visible keys are. A key deleted in a log file counts as absent, so that re-adding it is an insert."""
    keys = prepared.keys
    held = {name: found for name, found in slices.items() if found}
    located = executor.locate(table, dict.fromkeys(held, keys), held, by_filters=by_filters)
    kept: list[FileSlice] = []
    live: list[np.ndarray] = []
    for name in held:
        for file_slice, hits in zip(located[name].slices, located[name].hits, strict=True):
            shown = hits[~deleted_keys(table, file_slice, keys.take(pa.array(hits)))]
            if len(shown):
                kept.append(file_slice)
                live.append(shown)
    return Location(tuple(kept), tuple(live), len(keys))


def _check_overwrite(
    table: Table,
    prepared: PreparedInput,
    operation: Operation,
    partitions: Collection[str],
    indexed: _IndexedState | None,
    executor: WriteExecutor,
) -> None:
    """Raise `DuplicateKey` if partitions that stay hold a key of the new rows: the record index has one place for a key."""
    if operation is Operation.INSERT_OVERWRITE_TABLE or not len(prepared.keys):
        return
    if indexed is not None:
        located = indexed.locate(table, prepared.keys)
    else:
        others: dict[str, list[FileSlice]] = {}
        for file_slice in table.state.each_latest():
            if file_slice.group.partition_path not in partitions:
                others.setdefault(file_slice.group.partition_path, []).append(file_slice)
        located = _found_anywhere(table, prepared, others, executor, by_filters=False)
    for found in located.slices:
        if found.group.partition_path not in partitions:
            raise DuplicateKey(
                f"an overwrite with keys that partition {found.group.partition_path!r} holds, too",
                expected="keys that no other partition holds: the record index has one place for each",
                remedy="upsert these rows, or delete them there first",
            )


@dataclass(slots=True)
class _Placement:
    """Where rows go after a look-up in all partitions, by row number: `_updates` per slice, the rest to their own partitions."""

    prepared: PreparedInput
    found: Location
    rows: pa.Table = field(init=False)
    _updates: list[np.ndarray] = field(init=False)
    _settled: np.ndarray = field(init=False)
    """True for each input row that is written only as an update of the slices that hold its key."""

    def __post_init__(self) -> None:
        self.rows = self.prepared.rows
        self._updates = list(self.found.hits)
        self._settled = ~self.found.absent

    def move(self, table: Table) -> None:
        """Move rows found in other partitions to their own partition, except deletions and rows that lose by ordering value."""
        stays = deleted_mask(self.prepared.rows)
        elsewhere = [self._elsewhere(s, hits, stays) for s, hits in zip(self.found.slices, self.found.hits, strict=True)]
        beaten = np.zeros(len(stays), dtype=bool)
        for file_slice, hits in zip(self.found.slices, elsewhere, strict=True):
            beaten[hits[~self._wins(table, file_slice, hits)]] = True
        leaving: list[np.ndarray] = []
        for at, hits in enumerate(elsewhere):
            left = hits[~beaten[hits]]
            kept = np.setdiff1d(self.found.hits[at][~beaten[self.found.hits[at]]], left, assume_unique=True)
            purges = np.arange(len(left)) + self.prepared.rows.num_rows + sum(map(len, leaving))
            leaving.append(left)
            self._updates[at] = np.concatenate([kept, purges])
        moved = np.concatenate([np.empty(0, dtype=np.int64), *leaving])
        # In its own partition the row is an update if that partition holds the key, too.
        self._settled[moved] = False
        if len(moved):
            self.rows = with_purges(self.rows, self.prepared.keys.take(pa.array(moved)))

    def by_partition(self) -> dict[str, np.ndarray]:
        """Return the numbers of the rows of each partition, ascending."""
        pieces: dict[str, list[np.ndarray]] = {}
        for file_slice, numbers in zip(self.found.slices, self._updates, strict=True):
            pieces.setdefault(file_slice.group.partition_path, []).append(numbers)
        for name, numbers in partition_rows(self.prepared.partition_paths).items():
            pieces.setdefault(name, []).append(numbers[~self._settled[numbers]])
        return {name: _ascending(np.concatenate(parts)) for name, parts in pieces.items()}

    def locations(self, numbers: Mapping[str, np.ndarray]) -> dict[str, Location]:
        """Return the updates of each partition, by position among its rows; `numbers` is as of `by_partition`."""
        held: dict[str, list[tuple[FileSlice, np.ndarray]]] = {}
        for file_slice, updated in zip(self.found.slices, self._updates, strict=True):
            name = file_slice.group.partition_path
            if len(updated):
                held.setdefault(name, []).append((file_slice, np.searchsorted(numbers[name], np.sort(updated))))
        return {
            name: Location(tuple(s for s, _ in hits), tuple(h for _, h in hits), len(numbers[name])) for name, hits in held.items()
        }

    def _elsewhere(self, file_slice: FileSlice, hits: np.ndarray, stays: np.ndarray) -> np.ndarray:
        own = np.asarray(pc.equal(self.prepared.partition_paths.take(pa.array(hits)), file_slice.group.partition_path))
        chosen: np.ndarray = hits[~own & ~stays[hits]]
        return chosen

    def _wins(self, table: Table, file_slice: FileSlice, hits: np.ndarray) -> np.ndarray:
        """Return True for each of these rows that is at least as new as the row that the slice shows."""
        merging = table.definition.merging
        if merging.mode is not MergeMode.EVENT_TIME or not len(hits):
            return np.ones(len(hits), dtype=bool)
        incoming = self.prepared.rows.take(pa.array(hits))
        wanted = one_chunk(incoming.column(MetaField.RECORD_KEY))
        schema = with_meta_fields(table.schema)
        columns = [MetaField.RECORD_KEY.value, *top_columns(schema, merging.ordering_fields)]
        standing = read_slice(table.storage, file_slice, schema, table.log_rule(), columns, keys=wanted)
        # If blind inserts stored a key twice, the incoming row must win over both rows.
        at = pc.index_in(standing.column(MetaField.RECORD_KEY), value_set=wanted)
        lost = ~lies_on_top(standing, np.arange(standing.num_rows), incoming, np.asarray(at), merging)
        wins = np.ones(len(hits), dtype=bool)
        wins[np.asarray(at)[lost]] = False
        return wins


def _ascending(numbers: np.ndarray) -> np.ndarray:
    """Return each of the numbers once, in order. Numbers of new rows alone are so already."""
    return numbers if (numbers[1:] > numbers[:-1]).all() else np.unique(numbers)


def without_known(
    table: Table,
    wanted: Mapping[PlaceT, pa.ChunkedArray],
    by_partition: Mapping[PlaceT, np.ndarray],
    locations: Mapping[PlaceT, Location],
    policy: str,
) -> tuple[dict[PlaceT, np.ndarray], dict[PlaceT, Location]]:
    """Return the rows with keys that the table does not hold, and where log files deleted such a key: it is written there again."""
    fresh: dict[PlaceT, np.ndarray] = {}
    revived: dict[PlaceT, Location] = {}
    known = 0
    for name, rows in by_partition.items():
        live, dead = split_by_life(table, locations[name], wanted[name])
        numbers = np.cumsum(~live) - 1
        fresh[name] = rows[~live]
        revived[name] = Location(dead.slices, tuple(numbers[hits] for hits in dead.hits), len(fresh[name]))
        known += int(live.sum())
    _refuse(known, policy)
    return fresh, revived


def _refuse(known: int, policy: str) -> None:
    if known and policy == "fail":
        raise DuplicateKey(
            f"{known} record key(s) that the table holds already", expected="new keys only", remedy="use upsert, or drop them"
        )


def _sorted(rows: pa.Table, numbers: np.ndarray, options: Options) -> np.ndarray:
    columns = bulk_order(options, (MetaField.RECORD_KEY,))
    if not columns:
        return numbers
    part = rows.select(columns).take(pa.array(numbers))
    order = pc.sort_indices(part, sort_keys=[(name, "ascending") for name in columns])
    ordered: np.ndarray = numbers[np.asarray(order)]
    return ordered
