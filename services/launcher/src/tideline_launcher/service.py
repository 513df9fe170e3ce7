"""The launcher's tick: collect what ended, look at the plans, launch what is missing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tideline_events import TIMELINE, Hint, JobEvent
from tideline_launcher.decision import (
    CLUSTERING,
    COMPACTION,
    Decision,
    Outcome,
    PendingPlan,
    PlanKey,
    application_name,
    decide,
    outcome_of,
)
from tideline_launcher.metrics import APPLICATIONS, DURATION, RUNNING
from tideline_launcher.runner import Application, ApplicationSpec, LocalRunner, Runner
from tideline_launcher.settings import LauncherSettings
from tideline_service.contract import ServiceContext
from tideline_service.event_link import EventLink
from tideline_service.logging import get_logger
from tideline_service.open_tables import OpenTables, open_tables
from tideline_table.errors import TidelineError
from tideline_table.table import Table, is_run_by_peer
from tideline_table.timeline.instant import State
from tideline_table.transaction import is_alive, roll_back

_log = get_logger(__name__)
_BUSY_S = 0.5
_STOP_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class _Launched:
    plan: PendingPlan
    name: str
    attempt: int
    application: Application
    started_s: float


class LauncherService:
    """One shard of the launcher. Its memory is only a shortcut: after a restart dead plans are found by their heartbeats."""

    def __init__(self, settings: LauncherSettings, context: ServiceContext, runner: Runner | None = None) -> None:
        self._settings = settings
        self._context = context
        context.metrics.expose(RUNNING)
        self._tables: OpenTables = open_tables(settings, context, settings.options)
        self._runner = runner or LocalRunner(settings.state_folder, settings.local_cores)
        self._events = EventLink(settings, context, publishes=True, watches=[TIMELINE.name])
        self._launched: dict[PlanKey, _Launched] = {}
        self._failures: dict[PlanKey, int] = {}
        self._left_alone: set[PlanKey] = set()

    def start(self) -> None:
        """Listen for plans."""
        self._events.open()

    def tick(self) -> float | None:
        """See the module."""
        for launched in list(self._launched.values()):
            self._collect(launched)
        plans, failure = self._pending()
        decision = self._decide(plans)
        for plan in decision.give_up:
            self._give_up(plan)
        for plan in decision.launch:
            if not self._context.stopping.is_set():
                self._launch(plan)
        self._context.metrics.set(RUNNING, len(self._launched))
        self._events.flush()
        if failure is not None:
            raise failure
        return _BUSY_S if self._launched else None

    def stop(self) -> None:
        """Stop every application: its plan stays on the timeline for the next launcher."""
        applications = [launched.application for launched in self._launched.values()]
        if applications:
            # All at once: one after the other they could outlast the grace of the service.
            with ThreadPoolExecutor(len(applications), thread_name_prefix="stop") as pool:
                list(pool.map(lambda application: application.stop(_STOP_GRACE_S), applications))
        self._events.close()
        self._tables.close()

    def _decide(self, plans: list[PendingPlan]) -> Decision:
        return decide(
            plans,
            self._launched,
            self._failures,
            max_applications=self._settings.max_applications,
            max_attempts=self._settings.max_attempts,
        )

    def _pending(self) -> tuple[list[PendingPlan], TidelineError | None]:
        plans: list[PendingPlan] = []

        def look(table: Table) -> None:
            for record in (*table.state.pending_clusterings(), *table.state.pending_compactions()):
                driven = record.state is State.INFLIGHT and (
                    is_run_by_peer(table, record, table.options) or is_alive(table.storage, record, table.clock, table.options)
                )
                service = CLUSTERING if record.is_clustering else COMPACTION
                key = PlanKey(record.instant, table.uid)
                if key in self._left_alone:
                    continue
                plans.append(PendingPlan(key, table.base_path, table.definition.name, driven, service))

        return plans, self._tables.visit(self._context, look)

    def _launch(self, plan: PendingPlan) -> None:
        attempt = self._failures.get(plan.key, 0) + 1
        name = application_name(plan.table_name, plan.key.instant, attempt)
        self._publish(plan, name, attempt, "retried" if attempt > 1 else "submitted")
        spec = ApplicationSpec(
            name, plan.service, plan.base_path, plan.key.instant, self._settings.options, str(self._settings.locks)
        )
        application = self._runner.launch(spec)
        self._launched[plan.key] = _Launched(plan, name, attempt, application, self._context.clock.monotonic_s())
        self._publish(plan, name, attempt, "running")
        _log.info("launched", application=name, table=plan.key.table_uid, instant=plan.key.instant, attempt=attempt)

    def _collect(self, launched: _Launched) -> None:
        plan, ran_s = launched.plan, self._context.clock.monotonic_s() - launched.started_s
        code = launched.application.exit_code
        if code is None:
            if ran_s <= self._settings.application_timeout_s:
                return
            launched.application.stop(_STOP_GRACE_S)
            reason, outcome = f"stopped after {ran_s:.0f} s", Outcome.FAILED
        else:
            outcome = outcome_of(code)
            reason = f"exit code {code}" if code else ""
        del self._launched[plan.key]
        if outcome is Outcome.FAILED:
            self._failures[plan.key] = launched.attempt
        else:
            self._failures.pop(plan.key, None)
        self._context.metrics.increment(APPLICATIONS, outcome=outcome.value)
        self._context.metrics.observe(DURATION, ran_s)
        state = "succeeded" if outcome is Outcome.SUCCEEDED else "failed"
        self._publish(plan, launched.name, launched.attempt, state, reason if outcome is Outcome.FAILED else outcome.value)
        self._hint(plan, state)
        _log.info("ended", application=launched.name, outcome=outcome.value, duration_s=round(ran_s, 2), exit_code=code)

    def _give_up(self, plan: PendingPlan) -> None:
        table = self._tables.by_uid(plan.key.table_uid)
        if table is None:
            return
        attempts = self._failures.pop(plan.key)
        if plan.service == CLUSTERING:
            # Its applications are confirmed dead, so the plan is undone and its file groups are free for a new one.
            roll_back(table.timeline, plan.key.instant, force=True)
        else:
            # Writers append to the slices that it will make: it cannot be undone, only run again, by a launcher that starts anew.
            self._left_alone.add(plan.key)
        self._context.metrics.increment(APPLICATIONS, outcome="given_up")
        name = application_name(plan.table_name, plan.key.instant, attempts)
        self._publish(plan, name, attempts, "given_up", f"{attempts} attempts failed")
        self._hint(plan, "given_up")
        _log.error("given up", table=plan.key.table_uid, instant=plan.key.instant, attempts=attempts)

    def _publish(self, plan: PendingPlan, name: str, attempt: int, state: str, reason: str = "") -> None:
        event = JobEvent(
            table_uid=plan.key.table_uid,
            application_id=name,
            plan_instant=plan.key.instant,
            action=plan.service,
            state=state,
            time=self._context.clock.now(),
            attempt=attempt,
            runner=self._runner.name,
            reason=reason or None,
        )
        self._events.queue(event)

    def _hint(self, plan: PendingPlan, reason: str) -> None:
        """The mirror need not wait for its next look."""
        now = self._context.clock.now()
        self._events.queue(Hint(plan.key.table_uid, now, base_path=plan.base_path, reason=f"{plan.service} {reason}"))
