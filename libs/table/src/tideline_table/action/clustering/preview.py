"""What a clustering would do and gain, without publishing a plan.

Files, bytes and overlaps before come from the footers of the input files. The layout after it is simulated: a sample of each
group is ordered as the execution strategy would, cut into as many files and row groups as planned, and written to Parquet in
memory; a filter is then tested against the statistics of these row groups, as a reader would test it. The estimate is as good
as the sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tideline_table.action.clustering.column_ranges import FooterRanges
from tideline_table.action.clustering.decision import decide_clustering
from tideline_table.action.clustering.external_sort import Sample, pieces, sort_rows
from tideline_table.action.clustering.run import check_plannable
from tideline_table.action.clustering.task import ClusteringTask, clustering_tasks
from tideline_table.action.decision import Due, NotDue
from tideline_table.config import ROW_GROUP_ROWS, Options
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.log.plan import ClusteringPlanned
from tideline_table.reader.base_file import BaseFileScan, referenced_columns
from tideline_table.reader.file_slice import scan_slice
from tideline_table.reader.where import parse_where
from tideline_table.schema.evolution import settled
from tideline_table.schema.meta_fields import with_meta_fields
from tideline_table.statistics import stored_value
from tideline_table.storage import MemoryStorage
from tideline_table.table.facade import Table

_SAMPLE_ROWS = 50_000
_PIECE_BYTES = 64 * 1024 * 1024
_FILE = "sample.parquet"


@dataclass(frozen=True, slots=True)
class Overlap:
    """How often ranges of one sort column overlap: for each file, the mean number of other files of its group that it overlaps."""

    column: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class ClusteringPreview:
    """What a plan made now would do. `reason` says why one is due or not; if none is, all else is empty."""

    reason: str
    due: bool
    groups: int = 0
    files_read: int = 0
    bytes_read: int = 0
    files_written: int = 0
    partitions: tuple[str, ...] = ()
    strategy: str = ""
    """The class or name of the execution strategy."""
    strategy_params: Mapping[str, str] | None = None
    overlaps: tuple[Overlap, ...] = ()
    rows: int = 0
    """Rows of all groups; 0 if they were not counted (neither sort columns nor a filter)."""
    rows_scanned_before: int | None = None
    """Rows in the row groups that a query with the filter reads now in these groups; None without a filter."""
    rows_scanned_after: int | None = None
    """The same after the clustering, as estimated."""


def preview_clustering(table: Table, options: Mapping[str, object] | None = None, where: str = "") -> ClusteringPreview:
    """Return what a clustering planned now would do and gain; publish nothing.

    With sort columns or `where` (a condition as `parse_where` reads it), it reads these columns of all input files. Raises the
    errors of `request_clustering` for options that do not fit, also to the kind of the table, `InvalidPredicate` for `where`.
    """
    chosen = table.options.merged(options or {})
    table.refresh()
    check_plannable(table, chosen)
    schema = with_meta_fields(table.schema)
    condition = parse_where(where, schema) if where.strip() else None
    ranges = FooterRanges(table.storage, schema)
    now = table.clock.now()
    found = decide_clustering(table.view(options), read_ranges=ranges, now=now)
    if isinstance(found, NotDue):
        return ClusteringPreview(found.reason, due=False)
    assert isinstance(found, Due)
    assert isinstance(found.body, ClusteringPlanned)
    plan = found.body.plan
    tasks = clustering_tasks(
        table.storage.root, "preview", plan, table.log_rule(), table.schema, "{}", 0, chosen, table.definition.buckets
    )
    slices = {s.group: s for s in table.state.latest_among(found.body.groups)}
    inputs = [slices[group] for group in found.body.groups]
    simulated = [_Simulation.of(table, task, slices, condition, chosen) for task in tasks]
    strategy = plan["clusteringPlan"]["strategy"]
    return ClusteringPreview(
        found.reason,
        due=True,
        groups=len(tasks),
        files_read=sum(len(s.paths) for s in inputs),
        bytes_read=sum(s.total_bytes for s in inputs),
        files_written=sum(task.output_files for task in tasks),
        partitions=tuple(sorted({task.partition_path for task in tasks})),
        strategy=strategy["strategyClassName"],
        strategy_params=strategy["strategyParams"],
        overlaps=_overlaps(tasks, simulated, ranges),
        rows=sum(s.rows for s in simulated),
        rows_scanned_before=None if condition is None else sum(s.scanned_before for s in simulated),
        rows_scanned_after=None if condition is None else sum(s.scanned_after for s in simulated),
    )


@dataclass(frozen=True, slots=True)
class _Simulation:
    """A group after its clustering, by a sample: `files` has the smallest and largest value of each sort column in each output."""

    rows: int
    files: tuple[Mapping[str, tuple[object, object]], ...] = ()
    scanned_before: int = 0
    scanned_after: int = 0

    @classmethod
    def of(
        cls,
        table: Table,
        task: ClusteringTask,
        slices: Mapping[FileGroupId, FileSlice],
        where: pc.Expression | None,
        options: Options,
    ) -> _Simulation:
        schema = with_meta_fields(task.schema)
        filtered = referenced_columns(where, schema) if where is not None else frozenset[str]()
        columns = [f.name for f in schema if f.name in filtered | set(task.order.columns)]
        if not columns:
            return cls(0)
        inputs = [slices[s.group] for s in task.inputs]
        sample = Sample(_SAMPLE_ROWS)
        for file_slice in inputs:
            for rows in pieces(scan_slice(table.storage, file_slice, schema, task.rule, columns), _PIECE_BYTES):
                sample.add(rows)
        chosen = sample.table(pa.schema([schema.field(name) for name in columns]))
        order = task.order.row_order(chosen)
        ordered = chosen if order is None else sort_rows(chosen, order)
        if not ordered.num_rows:
            return cls(0)
        per_file = math.ceil(ordered.num_rows / task.output_files)
        parts = [ordered.slice(at, per_file) for at in range(0, ordered.num_rows, per_file)]
        before = 0 if where is None else sum(_scanned_now(table, s, task, schema, where) for s in inputs)
        share = sample.rows / ordered.num_rows
        after = 0 if where is None else sum(_scanned(part, where, max(1, int(options[ROW_GROUP_ROWS] / share))) for part in parts)
        return cls(sample.rows, tuple(_ends(part, task.order.columns) for part in parts), before, round(after * share))


def _scanned_now(table: Table, file_slice: FileSlice, task: ClusteringTask, schema: pa.Schema, where: pc.Expression) -> int:
    if not file_slice.base_file:
        return 0
    scan = task.rule.open_base(table.storage, file_slice, schema)
    return sum(scan.rows(group) for group in scan.row_groups(where))


def _scanned(part: pa.Table, where: pc.Expression, row_group_rows: int) -> int:
    """Return the rows of the row groups that a reader would read if `part` was a file with row groups of this size."""
    memory = MemoryStorage()
    with memory.open_output(_FILE) as sink:
        pq.write_table(settled(part), sink, row_group_size=row_group_rows, store_schema=False)
    scan = BaseFileScan(memory, _FILE, part.schema)
    return sum(scan.rows(group) for group in scan.row_groups(where))


def _ends(part: pa.Table, columns: Sequence[str]) -> dict[str, tuple[object, object]]:
    found: dict[str, tuple[object, object]] = {}
    for name in columns:
        values = part.column(name).drop_null()
        if len(values):
            order = pc.sort_indices(values)
            found[name] = (stored_value(values[order[0].as_py()]), stored_value(values[order[-1].as_py()]))
    return found


def _overlaps(tasks: Sequence[ClusteringTask], simulated: Sequence[_Simulation], ranges: FooterRanges) -> tuple[Overlap, ...]:
    columns = tasks[0].order.columns if tasks else ()
    found = []
    for column in columns:
        before, after = [], []
        for task, simulation in zip(tasks, simulated, strict=True):
            known = ranges(task.inputs, [column])
            before.append([(r.minimum, r.maximum) for k in known.values() if (r := k.get(column)) is not None])
            after.append([file[column] for file in simulation.files if column in file])
        found.append(Overlap(column, _mean_overlap(before), _mean_overlap(after)))
    return tuple(found)


def _mean_overlap(groups: Sequence[Sequence[tuple[object, object]]]) -> float:
    files = sum(len(group) for group in groups)
    pairs = 0
    for group in groups:
        ends = sorted(group, key=lambda pair: pair[0])  # type: ignore[arg-type, return-value]
        for number, (low, high) in enumerate(ends):
            for other_low, other_high in ends[number + 1 :]:
                if not other_low <= high:  # type: ignore[operator]
                    break
                is_touching = other_low == high and (low, high) != (other_low, other_high)
                pairs += not is_touching
    return round(2 * pairs / files, 2) if files else 0.0
