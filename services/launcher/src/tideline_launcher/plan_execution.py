"""The tick of the launcher: handle ended applications, read the pending plans, launch what is missing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from tideline_events import TIMELINE, Hint, JobEvent
from tideline_launcher.application import (
    Application,
    Applications,
    ApplicationSpec,
    Condition,
    EndKind,
    LaunchRefused,
    Obstacle,
    Place,
    PlanKey,
    PlanRequest,
)
from tideline_launcher.decision import Decision, Launch, Limits, PendingPlan, decide
from tideline_launcher.history import History, history_of
from tideline_launcher.job_logs import keep_job_log, plan_logs
from tideline_launcher.log_files import read_job_log
from tideline_launcher.metrics import APPLICATIONS, DURATION, EXECUTORS, OBSTACLES, PLANS, RUNNING, WORKER_PLANS
from tideline_launcher.names import application_name, shared_name
from tideline_launcher.pending_plans import PendingPlans
from tideline_launcher.placed import applications_of
from tideline_launcher.resources import PlanWork, can_grow
from tideline_launcher.settings import LauncherSettings
from tideline_launcher.sharing import waiting_since
from tideline_launcher.visit_launches import VisitLaunches
from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_link import EventLink
from tideline_runtime.hinted_tables import HintedTables
from tideline_runtime.logging import get_logger
from tideline_runtime.loop import Backoff
from tideline_runtime.open_tables import OpenTables, open_tables
from tideline_runtime.table_settings import TableSettings
from tideline_runtime.table_source import JobFacts
from tideline_runtime.visits import Visits
from tideline_table.action import REWRITES, TableService
from tideline_table.coordination import roll_back
from tideline_table.errors import StorageError, TidelineError
from tideline_table.hudi import State
from tideline_table.table import GivenUp, Table, forget_given_up, keep_given_up

_log = get_logger(__name__)
_STOP_GRACE_S = 10.0
_BACKOFF_INITIAL_S = 5.0
_FAILURES = (EndKind.FAILED, EndKind.TIMED_OUT, EndKind.OUT_OF_MEMORY)
_KEPT_LOGS = (*_FAILURES, EndKind.LOST)
_REGULAR = (EndKind.SUCCEEDED, EndKind.YIELDED, EndKind.SUPERSEDED)
_UNREADY = (Obstacle.IMAGE, Obstacle.CONFIGURATION, Obstacle.REFUSED)
"""Obstacles that last until a user removes them, so that the service is unready. A full cluster is no such obstacle."""


class LauncherService:
    """One shard of the launcher. It needs no stored state: heartbeats and the platform show which plans a process runs."""

    def __init__(self, settings: LauncherSettings, context: ServiceContext, applications: Applications | None = None) -> None:
        self._settings = settings
        self._context = context
        context.metrics.expose(RUNNING, PLANS, EXECUTORS, WORKER_PLANS)
        self._tables: OpenTables = open_tables(settings, context, settings.options)
        self._applications = applications or applications_of(settings, context)
        hinted = HintedTables()
        self._events = EventLink(settings, context, publishes=True, watches=[TIMELINE.name], hinted=hinted)
        self._backoff = Backoff(_BACKOFF_INITIAL_S, max(settings.retry_backoff_max_s, _BACKOFF_INITIAL_S))
        self._per_table = TableSettings(settings, self._tables.own_settings)
        visits = Visits(context.clock, settings.poll_interval_s, hinted)
        self._pending = PendingPlans(settings, context, self._tables, self._per_table, visits)
        self._limits = Limits(
            settings.max_applications, settings.max_attempts, settings.resources, settings.sharing, settings.workers
        )
        self._histories: dict[PlanKey, History] = {}
        self._seen: set[tuple[str, PlanKey]] = set()
        self._settled: set[tuple[str, PlanKey]] = set()
        self._since_s: dict[PlanKey, float] = {}
        self._alone: set[str] = set()
        """Tables whose last plan failed. Their plans share no application until one succeeds, because the next plan may kill its
        driver, too."""
        self._work: dict[PlanKey, PlanWork] = {}
        self._reported: dict[PlanKey, Condition] = {}
        self._busy: set[str] = set()
        """Tables whose applications the platform knows."""
        self._tables.rests_until_s = self._rests_until_s

    def start(self) -> None:
        """Watch for plans and for changes of applications."""
        self._events.open()
        self._applications.start(self._context.wake)

    def tick(self) -> float | None:
        """Handle ended applications, give up plans that failed too often, and launch pending plans."""
        # Applications are read before plans: if one ends in between, its plan is read as ended, too.
        known = self._applications.known()
        self._busy = {a.key.table_uid for a in known}
        resting = self._tables.resting()
        ended = [a.key.table_uid for a in known if (a.end is not None and not a.is_collected) or a.key.table_uid in resting]
        during = VisitLaunches(known)
        plans, again_s, failure = self._pending.visit(ended, lambda found, named: self._launch_named(found, named, during))
        started = [a for a in self._applications.known() if a.key in during.started] if during.started else []
        mine = [a for a in known if self._tables.by_uid(a.key.table_uid) is not None]
        self._work |= {plan.key: plan.work for plan in plans}
        for application in sorted(mine, key=lambda a: a.created):
            self._adopt(application, known)
        self._collect_ended(mine, known)
        if failure is None and not self._context.stopping.is_set():
            self._forget_gone(plans, [*known, *started])
        running = [a for a in (*mine, *started) if a.end is None]
        now_s = self._context.clock.monotonic_s()
        self._since_s = waiting_since([plan.key for plan in plans], self._since_s, now_s)
        decision = decide(during.left_alone(plans), running, self._histories, self._limits, now_s, self._since_s, self._alone)
        launched = self._act(decision)
        self._applications.tidy()
        self._report(running, plans, launched)
        self._events.flush()
        if failure is not None:
            raise failure
        waits = [self._histories[plan.key].not_before_s for plan in plans if plan.key in self._histories]
        waits += [] if decision.wait_until_s is None else [decision.wait_until_s]
        delays = [until_s - now_s for until_s in waits if until_s > now_s]
        if running or launched or during.started:
            delays.append(self._applications.poll_interval_s)
        if not delays:
            return again_s
        return min([*delays, self._settings.poll_interval_s if again_s is None else again_s])

    def stop(self) -> None:
        """Stop applications that cannot outlive this process. Their plans stay on the timeline for the next launcher."""
        self._applications.close(_STOP_GRACE_S)
        self._events.close()
        self._tables.close()

    def _rests_until_s(self, table: Table) -> float:
        """Return until when the launcher has no work on a table without news: for ever, if no application is known."""
        return math.inf if table.uid not in self._busy and self._tables.is_told_to_rest(table) else 0.0

    def _launch_named(self, found: Callable[[], list[PendingPlan]], named: Collection[str], during: VisitLaunches) -> None:
        """Launch new plans of tables that events named, while a visit of all tables goes on.

        The tick handles ends of applications after the visit. If an error occurs, the next tick launches the plans.
        """
        now_s = self._context.clock.monotonic_s()
        if not named and not during.is_due(now_s):
            return
        plans = during.free(found())
        if not during.is_due(now_s) and not any(p.key.table_uid in named and not p.is_driven for p in plans):
            return
        try:
            known = self._applications.known()
            running = [a for a in known if a.end is None and self._tables.by_uid(a.key.table_uid) is not None]
            plans = during.free(plans, known)
            self._work |= {plan.key: plan.work for plan in plans}
            self._since_s |= waiting_since([plan.key for plan in plans], self._since_s, now_s)
            decision = decide(plans, running, self._histories, self._limits, now_s, self._since_s, self._alone)
            during.wait_until_s = decision.wait_until_s
            for chosen in decision.launch:
                if self._context.stopping.is_set():
                    return
                during.started |= {plan.key for plan in chosen.plans}
                self._launch(chosen)
            self._events.flush()
        except TidelineError as error:
            _log.info("launch postponed to the next tick", reason=str(error))

    def _act(self, decision: Decision) -> list[Launch]:
        for plan in decision.give_up:
            self._give_up(plan)
        return [chosen for chosen in decision.launch if not self._context.stopping.is_set() and self._launch(chosen)]

    def _launch(self, launch: Launch) -> bool:
        """Launch the next attempt at each plan of which the platform runs none. Return false if it refused the application."""
        known = self._applications.attempts([plan.key for plan in launch.plans])
        alive = {a.key for a in known if a.end is None}
        requests = tuple(self._request(plan, known) for plan in launch.plans if plan.key not in alive)
        if not requests:
            return True
        name = requests[0].name if len(requests) == 1 else shared_name(request.name for request in requests)
        spec = ApplicationSpec(name, requests, launch.resources, launch.timeout_s, str(self._settings.locks), launch.place)
        try:
            self._applications.launch(spec)
        except LaunchRefused as error:
            now_s = self._context.clock.monotonic_s()
            for request in requests:
                history = self._histories[request.key]
                self._histories[request.key] = history.disturbed(now_s, self._backoff, 0, error.condition)
            return False
        for request in requests:
            self._note_launch(spec, request)
        return True

    def _request(self, plan: PendingPlan, known: Sequence[Application]) -> PlanRequest:
        """Return the request for the next attempt at a plan, with the engine options of its table."""
        history = self._histories.setdefault(plan.key, History())
        attempt = max(history.attempt, *(a.attempt for a in known if a.key == plan.key), 0) + 1
        return PlanRequest(
            application_name(plan.table_name, plan.base_path, plan.key.instant, attempt),
            plan.key,
            attempt,
            plan.service,
            plan.base_path,
            {**self._settings.options, **self._tables.own_options(plan.base_path)},
        )

    def _note_launch(self, spec: ApplicationSpec, request: PlanRequest) -> None:
        key, attempt = request.key, request.attempt
        self._seen.add((spec.name, key))
        table = self._tables.by_uid(key.table_uid)
        if table is not None and REWRITES[request.service].begins_slices:
            with suppress(StorageError):
                forget_given_up(table.storage, key.instant)  # an earlier launcher may have given up the plan
        self._histories[key] = replace(self._histories[key], condition=None)
        where = f"in application {spec.name}" if len(spec.plans) > 1 else ""
        for state in ("retried" if attempt > 1 else "submitted", "running"):
            self._publish(key, request.service, request.name, attempt, state, where, spec.place)
        _log.info(
            "launched",
            application=spec.name,
            attempt_name=request.name,
            table=key.table_uid,
            instant=key.instant,
            attempt=attempt,
            place=spec.place.value,
            plans=len(spec.plans),
            executors=spec.resources.executors,
            memory_step=spec.resources.memory_step,
        )

    def _adopt(self, application: Application, known: Sequence[Application]) -> None:
        """Take over an attempt that another launcher started, with the attempts that the platform still knows."""
        if (application.driver, application.key) in self._seen:
            return
        self._seen.add((application.driver, application.key))
        if application.end is None:
            _log.info("adopted", application=application.driver, table=application.key.table_uid, attempt=application.attempt)
        if application.key not in self._histories:
            earlier = [a for a in known if a.key == application.key and a.is_collected]
            self._histories[application.key] = history_of(earlier, self._context.clock.monotonic_s(), self._backoff)
        if application.is_collected:
            self._judge(application)

    def _judge(self, application: Application) -> None:
        """Note whether later plans of the table may share an application."""
        assert application.end is not None
        if application.end.kind is EndKind.SUCCEEDED:
            self._alone.discard(application.key.table_uid)
        elif application.end.kind in _FAILURES:
            self._alone.add(application.key.table_uid)

    def _collect_ended(self, mine: Sequence[Application], known: Sequence[Application]) -> None:
        """Handle the ends of plans, then collect each application for which the ends of all plans are handled.

        An application with a plan of a table that this launcher does not serve (yet) is not collected, so that the end of that
        plan is not lost.
        """
        ended = [a for a in mine if a.end is not None and not a.is_collected]
        plans = Counter(a.driver for a in known)
        for driver in dict.fromkeys(a.driver for a in ended):
            members = [a for a in ended if a.driver == driver]
            fresh = [self._by_table(a) for a in members if (driver, a.key) not in self._settled]
            self._keep_logs(fresh)
            for application in fresh:
                self._settle(application)
                self._settled.add((driver, application.key))
            if len(members) < plans[driver]:
                continue
            self._context.metrics.observe(DURATION, members[0].ran_s)
            # Collected last: if the launcher dies before, the next one handles the ends again.
            self._applications.collect(driver)

    def _by_table(self, application: Application) -> Application:
        """Return the attempt as succeeded if the table has its plan completed: the driver may have died after its commit."""
        table, end = self._tables.by_uid(application.key.table_uid), application.end
        assert table is not None
        assert end is not None
        record = table.state.actions.get(application.key.instant)
        if end.kind in (*_REGULAR, EndKind.NOT_STARTED) or record is None or record.state is not State.COMPLETED:
            return application
        return replace(application, end=replace(end, kind=EndKind.SUCCEEDED, reason=f"completed before: {end.text}"))

    def _settle(self, application: Application) -> None:
        end, key = application.end, application.key
        assert end is not None
        work = self._work.get(key, PlanWork())
        grows = can_grow(work, self._per_table.of(application.base_path).resources, application.memory_step)
        history = self._histories.get(key, History())
        self._histories[key] = history.after(application, self._context.clock.monotonic_s(), self._backoff, can_grow=grows)
        self._judge(application)
        self._context.metrics.increment(APPLICATIONS, outcome=end.kind.value)
        state = "succeeded" if end.kind is EndKind.SUCCEEDED else "failed"
        place = application.place
        self._publish(key, application.service, application.name, application.attempt, state, end.text, place)
        self._hint(application.base_path, key, application.service, state)
        log = _log.info if end.kind in _REGULAR else _log.warning
        log(
            "ended",
            application=application.driver,
            attempt_name=application.name,
            outcome=end.kind.value,
            reason=end.reason,
            duration_s=round(application.ran_s, 2),
        )

    def _keep_logs(self, ended: Sequence[Application]) -> None:
        """Store the log of each failed attempt of one application in the folder of its table."""
        failed = [a for a in ended if a.end is not None and a.end.kind in _KEPT_LOGS]
        if not failed:
            return
        limits = [self._per_table.of(a.base_path).job_log_bytes for a in ended]
        whole = self._applications.log_tail(failed[0].driver, sum(limits))
        logs = plan_logs(whole, [(a.base_path, a.key.instant) for a in failed]) if failed[0].shared else [whole]
        for application, log in zip(failed, logs, strict=True):
            table, own = self._tables.by_uid(application.key.table_uid), self._per_table.of(application.base_path)
            assert table is not None
            try:
                if log:
                    keep_job_log(table.storage, application.name, log[-own.job_log_bytes :], own.job_logs_kept)
            except StorageError as error:
                _log.warning("log of a failed application not kept", application=application.name, reason=str(error))

    def _forget_gone(self, plans: Sequence[PendingPlan], known: Sequence[Application]) -> None:
        names, keys = {(a.driver, a.key) for a in known}, {a.key for a in known} | {p.key for p in plans}
        self._seen &= names
        self._settled &= names
        if self._alone:
            self._alone &= self._tables.known().keys()
        self._histories = {key: history for key, history in self._histories.items() if key in keys}
        self._work = {key: work for key, work in self._work.items() if key in keys}

    def _give_up(self, plan: PendingPlan) -> None:
        table = self._tables.by_uid(plan.key.table_uid)
        if table is None:
            return
        history = self._histories.pop(plan.key)
        if not REWRITES[plan.service].begins_slices:
            # No application runs the plan any more. The rollback frees its file groups for a new plan.
            roll_back(table.timeline, plan.key.instant, force=True)
        else:
            # Writers append to the file slices that the plan begins, so only an operator cancels it. A restarted launcher runs it
            # again.
            self._pending.leave_alone(plan.key)
        self._context.metrics.increment(APPLICATIONS, outcome="given_up")
        name = application_name(plan.table_name, plan.base_path, plan.key.instant, history.attempt)
        log = None
        with suppress(StorageError):
            log = read_job_log(table.storage, name)
        why = history.why_given_up(name, log)
        if REWRITES[plan.service].begins_slices:
            now = self._context.clock.now().isoformat()
            with suppress(StorageError):  # without the record, this launcher tries again
                keep_given_up(table.storage, GivenUp(plan.key.instant, plan.service.value, history.attempt, why, now))
        self._publish(plan.key, plan.service, name, history.attempt, "given_up", why)
        self._hint(plan.base_path, plan.key, plan.service, "given_up")
        _log.error("given up", table=plan.key.table_uid, instant=plan.key.instant, attempts=history.attempt, reason=why)

    def _report(self, running: Sequence[Application], plans: Sequence[PendingPlan], launched: Sequence[Launch]) -> None:
        """Show what runs and what does not start: in metrics, in the health of the service, and once per change in the log."""
        metrics = self._context.metrics
        on_spark = [a for a in running if a.place is Place.SPARK]
        new = [chosen for chosen in launched if chosen.place is Place.SPARK]
        metrics.set(RUNNING, len({a.driver for a in on_spark}) + len(new))
        metrics.set(PLANS, len(on_spark) + sum(len(chosen.plans) for chosen in new))
        metrics.set(WORKER_PLANS, len(running) - len(on_spark) + len(launched) - len(new))
        metrics.set(EXECUTORS, sum(a.executors for a in running) + sum(chosen.resources.executors for chosen in launched))
        pending = {p.key for p in plans}
        found = {key: h.condition for key, h in self._histories.items() if h.condition is not None and key in pending}
        found |= {a.key: a.condition for a in running if a.condition is not None}
        for obstacle in Obstacle:
            metrics.set(OBSTACLES, sum(c.obstacle is obstacle for c in found.values()), obstacle=obstacle.value)
        for key, condition in found.items():
            if self._reported.get(key) != condition:
                about = {"obstacle": condition.obstacle.value, "reason": condition.text}
                _log.warning("does not start", table=key.table_uid, instant=key.instant, **about)
        self._reported = found
        lasting = sorted({f"{c.obstacle}: {c.text}" for c in found.values() if c.obstacle in _UNREADY})
        if lasting:
            self._context.health.obstruct("applications", lasting[0])
        else:
            self._context.health.clear("applications")

    def _publish(
        self,
        key: PlanKey,
        service: TableService,
        name: str,
        attempt: int,
        state: str,
        reason: str = "",
        place: Place = Place.SPARK,
    ) -> None:
        event = JobEvent(
            table_uid=key.table_uid,
            application_id=name,
            plan_instant=key.instant,
            action=service.value,
            state=state,
            time=self._context.clock.now(),
            attempt=attempt,
            runner=self._applications.name if place is Place.SPARK else place.value,
            reason=reason or None,
        )
        self._events.queue(event)
        table = self._tables.by_uid(key.table_uid)
        if table is not None:
            job = JobFacts(name, event.action, key.instant, attempt, state, event.time, reason)
            self._tables.show_job(table.base_path, job)

    def _hint(self, base_path: str, key: PlanKey, service: TableService, reason: str) -> None:
        """Queue a hint, so that the mirror does not wait for its next poll."""
        self._events.queue(Hint(key.table_uid, self._context.clock.now(), base_path=base_path, reason=f"{service} {reason}"))
