"""A clustering group as several tasks.

Readers of its slices send rows to the range of their sort key, and writers make one file of each.

1. `sample_slice`, for each slice: reads the sort columns.
2. `split_ranges`, in the driver: the bounds of as many ranges as the plan has output files.
3. `ranged_rows`, for each slice: reads the rows once and sends each to its range, through an exchange of the caller.
4. `write_range`, one task for each range: sorts its rows and writes its file.
5. `whole_group`, in the driver: proves over all ranges that the rows written are those read.

Rows are compared by their sort keys, then by slice and position. So the rows of a range follow from the plan and the sample
alone, one frequent value may fill several files, and a task that runs twice, also after the loss of another one, writes the
same bytes again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tideline_table.action.clustering.execute import spill_folder
from tideline_table.action.clustering.execution_strategy import RowOrder
from tideline_table.action.clustering.external_sort import (
    Sample,
    part_numbers,
    pieces,
    sample_rows,
    sort_externally,
    sort_indices,
    sort_rows,
)
from tideline_table.action.clustering.outputs import Outputs
from tideline_table.action.clustering.received_rows import RangePiece, ReceivedRows, Sent, SliceEnd
from tideline_table.action.clustering.task import ClusteredGroup, ClusteringTask
from tideline_table.action.outcome import check_one_each
from tideline_table.action.receipt import Prover
from tideline_table.config import CLUSTERING_MEMORY_LIMIT, Options
from tideline_table.errors import VerificationFailed
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.reader.file_slice import scan_slice
from tideline_table.row_digest import RowDigest
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.storage import Storage, task_storage

_SAMPLE_ROWS = 100_000
"""Most rows of the sample of a whole group: with 20 ranges, their sizes differ by about 2 % (one standard deviation)."""
_FEWEST_ROWS = 1000
_ROW = "_tideline_row"
_POSITION_BITS = 40


@dataclass(frozen=True, slots=True)
class SliceSample:
    """A sample of the rows of one slice, with the sort columns, and the number of all its rows."""

    rows: int
    chosen: pa.Table


@dataclass(frozen=True, slots=True)
class RangeSplit:
    """How a group is split: the bounds of its ranges. A plain value for executors."""

    task: ClusteringTask
    """The group without its slices, which only their readers need."""
    slices: int
    rows: int
    """Rows of all slices as they were counted for the sample."""
    sample: pa.Table
    bounds: pa.Table
    """The greatest sort key of each range but the last one."""

    @property
    def order(self) -> RowOrder | None:
        """The order of rows, the same in each task because it follows from the sample."""
        return self.task.order.row_order(self.sample.select(list(self.task.order.columns)))

    def ranges_of(self, rows: pa.Table, order: RowOrder | None) -> np.ndarray:
        """Return the range of each row."""
        # Odd numbers are rows equal to a bound, which end the range below it.
        return part_numbers(_sort_keys(rows, order), self.bounds) // 2


@dataclass(frozen=True, slots=True)
class ClusteredRange:
    """The result of one range: the digest of all rows of the group, as its readers read them, and the file, if it has rows."""

    range_number: int
    read: RowDigest
    stats: tuple[WriteStat, ...]


def sample_slice(task: ClusteringTask, slice_number: int, slices: int) -> SliceSample:
    """Return a sample of the only slice of `task`, which has this number among the `slices` of its group.

    Reads the sort columns only.
    """
    storage = task_storage(task.base_path)
    limit_bytes = Options(task.options)[CLUSTERING_MEMORY_LIMIT]
    columns = list(task.order.columns)
    # Twice the share of a slice of average size, so that a large one is not thinned out much.
    sample = Sample(max(_FEWEST_ROWS, 2 * _sample_rows(task) // slices))
    for rows in _numbered(task, slice_number, storage, limit_bytes // 8, columns or [MetaField.RECORD_KEY.value]):
        sample.add(rows.select([*columns, _ROW]))
    schema = with_meta_fields(task.schema)
    return SliceSample(sample.rows, sample.table(pa.schema([*(schema.field(name) for name in columns), (_ROW, pa.int64())])))


def split_ranges(task: ClusteringTask, samples: Sequence[SliceSample]) -> RangeSplit:
    """Return the ranges of a group, one for each of its output files, with about the same number of rows each."""
    sample = _together(samples, _sample_rows(task))
    split = RangeSplit(replace(task, inputs=()), len(task.inputs), sum(s.rows for s in samples), sample, sample.slice(0, 0))
    keys = _sort_keys(sample, split.order)
    ordered = keys.take(sort_indices(keys))
    ends = np.arange(1, task.output_files) * ordered.num_rows // task.output_files - 1
    return replace(split, bounds=ordered.take(pa.array(ends[ends >= 0], pa.int64())))


def _sample_rows(task: ClusteringTask) -> int:
    return min(_SAMPLE_ROWS, sample_rows(Options(task.options)[CLUSTERING_MEMORY_LIMIT]))


def _together(samples: Sequence[SliceSample], most: int) -> pa.Table:
    """Return a uniform sample: rows stand for as many rows as their slice has for each of its sample."""
    chosen = pa.concat_tables([s.chosen for s in samples])
    weights = [np.full(s.chosen.num_rows, s.rows / max(1, s.chosen.num_rows)) for s in samples]
    ends = np.cumsum(np.concatenate(weights))
    if not chosen.num_rows:
        return chosen
    count = min(most, chosen.num_rows)
    wanted = (np.arange(count) + 0.5) * ends[-1] / count
    return chosen.take(pa.array(np.minimum(np.searchsorted(ends, wanted), chosen.num_rows - 1)))


def ranged_rows(split: RangeSplit, task: ClusteringTask, slice_number: int) -> Iterator[tuple[int, Sent]]:
    """Yield the rows of the only slice of `task` in pieces of one range each, with the range.

    Then the end of the slice, to every range.
    """
    storage = task_storage(task.base_path)
    limit_bytes = Options(task.options)[CLUSTERING_MEMORY_LIMIT]
    schema = with_meta_fields(task.schema)
    proof, started_s = _prover(task), time.perf_counter()
    order = split.order
    read = RowDigest()
    sent = [0] * task.output_files
    for rows in _numbered(task, slice_number, storage, limit_bytes // 8):
        read += proof.digest(rows)
        numbers = split.ranges_of(rows, order)
        by_range = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[by_range], return_index=True)
        gathered = _without_file_names(rows.select(schema.names)).take(pa.array(by_range))
        for number, start, end in zip(found.tolist(), starts, [*starts[1:], rows.num_rows], strict=True):
            yield number, RangePiece.of(slice_number, sent[number], gathered.slice(start, end - start))
            sent[number] += 1
    task_s = time.perf_counter() - started_s
    for number, count in enumerate(sent):
        yield number, SliceEnd(slice_number, count, read, proof.proof_s / len(sent), task_s / len(sent))


def write_range(split: RangeSplit, range_number: int, received: Iterator[Sent]) -> ClusteredRange:
    """Sort the rows that the readers of the slices sent to this range, write its file and read it back.

    Rows beyond the memory limit are kept and sorted in files. Raises `VerificationFailed` if a piece is missing or came twice,
    `StorageFull` if the temporary folder or the table's is full.
    """
    task = split.task
    storage = task_storage(task.base_path)
    limit_bytes = Options(task.options)[CLUSTERING_MEMORY_LIMIT]
    proof = _prover(task)
    with ExitStack() as files:
        folder = Path(files.enter_context(spill_folder()))
        rows = files.enter_context(ReceivedRows(folder, with_meta_fields(task.schema), limit_bytes // 2))
        for sent in received:
            rows.add(sent)
        read = rows.complete(task, split.slices)
        for end in rows.ends:
            proof.add(end.proof_s, end.task_s)
        if not rows.rows and (read.rows or range_number):
            return ClusteredRange(range_number, read, ())
        ordered = _ordered(split, range_number, rows, folder, limit_bytes)
        stat = Outputs(task, storage, rows.rows).written_as(range_number, ordered)
    return ClusteredRange(range_number, read, tuple(proof.proven([stat], [proof.read_back(storage, stat.data_path)])))


def _ordered(split: RangeSplit, range_number: int, rows: ReceivedRows, folder: Path, limit_bytes: int) -> Iterator[pa.Table]:
    order = split.order
    if order is None:
        yield from (pa.Table.from_batches([batch]) for batch in rows.batches())
    elif rows.in_memory:
        yield sort_rows(pa.Table.from_batches(rows.batches(), schema=rows.schema), order)
    else:
        chosen = split.sample.filter(pa.array(split.ranges_of(split.sample, order) == range_number))
        yield from sort_externally(rows.batches, order, chosen, folder, limit_bytes)


def whole_group(task: ClusteringTask, split: RangeSplit, results: Sequence[ClusteredRange]) -> ClusteredGroup:
    """Return the result of a group from those of its ranges, in any order.

    Raises `VerificationFailed` unless each range has one result, and their files together hold exactly the rows that were read.
    """
    wanted = range(task.output_files)
    check_one_each("clustering", [task], wanted, [result.range_number for result in results])
    stats = [stat for result in sorted(results, key=lambda r: r.range_number) for stat in result.stats]
    reads = {result.read for result in results}
    written = sum((stat.proof.digest for stat in stats if stat.proof is not None), RowDigest())
    if reads != {written} or written.rows != split.rows:
        found = ", ".join(sorted({str(read.rows) for read in reads}))
        raise VerificationFailed(
            f"clustering {task.instant}: task {task.number} counted {split.rows} rows, read {found} and wrote {written.rows} in "
            f"{len(stats)} files, and rows changed",
            expected="files that hold exactly the rows that were read",
            remedy="nothing was committed and the table is as before; check memory and disks of the machines",
        )
    return ClusteredGroup(task.number, written.rows, tuple(stats))


def _prover(task: ClusteringTask) -> Prover:
    schema, ordering = with_meta_fields(task.schema), task.rule.merging.ordering_field
    return Prover.begin("clustering", task.instant, task.number, schema, ordering, Options(task.options))


def _sort_keys(rows: pa.Table, order: RowOrder | None) -> pa.Table:
    return rows.select([_ROW]) if order is None else order(rows).append_column(_ROW, rows.column(_ROW))


def _numbered(
    task: ClusteringTask, slice_number: int, storage: Storage, size_bytes: int, columns: list[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of the slice in pieces, with a column of their places in the group."""
    rule = replace(task.rule, scan_bytes=max(1, size_bytes // 2))
    place = slice_number << _POSITION_BITS
    batches = scan_slice(storage, task.inputs[0], with_meta_fields(task.schema), rule, columns)
    for rows in pieces(batches, size_bytes):
        yield rows.append_column(_ROW, pa.array(np.arange(place, place + rows.num_rows)))
        place += rows.num_rows


def _without_file_names(rows: pa.Table) -> pa.Table:
    """Return rows without the names of their files, which their writer sets and which would take space in the exchange."""
    at = rows.schema.get_field_index(MetaField.FILE_NAME)
    return rows.set_column(at, rows.schema.field(at), pa.nulls(rows.num_rows, rows.schema.field(at).type))
