"""Clusterings with priority: which of them go before a write, and the wait for them.

A clustering that lost often against writers is planned with priority (`service.clustering`), and writes to its file groups wait for it. One that
nobody runs would hold them up for ever, so its priority lapses until somebody does. Writers may judge that differently, and be wrong: whoever
passes makes the clustering yield, for that compares at its commit what it read with what is there (`conflict.find_conflict`).
"""

from __future__ import annotations

from datetime import timedelta

import tenacity

from tideline_table.config import CLUSTERING_PRIORITY_LAPSE_S, CLUSTERING_UPDATE_STRATEGY, Options
from tideline_table.file_group.state import TableState
from tideline_table.transaction.active_timeline import ActiveTimeline
from tideline_table.transaction.conflict import UPDATE_STRATEGIES, UpdateStrategy
from tideline_table.transaction.heartbeat import allowed_silence, is_silent

_LONGEST_NAP_S = 1.0


class ClusteringPriority:
    """Whether a write gives way to clusterings. A priority that it found lapsed stays so for it: what it wrote since would be lost."""

    def __init__(self, timeline: ActiveTimeline, options: Options) -> None:
        self._timeline = timeline
        self._allowed = max(timedelta(seconds=options[CLUSTERING_PRIORITY_LAPSE_S]), allowed_silence(options))
        self._lapsed: set[str] = set()

    def goes_first(self, state: TableState, clustering: str) -> bool:
        """The `UpdateStrategy` of those who wait: whether the clustering is pending with a priority that has not lapsed."""
        record = state.actions.get(clustering)
        if record is None or not record.is_pending or record.fenced_by or not state.has_priority(clustering):
            return False
        timeline = self._timeline
        if clustering not in self._lapsed and is_silent(timeline.storage, record, timeline.clock, self._allowed):
            self._lapsed.add(clustering)
        return clustering not in self._lapsed


def update_strategy(timeline: ActiveTimeline, options: Options) -> UpdateStrategy:
    """How one write meets clusterings, as the options say."""
    chosen = options[CLUSTERING_UPDATE_STRATEGY]
    return ClusteringPriority(timeline, options).goes_first if chosen == "yield" else UPDATE_STRATEGIES[chosen]


def await_clustering(timeline: ActiveTimeline, clustering: str, options: Options, longest_s: float) -> bool:
    """Wait until writes may go before the clustering, or behind it, at most so long; returns whether they may."""
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
