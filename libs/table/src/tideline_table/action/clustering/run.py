"""Clustering of one table: publish a plan, execute it, check the results against it, commit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from tideline_table.action.clustering.carry_over import CarryOver
from tideline_table.action.clustering.column_ranges import FooterRanges
from tideline_table.action.clustering.decision import decide_clustering, why_not_carried_over
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.clustering.rings import ClusteredRings, check_no_shared_rings
from tideline_table.action.clustering.task import (
    ClusteredGroup,
    ClusteringTask,
    clustering_tasks,
    executed_strategy,
    planned_versions,
)
from tideline_table.action.decision import Check, Due, NotDue, TableService, Trigger
from tideline_table.action.outcome import check_one_each, failed
from tideline_table.action.planned_run import (
    begin_attempt,
    check_own_attempt,
    delete_earlier_attempts,
    pending_plan,
    rolled_back_if_failed,
)
from tideline_table.action.publishing import publish
from tideline_table.action.receipt import check_proven, receipt_of
from tideline_table.action.side_by_side import MemoryBudget, run_side_by_side
from tideline_table.config import CLUSTERING_MEMORY_LIMIT, SERVICE_VERIFY, Options
from tideline_table.coordination import Heartbeat, WriteSet, find_conflict, roll_back
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.priority import carries_over, plan_carries_over
from tideline_table.coordination.reservations import reserved_groups
from tideline_table.errors import TidelineError, UnsupportedTable, WriteConflict
from tideline_table.file_group.slice import FileGroupId, SliceVersion
from tideline_table.hudi.instant import CLUSTER, Action, State
from tideline_table.hudi.write_stats import SCHEMA_KEY, CommitMetadata, WriteStat
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.plan import ClusteringPlanned
from tideline_table.log.planned_slices import as_recorded
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.schema.meta_fields import with_meta_fields
from tideline_table.storage import open_storage
from tideline_table.table.facade import Table
from tideline_table.writer.marker import forget_markers


def check_clustered(tasks: Sequence[ClusteringTask], results: Sequence[ClusteredGroup]) -> tuple[WriteStat, ...]:
    """Return the files of a clustering in the order of its plan; `results` may be in any order.

    Raises `VerificationFailed` unless each task has exactly one result that names only files planned for the task, and these hold
    as many rows as the task read.
    """
    check_one_each("clustering", tasks, [task.number for task in tasks], [result.number for result in results])
    by_number = {result.number: result for result in results}
    stats = tuple(stat for task in tasks for stat in _files_of(task, by_number[task.number]))
    check_proven("clustering", tasks[0].instant if tasks else "", stats)
    return stats


def _files_of(task: ClusteringTask, result: ClusteredGroup) -> Sequence[WriteStat]:
    named = [(stat.partition_path, stat.file_id, stat.path) for stat in result.stats]
    made = [(task.partition_path, *task.output(number)) for number in range(task.output_files)]
    # A range of a split group without rows has no file.
    if not named or named != [file for file in made if file in named]:
        paths = ", ".join(path for *_, path in named)
        raise failed("clustering", task, f"names {paths or 'no file'}", f"files in order of {', '.join(path for *_, path in made)}")
    written = sum(stat.num_writes for stat in result.stats)
    if written != result.rows_read:
        raise failed("clustering", task, f"wrote {written} rows", f"the {result.rows_read} that it read")
    return result.stats


_ROUNDS = 5
"""How often a clustering carries over what was written, before it takes the lock of commits."""
_LOCKED_ROUNDS = 3
"""The same under the lock, against writers that take no lock."""
RunTasks = Callable[[Sequence[ClusteringTask]], Sequence[ClusteredGroup]]
"""Runs tasks in this process or on Spark executors, and returns the result of each task."""


def cluster_here(tasks: Sequence[ClusteringTask], on_done: Callable[[], None] = lambda: None) -> list[ClusteredGroup]:
    """Run clustering tasks in threads of this process, within `tideline.clustering.memory.limit`; call `on_done` behind each."""
    if not tasks:
        return []
    memory = MemoryBudget(Options(tasks[0].options)[CLUSTERING_MEMORY_LIMIT])
    # One storage, because each one finds out anew which folders exist.
    storage = open_storage(tasks[0].base_path)
    work = partial(cluster_group, storage=storage, memory=memory, one_thread=len(tasks) >= pa.cpu_count())
    return run_side_by_side(tasks, work, on_done)


def request_clustering(
    table: Table,
    options: Mapping[str, object] | None = None,
    trigger: Trigger | None = None,
    *,
    check: Check | None = None,
) -> str | NotDue:
    """Publish a plan on the timeline; return its instant, or why there is none.

    `trigger` as for `plan_clustering`, `check` for `publish`.
    """
    chosen = table.options.merged(options or {})
    table.check_writable(keyed=False)
    check_plannable(table, chosen)
    reserved = reserved_groups(table.reservations, table.timeline)
    ranges = FooterRanges(table.storage, with_meta_fields(table.schema))

    def decide(state: TableState) -> Due | NotDue:
        view = replace(table.view(options), state=state)
        return decide_clustering(view, reserved, trigger, read_ranges=ranges, now=table.clock.now())

    return publish(table, Action.REPLACE_COMMIT, CLUSTER, decide, check=check)


@dataclass(frozen=True, slots=True)
class ClusteringRun:
    """A clustering that this process has begun and not yet committed."""

    table: Table
    instant: str
    plan: Mapping[str, Any]
    based_on: dict[FileGroupId, SliceVersion]
    tasks: tuple[ClusteringTask, ...]
    attempt: int
    """Sequence of the entry that began the attempt. A later inflight entry means that another process took over."""
    verify: str
    """What the tasks compare with what they read (`tideline.service.verify`)."""
    rings: ClusteredRings
    carries: bool = False
    """Whether writes to the input since the plan are carried over (`carry_over`)."""


def run_clustering(
    table: Table, instant: str = "", *, options: Mapping[str, object] | None = None, run: RunTasks = cluster_here
) -> Committed | None:
    """Execute a clustering plan (empty: the oldest pending one); return None if there is none.

    Carries writes over if its options or those of the planner say so (`carry_over`), but not in copy-on-write and shared
    tables: the option may be one of a whole fleet. Takes over from a dead attempt. Rolls back, so that the planner can plan
    again, and raises `WriteConflict` on a conflict or `VerificationFailed` for unfit results. `TransactionRolledBack` means
    that another process ended the attempt or took it over.
    """
    chosen = table.options.merged(options or {})
    table.check_writable(keyed=False)
    record = pending_plan(table, instant, TableService.CLUSTERING, table.state.pending_clusterings(), chosen)
    if record is None:
        return None
    begun = _begin_clustering(table, record.instant, chosen)
    stats: list[WriteStat] = []
    carried: list[WriteStat] = []
    with (
        begun.rings.made.deleted_if_undone(),
        Heartbeat(table.storage, begun.instant, chosen) as heartbeat,
        rolled_back_if_failed(table, begun.instant, begun.attempt, TableService.CLUSTERING, stats, carried),
    ):
        results = run(begun.tasks)
        stats += [stat for result in results for stat in result.stats]
        return _commit_clustering(begun, check_clustered(begun.tasks, results), carried, heartbeat.hold_writers)


def _begin_clustering(table: Table, instant: str, options: Options) -> ClusteringRun:
    check_no_shared_rings(table, instant)
    entry = begin_attempt(table, instant, TableService.CLUSTERING, CLUSTER, options)
    planned = table.state.plans[instant]
    assert isinstance(planned, ClusteringPlanned)
    if not table.definition.has_meta_fields:
        options = options.merged({SERVICE_VERIFY.key: "full"})  # there are no record keys to compare
    based_on = dict(planned.read or planned_versions(planned.plan))
    try:
        rings = ClusteredRings.begin(table, instant, based_on)
        tasks = clustering_tasks(
            table.storage.root,
            instant,
            planned.plan,
            table.log_rule(),
            table.schema,
            table.footer_schema(),
            entry.sequence,
            options,
            table.definition.buckets,
            rings.before,
        )
        tasks = [replace(task, inputs=tuple(as_recorded(table.state, s) for s in task.inputs)) for task in tasks]
    except TidelineError:
        roll_back(table.timeline, instant, force=True, attempt=entry.sequence)
        raise
    is_possible = table.definition.has_logs and not table.capabilities.has_hudi_files
    carries = is_possible and (carries_over(options) or plan_carries_over(planned.plan))
    return ClusteringRun(
        table, instant, planned.plan, based_on, tuple(tasks), entry.sequence, options[SERVICE_VERIFY], rings, carries
    )


def check_plannable(table: Table, options: Options) -> None:
    """Raise `UnsupportedTable` for options with which no clustering of the table is planned."""
    refused = why_not_carried_over(table.view(options))
    if refused is not None:
        raise UnsupportedTable(
            f"a clustering of table {table.definition.name!r}", expected=refused.reason, remedy=f"use {refused.until}"
        )


def _commit_clustering(
    begun: ClusteringRun, stats: Sequence[WriteStat], carried: list[WriteStat], hold_writers: Callable[[], None] = lambda: None
) -> Committed:
    """Commit the files `stats`. Log files that are carried over are added to `carried` as soon as they are written."""
    table, instant = begun.table, begun.instant
    delete_earlier_attempts(table, instant, begun.attempt)
    replaced: dict[str, list[str]] = {}
    for task in begun.tasks:
        replaced.setdefault(task.partition_path, []).extend(task.replaces)
    receipt = receipt_of(instant, stats, begun.verify)
    carry = (
        CarryOver(table.storage, table.timeline.format, begun.tasks, stats, begun.based_on, begun.verify, carried)
        if begun.carries
        else None
    )

    def commit(of_rings: Mapping[str, str]) -> Committed:
        def decide(state: TableState) -> Draft:
            _check_own(begun, state, begun.based_on if carry is None else carry.versions)
            # The current schema, which a writer may have changed since the begin.
            extra = {**executed_strategy(begun.plan, begun.tasks), SCHEMA_KEY: table.schema_json, **receipt, **of_rings}
            extra |= carry.extra if carry is not None else {}
            metadata = CommitMetadata(CLUSTER, (*stats, *carried), extra, replaced)
            return Draft(instant, Action.REPLACE_COMMIT, State.INFLIGHT, State.COMPLETED, CLUSTER, Published(metadata))

        entry = _append(table, decide, carry, hold_writers)
        forget_markers(table.storage, instant)
        return Committed(instant, entry.sequence, (*stats, *carried))

    return begun.rings.publish(commit)


def _check_own(begun: ClusteringRun, state: TableState, versions: dict[FileGroupId, SliceVersion]) -> None:
    """Raise unless this attempt may commit what it made of slices in these `versions`."""
    check_own_attempt(state, begun.instant, begun.attempt, TableService.CLUSTERING)
    own = WriteSet(begun.instant, versions, update_strategy=None, rings=begun.rings.based_on)
    conflict = find_conflict(own, state, ())
    if conflict is not None:
        raise conflict


def _append(
    table: Table, decide: Callable[[TableState], Draft], carry: CarryOver | None, hold_writers: Callable[[], None]
) -> Entry:
    """Append the commit, after rounds of `carry` (None: nothing is carried over).

    Each round should have less to carry than the one before, because fewer writes complete meanwhile. As soon as it has more
    than half as much, writers commit faster than this process carries, and are held up for the last round.
    """
    before = 0
    for number in range(_ROUNDS):
        if carry is None:
            break
        waiting = carry.waiting(table.refresh())
        if number and 2 * waiting > before:
            hold_writers()
        if not waiting or not carry.follow(table.refresh()):
            break
        before = waiting
    with table.lock.hold(table.timeline.head_sequence):
        for left in reversed(range(_LOCKED_ROUNDS + 1)):
            try:
                return table.timeline.append(decide)
            except WriteConflict:
                if carry is None or not left:
                    raise
                hold_writers()
                if not carry.follow(table.state):
                    raise
    raise AssertionError("the last round returns or raises")
