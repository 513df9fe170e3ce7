"""Log compaction as a table service."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tideline_table.action.decision import Check, Due, Reason, TableService, Trigger
from tideline_table.action.log_compaction.plan import plan_log_compaction
from tideline_table.action.log_compaction.run import (
    log_compact_here,
    request_log_compaction,
    run_log_compaction,
    why_not_log_compacted,
)
from tideline_table.action.log_compaction.task import LogCompactionTask, merge_log
from tideline_table.action.service import Inline, Ran, Rewrite, RunTasks, Settings, merged_logs, operation_files
from tideline_table.config import LOG_COMPACTION_ENABLE, LOG_COMPACTION_INLINE, Options
from tideline_table.coordination.committed import Committed
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.log.plan import CompactionPlanned, Plan
from tideline_table.table.facade import Table


class LogCompaction(Rewrite):
    """Merges many log files of a slice into one, and leaves its base file as it is."""

    name = TableService.LOG_COMPACTION
    reads_logs_only = True

    def excluded(self, table: Table) -> Reason | None:
        """See `Service.excluded`."""
        return why_not_log_compacted(table)

    def is_on(self, options: Options, *, has_plan: bool) -> bool:
        """See `Service.is_on`. A plan that a user made is run even if the options do not switch the service on."""
        return options[LOG_COMPACTION_ENABLE] or has_plan

    def inline(self, table: Table, options: Options) -> Inline | None:
        """See `Service.inline`."""
        return Inline(runs=True) if options[LOG_COMPACTION_INLINE] and self.excluded(table) is None else None

    def decide(self, table: Table, options: Options, trigger: Trigger | None) -> Due | Reason:
        """See `Service.decide`."""
        del trigger
        return plan_log_compaction(table.state, options)

    def plan(
        self, table: Table, options: Settings = None, trigger: Trigger | None = None, check: Check | None = None
    ) -> str | Reason:
        """See `Service.plan`. Of a `trigger` only the bound on bytes counts."""
        return request_log_compaction(table, options, max_bytes=None if trigger is None else trigger.max_bytes, check=check)

    @property
    def work(self) -> Callable[[LogCompactionTask], WriteStat]:
        """See `Rewrite.work`."""
        return merge_log

    def here(self, tasks: Sequence[LogCompactionTask], on_done: Callable[[], None] = lambda: None) -> list[WriteStat]:
        """See `Rewrite.here`."""
        return log_compact_here(tasks, on_done)

    def ran(self, committed: Committed) -> Ran:
        """See `Rewrite.ran`."""
        return merged_logs(self.name, committed, "log files")

    def preview(self, plan: Plan) -> list[tuple[str, list[str]]] | None:
        """See `Service.preview`."""
        assert isinstance(plan, CompactionPlanned)
        return operation_files(plan, with_base=False)

    def _execute(self, table: Table, instant: str, options: Settings, run: RunTasks) -> Committed | None:
        return run_log_compaction(table, instant, options=options, run=run)
