"""Routing of input rows to file groups, decided from values alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tideline_table.config import INSERT_TO_LOG, MAX_FILE_SIZE, RECORD_SIZE_ESTIMATE, SMALL_FILE_LIMIT, Options
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.file_names import new_file_id
from tideline_table.index.bucket import BucketIndex, rows_by_bucket
from tideline_table.index.hash_ring import HashRing
from tideline_table.index.simple import Location, PlaceT, file_id_in, partition_of
from tideline_table.schema.meta_fields import MetaField
from tideline_table.storage import MemoryStorage
from tideline_table.writer.base_file import write_base_file
from tideline_table.writer.task import FileGroupTask, Operation, promises_unique_keys

_SIZE_SAMPLE = 64


@dataclass(frozen=True, slots=True)
class RoutedTask:
    """A file group to write, and the numbers of its input rows."""

    task: FileGroupTask
    positions: np.ndarray


@dataclass(frozen=True, slots=True)
class FilePlacement:
    """Sizes that decide which file groups take inserts."""

    max_file_bytes: int
    small_file_bytes: int
    row_bytes: float
    inserts_to_log: bool = False
    """Inserts are appended to log files, also in small groups that already have some."""
    fills_groups: bool = True
    """Whether small groups take inserts at all."""
    is_guess: bool = False
    """Whether neither a file of the table nor an option tells `row_bytes`."""

    def for_inserts(self, operation: Operation, options: Options, *, has_logs: bool) -> FilePlacement:
        """Return the placement, with inserts in log files if the options say so.

        Inserts without look-up then open new groups only: in an existing group, the log merge would fold equal keys into one row.
        """
        if not options[INSERT_TO_LOG] or not has_logs or operation.opens_groups_only:
            return self
        return replace(self, inserts_to_log=True, fills_groups=promises_unique_keys(operation, options))

    @classmethod
    def of(cls, options: Options, slices: Sequence[FileSlice]) -> FilePlacement:
        """Return the placement from the options and the mean row size of a sample of the existing files."""
        sample = [s for s in slices[-_SIZE_SAMPLE:] if s.rows > 0]
        rows = sum(s.rows for s in sample)
        mean = sum(s.size_bytes for s in sample) / rows if rows else float(options[RECORD_SIZE_ESTIMATE])
        is_guess = not rows and RECORD_SIZE_ESTIMATE.key not in options.given()
        return cls(options[MAX_FILE_SIZE], options[SMALL_FILE_LIMIT], max(mean, 1.0), is_guess=is_guess)

    def measured(self, rows: pa.Table, options: Options) -> FilePlacement:
        """Return the placement with the size that these rows, which have record keys, have in a base file.

        The same if that is no guess.

        Rows that fill no file by either size are not measured.
        """
        if not self.is_guess or 2 * max(rows.num_rows * self.row_bytes, rows.nbytes) <= self.max_file_bytes:
            return self
        return replace(self, row_bytes=measured_row_bytes(rows, options), is_guess=False)

    def free_rows(self, file_slice: FileSlice) -> int:
        """Return how many rows still fit into a file group.

        0 if it is not small, or has log files that would have to be merged first.
        """
        size_bytes = file_slice.total_bytes
        if not self.fills_groups or size_bytes >= self.small_file_bytes or (file_slice.log_files and not self.inserts_to_log):
            return 0
        return max(0, int((self.max_file_bytes - size_bytes) / self.row_bytes))

    @property
    def rows_per_file(self) -> int:
        """The number of rows of a full file."""
        return max(1, int(self.max_file_bytes / self.row_bytes))


def route_input(
    instant: str,
    operation: Operation,
    by_place: Mapping[PlaceT, np.ndarray],
    locations: Mapping[PlaceT, Location],
    slices: Mapping[PlaceT, Sequence[FileSlice]],
    placement: FilePlacement,
    closed: frozenset[FileGroupId] = frozenset(),
) -> list[RoutedTask]:
    """Return one task per file group that the input touches.

    `by_place` numbers the input rows of each partition, or of each bucket; `locations` says where their keys are (no entry:
    nowhere); `slices` are the visible slices of these places; groups in `closed` (under a pending plan) take no inserts. A
    delete ignores unknown keys.
    """
    tasks: list[RoutedTask] = []

    def add(place: PlaceT, file_slice: FileSlice | None, positions: np.ndarray, added: int) -> None:
        number = len(tasks)
        file_id = file_slice.group.file_id if file_slice else file_id_in(place, new_file_id(instant, str(number)))
        to_log = added if placement.inserts_to_log else 0
        task = FileGroupTask(number, partition_of(place), file_id, file_slice, adds=added > 0, log_inserts=to_log)
        tasks.append(RoutedTask(task, positions))

    for place in sorted(by_place):
        rows = by_place[place]
        location = locations.get(place)
        updates: dict[FileGroupId, np.ndarray] = {}
        filled: dict[FileGroupId, int] = {}
        inserts = rows
        if location is not None:
            for file_slice, positions in zip(location.slices, location.hits, strict=True):
                updates[file_slice.group] = rows[positions]
            inserts = rows[location.absent]
        if operation is Operation.DELETE:
            inserts = inserts[:0]
        open_slices = [] if operation.opens_groups_only else [s for s in slices.get(place, ()) if s.group not in closed]
        for file_slice in sorted(open_slices, key=lambda s: (s.total_bytes, s.group)):
            room = placement.free_rows(file_slice)
            if not len(inserts) or not room:
                break
            updates[file_slice.group] = np.concatenate([updates.get(file_slice.group, rows[:0]), inserts[:room]])
            filled[file_slice.group] = min(room, len(inserts))
            inserts = inserts[room:]
        by_group = {s.group: s for s in slices.get(place, ())}
        for group, positions in updates.items():
            add(place, by_group[group], positions, filled.get(group, 0))
        per_file = placement.rows_per_file
        for start in range(0, len(inserts), per_file):
            part = inserts[start : start + per_file]
            add(place, None, part, len(part))
    return tasks


def route_to_buckets(
    instant: str,
    operation: Operation,
    index: BucketIndex,
    by_partition: Mapping[str, np.ndarray],
    codes: np.ndarray,
    slices: Mapping[str, Sequence[FileSlice]],
    rings: Mapping[str, HashRing],
    *,
    has_logs: bool,
    inserts_to_log: bool,
) -> list[RoutedTask]:
    """Return one task per bucket that the input touches: of its file group, or of a new one if the bucket is empty.

    `codes` holds the hash of each input row (`BucketIndex.hash_codes`), `rings` the ring of each partition if there is
    consistent hashing; the other arguments are those of `route_input`. The writer does not look up whether a file group holds a
    key: a copy-on-write task merges the rows with the base file, and a merge-on-read task appends all of them. Raises
    `UnsupportedTable` for file groups that the index does not allow, except where an overwrite replaces them.
    """
    tasks: list[RoutedTask] = []
    for partition in sorted(by_partition):
        rows = by_partition[partition]
        if not len(rows):
            continue
        own = index.in_partition(partition, rings.get(partition))
        held = {} if operation.overwrites else own.group_of_each(slices.get(partition, ()))
        for bucket, members in rows_by_bucket(own.buckets_of(codes[rows])):
            positions = rows[members]
            base = held.get(bucket)
            if base is None and operation is Operation.DELETE:
                continue
            task = FileGroupTask(
                number=len(tasks),
                partition_path=partition,
                file_id=base.group.file_id if base is not None else own.new_file_id(instant, partition, bucket),
                base=base,
                adds=base is None or not has_logs,
                log_inserts=len(positions) if base is None and inserts_to_log else 0,
            )
            tasks.append(RoutedTask(task, positions))
    return tasks


SAMPLE_ROWS = 8192
_BLOCKS = 4


def measured_row_bytes(rows: pa.Table, options: Options) -> float:
    """Return the mean number of bytes of these rows in a base file: a sample of them, with their record keys, is encoded as one."""
    sample = rows
    if rows.num_rows > SAMPLE_ROWS:
        size = SAMPLE_ROWS // _BLOCKS
        starts = [number * (rows.num_rows - size) // (_BLOCKS - 1) for number in range(_BLOCKS)]
        sample = pa.concat_tables([rows.slice(start, size) for start in starts])
    # Of the meta fields, only these two have another value in every row.
    numbers = pa.array([f"00000000000000000_0_{number}" for number in range(sample.num_rows)], pa.string())
    sample = sample.append_column(MetaField.COMMIT_SEQNO.value, numbers).combine_chunks()
    size_bytes: int = write_base_file(MemoryStorage(), "sample.parquet", sample, "", options).size_bytes
    return max(1.0, size_bytes / max(1, int(sample.num_rows)))
