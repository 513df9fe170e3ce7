"""Lay out a DataFrame write over file groups and tasks, before the source is evaluated.

One task writes all rows of a *unit* together. In a table with a bucket index, a unit is a bucket of that index (`bucket_layout`).
Otherwise a unit is either a visible file slice that rows of the input update, or a bucket of new rows.
Each partition has a fixed number of buckets, and the hash of an inserted row's key selects one. A bucket first fills one small file
of its partition if there is one, and opens new file groups for the rest. A bucket knows its small file without reading the input,
so that a single exchange is enough.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tideline_spark.options import SPARK_BROADCAST_KEYS, SPARK_INSERT_PARALLELISM
from tideline_table.action import may_delete
from tideline_table.config import INSERT_TO_LOG, SMALL_FILE_LIMIT, Options
from tideline_table.file_group import FileGroupId, FileSlice, SliceVersion
from tideline_table.index import BucketIndex
from tideline_table.log import TableState
from tideline_table.table import TableRings
from tideline_table.writer import SIZE_SAMPLE, FilePlacement, Operation, minds_known_keys

_KEYS_PER_JOIN_TASK = 250_000
"""Keys that one task of a shuffled look-up holds in a hash table: about 50 MB."""
_TASKS_PER_CORE = 4
"""Units are spread by hash; more tasks than cores even out their sizes."""
_LEAST_KEY_BYTES = 20
"""Assumed bytes per row in files whose row count is unknown."""


@dataclass(frozen=True, slots=True)
class Filler:
    """A small file that a bucket fills, and the number of rows that still fit."""

    file_slice: FileSlice
    free_rows: int


@dataclass(frozen=True, slots=True)
class InBucket:
    """Where inserts into a bucket with several file groups go."""

    placement: FilePlacement
    closed: frozenset[FileGroupId]
    """File groups that take no inserts."""


@dataclass(frozen=True, slots=True)
class WriteLayout:
    """The layout of one attempt of one write."""

    looked_up: tuple[FileSlice, ...]
    """Visible slices whose keys are joined with the source; empty if the operation looks up no keys."""
    buckets: int
    """Number of buckets per partition."""
    fillers: Mapping[tuple[str, int], Filler]
    """Fillers by partition path and bucket."""
    rows_per_file: int
    tasks: int
    guess: FilePlacement | None = None
    """The placement behind `rows_per_file`, if the size of its rows is a guess."""
    broadcasts_keys: bool = True
    join_tasks: int = 0
    filled_by: Mapping[FileGroupId, int] = field(default_factory=dict)
    """Bucket by the file group that it fills."""
    inserts_to_log: bool = False
    """Whether inserted rows are written to log files."""
    index: BucketIndex | None = None
    """The bucket index of the table: then each unit is a bucket of it."""
    held: Mapping[tuple[str, int], Sequence[FileSlice]] = field(default_factory=dict)
    """With a bucket index, the file slices of each bucket that has some, by partition path and number."""
    in_bucket: InBucket | None = None
    """Where inserts go, if a bucket may have several file groups."""
    rings: TableRings | None = None
    """With consistent hashing, the rings of the table as of the layout: a bucket is a node."""

    def unit_of(self, file_slice: FileSlice) -> str:
        """Return the unit that updates a slice: the number of the bucket that fills it, otherwise the name of the slice."""
        bucket = self.filled_by.get(file_slice.group)
        return unit_name(file_slice) if bucket is None else str(bucket)

    @property
    def units(self) -> dict[tuple[str, str], FileSlice]:
        """The looked-up slices, with what their commits recorded of them, by partition path and unit.

        About 170 bytes each for a task.
        """
        return {(s.group.partition_path, unit_name(s)): s for s in self.looked_up}

    @property
    def met(self) -> dict[FileGroupId, SliceVersion]:
        """File groups that the write may add files to, with the version of the slice that its tasks read."""
        filled = (filler.file_slice for filler in self.fillers.values())
        return {s.group: s.version for s in (*self.looked_up, *filled, *itertools.chain.from_iterable(self.held.values()))}

    @property
    def with_deletions(self) -> tuple[FileSlice, ...]:
        """Looked-up slices whose log files may delete keys."""
        return tuple(s for s in self.looked_up if may_delete(s))

    @property
    def with_log_keys(self) -> tuple[FileSlice, ...]:
        """Looked-up slices whose log files add keys, among them each slice without a base file."""
        return tuple(s for s in self.looked_up if any(log.adds_keys for log in s.log_files))

    @property
    def key_scans(self) -> int:
        """Number of scans that the look-up of keys takes."""
        return len({self.filled_by.get(s.group) for s in self.looked_up if s.base_file}) + bool(self.with_log_keys)


def unit_name(file_slice: FileSlice) -> str:
    """Return the unit of rows that update a slice: its base file's name, or its file id if it has log files only."""
    return file_slice.base_file or file_slice.group.file_id


def bucket_layout(
    visible: Sequence[FileSlice],
    closed: Iterable[FileGroupId],
    index: BucketIndex,
    operation: Operation,
    options: Options,
    *,
    has_logs: bool,
    cores: int,
    rings: TableRings | None = None,
) -> WriteLayout:
    """Lay a write into a table with a bucket index out: each bucket is written by one task.

    No key is looked up, unless a bucket may have several file groups: then its task does it. `closed` as for `decide_layout`.
    `rings` are those of the table with consistent hashing.

    Raises `UnsupportedTable` for file groups that the index does not allow, except where an overwrite replaces them.
    """
    held: dict[tuple[str, int], Sequence[FileSlice]] = {}
    if not operation.overwrites:
        partitions: dict[str, list[FileSlice]] = {}
        for file_slice in visible:
            partitions.setdefault(file_slice.group.partition_path, []).append(file_slice)
        for name, slices in partitions.items():
            ring = rings.unread(name) if rings is not None else None
            held.update({(name, bucket): found for bucket, found in index.in_partition(name, ring).groups(slices).items()})
    into = None
    if not index.one_group_per_bucket:
        placement = FilePlacement.of(options, visible).for_inserts(operation, options, has_logs=has_logs)
        into = InBucket(placement, frozenset(closed))
    return WriteLayout(
        looked_up=(),
        buckets=index.number,
        fillers={},
        rows_per_file=1,
        tasks=_TASKS_PER_CORE * cores,
        inserts_to_log=options[INSERT_TO_LOG] and has_logs and not operation.opens_groups_only,
        index=index,
        held=held,
        in_bucket=into,
        rings=rings,
    )


def decide_layout(
    state: TableState,
    closed: Iterable[FileGroupId],
    operation: Operation,
    options: Options,
    *,
    is_partitioned: bool,
    has_logs: bool,
    cores: int,
    source_bytes: int | None,
) -> WriteLayout:
    """Lay a write out. Groups in `closed` (under a pending plan) take no inserts; `source_bytes`: Spark's estimate or None.

    Without a look-up, of a table with many file groups only slices that may be filled are asked for.
    """
    looks_up = minds_known_keys(operation, options)
    visible: tuple[FileSlice, ...] = ()
    limit = options[SMALL_FILE_LIMIT]
    if looks_up:
        visible = tuple(state.latest_slices())
    elif not operation.opens_groups_only:
        visible = tuple(state.each_latest(lambda part, _: part.small(limit) != 0))
    sample = visible if looks_up else state.sample(SIZE_SAMPLE)
    placement = FilePlacement.of(options, sample).for_inserts(operation, options, has_logs=has_logs)
    partitions = len({s.group.partition_path for s in visible}) if looks_up else state.totals()[0].partitions
    buckets = options[SPARK_INSERT_PARALLELISM] or _buckets(
        operation, placement, partitions if is_partitioned else 1, cores, source_bytes, is_partitioned=is_partitioned
    )
    fillers = {} if operation.opens_groups_only or operation is Operation.DELETE else _fillers(visible, closed, placement, buckets)
    keys = sum(s.rows if s.rows >= 0 else s.total_bytes // _LEAST_KEY_BYTES for s in visible)
    most_units = None if is_partitioned else len(visible) + buckets
    tasks = _TASKS_PER_CORE * cores
    return WriteLayout(
        looked_up=visible if looks_up else (),
        buckets=buckets,
        fillers=fillers,
        rows_per_file=placement.rows_per_file,
        tasks=tasks if most_units is None else min(tasks, most_units),
        broadcasts_keys=keys <= options[SPARK_BROADCAST_KEYS],
        join_tasks=max(cores, math.ceil(keys / _KEYS_PER_JOIN_TASK)),
        filled_by={filler.file_slice.group: bucket for (_, bucket), filler in fillers.items()},
        inserts_to_log=placement.inserts_to_log,
        guess=placement if placement.is_guess else None,
    )


def _buckets(
    operation: Operation, placement: FilePlacement, partitions: int, cores: int, source_bytes: int | None, *, is_partitioned: bool
) -> int:
    """Return the buckets per partition: one, unless the input is known to need more files than that."""
    if not partitions and is_partitioned:
        return 1  # The partitions of a first load are unknown: several buckets in each would make small files.
    if source_bytes is None:
        return cores if operation.opens_groups_only and not is_partitioned else 1
    files = math.ceil(source_bytes / placement.max_file_bytes)
    return min(max(1, math.ceil(files / partitions)), cores)


def _fillers(
    visible: Iterable[FileSlice], closed: Iterable[FileGroupId], placement: FilePlacement, buckets: int
) -> dict[tuple[str, int], Filler]:
    """Return the smallest files of each partition, one per bucket."""
    shut = frozenset(closed)
    found: dict[tuple[str, int], Filler] = {}
    taken: dict[str, int] = {}
    for file_slice in sorted(visible, key=lambda s: (s.total_bytes, s.group)):
        partition = file_slice.group.partition_path
        bucket, room = taken.get(partition, 0), placement.free_rows(file_slice)
        if room and bucket < buckets and file_slice.group not in shut:
            found[partition, bucket] = Filler(file_slice, room)
            taken[partition] = bucket + 1
    return found
