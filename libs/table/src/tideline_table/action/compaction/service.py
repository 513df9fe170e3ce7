"""Compaction as a table service."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tideline_table.action.compaction.plan import CompactionTask, compact_slice, plan_compaction
from tideline_table.action.compaction.run import compact_here, request_compaction, run_compaction
from tideline_table.action.decision import Check, Due, Reason, TableService, Trigger
from tideline_table.action.service import Inline, Ran, Rewrite, RunTasks, Settings, merged_logs, operation_files
from tideline_table.config import COMPACT_INLINE, COMPACT_SCHEDULE_INLINE, Options
from tideline_table.coordination.committed import Committed
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.log.plan import CompactionPlanned, Plan
from tideline_table.table.definition import TableType
from tideline_table.table.facade import Table


class Compaction(Rewrite):
    """Merges log files into base files."""

    name = TableService.COMPACTION
    failed_plan_stays = True

    def excluded(self, table: Table) -> Reason | None:
        """See `Service.excluded`."""
        is_merge_on_read = table.definition.type is TableType.MOR
        return None if is_merge_on_read else Reason("a copy-on-write table has no log files to merge")

    def inline(self, table: Table, options: Options) -> Inline | None:
        """See `Service.inline`."""
        if self.excluded(table) is not None or not (options[COMPACT_INLINE] or options[COMPACT_SCHEDULE_INLINE]):
            return None
        return Inline(options[COMPACT_INLINE])

    def decide(self, table: Table, options: Options, trigger: Trigger | None) -> Due | Reason:
        """See `Service.decide`."""
        del trigger  # the options say after how many commits a compaction is due
        return plan_compaction(table.state, options, now=table.clock.now())

    def plan(
        self, table: Table, options: Settings = None, trigger: Trigger | None = None, check: Check | None = None
    ) -> str | Reason:
        """See `Service.plan`. A `trigger` replaces the number of commits that the options name."""
        most, least = (None, None) if trigger is None else (trigger.max_bytes, trigger.min_commits)
        return request_compaction(table, options, max_bytes=most, min_commits=least, check=check)

    @property
    def work(self) -> Callable[[CompactionTask], WriteStat]:
        """See `Rewrite.work`."""
        return compact_slice

    def here(self, tasks: Sequence[CompactionTask], on_done: Callable[[], None] = lambda: None) -> list[WriteStat]:
        """See `Rewrite.here`."""
        return compact_here(tasks, on_done)

    def ran(self, committed: Committed) -> Ran:
        """See `Rewrite.ran`."""
        return merged_logs(self.name, committed, "base files")

    def preview(self, plan: Plan) -> list[tuple[str, list[str]]] | None:
        """See `Service.preview`."""
        assert isinstance(plan, CompactionPlanned)
        return operation_files(plan, with_base=True)

    def _execute(self, table: Table, instant: str, options: Settings, run: RunTasks) -> Committed | None:
        return run_compaction(table, instant, options=options, run=run)

    def _planned(self, table: Table, options: Settings, trigger: Trigger | None, why: str) -> str | Reason:
        del trigger
        return super()._planned(table, options, None, why)
