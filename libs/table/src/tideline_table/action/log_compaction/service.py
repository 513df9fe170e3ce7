"""Log compaction as a table service."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tideline_table.action.backlog import Backlog, Objectives, Pressure
from tideline_table.action.decision import Check, Due, NotDue, TableService, Trigger, oldest_of
from tideline_table.action.log_compaction.plan import plan_log_compaction
from tideline_table.action.log_compaction.run import (
    log_compact_here,
    request_log_compaction,
    run_log_compaction,
    why_not_log_compacted,
)
from tideline_table.action.log_compaction.task import merge_log
from tideline_table.action.service import Gain, Inline, Ran, Rewrite, RunTasks, Settings, logs_applied, merged_logs, operation_files
from tideline_table.config import LOG_COMPACTION_ENABLE, LOG_COMPACTION_INLINE, Options
from tideline_table.coordination.committed import Committed
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.instant import Action
from tideline_table.log.action import LOG_COMPACT
from tideline_table.log.plan import CompactionPlanned, Plan
from tideline_table.log.state import TableState
from tideline_table.table.definition import TableView
from tideline_table.table.facade import Table


class LogCompaction(Rewrite):
    """Merges many log files of a slice into one, and leaves its base file as it is."""

    name = TableService.LOG_COMPACTION
    action, operation = Action.LOG_COMPACTION, LOG_COMPACT
    work, here = staticmethod(merge_log), staticmethod(log_compact_here)
    is_for_logs = cancels_where_shared = True
    yields_to = TableService.COMPACTION

    def excluded(self, table: Table) -> NotDue | None:
        return why_not_log_compacted(table)

    def is_on(self, options: Options, *, has_plan: bool) -> bool:
        """See `Service.is_on`. A plan that a user made is run even if the options do not switch the service on."""
        return options[LOG_COMPACTION_ENABLE] or has_plan

    def inline(self, table: Table, options: Options) -> Inline | None:
        return Inline(runs=True) if options[LOG_COMPACTION_INLINE] and self.excluded(table) is None else None

    def decide(self, table: Table, options: Options, trigger: Trigger | None) -> Due | NotDue:
        del trigger
        return plan_log_compaction(table.state, options)

    def why_not_planned(self, view: TableView) -> NotDue | None:
        """See `Rewrite.why_not_planned`.

        Slices reach the threshold one by one: a plan for each write would be an application for each.
        """
        pending = next(iter(view.state.pending_log_compactions()), None)
        if pending is None:
            return None
        return NotDue(f"log compaction {pending.instant} is pending", f"the end of log compaction {pending.instant}")

    def is_examined(self, view: TableView) -> bool:
        """See `Rewrite.is_examined`: where it is possible and switched on."""
        return why_not_log_compacted(view) is None and view.options[LOG_COMPACTION_ENABLE]

    def reads(self, found: FileSlice) -> FileSlice:
        """See `Rewrite.reads`: the log files that a reader opens."""
        return found.applied

    def cost(self, found: FileSlice) -> int:
        return logs_applied([found])

    def taken(self, state: TableState) -> dict[FileGroupId, str]:
        """See `Rewrite.taken`. A slice has at most one plan of this service."""
        return {**super().taken(state), **state.groups_under_log_compaction()}

    def pressure(self, objectives: Objectives, found: Backlog, now: datetime) -> Pressure:
        """See `Rewrite.pressure`. A log compaction has no objectives."""
        del objectives, found, now
        return Pressure()

    def thresholds(self, view: TableView, usual: Trigger, *, is_urgent: bool) -> Trigger:
        """See `Rewrite.thresholds`. The options alone say from how many log files on a slice is merged."""
        del view, is_urgent
        return Trigger(0, 0, usual.max_bytes)

    def due(self, view: TableView, trigger: Trigger | None, now: datetime) -> Due | NotDue:
        del now
        return plan_log_compaction(view.state, view.options, max_bytes=None if trigger is None else trigger.max_bytes)

    def gain(self, view: TableView, slices: Sequence[FileSlice], due: Due) -> Gain:
        """See `Rewrite.gain`. Readers open fewer files, and merge what they merged before."""
        del view, due
        since = oldest_of(log.instant for s in slices for log in s.applied.log_files)
        return Gain(sum(len(s.applied.log_files) for s in slices), len(slices), since=since)

    def plan(
        self, table: Table, options: Settings = None, trigger: Trigger | None = None, check: Check | None = None
    ) -> str | NotDue:
        """See `Service.plan`. Of a `trigger` only the bound on bytes counts."""
        return request_log_compaction(table, options, max_bytes=None if trigger is None else trigger.max_bytes, check=check)

    def ran(self, committed: Committed) -> Ran:
        return merged_logs(self.name, committed, "log files")

    def preview(self, plan: Plan) -> list[tuple[str, list[str]]] | None:
        assert isinstance(plan, CompactionPlanned)
        return operation_files(plan, with_base=False)

    def _execute(self, table: Table, instant: str, options: Settings, run: RunTasks) -> Committed | None:
        return run_log_compaction(table, instant, options=options, run=run)
