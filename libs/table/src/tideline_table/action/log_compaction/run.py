"""Log compaction of one table: publish a plan, execute it, commit it as a delta commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tideline_table.action.decision import Check, Due, NotDue, TableService
from tideline_table.action.log_compaction.plan import find_log_compaction_conflict, plan_log_compaction, planned_slices
from tideline_table.action.log_compaction.task import LogCompactionTask, merge_log
from tideline_table.action.outcome import check_merged
from tideline_table.action.planned_run import (
    begin_attempt,
    check_own_attempt,
    delete_earlier_attempts,
    pending_plan,
    rolled_back_if_failed,
)
from tideline_table.action.publishing import publish
from tideline_table.action.receipt import receipt_of
from tideline_table.action.side_by_side import MemoryBudget, run_side_by_side
from tideline_table.config import COMPACTION_MEMORY_LIMIT, SERVICE_VERIFY, Options
from tideline_table.coordination import Heartbeat
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.file_times import pass_instant
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.write_stats import SCHEMA_KEY, CommitMetadata, WriteStat
from tideline_table.log.action import LOG_COMPACT
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.plan import CompactionPlanned
from tideline_table.log.planned_slices import as_recorded
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.table.definition import TableView
from tideline_table.table.facade import Table
from tideline_table.writer.marker import forget_markers

RunLogCompactions = Callable[[Sequence[LogCompactionTask]], Sequence[WriteStat]]
"""Runs tasks, and returns the write stat of each."""


def log_compact_here(tasks: Sequence[LogCompactionTask], on_done: Callable[[], None] = lambda: None) -> list[WriteStat]:
    """Run tasks in threads of this process, within `tideline.compaction.memory.limit`; call `on_done` behind each."""
    if not tasks:
        return []
    memory = MemoryBudget(Options(tasks[0].options)[COMPACTION_MEMORY_LIMIT])
    return run_side_by_side(tasks, partial(merge_log, memory=memory), on_done)


def why_not_log_compacted(table: Table | TableView) -> NotDue | None:
    """Return why no log compaction of this table is possible, None if it is."""
    definition = table.definition
    if not definition.has_logs:
        return NotDue("a copy-on-write table has no log files to merge")
    if not table.capabilities.log_is_truth and not definition.format.has_completion_times:
        return NotDue(
            "in version 6 Apache Hudi's writers compact the logs of a shared table", "hoodie.log.compaction.inline of one of them"
        )
    if definition.merging.needs_older_rows:
        return NotDue("the records of the table are merged cell by cell, which needs the rows of base files", "compaction instead")
    if not definition.has_meta_fields:
        return NotDue("the rows of the table have no meta fields", "compaction instead")
    if len(definition.merging.ordering_fields) > 1:
        return NotDue("the table orders rows by several fields", "compaction instead")
    return None


def request_log_compaction(
    table: Table, options: Mapping[str, object] | None = None, *, max_bytes: int | None = None, check: Check | None = None
) -> str | NotDue:
    """Publish a plan on the timeline; return its instant, or why there is none.

    `max_bytes` as for its plan, `check` for `publish`.

    Raises `UnsupportedTable` for tables without log files to merge, tables of version 6 shared with Apache Hudi, and tables whose
    records are merged cell by cell, by several ordering fields, or have no meta fields.
    """
    chosen = table.options.merged(options or {})
    table.check_writable(keyed=False)
    _check_possible(table)

    def decide(state: TableState) -> Due | NotDue:
        return plan_log_compaction(state, chosen, max_bytes=max_bytes)

    return publish(table, Action.LOG_COMPACTION, LOG_COMPACT, decide, check=check)


def _check_possible(table: Table) -> None:
    reason = why_not_log_compacted(table)
    if reason is not None:
        raise UnsupportedTable(
            f"log compaction of table {table.definition.name!r}: {reason.reason}",
            expected="a merge-on-read table with meta fields, whose records replace each other as a whole; of version 6 one that "
            "only Tideline writes",
            remedy=reason.until,
        )


def run_log_compaction(
    table: Table, instant: str = "", *, options: Mapping[str, object] | None = None, run: RunLogCompactions = log_compact_here
) -> Committed | None:
    """Execute the plan of a log compaction (empty: the oldest pending one); return None if there is none.

    Rolls the plan back on any failure, because no file depends on it: the next plan takes the slices as they are then. Raises
    `WriteConflict` if another action rewrote a slice or another process runs the plan, `VerificationFailed` if a result does
    not hold what was merged, `TransactionRolledBack` if another process ended the attempt.
    """
    chosen = table.options.merged(options or {})
    table.check_writable(keyed=False)
    _check_possible(table)
    record = pending_plan(table, instant, TableService.LOG_COMPACTION, table.state.pending_log_compactions(), chosen)
    if record is None:
        return None
    attempt = begin_attempt(table, record.instant, TableService.LOG_COMPACTION, LOG_COMPACT, chosen).sequence
    stats: list[WriteStat] = []
    with (
        Heartbeat(table.storage, record.instant, chosen),
        rolled_back_if_failed(table, record.instant, attempt, TableService.LOG_COMPACTION, stats),
    ):
        tasks = _tasks(table, record.instant, attempt, chosen)
        _check_unchanged(table.state, record.instant, tasks)
        stats += run(tasks)
        return _commit(table, record.instant, attempt, tasks, check_merged("logcompaction", tasks, stats), chosen)


def _tasks(table: Table, instant: str, attempt: int, options: Options) -> list[LogCompactionTask]:
    planned = table.state.plans[instant]
    assert isinstance(planned, CompactionPlanned)
    rule, avro_schema = table.log_rule(), table.footer_schema()
    return [
        LogCompactionTask(
            table.storage.root,
            instant,
            number,
            as_recorded(table.state, read),
            rule,
            table.schema,
            avro_schema,
            table.timeline.format,
            attempt,
            options.given(),
        )
        for number, read in enumerate(planned_slices(planned.plan, instant, table.timeline.format))
    ]


def _check_unchanged(state: TableState, instant: str, tasks: Sequence[LogCompactionTask]) -> None:
    conflict = find_log_compaction_conflict(state, instant, tuple(task.file_slice for task in tasks))
    if conflict is not None:
        raise conflict


def _commit(
    table: Table, instant: str, attempt: int, tasks: Sequence[LogCompactionTask], stats: tuple[WriteStat, ...], options: Options
) -> Committed:
    delete_earlier_attempts(table, instant, attempt)
    pass_instant(table.timeline, max((task.file_slice.base_instant for task in tasks), default=""), opens=False)
    entry = _complete(table, instant, attempt, tasks, stats, receipt_of(instant, stats, options[SERVICE_VERIFY]))
    forget_markers(table.storage, instant)
    return Committed(instant, entry.sequence, stats)


def _complete(
    table: Table,
    instant: str,
    attempt: int,
    tasks: Sequence[LogCompactionTask],
    stats: tuple[WriteStat, ...],
    receipt: Mapping[str, str],
) -> Entry:
    def decide(state: TableState) -> Draft:
        check_own_attempt(state, instant, attempt, TableService.LOG_COMPACTION)
        _check_unchanged(state, instant, tasks)
        # The current schema, which a writer may have changed since the begin.
        metadata = CommitMetadata(LOG_COMPACT, stats, {SCHEMA_KEY: table.schema_json, **receipt}, compacted=True)
        return Draft(instant, Action.LOG_COMPACTION, State.INFLIGHT, State.COMPLETED, LOG_COMPACT, Published(metadata))

    with table.lock.hold(table.timeline.head_sequence):
        return table.timeline.append(decide)
