"""When the cleaner checks a table, and by which options a clean or an archival is due. Pure.

The cleaner, the planner's fleet API and the commands `status`, `why` and `maintain` decide by this module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tideline_runtime.cleaner_settings import CleanerSettings
from tideline_runtime.policy import TablePolicy
from tideline_runtime.table_settings import TableSettings
from tideline_table.action import SERVICES, CleaningPolicy, Outcome, Rules, TableService, Verdict
from tideline_table.config import CLEAN_POLICY, PARTITION_TTL_DAYS, ROW_TTL_DAYS, Options
from tideline_table.log import TableState
from tideline_table.table import Table

CLEANED = tuple(name for name, service in SERVICES.items() if service.deletes and service.has_plans)
"""The services that only the cleaner plans."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The inputs of a check of a table: the engine options that were given, and the services of the cleaner that are on."""

    options: Mapping[str, str]
    services: frozenset[TableService]

    @classmethod
    def of(cls, options: Options, policy: TablePolicy) -> Basis:
        """Return the basis of a table that is open with `options`. A pause does not change it."""
        return cls(options.given(), frozenset(service for service in CLEANED if policy.is_on(service)))


@dataclass(frozen=True, slots=True)
class Check:
    """The last check of a table, or its first visit (`sequence` 0) if no check was made yet. `at_s` is monotonic time.

    `sequence` is the sequence of the state on which the check began. Entries that are appended during the check, also those of
    its clean, make another check due after the interval, because a write that completes during the clean may be the last one.
    """

    sequence: int
    at_s: float
    basis: Basis
    has_leases: bool = False
    """Whether a reader held a lease, which can end without a new log entry."""


def is_check_due(state: TableState, last: Check, basis: Basis, own: CleanerSettings, now_s: float) -> bool:
    """Return whether a check of a table is due.

    The basis changed, enough writes completed since the last check, or the interval is over.

    After the interval, a check is due if the log has new entries, a reader held a lease at the last check, retention is by
    hours, or partitions or rows expire. These cases need the interval, because the end of a plan that needed files, the end of
    a lease and the passing of time make a clean due without a further write. `own` are the settings of the table; `now_s` is
    monotonic time.
    """
    if basis != last.basis:
        return True
    if sum(1 for a in state.completed_writes() if a.sequence > last.sequence) >= own.clean_min_commits:
        return True
    return now_s >= next_check_s(state, last, own)


def next_check_s(state: TableState, last: Check, own: CleanerSettings) -> float:
    """Return when the next check of a table is due that gets no more entries, on the monotonic clock; infinity if none is."""
    options = Options(last.basis.options)
    expires = options[PARTITION_TTL_DAYS] > 0 or options[ROW_TTL_DAYS] > 0
    goes_by_time = expires or options[CLEAN_POLICY] == CleaningPolicy.HOURS
    return last.at_s + own.clean_interval_s if state.sequence > last.sequence or last.has_leases or goes_by_time else math.inf


def with_cleaner_options(
    rules: Rules, settings: CleanerSettings, policy: TablePolicy, table: Table, options: Mapping[str, object] | None = None
) -> Rules:
    """Return `rules` with the cleaner's engine options for cleans and archivals, whatever options `table` is open with.

    `options` override those of the settings and of the policy.
    """
    given = table.options.changed_to(Options({**settings.options, **policy.options, **(options or {})}))
    return replace(rules, service_options={**rules.service_options, **dict.fromkeys(CLEANED, given)})


def with_cleaner(settings: CleanerSettings, policy: TablePolicy, table: Table, verdict: Verdict) -> Verdict:
    """Return the verdict; for a clean or an archival that is due, `until` also says when the cleaner plans it.

    Raises `InvalidSetting` for settings in a policy that are not valid.
    """
    if verdict.service not in CLEANED or verdict.outcome is not Outcome.DUE:
        return verdict
    own = TableSettings(settings, lambda _: policy.settings("cleaner")).of(table.base_path)
    checks = f"after {own.clean_min_commits} write(s) (clean_min_commits), or {own.clean_interval_s:g} s (clean_interval_s)"
    return replace(verdict, until=f"the cleaner's next check of the table, {checks} after the last one; or {verdict.until}")
