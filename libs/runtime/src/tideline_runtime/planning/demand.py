"""The values that decisions take and return: the demand for a plan, and the reason for no plan."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime

from tideline_table.action import TableService, Trigger

SHORTEST_BACKOFF_S = 1.0
"""Shortest pause after a plan that was rolled back. With a setting of 0 and no such bound, planner and executor could loop."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Settings of the planner for one table."""

    min_files: int = 8
    """Minimum number of small files in a partition for a clustering."""
    min_commits: int = 4
    """Minimum number of writes since the last clustering plan."""
    backoff_s: float = 10.0
    """Pause after a clustering or log compaction that was rolled back, at least `SHORTEST_BACKOFF_S`; doubles with each further
    one in a row."""
    backoff_max_s: float = 600.0
    """Longest pause after clusterings and log compactions that were rolled back."""
    interval_s: float = 600.0
    """Time from the end of a plan to the next one for what it left over without further writes, and from the cancellation of a
    compaction to the next one."""


class HeldBy(enum.StrEnum):
    """Why no plan of a service is published for a table."""

    OFF = "off"
    PAUSED = "paused"
    NOT_DUE = "not_due"
    BACKING_OFF = "backing_off"
    WINDOW = "window"
    BUDGET = "budget"
    FLEET_BUDGET = "fleet_budget"
    FLEET_PLANS = "fleet_plans"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Held:
    """The decision for no plan: the kind of reason, the reason in one line, and when the decision may change without a commit.

    `until` is None if time alone does not change the decision.
    """

    by: HeldBy
    reason: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """A plan that is due and may be published now, with its cost and its benefit."""

    base_path: str
    uid: str
    service: TableService
    reason: str
    cost_bytes: int
    """Input that the plan reads and rewrites."""
    files_saved: int
    """Number of input files minus number of output files, at least 0."""
    log_bytes: int = 0
    """Bytes of log files that readers need not merge after the plan."""
    unsorted_bytes: int = 0
    """Input that no clustering has sorted yet, if the table has sort columns: its key ranges overlap, as far as the log shows."""
    pressure: float = 0.0
    """Used-up part of the objective; 1: the bound is reached."""
    priority: int = 50
    since: datetime | None = None
    """Since when the table waits for this service: the time of the oldest file in the plan or, if it is later, of the last
    clustering."""
    trigger: Trigger = field(default_factory=lambda: Trigger(0, 0))
    """The thresholds with which the plan is due. Compaction has none for files, log compaction none at all."""
    max_bytes: int | None = None
    """Most bytes of input of the plan, by the budget of the table or the fleet; None: no bound."""
