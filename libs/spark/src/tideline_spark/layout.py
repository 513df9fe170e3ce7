"""How a DataFrame write is laid out over file groups and tasks, decided before the source is looked at.

Rows of a *unit* are written together by one task. A unit is either a visible file slice that rows of the input update, or a bucket: one of
a fixed number per partition that inserted rows are spread over by the hash of their key. A bucket fills one small file of its partition
first where there is one, and opens new file groups for the rest. That a bucket knows its small file without seeing the input is what
allows a single exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tideline_table.config import SPARK_BROADCAST_KEYS, SPARK_INSERT_PARALLELISM, Options
from tideline_table.file_group.slice import FileGroupId, FileSlice, SliceVersion
from tideline_table.table.live_keys import may_delete
from tideline_table.writer import Operation
from tideline_table.writer.operation import minds_known_keys
from tideline_table.writer.routing import FilePlacement

_KEYS_PER_JOIN_TASK = 250_000
"""Keys that one task of a shuffled look-up holds in a hash table: about 50 MB."""
_TASKS_PER_CORE = 4
"""Units are spread by hash; more tasks than cores even out their sizes."""
_LEAST_KEY_BYTES = 20
"""For files whose row count is unknown."""


@dataclass(frozen=True, slots=True)
class Filler:
    """A small file that a bucket fills, and the rows that it has room for."""

    file_slice: FileSlice
    free_rows: int


@dataclass(frozen=True, slots=True)
class WriteLayout:
    """The layout of one attempt of one write."""

    looked_up: tuple[FileSlice, ...]
    """Visible slices whose keys the source is joined with; empty when the operation looks no keys up."""
    buckets: int
    """Per partition."""
    fillers: Mapping[tuple[str, int], Filler]
    """By partition path and bucket."""
    rows_per_file: int
    tasks: int
    broadcasts_keys: bool = True
    join_tasks: int = 0
    appended: Mapping[tuple[str, str], FileSlice] = field(default_factory=dict)
    """Slices with log files, or under a pending compaction, by partition path and unit."""
    filled_by: Mapping[FileGroupId, int] = field(default_factory=dict)
    """File group of a filler → its bucket."""
    inserts_to_log: bool = False
    """Rows that are added go to log files."""

    def unit_of(self, file_slice: FileSlice) -> str:
        """The unit that updates a slice: a bucket's number where one fills it, otherwise its name."""
        bucket = self.filled_by.get(file_slice.group)
        return unit_name(file_slice) if bucket is None else str(bucket)

    @property
    def met(self) -> dict[FileGroupId, SliceVersion]:
        """The file groups that it may write files of, with the version of the slice that its tasks read."""
        return {s.group: s.version for s in (*self.looked_up, *(filler.file_slice for filler in self.fillers.values()))}

    @property
    def with_deletions(self) -> tuple[FileSlice, ...]:
        """Slices that are looked up and whose logs may take keys away."""
        return tuple(s for s in self.looked_up if may_delete(s))

    @property
    def with_log_keys(self) -> tuple[FileSlice, ...]:
        """Slices that are looked up in log files too: every one without a base file is."""
        return tuple(s for s in self.looked_up if any(log.adds_keys for log in s.log_files))

    @property
    def key_scans(self) -> int:
        """Scans that the look-up of keys takes."""
        return len({self.filled_by.get(s.group) for s in self.looked_up if s.base_file}) + bool(self.with_log_keys)


def unit_name(file_slice: FileSlice) -> str:
    """The unit of the rows that update a slice: its base file's name, or its file id where it has log files only."""
    return file_slice.base_file or file_slice.group.file_id


def decide_layout(
    visible: Sequence[FileSlice],
    closed: Iterable[FileGroupId],
    operation: Operation,
    options: Options,
    *,
    is_partitioned: bool,
    is_merge_on_read: bool,
    cores: int,
    source_bytes: int | None,
) -> WriteLayout:
    """Lay a write out. Groups in `closed` (under a pending plan) take no inserts; `source_bytes` is Spark's estimate, None for unknown."""
    looks_up = minds_known_keys(operation, options)
    placement = FilePlacement.of(options, visible).for_inserts(operation, options, is_merge_on_read=is_merge_on_read)
    partitions = len({s.group.partition_path for s in visible})
    buckets = options[SPARK_INSERT_PARALLELISM] or _buckets(
        operation, placement, partitions if is_partitioned else 1, cores, source_bytes, is_partitioned=is_partitioned
    )
    fillers = {} if operation.opens_groups_only or operation is Operation.DELETE else _fillers(visible, closed, placement, buckets)
    keys = sum(s.rows if s.rows >= 0 else s.total_bytes // _LEAST_KEY_BYTES for s in visible)
    most_units = None if is_partitioned else len(visible) + buckets
    tasks = _TASKS_PER_CORE * cores
    return WriteLayout(
        looked_up=tuple(visible) if looks_up else (),
        buckets=buckets,
        fillers=fillers,
        rows_per_file=placement.rows_per_file,
        tasks=tasks if most_units is None else min(tasks, most_units),
        broadcasts_keys=keys <= options[SPARK_BROADCAST_KEYS],
        join_tasks=max(cores, math.ceil(keys / _KEYS_PER_JOIN_TASK)),
        appended={
            (s.group.partition_path, unit_name(s)): s
            for s in visible
            if s.log_files or not s.base_file.endswith(f"_{s.base_instant}.parquet")
        },
        filled_by={filler.file_slice.group: bucket for (_, bucket), filler in fillers.items()},
        inserts_to_log=placement.inserts_to_log,
    )


def _buckets(
    operation: Operation, placement: FilePlacement, partitions: int, cores: int, source_bytes: int | None, *, is_partitioned: bool
) -> int:
    """One bucket per partition unless the input is known to be larger than that many files."""
    if not partitions and is_partitioned:
        return 1  # How many partitions a first load has is unknown: several buckets in each would make small files.
    if source_bytes is None:
        return cores if operation.opens_groups_only and not is_partitioned else 1
    files = math.ceil(source_bytes / placement.max_file_bytes)
    return min(max(1, math.ceil(files / partitions)), cores)


def _fillers(
    visible: Iterable[FileSlice], closed: Iterable[FileGroupId], placement: FilePlacement, buckets: int
) -> dict[tuple[str, int], Filler]:
    """The smallest files of each partition, one per bucket."""
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
