"""Whether one table needs a clustering, compaction or log compaction, and whether its policy lets the planner publish the plan now.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tideline_runtime.planning.demand import SHORTEST_BACKOFF_S, Demand, Held, HeldBy, Thresholds
from tideline_runtime.planning.ledger import Ledger
from tideline_runtime.policy import TablePolicy, is_open, next_change
from tideline_table.action import (
    EARLY,
    REWRITES,
    Due,
    NotDue,
    Pressure,
    TableService,
    Trigger,
    backlog_of,
    has_logs,
    pending_bytes,
    plan_bytes,
    service_of,
)
from tideline_table.errors import CorruptMetadata
from tideline_table.file_group import FileGroupId
from tideline_table.hudi import Action, State, time_from_instant
from tideline_table.log import ActionRecord, TableState
from tideline_table.table import TableView

_SHORTEST_LOOK_S, _LONGEST_LOOK_S, _LOOK_PART = 0.2, 5.0, 0.05
_OLD_S = 3600.0
"""Age from which looks at a write become rarer again: most such writes are of a job that died."""


@dataclass(frozen=True, slots=True)
class LeftOver:
    """What the last completed plan of a service left over: file groups with writes from before it (`is_named`)."""

    service: TableService
    since: int
    """The entry of the log with that plan."""
    due_at: datetime
    """The time (UTC) from which a plan with one of these groups is due."""

    def is_named(self, state: TableState, groups: Iterable[FileGroupId]) -> bool:
        """Return whether one of the groups is left over."""
        return any(REWRITES[self.service].waited(state, found, self.since) for found in state.latest_among(groups))


def left_over(service: TableService, state: TableState, interval_s: float) -> LeftOver | None:
    """Return what the last completed plan of a service left over.

    None if the service has no completed plan, if a plan is pending, and if no group is left over. The next plan must name one
    of these groups: then each plan leaves fewer groups over, and without further writes the plans come to an end.
    """
    records = plans_of(service, state)
    done = [record for record in records if record.state is State.COMPLETED]
    if not done or any(record.is_pending for record in records):
        return None
    last = max(done, key=lambda record: record.started_sequence)
    ended = ended_at(last)
    if ended is None:
        return None
    slices = state.each_latest(has_logs if REWRITES[service].is_for_logs else None)
    if not any(REWRITES[service].waited(state, found, last.started_sequence) for found in slices):
        return None
    return LeftOver(service, last.started_sequence, ended + timedelta(seconds=interval_s))


def plans_of(service: TableService, state: TableState) -> list[ActionRecord]:
    """Return the actions of a service on the active timeline, in order of instant."""
    return [record for _, record in sorted(state.actions.items()) if service_of(record) is service]


def ended_at(record: ActionRecord) -> datetime | None:
    """Return the time of the last transition of an action.

    Of an action of Apache Hudi, for which it is not recorded, the instant's time.

    None if neither can be parsed.
    """
    try:
        return datetime.fromisoformat(record.since) if record.since else time_from_instant(record.instant)
    except (ValueError, CorruptMetadata):
        return None


PLANNED = tuple(name for name in TableService if name in REWRITES)
"""The services that the planner plans."""


def services_of(view: TableView) -> tuple[TableService, ...]:
    """Return the services that are examined for a table: log compaction where it is possible and switched on."""
    return tuple(name for name in PLANNED if REWRITES[name].is_examined(view))


def examine(
    service: TableService, view: TableView, policy: TablePolicy, thresholds: Thresholds, ledger: Ledger, now: datetime
) -> Demand | Held:
    """Decide about one service of one table.

    `Held` has the first reason that holds: off, paused, not due, backing off, window, budget.

    A table that has used up `EARLY` of an objective is due whatever the thresholds say. A plan above the rest of the budget is made
    smaller if that is possible. Raises `SchemaMismatch` for sort columns that the table does not have.
    """
    if not policy.is_on(service):
        return Held(HeldBy.OFF, f"{service} is off by {policy.why_off(service)}")
    pause = policy.paused_at(now)
    if pause is not None:
        return Held(HeldBy.PAUSED, f"paused by {policy.given['pause'].origin}: {pause.reason}", pause.until)
    pressure = REWRITES[service].pressure(policy.objectives, backlog_of(view.state, view.options), now)
    wanted = _demand(service, view, policy, thresholds, pressure, None, now)
    better = REWRITES[service].yields_to
    if better is not None and isinstance(wanted, Demand):
        other = examine(better, view, policy, thresholds, ledger, now)
        if isinstance(other, Demand):
            wanted = Held(HeldBy.NOT_DUE, f"a {better} is due, which merges the same log files ({other.reason})")
    if isinstance(wanted, Held):
        times = [at for at in (wanted.until, pressure.early_at) if at is not None and at > now]
        return replace(wanted, until=min(times, default=None))
    until = _backing_off_until(service, view.state, thresholds)
    if until is not None and until > now:
        return Held(HeldBy.BACKING_OFF, f"the last {service} was rolled back; next try at {until:%H:%M:%S} UTC", until)
    if not is_open(policy.windows, now):
        opens = next_change(policy.windows, now)
        when = f"; it opens at {opens:%Y-%m-%d %H:%M} UTC" if opens is not None else ""
        return Held(HeldBy.WINDOW, f"outside of the window of {policy.given['windows'].origin}{when}", opens)
    return _within_budget(service, view, policy, thresholds, pressure, wanted, ledger, now)


def shrunk(
    demand: Demand, view: TableView, policy: TablePolicy, thresholds: Thresholds, now: datetime, max_bytes: int
) -> Demand | Held:
    """Return the demand for a plan of at most `max_bytes`; `Held` if no plan is that small."""
    limit = max_bytes if demand.max_bytes is None else min(max_bytes, demand.max_bytes)
    pressure = REWRITES[demand.service].pressure(policy.objectives, backlog_of(view.state, view.options), now)
    return _demand(demand.service, view, policy, thresholds, pressure, limit, now)


def _within_budget(
    service: TableService,
    view: TableView,
    policy: TablePolicy,
    thresholds: Thresholds,
    pressure: Pressure,
    wanted: Demand,
    ledger: Ledger,
    now: datetime,
) -> Demand | Held:
    budget = policy.bytes_per_day
    if budget is None:
        return wanted
    used = ledger.spent(now) + pending_bytes(view.state)
    left = max(0, budget - used)
    if wanted.cost_bytes <= left:
        return replace(wanted, max_bytes=left)
    smaller = _demand(service, view, policy, thresholds, pressure, left, now) if left else None
    if isinstance(smaller, Demand):
        return smaller
    origin = policy.given["budget.bytes_per_day"].origin
    why = f"{used} of {budget} bytes of {origin} are used in 24 hours, and the plan reads {wanted.cost_bytes}"
    return Held(HeldBy.BUDGET, why, ledger.frees_at(now))


def _demand(
    service: TableService,
    view: TableView,
    policy: TablePolicy,
    thresholds: Thresholds,
    pressure: Pressure,
    max_bytes: int | None,
    now: datetime,
) -> Demand | Held:
    """Return the demand for a plan of at most `max_bytes` bytes of input (None: no bound). Ignores windows, pauses and budgets."""
    rewrite = REWRITES[service]
    # Arbitration would charge the demand of a plan that is refused when it is to be published, and other tables would wait.
    refused = rewrite.why_not_planned(view)
    if refused is not None:
        return Held(HeldBy.NOT_DUE, refused.reason)
    is_urgent = pressure.part >= EARLY
    trigger = rewrite.thresholds(view, Trigger(thresholds.min_files, thresholds.min_commits, max_bytes), is_urgent=is_urgent)
    found = rewrite.due(view, trigger, now)
    if isinstance(found, NotDue):
        if found.behind and is_open(policy.windows, now):
            return Held(HeldBy.NOT_DUE, found.reason, next_look(found.behind, now))
        rest = left_over(service, view.state, thresholds.interval_s) if trigger.min_commits else None
        if rest is None:
            return Held(HeldBy.NOT_DUE, found.reason)
        if now < rest.due_at:
            # No plan is computed before that time: in a table with many files, each write would cost another computation.
            when = f"file groups that the last plan left over are examined at {rest.due_at:%H:%M:%S} UTC"
            return Held(HeldBy.NOT_DUE, f"{found.reason}; {when}", rest.due_at)
        at_once = replace(trigger, min_commits=0)
        again = rewrite.due(view, at_once, now)
        if isinstance(again, NotDue) or not rest.is_named(view.state, again.body.groups):  # type: ignore[union-attr]
            return Held(HeldBy.NOT_DUE, found.reason)
        found, trigger = replace(again, reason=f"{again.reason}; the last plan left file groups over"), at_once
    why = f"{found.reason}; {pressure.reason}" if is_urgent else found.reason
    made = _measured(service, view, found)
    return replace(made, reason=why, pressure=pressure.part, priority=policy.priority, trigger=trigger, max_bytes=max_bytes)


def next_look(instant: str, now: datetime) -> datetime:
    """Return when to look again whether a pending write of Apache Hudi, for which a plan waits, has completed.

    A job that never pauses takes its next instant about a second after its commit, and dies of a plan that comes between that
    instant and its requested file. So the plan has to follow the commit at once. A look lists the timeline: with a part of the
    age of the write, a long write costs few of them, and one that never ends fewer each day.
    """
    age_s = (now - time_from_instant(instant)).total_seconds()
    longest_s = _LONGEST_LOOK_S * max(1.0, age_s / _OLD_S)
    return now + timedelta(seconds=min(longest_s, max(_SHORTEST_LOOK_S, _LOOK_PART * age_s)))


def _measured(service: TableService, view: TableView, due: Due) -> Demand:
    """Return the demand for a plan, with its cost and its benefit."""
    groups = due.body.groups  # type: ignore[union-attr]
    slices = [found for group in groups if (found := view.state.latest_slice(group)) is not None]
    gain = REWRITES[service].gain(view, slices, due)
    return Demand(
        view.base_path,
        view.uid,
        service,
        due.reason,
        cost_bytes=plan_bytes(view.state, groups, service),
        files_saved=max(0, gain.files_read - gain.files_written),
        log_bytes=gain.log_bytes,
        unsorted_bytes=gain.unsorted_bytes,
        since=gain.since,
    )


def _backing_off_until(service: TableService, state: TableState, thresholds: Thresholds) -> datetime | None:
    """Return when a service may be planned again; None if none of its plans was rolled back since the last completed one.

    Clusterings and log compactions are rolled back if the launcher gave them up or a writer won. Each further one in a row
    doubles the pause. A compaction is rolled back only if a user cancels it; its pause is `Thresholds.interval_s`.
    """
    failed: list[datetime] = []
    for record in reversed(plans_of(service, state)):
        if record.state is State.COMPLETED:
            break
        ended = _rolled_back_at(state, record)
        if ended is not None:
            failed.append(ended)
    if not failed:
        return None
    if REWRITES[service].begins_slices:
        return max(failed) + timedelta(seconds=thresholds.interval_s)
    pause_s = min(thresholds.backoff_max_s, thresholds.backoff_s * 2.0 ** min(len(failed) - 1, 30))
    return max(failed) + timedelta(seconds=max(SHORTEST_BACKOFF_S, pause_s))


def _rolled_back_at(state: TableState, record: ActionRecord) -> datetime | None:
    by = state.actions.get(record.fenced_by)
    if record.state is not State.ROLLED_BACK or by is None or by.action is not Action.ROLLBACK or not by.since:
        return None
    return datetime.fromisoformat(by.since)
