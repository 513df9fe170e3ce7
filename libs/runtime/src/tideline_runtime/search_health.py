"""Whether a service can work on any table. Its readiness probe and a metric show this, the probe with the cause in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tideline_runtime.health import Health
from tideline_runtime.metrics import TABLE_TROUBLE, Metrics

SEARCH, OPEN = "table search", "tables"
"""Topics of `Health.obstruct`."""
_KINDS = {SEARCH: "search", OPEN: "open"}


@dataclass(slots=True)
class SearchHealth:
    """Keeps the health of a service in step with its search for tables.

    A service is unready until the first search that succeeds for a pattern or a named table. Later it stays ready for
    `unready_after_s` while every search fails, because a short outage of the store affects all pods alike. Tables that cannot
    be opened never make a service unready, because another pod could not open them either.
    """

    health: Health
    metrics: Metrics
    unready_after_s: float
    is_needed: bool = True
    """Whether the service is useless to its clients without tables. If false, failing searches never make the service unready."""
    _has_searched: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._obstruct(SEARCH, "no search for tables has ended yet")

    def not_needed(self) -> None:
        """Let the service be ready without tables. Called by a service whose clients do not need the tables."""
        self.is_needed = False
        self.health.clear(SEARCH)

    def searched(self, failure: str | None) -> None:
        """Record the outcome of the last search.

        `failure` is the cause, in one line, if the search failed everywhere; else None.
        """
        if failure is None:
            self._has_searched = True
            self.health.clear(SEARCH)
        else:
            self._obstruct(SEARCH, failure)
        self._show(SEARCH, is_troubled=failure is not None)

    def opened(self, count: int, failures: Mapping[str, str]) -> None:
        """Record how many tables are open, and why others cannot be opened, by base path."""
        if count or not failures:
            self.health.clear(OPEN)
        else:
            first = min(failures)
            text = f"none of the {len(failures)} tables found can be opened: {first}: {failures[first]}"
            self.health.obstruct(OPEN, " ".join(text.split()), after_s=math.inf)
        self._show(OPEN, is_troubled=not count and bool(failures))

    def _obstruct(self, topic: str, reason: str) -> None:
        limit_s = self.unready_after_s if self._has_searched else 0.0
        self.health.obstruct(topic, reason, after_s=limit_s if self.is_needed else math.inf)

    def _show(self, topic: str, *, is_troubled: bool) -> None:
        self.metrics.set(TABLE_TROUBLE, int(is_troubled), kind=_KINDS[topic])
