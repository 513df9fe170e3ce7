"""The tick of the planner: decide for each table, choose among the due plans, and publish the chosen ones.

The decisions are in `tideline_runtime.planning`. This module reads their inputs from the table logs and carries the decisions out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tideline_events import TIMELINE, Hint
from tideline_planner.api import routes
from tideline_planner.metrics import PLANNING, PLANS, REWRITTEN
from tideline_planner.outcome import Verdicts
from tideline_planner.rules import plan_options, thresholds_of
from tideline_planner.settings import PlannerSettings
from tideline_planner.watch import FleetWatch
from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_link import EventLink
from tideline_runtime.event_outbox import EventOutbox
from tideline_runtime.hinted_tables import HintedTables
from tideline_runtime.logging import get_logger
from tideline_runtime.loop import Backoff
from tideline_runtime.open_tables import OpenTables, open_tables
from tideline_runtime.planning import Choice, Demand, Held, HeldBy, Ledger, Ledgers, arbitrate, examine
from tideline_runtime.planning.examination import PLANNED, next_look, services_of, shrunk
from tideline_runtime.policy import Fleet, Policies, TablePolicy, is_open
from tideline_runtime.table_settings import TableSettings
from tideline_runtime.visits import Visit, Visits
from tideline_table.action import (
    REWRITES,
    Check,
    Due,
    NotDue,
    TableService,
    pending_bytes,
    pending_rewrites,
    plan_check,
    withdraw_plans,
    write_of_hudi,
)
from tideline_table.errors import ClockSkew, Recovery, TidelineError
from tideline_table.log import TableState
from tideline_table.table import Table

_log = get_logger(__name__)
_Basis = tuple[int, PlannerSettings, TablePolicy]
_Common = tuple[Policies, tuple[int, ...], int]
"""The inputs of decisions that all tables share (`OpenTables.common`)."""
_AGAIN = timedelta(seconds=30)
"""Time after which a plan that was refused on the newest state is tried again without a commit, because a reservation may have
ended."""
_SHORTEST_S = 0.05
_MOST_FOLLOWED = 20
"""Most tables whose timelines a tick lists because a plan waits for the end of a write. Of others the mirror tells."""
_LAST_EVENTS_S = 5.0
"""Longest wait of a planner that stops for the publication of its last decisions."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The decisions for a table, their basis, and the time until which they hold without a commit (None: until a commit)."""

    basis: _Basis
    table: Table
    found: Mapping[TableService, Demand | Held]
    pending_plans: int
    pending_bytes: int
    until: datetime | None


@dataclass(slots=True)
class _Tick:
    """The state of one tick."""

    visit: Visit
    examined: set[str] = field(default_factory=set)
    """The tables that were examined without an error."""
    common: _Common | None = None
    """The inputs that all tables shared when the visit began."""
    followed: int = 0
    has_hinted: bool = False
    """Whether hinted tables come next in a visit of all tables."""
    curable: TidelineError | None = None
    """The first error of a plan that a retry may cure."""


class PlannerService:
    """One instance of the planner."""

    def __init__(self, settings: PlannerSettings, context: ServiceContext) -> None:
        self._settings = settings
        self._context = context
        self._tables: OpenTables = open_tables(settings, context, settings.options)
        hinted = HintedTables()
        self._events = EventLink(settings, context, publishes=True, watches=[TIMELINE.name], hinted=hinted)
        self._visits = Visits(context.clock, settings.poll_interval_s, hinted)
        self._decisions = EventOutbox(self._events, Backoff(max_s=settings.retry_backoff_max_s))
        self._per_table = TableSettings(settings, self._tables.own_settings)
        self._ledgers = Ledgers()
        self._verdicts = Verdicts(context.metrics, context.clock, self._decisions.put)
        self._decided: dict[str, Decided] = {}
        """The decisions for the tables that may be served, by uid."""
        self._planned: set[str] = set()
        """Uids of tables for which a plan was published since they were examined."""
        self._tables.rests_until_s = self._rests_until_s
        self._whole: _Common | None = None
        """The shared inputs with which every table got its decision; None before the first visit of all tables."""
        self._watch = FleetWatch(settings, context, self._tables, self._decisions.put)
        context.add_routes(*routes(self._watch))

    def start(self) -> None:
        """Watch for transitions, and begin to publish decisions."""
        self._events.open()
        self._decisions.start()

    def tick(self) -> float | None:
        """Decide for tables whose log grew, whose policy changed, or whose decision has expired.

        Publish the plans chosen among all demands.

        Between two visits of all tables it visits those that events name and those whose decision has expired. Raises, at the
        end, the first error that a retry may cure, and errors of the outbox.
        """
        now = self._context.clock.now()
        due = [uid for uid, known in self._decided.items() if known.until is not None and now >= known.until]
        visit = self._visits.begin([*due, *self._planned], full=not self._is_whole() or self._tables.has_unseen)
        tick = _Tick(visit)
        failure = self._tables.visit(
            self._context, lambda table: self._examine(table, tick), only=visit.only, first=lambda: self._next(tick)
        )
        if self._context.stopping.is_set():
            # Tables that were not visited are not gone, and their findings did not end.
            return None
        if not visit.is_full and not self._is_whole():
            return 0.0  # all tables are visited before a plan is chosen
        resting = self._tables.resting()
        gone = self._decided.keys() - tick.examined if visit.only is None else set(visit.only) - tick.examined
        # Of a table that rests nothing is due or pending.
        self._decided = {uid: known for uid, known in self._decided.items() if uid not in gone and uid not in resting}
        self._planned &= self._decided.keys()
        self._ledgers.keep(self._decided, resting)
        self._serve(self._decided, tick)
        if visit.is_full:
            self._whole = tick.common
            self._verdicts.show(tick.examined | resting.keys())
            self._watch.finish(tick.examined | resting.keys())
        self._decisions.check()
        failure = tick.curable or failure
        if failure is not None:
            raise failure
        pause_s = self._next_in_s(self._visits.end(visit))
        # Without a pause until each table has a document: hinted tables are served between any two of them.
        return 0.0 if self._tables.has_unseen else pause_s

    def stop(self) -> None:
        """Publish the last decisions, and close what `start` opened."""
        if self._decisions.close(_LAST_EVENTS_S):
            self._events.close()
        else:
            _log.warning("the last decisions are not published: the event log does not answer")
        self._watch.close()
        self._tables.close()

    def _rests_until_s(self, table: Table) -> float:
        """Return until when nothing is due for a table without news; 0 for one with a plan, or with a finding."""
        decided, now_s = self._decided[table.uid], self._context.clock.monotonic_s()
        if not self._tables.is_told_to_rest(table) or any(isinstance(found, Demand) for found in decided.found.values()):
            return 0.0
        due_in_s = math.inf if decided.until is None else (decided.until - self._context.clock.now()).total_seconds()
        return min(self._watch.rests_until_s(table), now_s + due_in_s)

    def _is_whole(self) -> bool:
        """Return whether every table has a decision by the inputs in force. Only then are sums over all tables valid."""
        return self._whole == self._tables.common()

    def _next(self, tick: _Tick) -> list[str]:
        """Return the tables that a visit examines next.

        Publish the plans of hinted tables before a visit of all tables continues.
        """
        tick.common = tick.common or self._tables.common()
        if tick.has_hinted and self._is_whole():
            self._serve(tick.examined, tick)
        uids = tick.visit.first()
        tick.has_hinted = tick.visit.is_full and bool(uids)
        return uids

    def _examine(self, table: Table, tick: _Tick) -> None:
        self._planned.discard(table.uid)
        settings, policy, now = self._per_table.of(table.base_path), self._tables.policy(table.base_path), self._context.clock.now()
        known = self._decided.get(table.uid)
        if known is not None and known.until is not None and now >= known.until and write_of_hudi(table.state) is not None:
            self._follow(table, tick)
        basis = (table.state.sequence, settings, policy)
        fleet = self._tables.in_force.fleet
        if fleet.bytes_per_day is not None or policy.bytes_per_day is not None:
            self._ledgers.of(table, now)
        is_same = known is not None and known.table is table and known.basis == basis
        if known is None or not is_same or (known.until is not None and now >= known.until):
            with self._context.metrics.timed(PLANNING):
                self._decided[table.uid] = self._decide(table, basis, now)
        if table.state.unlocked and not policy.observes:
            self._withdraw(table)
        self._watch.examine(table, policy)
        # Last, because a table that failed must not be served.
        tick.examined.add(table.uid)

    def _follow(self, table: Table, tick: _Tick) -> None:
        """Adopt the end of the write of Apache Hudi that a plan waits for, before the mirror comes: the gap may be short."""
        tick.followed += 1
        if tick.followed <= _MOST_FOLLOWED and write_of_hudi(table.timeline.refresh_view()) is None:
            table.timeline.heal(0.0)

    def _withdraw(self, table: Table) -> None:
        """Take back what was planned beside a writer that takes no lock."""
        for instant in withdraw_plans(table):
            about = {"table": table.uid, "name": table.definition.name, "instant": instant}
            _log.warning("plan withdrawn: a write of Apache Hudi completed without the lock of the table", **about)
            self._hint(table, "plan withdrawn")

    def _hint(self, table: Table, reason: str) -> None:
        """Let the mirror look at a table at once, so that the launcher hears of a plan before the mirror's next look."""
        self._decisions.put(Hint(table.uid, self._context.clock.now(), base_path=table.base_path, reason=reason))

    def _decide(self, table: Table, basis: _Basis, now: datetime) -> Decided:
        _, settings, policy = basis
        options = plan_options(settings, table, policy)
        ledger = self._ledgers.of(table, now) if policy.bytes_per_day is not None else Ledger()
        found: dict[TableService, Demand | Held] = {}
        view = table.view(options)
        for service in services_of(view):
            try:
                found[service] = examine(service, view, policy, thresholds_of(settings), ledger, now)
            except TidelineError as error:
                found[service] = _refused(table, service, error)
        return Decided(basis, table, found, len(pending_rewrites(table.state)), pending_bytes(table.state), _until(found))

    def _serve(self, uids: Collection[str], tick: _Tick) -> None:
        """Publish the plans that are chosen among the demands of these tables."""
        now, fleet = self._context.clock.now(), self._fleet()
        served, every = [self._decided[uid] for uid in uids], self._decided.values()
        for decided in served:
            self._verdicts.forget(decided.table.uid, set(PLANNED) - decided.found.keys())
            for service, held in decided.found.items():
                if isinstance(held, Held):
                    self._verdicts.held(decided.table.uid, decided.table.base_path, service, held)
        demands = [found for decided in served for found in decided.found.values() if isinstance(found, Demand)]
        rewritten = self._ledgers.total(now)
        self._context.metrics.set(REWRITTEN, rewritten)
        spent, pending = rewritten + sum(d.pending_bytes for d in every), sum(d.pending_plans for d in every)
        frees_at = self._ledgers.frees_at(now)
        for choice in arbitrate(demands, fleet, spent, pending, now, self._shrunk, frees_at):
            if self._context.stopping.is_set():
                break
            self._context.health.beat()
            try:
                self._carry_out(choice)
            except TidelineError as error:
                tick.curable = tick.curable or error
                _log.error("table failed", table=choice.demand.uid, service=choice.demand.service.value, reason=str(error))

    def _fleet(self) -> Fleet:
        shards = self._tables.shards
        return self._tables.in_force.fleet.share(shards.count, len(shards.held()))

    def _shrunk(self, demand: Demand, max_bytes: int) -> Demand | Held:
        if demand.cost_bytes <= max_bytes:
            return replace(demand, max_bytes=max_bytes if demand.max_bytes is None else min(max_bytes, demand.max_bytes))
        decided = self._decided[demand.uid]
        _, settings, policy = decided.basis
        view = decided.table.view(plan_options(settings, decided.table, policy))
        return shrunk(demand, view, policy, thresholds_of(settings), self._context.clock.now(), max_bytes)

    def _carry_out(self, choice: Choice) -> None:
        """Publish the plan of a choice, or record why it waits. Raises only errors that a retry may cure."""
        demand = choice.demand
        decided = self._decided[demand.uid]
        if choice.held is not None:
            self._verdicts.held(demand.uid, demand.base_path, demand.service, choice.held)
            return
        try:
            answer = self._publish(decided, demand)
        except TidelineError as error:
            self._settle(decided, demand.service, _refused(decided.table, demand.service, error))
            return
        if isinstance(answer, NotDue):
            now = self._context.clock.now()
            until = next_look(answer.behind, now) if answer.behind else now + _AGAIN
            self._settle(decided, demand.service, Held(HeldBy.REFUSED, answer.reason, until))
            return
        self._note_plan(decided, demand)
        self._verdicts.planned(demand.uid, demand.base_path, demand.service, demand.reason)
        self._hint(decided.table, f"{demand.service.value} planned")
        self._context.metrics.increment(PLANS, service=demand.service.value)
        about = {"table": demand.uid, "name": decided.table.definition.name, "service": demand.service.value}
        _log.info("planned", **about, instant=answer, reason=demand.reason, bytes=demand.cost_bytes, score=round(choice.score, 3))

    def _publish(self, decided: Decided, demand: Demand) -> str | NotDue:
        _, settings, policy = decided.basis
        options = plan_options(settings, decided.table, policy)
        check = self._check(decided.table.base_path, policy, demand)
        trigger = replace(demand.trigger, max_bytes=demand.max_bytes)
        return REWRITES[demand.service].plan(decided.table, options, trigger, check)

    def _check(self, base_path: str, policy: TablePolicy, demand: Demand) -> Check:
        """Return the check of a plan on the state on which it is published, because time has passed since the decision."""
        fits = plan_check(demand.service, demand.max_bytes)

        def check(state: TableState, due: Due) -> NotDue | None:
            if not self._tables.owns(base_path):
                return NotDue("the shard was lost before the plan was published; the instance that holds it plans the table")
            now = self._context.clock.now()
            if not is_open(policy.windows, now) or not policy.wants(demand.service, now):
                return NotDue("the window closed, or a pause began, before the plan was published")
            return fits(state, due)

        return check

    def _note_plan(self, decided: Decided, demand: Demand) -> None:
        """Count a plan as pending until the table is examined again, in the next tick."""
        found = {service: held for service, held in decided.found.items() if service is not demand.service}
        pending = decided.pending_plans + 1, decided.pending_bytes + demand.cost_bytes
        self._decided[demand.uid] = Decided(decided.basis, decided.table, found, *pending, _until(found))
        self._planned.add(demand.uid)

    def _settle(self, decided: Decided, service: TableService, held: Held) -> None:
        """Record that a request for a plan was refused, so that it is repeated only after a change or at `held.until`."""
        found = {**decided.found, service: held}
        self._decided[decided.table.uid] = replace(decided, found=found, until=_until(found))
        self._verdicts.held(decided.table.uid, decided.table.base_path, service, held)

    def _next_in_s(self, full_in_s: float | None) -> float | None:
        """Return the seconds until the first decision expires, if that is before the next visit of all tables; else `full_in_s`."""
        untils = [decided.until for decided in self._decided.values() if decided.until is not None]
        if not untils:
            return full_in_s
        delay_s = max(_SHORTEST_S, (min(untils) - self._context.clock.now()).total_seconds())
        return delay_s if delay_s < (self._settings.poll_interval_s if full_in_s is None else full_in_s) else full_in_s


def _until(found: Mapping[TableService, Demand | Held]) -> datetime | None:
    return min((held.until for held in found.values() if isinstance(held, Held) and held.until is not None), default=None)


def _refused(table: Table, service: TableService, error: TidelineError) -> Held:
    """Return the verdict for an error that a retry does not cure; raise any other error."""
    about = {"table": table.uid, "name": table.definition.name, "service": service.value}
    if isinstance(error, ClockSkew):
        # Clock skew is temporary and a restart does not help. The next transition of the table triggers the next try.
        _log.warning("planning postponed", **about, reason=str(error))
    elif error.recovery is Recovery.STOP:
        # One table with a wrong sort column or a freeze must not stop planning for the other tables.
        _log.error("table cannot be planned", **about, reason=str(error))
    else:
        raise error
    return Held(HeldBy.REFUSED, str(error))
