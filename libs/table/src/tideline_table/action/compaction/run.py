"""Compaction of one table: publish a plan, execute it, check the results against it, commit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from tideline_table.action.compaction.plan import CompactionTask, compact_slice, compaction_tasks, plan_compaction
from tideline_table.action.decision import Check, Due, NotDue, TableService
from tideline_table.action.outcome import check_merged
from tideline_table.action.planned_run import begin_attempt, check_own_attempt, delete_lost_attempt, lost_attempt, pending_plan
from tideline_table.action.publishing import publish
from tideline_table.action.receipt import receipt_of
from tideline_table.action.side_by_side import MemoryBudget, run_side_by_side
from tideline_table.config import COMPACTION_MEMORY_LIMIT, SERVICE_VERIFY, Options
from tideline_table.coordination import Heartbeat
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.file_times import pass_instant
from tideline_table.coordination.reservations import reserved_groups
from tideline_table.errors import (
    CommitUnknown,
    ObjectNotFound,
    StorageFull,
    TidelineError,
    TransactionRolledBack,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.write_stats import SCHEMA_KEY, CommitMetadata, WriteStat
from tideline_table.log.action import COMPACT
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.hidden import late_logs, with_late
from tideline_table.log.plan import CompactionPlanned
from tideline_table.log.planned_slices import as_recorded
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.storage import open_storage
from tideline_table.table.definition import TableType
from tideline_table.table.facade import Table
from tideline_table.writer.marker import forget_markers, marked_files

RunCompactions = Callable[[Sequence[CompactionTask]], Sequence[WriteStat]]
"""Runs tasks in this process or on Spark executors, and returns the write stat of each task."""


def compact_here(tasks: Sequence[CompactionTask], on_done: Callable[[], None] = lambda: None) -> list[WriteStat]:
    """Run compaction tasks in threads of this process, within `tideline.compaction.memory.limit`; call `on_done` behind each."""
    if not tasks:
        return []
    memory = MemoryBudget(Options(tasks[0].options)[COMPACTION_MEMORY_LIMIT])
    # One storage, because each one finds out anew which folders exist.
    storage = open_storage(tasks[0].base_path)
    work = partial(compact_slice, storage=storage, memory=memory, one_thread=len(tasks) >= pa.cpu_count())
    return run_side_by_side(tasks, work, on_done)


def request_compaction(
    table: Table,
    options: Mapping[str, object] | None = None,
    *,
    max_bytes: int | None = None,
    min_commits: int | None = None,
    check: Check | None = None,
) -> str | NotDue:
    """Publish a plan on the timeline; return its instant, or why there is none.

    Bounds as for `plan_compaction`, `check` as for `publish`.
    """
    chosen = table.options.merged(options or {})
    table.check_writable(keyed=False)
    if not table.definition.has_logs:
        raise UnsupportedTable(
            f"table {table.definition.name!r} is {table.definition.type}", expected=f"{TableType.MOR}: others have no logs to merge"
        )

    reserved = reserved_groups(table.reservations, table.timeline)

    def decide(state: TableState) -> Due | NotDue:
        return plan_compaction(state, chosen, reserved, table.clock.now(), max_bytes=max_bytes, min_commits=min_commits)

    # Step 1: append the plan. From here on writers put new log files behind the slice that the compaction will create.
    return publish(table, Action.COMPACTION, COMPACT, decide, mint=table.timeline.mint_above_files, check=check)


def run_compaction(
    table: Table, instant: str = "", *, options: Mapping[str, object] | None = None, run: RunCompactions = compact_here
) -> Committed | None:
    """Execute a compaction plan (empty: the oldest pending one); return None if there is none.

    Takes over from a dead attempt. A failed attempt leaves the plan pending, because writers already append to the slice that the
    plan will create: the plan can only be run again. Raises `WriteConflict` while another process runs it, `VerificationFailed` if
    results do not fit the plan, and `ClockSkew`, before anything is done, for a plan whose instant lies ahead of the store's time.
    """
    chosen = table.options.merged(options or {})
    table.check_writable(keyed=False)
    record = pending_plan(table, instant, TableService.COMPACTION, table.state.pending_compactions(), chosen)
    if record is None:
        return None
    chosen_instant = record.instant
    table.timeline.time.check_reached(chosen_instant, "the slices of this compaction")

    # Step 2: begin, REQUESTED to INFLIGHT. Of several executors the one whose entry is the last owns the plan.
    entry = begin_attempt(table, chosen_instant, TableService.COMPACTION, COMPACT, chosen)
    with Heartbeat(table.storage, chosen_instant, chosen):
        return _execute(table, chosen_instant, entry.sequence, chosen, run)


def _execute(table: Table, instant: str, attempt: int, options: Options, run: RunCompactions) -> Committed:
    planned = table.state.plans[instant]
    assert isinstance(planned, CompactionPlanned)
    plan = planned.plan
    root = table.storage.root
    rule, index = table.log_rule(), table.definition.buckets
    known = table.rings()
    rings = known.of({str(o["partitionPath"] or "") for o in plan["operations"]}) if known is not None else {}
    tasks = compaction_tasks(root, instant, plan, rule, table.schema, table.footer_schema(), attempt, options, index, rings)
    # A writer without the common lock may have completed log files below the plan: nobody else would ever read them.
    late = late_logs(table.state, instant)
    slices = [with_late(table.state, as_recorded(table.state, task.file_slice), late) for task in tasks]
    tasks = [replace(task, file_slice=found) for task, found in zip(tasks, slices, strict=True)]
    stats: tuple[WriteStat, ...] = ()
    try:
        # Step 3: merge the log files of each slice with its base file, in threads or on Spark, and check the results.
        stats = check_merged("compaction", tasks, run(tasks))
        # Step 4: commit, INFLIGHT to COMPLETED, with a receipt of the rows that were read and written.
        entry = _complete(table, instant, attempt, stats, receipt_of(instant, stats, options[SERVICE_VERIFY]), late)
    except CommitUnknown:
        raise  # only the log knows the outcome
    except TransactionRolledBack:
        delete_lost_attempt(table, instant, attempt, stats)
        raise
    except TidelineError as error:
        # A process that superseded or undid this attempt missed files written after it listed the markers; archival finds the rest.
        is_lost = False
        with suppress(TidelineError):  # the first failure is the one to report
            is_lost = not _is_attempt(table.refresh(), instant, attempt)
            if isinstance(error, StorageFull) or is_lost:
                delete_lost_attempt(table, instant, attempt, stats)
        if is_lost and isinstance(error, ObjectNotFound):
            raise lost_attempt(TableService.COMPACTION, instant) from error
        raise
    # Step 5: delete files of earlier attempts. Markers name them; no reader sees them.
    named = {s.path for s in stats}
    for path in marked_files(table.storage, instant):
        if path not in named:
            table.storage.delete(path)
    forget_markers(table.storage, instant)
    return Committed(instant, entry.sequence, stats)


def _complete(
    table: Table, instant: str, attempt: int, stats: tuple[WriteStat, ...], receipt: Mapping[str, str], late: frozenset[str]
) -> Entry:
    def decide(state: TableState) -> Draft:
        check_own_attempt(state, instant, attempt, TableService.COMPACTION)
        if late_logs(state, instant) != late:
            raise WriteConflict(
                f"a write without the table's lock completed below compaction {instant} while it ran",
                with_instant=instant,
                remedy="run the compaction again: it then reads the write's rows, too",
            )
        # The current schema, which a writer may have changed since the begin.
        metadata = CommitMetadata(COMPACT, stats, {SCHEMA_KEY: table.schema_json, **receipt}, compacted=True)
        return Draft(instant, Action.COMPACTION, State.INFLIGHT, State.COMPLETED, COMPACT, Published(metadata))

    # A slice whose files are dated before its instant would look older than it is.
    pass_instant(table.timeline, instant, opens=True)
    with table.lock.hold(table.timeline.head_sequence):
        return table.timeline.append(decide)


def _is_attempt(state: TableState, instant: str, attempt: int) -> bool:
    """Return whether entry `attempt` is still the last one of the compaction; False if the plan is gone or fenced."""
    record = state.actions.get(instant)
    return record is not None and not record.fenced_by and record.sequence == attempt
