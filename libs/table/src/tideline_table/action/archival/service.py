"""Archival as a table service."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

from tideline_table.action.archival.plan import plan_archival
from tideline_table.action.archival.run import Archival, archive, delete_late_files, request_archival, run_archival
from tideline_table.action.decision import Check, Due, NotDue, TableService, Trigger
from tideline_table.action.service import Ran, RunTasks, Service, Settings, Step
from tideline_table.config import ARCHIVE_AUTOMATIC, Options
from tideline_table.coordination.leases import live_leases
from tideline_table.log.savepoint import needed_writes
from tideline_table.table.facade import Table


class Archiving(Service):
    """Moves old instants to the archived timeline."""

    name = TableService.ARCHIVAL
    deletes = True
    tidies = True
    """It deletes late files."""

    def excluded(self, table: Table) -> NotDue | None:
        return None if table.capabilities.archives else NotDue("Apache Hudi's writers archive a shared table")

    def is_on(self, options: Options, *, has_plan: bool) -> bool:
        del has_plan
        return options[ARCHIVE_AUTOMATIC]

    def decide(self, table: Table, options: Options, trigger: Trigger | None) -> Due | NotDue:
        del trigger
        leases = live_leases(table.storage)
        return plan_archival(table.state, options, table.clock.now(), needed_writes(table.timeline.saved()), leases=leases)

    def plan(
        self, table: Table, options: Settings = None, trigger: Trigger | None = None, check: Check | None = None
    ) -> str | NotDue:
        """See `Service.plan`. First deletes late files of rolled-back writes, which hold archival back."""
        del trigger, check
        return request_archival(table, options, delete_late_files(table, options).cleaned_up)

    def run(self, table: Table, instant: str = "", *, options: Settings = None, run: RunTasks | None = None) -> Ran | None:
        """See `Service.run`. Errors as `run_archival`."""
        del run
        done = run_archival(table, instant, options=options)
        return None if done is None else self._ran(done)

    def maintain(self, table: Table, options: Settings, trigger: Trigger | None, why: str) -> Step:
        """Run a pending plan, delete late files, then plan and run; report the last run."""
        del trigger
        done, found, reason = archive(table, options)
        if done is not None:
            return Step.of(self.name, [self._ran(done)], "", why)
        return Step(self.name, "nothing", reason or why, files=len(found.deleted))

    def _ran(self, done: Archival) -> Ran:
        text = f"archival {done.instant} completed: {len(done.instants)} instants in {done.path}"
        facts = {"instant": done.instant, "archived": list(done.instants), "file": done.path}
        return Ran(self.name, (done.instant,), text, len(done.instants), facts=facts)
