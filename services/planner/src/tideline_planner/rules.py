"""The rules of one table for its status and its maintenance, from the planner's settings and the policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from tideline_planner.settings import PlannerSettings
from tideline_runtime.planning import Demand, HeldBy, Ledger, Ledgers, Thresholds, examine, score
from tideline_runtime.planning.examination import PLANNED
from tideline_runtime.policy import TablePolicy, is_open, next_change
from tideline_runtime.table_settings import TableSettings
from tideline_table.action import NotDue, Outcome, Rules, TableService, Trigger, Verdict
from tideline_table.config import CLUSTERING_SORT_COLUMNS
from tideline_table.table import Table


def thresholds_of(own: PlannerSettings) -> Thresholds:
    """Return the thresholds of a table from the settings that hold for it."""
    return Thresholds(
        own.clustering_min_files,
        own.clustering_min_commits,
        own.clustering_backoff_s,
        own.clustering_backoff_max_s,
        own.plan_interval_s,
    )


def plan_options(settings: PlannerSettings, table: Table, policy: TablePolicy) -> dict[str, str]:
    """Return engine options for plans in addition to the table's.

    Sort columns by table name, unless the policy gives sort columns.
    """
    own = settings.clustering_sort_columns.get(table.definition.name)
    is_overridden = CLUSTERING_SORT_COLUMNS.key in policy.options
    return {} if own is None or is_overridden else {CLUSTERING_SORT_COLUMNS.key: own}


def rules_of(settings: PlannerSettings, policy: TablePolicy, table: Table, options: Mapping[str, object] | None = None) -> Rules:
    """Return the rules by which the table is judged now. `options` override those of the settings and of the policy.

    Raises `InvalidSetting` for settings in a policy that are not valid.
    """
    own = TableSettings(settings, lambda _: policy.settings("planner")).of(table.base_path)
    return Rules(
        Trigger(own.clustering_min_files, own.clustering_min_commits),
        services=frozenset(service for service in TableService if policy.is_on(service)),
        off={name: policy.why_off(name) for name in TableService if not policy.is_on(name)},
        held=_held(policy, table.clock.now()),
        objectives=policy.objectives,
        options={**plan_options(own, table, policy), **policy.options, **(options or {})},
    )


def with_planner(settings: PlannerSettings, policy: TablePolicy, table: Table, verdict: Verdict) -> Verdict:
    """Return the planner's decision in place of the verdict `DUE` or `NOT_DUE` about a service that it plans.

    Else return `verdict`.

    The decision also takes objectives, windows, budgets and pauses after failures into account, but not the choice among all
    tables of a fleet. Raises `InvalidSetting` for settings in a policy that are not valid, and the errors of `examine`.
    """
    if verdict.service not in PLANNED or verdict.outcome not in (Outcome.DUE, Outcome.NOT_DUE):
        return verdict
    own = TableSettings(settings, lambda _: policy.settings("planner")).of(table.base_path)
    now = table.clock.now()
    ledger = Ledgers().of(table, now) if policy.bytes_per_day is not None else Ledger()
    found = examine(
        verdict.service,
        table.view({**plan_options(own, table, policy), **policy.options}),
        policy,
        thresholds_of(own),
        ledger,
        now,
    )
    if isinstance(found, Demand):
        until = f"tideline plan {verdict.service} PATH publishes the plan"
        ranked = replace(verdict, score=score(found, now), input_bytes=found.cost_bytes)
        return replace(ranked, outcome=Outcome.DUE, reason=found.reason, until=until)
    at = f"{found.until:%Y-%m-%d %H:%M:%S} UTC" if found.until is not None else ""
    if found.by is HeldBy.NOT_DUE:
        known = verdict.until if verdict.outcome is Outcome.NOT_DUE else ""
        return replace(verdict, outcome=Outcome.NOT_DUE, reason=found.reason, until=" or ".join(filter(None, (known, at))))
    return replace(verdict, outcome=Outcome.HELD, reason=found.reason, until=at or _ENDS.get(found.by, "another policy"))


_ENDS = {
    HeldBy.PAUSED: "the end of the pause",
    HeldBy.WINDOW: "another window",
    HeldBy.BUDGET: "the end of pending plans, or a larger budget",
}
"""What ends the reason that a plan is held, if time alone does not end it."""


def _held(policy: TablePolicy, now: datetime) -> dict[TableService, NotDue]:
    """Return the services that are on and may not change the table at `now`, with the reason and what ends it."""
    held: dict[TableService, NotDue] = {}
    if not is_open(policy.windows, now):
        opens = next_change(policy.windows, now)
        until = f"the window, which opens at {opens:%Y-%m-%d %H:%M} UTC" if opens is not None else "another window"
        held |= {service: NotDue(f"outside of the window of {policy.given['windows'].origin}", until) for service in PLANNED}
    pause = policy.paused_at(now)
    if pause is not None:
        until = f"the end of the pause at {pause.until:%Y-%m-%d %H:%M} UTC" if pause.until is not None else "the end of the pause"
        reason = NotDue(f"paused by {policy.given['pause'].origin}: {pause.reason}", until)
        held |= {service: reason for service in TableService if not policy.wants(service, now)}
    return {service: reason for service, reason in held.items() if policy.is_on(service)}
