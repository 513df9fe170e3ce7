"""Clean as a table service."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from tideline_table.action.clean.plan import plan_clean
from tideline_table.action.clean.run import request_clean, run_clean
from tideline_table.action.decision import Check, Due, NotDue, TableService, Trigger
from tideline_table.action.service import Ran, RunTasks, Service, Settings
from tideline_table.config import Options
from tideline_table.coordination.leases import live_leases
from tideline_table.log.plan import CleanPlanned, Plan, path_named
from tideline_table.table.facade import Table


class Clean(Service):
    """Deletes file slices that no retained query reads."""

    name = TableService.CLEAN
    deletes = True

    def decide(self, table: Table, options: Options, trigger: Trigger | None) -> Due | NotDue:
        del trigger
        leases = live_leases(table.storage)
        return plan_clean(table.state, table.storage.root, options, table.timeline.saved(), table.clock.now(), leases)

    def plan(
        self, table: Table, options: Settings = None, trigger: Trigger | None = None, check: Check | None = None
    ) -> str | NotDue:
        del trigger, check
        return request_clean(table, options)

    def run(self, table: Table, instant: str = "", *, options: Settings = None, run: RunTasks | None = None) -> Ran | None:
        """See `Service.run`. Errors as `run_clean`."""
        del run
        pending = instant or next((record.instant for record in self.pending(table.state)), "")
        deleted = run_clean(table, instant, options=options)
        if deleted is None:
            return None
        text = f"clean {pending} completed: {deleted} files deleted"
        return Ran(self.name, (pending,), text, deleted, facts={"instant": pending, "files_deleted": deleted})

    def preview(self, plan: Plan) -> list[tuple[str, list[str]]] | None:
        assert isinstance(plan, CleanPlanned)
        named = plan.plan["filePathsToBeDeletedPerPartition"]
        return [(partition, [path_named(partition, f["filePath"]) for f in files]) for partition, files in named.items()]
