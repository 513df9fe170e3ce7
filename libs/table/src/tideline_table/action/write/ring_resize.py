"""Splits and merges of the buckets of a table with consistent hashing, by their sizes, in one replace commit.

The metadata file of a new ring is created before the commit and counts from the commit on, which names the partitions
(`RINGS_KEY`). A write whose rows were routed by the ring before conflicts and is repeated. A node that is neither split nor
merged keeps its file group, its file id and its range of hashes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tideline_table.action.new_rings import NewRings
from tideline_table.action.write.attempt import Contention, in_transaction, write_with_retries
from tideline_table.action.write.moved_rows import write_moved
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.config import (
    BUCKET_LEAST,
    BUCKET_MERGE_THRESHOLD,
    BUCKET_MOST,
    BUCKET_SPLIT_THRESHOLD,
    MAX_FILE_SIZE,
    Options,
)
from tideline_table.coordination.committed import Committed
from tideline_table.errors import UnsupportedTable, VerificationFailed, WriteConflict
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.hash_ring import MAX_NODES
from tideline_table.index.ring_change import RingChange, RingLimits, RingMove, resized_ring
from tideline_table.log.state import TableState
from tideline_table.reader.file_slice import read_slice
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.table.facade import Table
from tideline_table.writer import FileGroupResult, Operation


class SkipReason(enum.StrEnum):
    """Why a resize left the buckets of a partition as they are."""

    PLAN_PENDING = "plan_pending"
    """A pending compaction or clustering names file groups of it; the sizes of its buckets were not looked at."""
    MOST_BUCKETS = "most_buckets"
    """With consistent hashing: buckets are too large, and the partition has as many as it may have."""
    FITS = "fits"
    """With consistent hashing: there is nothing to split or merge."""
    SAME_NUMBER = "same_number"
    """It has the number of buckets that was asked for."""


@dataclass(frozen=True, slots=True)
class SkippedPartition:
    """A partition with files that a resize of buckets did not change."""

    partition: str
    """The partition path, empty in a table without partitions."""
    reason: SkipReason
    instants: tuple[str, ...] = ()
    """The pending plans that name it."""
    too_large: int = 0
    """The number of its buckets that are too large and were not split."""

    @property
    def text(self) -> str:
        """One line for users."""
        match self.reason:
            case SkipReason.PLAN_PENDING:
                return f"a compaction or clustering is pending there: {', '.join(self.instants)}"
            case SkipReason.MOST_BUCKETS:
                return f"{self.too_large} bucket(s) are too large, and {BUCKET_MOST.key} allows no more buckets"
            case SkipReason.FITS:
                return "all buckets have a fitting size"
            case SkipReason.SAME_NUMBER:
                return "it has this number of buckets"


def partitions_of_same_number(table: Table, done: Committed | None) -> tuple[SkippedPartition, ...]:
    """Return the partitions that a resize to a number of buckets, which committed `done`, did not have to change."""
    moved = {stat.partition_path for stat in done.stats} if done is not None else set[str]()
    return tuple(SkippedPartition(name, SkipReason.SAME_NUMBER) for name in table.state.partition_paths() if name not in moved)


@dataclass(frozen=True, slots=True)
class RingResize:
    """What `resize_rings` did, and what it left out."""

    committed: Committed | None
    """None if no bucket was split or merged."""
    skipped: tuple[SkippedPartition, ...] = ()
    """All other partitions with files, sorted by their paths."""


def resize_rings(table: Table, *, options: Mapping[str, object] | None = None) -> RingResize:
    """Split and merge the buckets of an exclusive table with consistent hashing where their sizes do not fit.

    A bucket is split if its file group has more than `hoodie.bucket.index.split.threshold` times `hoodie.parquet.max.file.size`
    bytes, and neighbours with up to `hoodie.bucket.index.merge.threshold` times that size are merged, within
    `hoodie.bucket.index.min.num.buckets` and `max.num.buckets` in each partition. Partitions with a pending compaction or
    clustering are left out. Reads and writes the rows of the other buckets once, one split or merge at a time in memory. Raises
    `WriteConflict` if other writers went first in all attempts, `UnsupportedTable` for a table that is shared, has another
    index, or whose rows are not where the rings put them.
    """
    chosen = table.options.merged(options or {})
    table.check_writable()
    table.refresh()
    index = checked_index(table)
    limits = limits_of(index, chosen)
    contention = Contention(table, chosen)
    skipped: tuple[SkippedPartition, ...] = ()

    def resize(instant: str) -> _Resize:
        nonlocal skipped
        found = _Resize(table, index, limits, instant)
        skipped = found.skipped
        return found

    def attempt() -> Committed:
        table.refresh()
        if not resize(table.state.last_instant).changes:
            return Committed("", table.state.sequence, ())
        made = NewRings(table)
        with made.deleted_if_undone():
            return in_transaction(
                table,
                Operation.INSERT_OVERWRITE_TABLE,
                chosen,
                lambda begun: resize(begun.instant).run(begun, made),
            )

    done = write_with_retries(contention, attempt, None)
    return RingResize(done if done.instant else None, skipped)


def checked_index(table: Table) -> BucketIndex:
    """Return the index of a table whose rings can be resized. Raises `UnsupportedTable`."""
    index = table.definition.ring_index
    if index is None:
        buckets = table.definition.buckets
        raise UnsupportedTable(
            f"table {table.definition.name!r} with {buckets.text if buckets is not None else 'no bucket index'}",
            expected="a table with consistent hashing",
            remedy="for the simple engine, name the new number of buckets",
        )
    if not table.capabilities.changes_buckets:
        raise UnsupportedTable(
            f"table {table.definition.name!r}, which Apache Hudi's writers write, too",
            expected="an exclusive table: a writer of Hudi would go on with the ring that it has read",
            remedy="write the rows into a new table",
        )
    return index


def limits_of(index: BucketIndex, options: Options) -> RingLimits:
    """Return the limits that the options set. As in Apache Hudi, the number of the creation lies between least and most."""
    file_bytes = options[MAX_FILE_SIZE]
    return RingLimits(
        split_bytes=int(file_bytes * options[BUCKET_SPLIT_THRESHOLD]),
        merge_bytes=int(file_bytes * options[BUCKET_MERGE_THRESHOLD]),
        least=max(1, min(options[BUCKET_LEAST] or index.number, index.number)),
        most=min(MAX_NODES, max(options[BUCKET_MOST] or index.number, index.number)),
    )


def planned_partitions(state: TableState) -> dict[str, set[str]]:
    """Return the partitions of pending compactions and clusterings, which a resize leaves alone, with the instants of these plans.

    The ring of a pending clustering would be older than that of the resize, and would never count.
    """
    found: dict[str, set[str]] = {}
    for planned in (state.groups_under_compaction(), state.groups_under_clustering()):
        for group, instant in planned.items():
            found.setdefault(group.partition_path, set()).add(instant)
    return found


class _Resize:
    """The resize of all partitions that need one, at one instant. `slices` holds the slice of each node that has one."""

    def __init__(self, table: Table, index: BucketIndex, limits: RingLimits, instant: str) -> None:
        self.table, self.index = table, index
        rings = table.rings()  # before the slices: of a resize in between, the newer ones show it
        assert rings is not None
        self.rings = rings
        self.slices: dict[str, dict[int, FileSlice]] = {}
        self.changes: dict[str, RingChange] = {}
        found: dict[str, list[FileSlice]] = {}
        for file_slice in table.state.latest_slices():
            found.setdefault(file_slice.group.partition_path, []).append(file_slice)
        busy = planned_partitions(table.state)
        skipped = [
            SkippedPartition(name, SkipReason.PLAN_PENDING, tuple(sorted(busy[name]))) for name in found.keys() & busy.keys()
        ]
        try:
            before = self.rings.of(found.keys() - busy.keys())
            self.slices = {name: ring.by_node(found[name]) for name, ring in before.items()}
        except UnsupportedTable:
            self.rings.check_unchanged(table.state)
            raise
        for name, ring in before.items():
            sizes = {at: s.total_bytes for at, s in self.slices[name].items()}
            change = resized_ring(ring, sizes, limits, instant)
            if change is not None:
                self.changes[name] = change
                continue
            too_large = sum(size > limits.split_bytes for size in sizes.values())
            reason = SkipReason.MOST_BUCKETS if too_large and len(ring.nodes) >= limits.most else SkipReason.FITS
            skipped.append(SkippedPartition(name, reason, too_large=too_large))
        self.skipped = tuple(sorted(skipped, key=lambda one: one.partition))

    def run(self, begun: WriteTransaction, made: NewRings) -> Committed:
        """Write the moved rows and the new rings, and commit."""
        if not self.changes:
            raise WriteConflict(
                "another process changed the table: no bucket is left that this resize may split or merge",
                expected="a bucket beyond the limits of size that no pending plan names",
                with_instant="",
            )
        results: list[FileGroupResult] = []
        splits = {s.group: s.version for name, change in self.changes.items() for s in self._sources(name, change)}
        for name, change in sorted(self.changes.items()):
            for move in change.moves:
                begun.check_early({g: v for g, v in splits.items() if g in self._groups(name, move)}, frozenset())
                results += self._move(begun, name, change, move, len(results))
        rings = [change.ring for change in self.changes.values()]
        schema, routed_by = self.table.schema_json, self.rings.instants(self.changes)
        return made.publish(
            self.rings, rings, lambda extra: begun.commit(results, schema, extra, None, splits=splits, rings=routed_by)
        )

    def _sources(self, name: str, change: RingChange) -> list[FileSlice]:
        return [self.slices[name][at] for move in change.moves for at in move.sources]

    def _groups(self, name: str, move: RingMove) -> set[FileGroupId]:
        return {self.slices[name][at].group for at in move.sources}

    def _move(self, begun: WriteTransaction, name: str, change: RingChange, move: RingMove, number: int) -> list[FileGroupResult]:
        schema, own = with_meta_fields(self.table.schema), self.index.in_partition(name, self.rings.at(name))
        read = []
        for at in move.sources:
            found = self.slices[name][at]
            rows = read_slice(self.table.storage, found, schema, self.table.log_rule())
            own.check_members(found.group.file_id, rows.column(MetaField.RECORD_KEY))
            read.append(rows)
        rows = pa.concat_tables(read)
        ids = change.ring.file_ids
        nodes = self.index.in_partition(name, change.ring).buckets(rows.column(MetaField.RECORD_KEY))
        results: list[FileGroupResult] = []
        for node in sorted(set(nodes.tolist())):
            if ids[node] not in {f"{target.prefix}-0" for target in move.targets}:
                sources = ", ".join(self.slices[name][at].group.file_id for at in move.sources)
                raise VerificationFailed(
                    f"rows of file group(s) {sources} that node {ids[node]} would get",
                    expected=f"rows of {', '.join(target.prefix for target in move.targets)} only",
                )
            results.append(write_moved(self.table, begun, number + len(results), name, rows, nodes == node, ids[node]))
        written = sum(r.stat.num_writes for r in results if r.stat is not None)
        if written != rows.num_rows:
            raise VerificationFailed(
                f"a resize of partition {name!r} wrote {written} rows",
                expected=f"the {rows.num_rows} rows that it read",
                remedy="nothing was committed and the table is as before; check memory and disks of the machine, and report it",
            )
        return results
