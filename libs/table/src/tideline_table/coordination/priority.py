"""Clusterings with priority: which of them go before a write, and the wait for them.

A clustering that often lost to writers is planned with priority (`action.clustering`), and writes to its file groups wait for it.
The priority lapses while no process runs the clustering, so that it cannot block writers for ever. Writers may disagree on that: if
one passes, the clustering yields, because its commit compares what it read with the current slices (`conflict.find_conflict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import tenacity

from tideline_table.config import CLUSTERING_PRIORITY_LAPSE_S, CLUSTERING_UPDATE_STRATEGY, CLUSTERING_UPDATES_STRATEGY, Options
from tideline_table.coordination.heartbeat import allowed_silence, holds_writers, is_silent
from tideline_table.coordination.timeline import ActiveTimeline
from tideline_table.coordination.write_set import UPDATE_STRATEGIES, UpdateStrategy
from tideline_table.log.plan import ClusteringPlanned
from tideline_table.log.state import TableState
from tideline_table.plugin import Strategies

_LONGEST_NAP_S = 1.0
_YIELD, _CARRY_OVER = "yield", "carry-over"
_STRATEGIES: Strategies[UpdateStrategy] = Strategies(
    group="tideline.clustering.update",
    option=CLUSTERING_UPDATES_STRATEGY.key,
    kind=None,
    built_in=UPDATE_STRATEGIES,
    aliases={"SparkRejectUpdateStrategy": "reject", "SparkAllowUpdateStrategy": _YIELD},
    refused=dict.fromkeys(
        (
            "dual-write",
            "SparkDuplicateUpdateStrategy",
            "SparkConsistentBucketDuplicateUpdateStrategy",
            "SparkConsistentHashingDuplicateUpdateStrategy",
        ),
        "writes to both the old and the planned file group are not built: use carry-over, which writes them once, or yield",
    ),
)


class ClusteringPriority:
    """The priorities that one write respects. A priority found lapsed stays so for it: otherwise its work since would be lost."""

    def __init__(self, timeline: ActiveTimeline, options: Options) -> None:
        self._timeline = timeline
        self._allowed = max(timedelta(seconds=options[CLUSTERING_PRIORITY_LAPSE_S]), allowed_silence(options))
        self._lapsed: set[str] = set()

    def goes_first(self, state: TableState, clustering: str) -> bool:
        """Return whether the clustering is pending and has a priority that has not lapsed, or holds writers up.

        The `UpdateStrategy` of `yield`.
        """
        record, timeline = state.actions.get(clustering), self._timeline
        if record is None or not record.is_pending or record.fenced_by:
            return False
        if not state.has_priority(clustering):
            planned = state.plans.get(clustering)
            if not isinstance(planned, ClusteringPlanned) or not plan_carries_over(planned.plan):
                return False
            return holds_writers(timeline.storage, clustering) and not is_silent(
                timeline.storage, record, timeline.clock, allowed_silence(timeline.options)
            )
        if clustering not in self._lapsed and is_silent(timeline.storage, record, timeline.clock, self._allowed):
            self._lapsed.add(clustering)
        return clustering not in self._lapsed


def update_strategy(timeline: ActiveTimeline, options: Options) -> UpdateStrategy:
    """Return the strategy of a write towards clusterings, as the options say. Raises `InvalidOption` for an unknown one."""
    chosen = _chosen(options)
    return ClusteringPriority(timeline, options).goes_first if chosen in (_YIELD, _CARRY_OVER) else _STRATEGIES.load(chosen)


def waits_for_clusterings(options: Options) -> bool:
    """Return whether a write waits for a clustering with priority, instead of failing with a conflict."""
    return _chosen(options) in (_YIELD, _CARRY_OVER)


def carries_over(options: Options) -> bool:
    """Return whether a clustering carries over what was written to its input while it ran.

    Raises `InvalidOption` as `update_strategy`.
    """
    return _chosen(options) == _CARRY_OVER


def planned_update_strategy(options: Options) -> dict[str, str]:
    """Return the strategy parameters by which a clustering plan says that its executor carries over; empty with other strategies.

    A process with other options that takes over from a dead executor then carries over, too. Raises `InvalidOption` as
    `update_strategy`.
    """
    return {CLUSTERING_UPDATES_STRATEGY.key: _CARRY_OVER} if carries_over(options) else {}


def plan_carries_over(plan: Mapping[str, Any]) -> bool:
    """Return whether a clustering plan (`HoodieRequestedReplaceMetadata`) has the parameter of `planned_update_strategy`."""
    strategy = (plan.get("clusteringPlan") or {}).get("strategy") or {}
    return (strategy.get("strategyParams") or {}).get(CLUSTERING_UPDATES_STRATEGY.key) == _CARRY_OVER


def _chosen(options: Options) -> str:
    return _STRATEGIES.name_of(options[CLUSTERING_UPDATES_STRATEGY] or options[CLUSTERING_UPDATE_STRATEGY])


def await_clustering(timeline: ActiveTimeline, clustering: str, options: Options, longest_s: float) -> bool:
    """Wait until the clustering ended or its priority lapsed, at most `longest_s` seconds; return whether writes may go on."""
    priority, clock = ClusteringPriority(timeline, options), timeline.clock
    until_s = clock.monotonic_s() + longest_s

    def is_ahead() -> bool:
        timeline.refresh()
        return priority.goes_first(timeline.state, clustering)

    looking = tenacity.Retrying(
        retry=tenacity.retry_if_result(bool),
        stop=lambda _: clock.monotonic_s() >= until_s,
        wait=tenacity.wait_exponential(multiplier=0.05, max=_LONGEST_NAP_S),
        sleep=clock.sleep,
        retry_error_callback=lambda _: True,
    )
    return not looking(is_ahead)
