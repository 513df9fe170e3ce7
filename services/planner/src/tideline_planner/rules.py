"""The rules of one table for its status and its maintenance: the planner's settings, and what policies give the table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tideline_planner.settings import PlannerSettings
from tideline_runtime.policy import TablePolicy, is_open, next_change
from tideline_runtime.table_settings import TableSettings
from tideline_table.action import Objectives, Reason, Rules, TableService, Trigger
from tideline_table.config import CLUSTERING_SORT_COLUMNS
from tideline_table.table import Table

_PLANNED = (TableService.CLUSTERING, TableService.COMPACTION)
"""The services whose plans wait for a window."""


def rules_of(settings: PlannerSettings, policy: TablePolicy, table: Table, options: Mapping[str, object] | None = None) -> Rules:
    """Return by what the table is judged now. `options` override those of the settings and of the policy.

    Raises `InvalidSetting` for settings in a policy that are not valid.
    """
    own = TableSettings(settings, lambda _: policy.settings("planner")).of(table.base_path)
    sort = own.clustering_sort_columns.get(table.definition.name)
    named = {} if sort is None else {CLUSTERING_SORT_COLUMNS.key: sort}
    aims = policy.objectives
    return Rules(
        Trigger(own.clustering_min_files, own.clustering_min_commits),
        services=frozenset(service for service in TableService if policy.is_on(service)),
        held=_held(policy, table.clock.now()),
        objectives=Objectives(aims.small_files, aims.log_to_base_ratio, aims.unmerged_log_age_s),
        options={**named, **policy.options, **(options or {})},
    )


def _held(policy: TablePolicy, now: datetime) -> dict[TableService, Reason]:
    """Return the services that are on and may not change the table at `now`, with the reason and what ends it."""
    held: dict[TableService, Reason] = {}
    if not is_open(policy.windows, now):
        opens = next_change(policy.windows, now)
        until = f"the window, which opens at {opens:%Y-%m-%d %H:%M} UTC" if opens is not None else "another window"
        held |= {service: Reason(f"outside of the window of {policy.given['windows'].origin}", until) for service in _PLANNED}
    pause = policy.paused_at(now)
    if pause is not None:
        until = f"the end of the pause at {pause.until:%Y-%m-%d %H:%M} UTC" if pause.until is not None else "the end of the pause"
        reason = Reason(f"paused by {policy.given['pause'].origin}: {pause.reason}", until)
        held |= {service: reason for service in TableService if not policy.wants(service, now)}
    return {service: reason for service, reason in held.items() if policy.is_on(service)}
