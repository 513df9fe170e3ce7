"""The pending plans of the launcher's tables, as of the last visit of each table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from tideline_launcher.application import PlanKey
from tideline_launcher.decision import PendingPlan, TableLimits
from tideline_launcher.resources import work_of
from tideline_launcher.settings import LauncherSettings
from tideline_runtime.contract import ServiceContext
from tideline_runtime.open_tables import OpenTables
from tideline_runtime.policy import Policies, is_open
from tideline_runtime.table_settings import TableSettings
from tideline_runtime.visits import Visits
from tideline_table.action import is_run_by_hudi, pending_rewrites, why_stopped
from tideline_table.coordination import is_dead
from tideline_table.errors import TidelineError
from tideline_table.hudi import State
from tideline_table.table import Table, is_given_up_plan

Between = Callable[[Callable[[], list[PendingPlan]], Collection[str]], None]
"""Called before each table of a visit of all tables. The arguments: a function that returns the plans of the tables visited so
far, and the uids of the named tables that were visited since the last call (mostly none)."""


class PendingPlans:
    """Finds the pending plans of the launcher's tables. Only the thread that ticks uses this object."""

    def __init__(
        self,
        settings: LauncherSettings,
        context: ServiceContext,
        tables: OpenTables,
        per_table: TableSettings[LauncherSettings],
        visits: Visits,
    ) -> None:
        self._settings = settings
        self._context = context
        self._tables = tables
        self._per_table = per_table
        self._visits = visits
        self._plans: dict[str, list[PendingPlan]] = {}
        self._left_alone: set[PlanKey] = set()
        self._whole: tuple[Policies, tuple[int, ...], int] | None = None
        """The inputs that all tables shared (`OpenTables.common`) when each of them was visited; None before the first full visit.

        During a visit of all tables, plans may be launched only while these inputs are unchanged: then the applications of all
        tables are adopted and counted. A table that failed counts as visited: its applications are known, and only its plans
        are missing.
        """

    def leave_alone(self, key: PlanKey) -> None:
        """Skip a plan that was given up, for as long as the record of it exists in the table's folder."""
        self._left_alone.add(key)

    def visit(self, ended: Iterable[str], between: Between) -> tuple[list[PendingPlan], float | None, TidelineError | None]:
        """Return the pending plans, the seconds until all tables are due (None: the poll interval), and an error.

        Visits all tables once per poll interval. In between it visits the tables that events name, that have a pending plan
        (whose process may die), or that have an application in `ended` (uids). The error is one that a retry may cure; the
        plans of its table are missing.

        A visit of all tables begins with the named tables, and visits tables that events name meanwhile next. It calls
        `between`, but not before all tables were visited once, and not if the policies, the shards or the table source changed
        since.
        """
        visit = self._visits.begin([*self._plans, *ended])
        found = {} if visit.only is None else {uid: plans for uid, plans in self._plans.items() if uid not in visit.only}

        def examine(table: Table) -> None:
            found.pop(table.uid, None)
            plans = self._of(table)
            if plans:
                found[table.uid] = plans

        common: tuple[Policies, tuple[int, ...], int] | None = None
        named: list[str] = []

        def first() -> list[str]:
            nonlocal common, named
            common = common or self._tables.common()
            if visit.is_full and self._whole == self._tables.common():
                between(lambda: _in_order(found), named)
            named = visit.first()
            return named

        failure = self._tables.visit(self._context, examine, only=visit.only, first=first)
        self._plans = found
        if visit.is_full and not self._context.stopping.is_set():
            self._whole = common
        if failure is not None:
            return _in_order(found), None, failure
        return _in_order(found), self._visits.end(visit), None

    def _of(self, table: Table) -> list[PendingPlan]:
        plans: list[PendingPlan] = []
        own, policy, now = self._per_table.of(table.base_path), self._tables.policy(table.base_path), self._context.clock.now()
        is_time = is_open(policy.windows, now)
        limits = None if own is self._settings else TableLimits(own.max_attempts, own.resources, own.workers)
        for service, record in pending_rewrites(table.state):
            # Who asks whether a process is dead may write a file to learn the store's time.
            driven = record.state is State.INFLIGHT and (
                policy.observes
                or is_run_by_hudi(table, record, table.options)
                or not is_dead(table.storage, record, table.clock, table.options)
            )
            key = PlanKey(record.instant, table.uid)
            if key in self._left_alone:
                if is_given_up_plan(table.storage, record.instant):
                    continue
                self._left_alone.discard(key)  # a user removed the record: tideline job retry
            if not driven and why_stopped(table.state) is not None:
                continue  # a writer takes no lock: nothing begins here
            if not driven and not (is_time and policy.wants(service, now)):
                continue  # a plan that no process runs waits for the window or the end of the pause
            plan = getattr(table.state.plans.get(record.instant), "plan", None) or {}
            work = work_of(plan, table.options)
            name, timeout_s = table.definition.name, own.application_timeout_s
            plans.append(PendingPlan(key, table.base_path, name, driven, service, work, limits, timeout_s))
        return plans


def _in_order(found: Mapping[str, list[PendingPlan]]) -> list[PendingPlan]:
    """Return the plans of tables in order of base path."""
    return [plan for plans in sorted(found.values(), key=lambda plans: plans[0].base_path) for plan in plans]
