"""Compaction as a table service."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tideline_table.action.backlog import Backlog, Objectives, Pressure, pressure_of_logs
from tideline_table.action.compaction.plan import compact_slice, plan_compaction
from tideline_table.action.compaction.run import compact_here, request_compaction, run_compaction
from tideline_table.action.decision import Check, Due, NotDue, TableService, Trigger, oldest_of
from tideline_table.action.service import (
    Gain,
    Inline,
    Ran,
    Rewrite,
    RunTasks,
    Settings,
    logs_applied,
    merged_logs,
    operation_files,
)
from tideline_table.config import COMPACT_INLINE, COMPACT_SCHEDULE_INLINE, COMPACTION_DELTA_COMMITS, Options
from tideline_table.coordination.committed import Committed
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.instant import Action
from tideline_table.log.action import COMPACT
from tideline_table.log.plan import CompactionPlanned, Plan
from tideline_table.table.definition import TableView
from tideline_table.table.facade import Table


class Compaction(Rewrite):
    """Merges log files into base files."""

    name = TableService.COMPACTION
    action, operation = Action.COMPACTION, COMPACT
    work, here = staticmethod(compact_slice), staticmethod(compact_here)
    begins_slices = True
    is_for_logs = True

    def excluded(self, table: Table) -> NotDue | None:
        has_logs = table.definition.has_logs
        return None if has_logs else NotDue("a copy-on-write table has no log files to merge")

    def inline(self, table: Table, options: Options) -> Inline | None:
        if self.excluded(table) is not None or not (options[COMPACT_INLINE] or options[COMPACT_SCHEDULE_INLINE]):
            return None
        return Inline(options[COMPACT_INLINE])

    def decide(self, table: Table, options: Options, trigger: Trigger | None) -> Due | NotDue:
        del trigger  # the options say after how many commits a compaction is due
        return plan_compaction(table.state, options, now=table.clock.now())

    def why_not_planned(self, view: TableView) -> NotDue | None:
        return None if view.definition.has_logs else NotDue("only merge-on-read tables have log files to merge")

    def pressure(self, objectives: Objectives, found: Backlog, now: datetime) -> Pressure:
        return pressure_of_logs(objectives, found, now)

    def thresholds(self, view: TableView, usual: Trigger, *, is_urgent: bool) -> Trigger:
        if is_urgent:
            # While a plan is pending, the backlog is as large as before it. Without new writes, the next plan waits until that
            # one ends.
            return Trigger(0, 1 if view.state.pending_compactions() else 0, usual.max_bytes)
        return Trigger(0, view.options[COMPACTION_DELTA_COMMITS], usual.max_bytes)

    def due(self, view: TableView, trigger: Trigger | None, now: datetime) -> Due | NotDue:
        most, least = (None, None) if trigger is None else (trigger.max_bytes, trigger.min_commits)
        return plan_compaction(view.state, view.options, now=now, max_bytes=most, min_commits=least)

    def gain(self, view: TableView, slices: Sequence[FileSlice], due: Due) -> Gain:
        del view, due
        since = oldest_of(log.instant for s in slices for log in s.log_files)
        return Gain(sum(len(s.paths) for s in slices), len(slices), logs_applied(slices), since=since)

    def plan(
        self, table: Table, options: Settings = None, trigger: Trigger | None = None, check: Check | None = None
    ) -> str | NotDue:
        """See `Service.plan`. A `trigger` replaces the number of commits that the options name."""
        most, least = (None, None) if trigger is None else (trigger.max_bytes, trigger.min_commits)
        return request_compaction(table, options, max_bytes=most, min_commits=least, check=check)

    def ran(self, committed: Committed) -> Ran:
        return merged_logs(self.name, committed, "base files")

    def preview(self, plan: Plan) -> list[tuple[str, list[str]]] | None:
        assert isinstance(plan, CompactionPlanned)
        return operation_files(plan, with_base=True)

    def _execute(self, table: Table, instant: str, options: Settings, run: RunTasks) -> Committed | None:
        return run_compaction(table, instant, options=options, run=run)

    def _planned(self, table: Table, options: Settings, trigger: Trigger | None, why: str) -> str | NotDue:
        del trigger
        return super()._planned(table, options, None, why)
