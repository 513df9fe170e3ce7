"""Running compaction on one table: publish a plan, execute it, commit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from tideline_table.config import Options
from tideline_table.errors import (
    CommitUnknown,
    InstantNotFound,
    TidelineError,
    TransactionRolledBack,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.file_group.action import COMPACT, ActionRecord
from tideline_table.file_group.state import TableState
from tideline_table.service.compaction import CompactionTask, compact_slice, compaction_tasks, plan_compaction
from tideline_table.service.outcome import check_compacted
from tideline_table.table.definition import TableType
from tideline_table.table.facade import Table
from tideline_table.table.services import check_not_peers, delete_lost_attempt, is_run_by_peer
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import Action, State
from tideline_table.timeline.log import Draft
from tideline_table.timeline.write_stats import SCHEMA_KEY, CommitMetadata, WriteStat
from tideline_table.transaction import Committed, Heartbeat, is_dead
from tideline_table.transaction.conflict import check_still_own
from tideline_table.transaction.file_times import pass_second
from tideline_table.transaction.intents import reserved_groups
from tideline_table.writer.marker import forget_markers, marked_files

RunCompactions = Callable[[Sequence[CompactionTask]], Sequence[WriteStat]]
"""Runs tasks somewhere (here, or on Spark executors) and returns each task's stat."""


class _NoPlan(Exception):
    """There is nothing to do."""


def compact_here(tasks: Sequence[CompactionTask]) -> list[WriteStat]:
    """Run compaction tasks one after the other in this process."""
    return [compact_slice(task) for task in tasks]


def schedule_compaction(table: Table, options: Mapping[str, object] | None = None) -> str | None:
    """Publish a compaction plan on the timeline; returns its instant, None when there is nothing to compact yet."""
    chosen = table.options.merged(options or {})
    table.check_writable()
    if table.definition.type is not TableType.MOR:
        raise UnsupportedTable(
            f"table {table.definition.name!r} is {table.definition.type}", expected=f"{TableType.MOR}: others have no logs to merge"
        )

    reserved = reserved_groups(table.intents, table.timeline)

    def decide(state: TableState) -> Draft:
        plan = None if state.restoring else plan_compaction(state, chosen, reserved)
        if plan is None:
            raise _NoPlan
        return Draft(
            table.timeline.mint_above_files(state), Action.COMPACTION, State.NONE, State.REQUESTED, COMPACT, {"plan": plan}
        )

    try:
        return table.timeline.append(decide).instant
    except _NoPlan:
        return None


def run_compaction(
    table: Table, instant: str = "", *, options: Mapping[str, object] | None = None, run: RunCompactions = compact_here
) -> Committed | None:
    """Execute a compaction plan (empty: the oldest pending one); None when there is none.

    Takes over from a dead attempt. An attempt that fails leaves the plan pending: writers append to the slice that it will make, so it
    can only be run again. Raises `WriteConflict` while somebody else runs it, `VerificationFailed` when results do not fit the plan.
    """
    chosen = table.options.merged(options or {})
    table.check_writable()
    record = _pending_compaction(table, instant, chosen)
    if record is None:
        return None
    chosen_instant = record.instant

    def begin(state: TableState) -> Draft:
        now = state.actions.get(chosen_instant)
        if now is None or not now.is_pending:
            ended = now.state if now else "archived"
            raise TransactionRolledBack(f"compaction {chosen_instant} is {ended}", expected="a pending plan")
        check_not_peers(table, now, chosen)
        if now.state is State.INFLIGHT and not is_dead(table.storage, now, table.clock, chosen):
            raise WriteConflict(
                f"compaction {chosen_instant} is being run by {now.writer_id}", with_instant=chosen_instant, remedy="wait for it"
            )
        return Draft(chosen_instant, Action.COMPACTION, now.state, State.INFLIGHT, COMPACT, {})

    entry = table.timeline.append(begin)
    with Heartbeat(table.storage, chosen_instant, chosen):
        return _execute(table, chosen_instant, entry.sequence, chosen, run)


def _execute(table: Table, instant: str, attempt: int, options: Options, run: RunCompactions) -> Committed:
    plan = table.state.plans[instant]["plan"]
    root = table.storage.root
    tasks = compaction_tasks(root, instant, plan, table.log_rule(), table.schema, table.footer_schema(), attempt, options)
    stats: tuple[WriteStat, ...] = ()
    try:
        stats = check_compacted(tasks, run(tasks))
        entry = _complete(table, instant, attempt, stats)
    except CommitUnknown:
        raise  # the log has to say how it ended
    except TransactionRolledBack:
        delete_lost_attempt(table, instant, attempt, stats)
        raise
    except TidelineError:
        # Whoever took it over, or took it back, cannot know of files that came behind their look at the markers. Archival finds what stays.
        with suppress(TidelineError):  # the failure itself is what has to be told
            if not _is_attempt(table.refresh(), instant, attempt):
                delete_lost_attempt(table, instant, attempt, stats)
        raise
    named = {s.path for s in stats}
    for path in marked_files(table.storage, instant):
        if path not in named:
            table.storage.delete(path)
    forget_markers(table.storage, instant)
    return Committed(instant, entry.sequence, stats)


def _complete(table: Table, instant: str, attempt: int, stats: tuple[WriteStat, ...]) -> Entry:
    def decide(state: TableState) -> Draft:
        check_still_own(state, instant)
        if not _is_attempt(state, instant, attempt):
            raise TransactionRolledBack(f"compaction {instant} was taken over", expected="the attempt that began last")
        # The schema as of now: a writer may have changed it meanwhile.
        metadata = CommitMetadata(COMPACT, stats, {SCHEMA_KEY: table.schema_json}, compacted=True)
        return Draft(instant, Action.COMPACTION, State.INFLIGHT, State.COMPLETED, COMPACT, {"metadata": metadata.to_json()})

    pass_second(table.timeline, instant)
    with table.lock.hold(table.timeline.head_sequence):
        return table.timeline.append(decide)


def _is_attempt(state: TableState, instant: str, attempt: int) -> bool:
    """Whether the compaction is still the one that began with entry `attempt`, or was; a plan that is gone is nobody's."""
    record = state.actions.get(instant)
    return record is not None and not record.fenced_by and record.sequence == attempt


def _pending_compaction(table: Table, instant: str, options: Options) -> ActionRecord | None:
    if not instant:
        return next((a for a in table.state.pending_compactions() if not is_run_by_peer(table, a, options)), None)
    record = table.state.actions.get(instant)
    if record is None or record.action is not Action.COMPACTION:
        raise InstantNotFound(f"instant {instant}", expected="a compaction plan of this table")
    if record.state is State.COMPLETED:
        raise UnsupportedTable(f"compaction {instant} is completed", expected="a pending plan")
    return record
