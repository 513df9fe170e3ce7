"""When a service asks storage about a table that it has open."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from tideline_runtime.news import News
from tideline_runtime.shards import shard_of
from tideline_table.clock import Clock
from tideline_table.table import Table

_LOOKS_PER_IDENTITY = 8
"""Looks at an idle table for one check that it is still the same table."""
_SPREAD = 1000
REST_AFTER_S = 3600.0
"""A table without a step for so long rests: it need not be open."""
UNSEEN_REST_AFTER_S = 86_400.0
"""The same for a table that a service that starts has not seen yet: budgets count what was rewritten within a day."""
NEWS_LIMIT_S = 5.0
"""Longest time that a service which starts waits for what the mirror tells."""


class Looks:
    """The times of the last requests for each table, and what makes further ones needless. Used by the thread that ticks."""

    def __init__(self, clock: Clock, *, news: News | None = None, rescan_s: float = 60.0, audit_s: float = 86_400.0) -> None:
        """`news`: what a mirror tells; None for the mirror itself, which asks storage.

        `rescan_s`: interval at which the service checks that an open table is still the one that it opened: one request. `audit_s`:
        interval at which a table is refreshed of which the mirror tells that it has no news.
        """
        self._clock = clock
        self._news = news
        self._rescan_s = rescan_s
        self._audit_s = audit_s
        self._waited = False
        self.interval_s: Callable[[Table], float] = lambda _: 0.0
        """Asked about an open table; returns the seconds between two looks at it."""
        self.told_places: Callable[[], int | None] = lambda: None
        """Asked without news; as `places`."""
        self._looked_at_s: dict[str, float] = {}
        self._identified_at_s: dict[str, float] = {}
        self._audit_at_s: dict[str, float] = {}
        self._owed: set[str] = set()
        """Tables whose last look the service could not work on."""

    def rests(self, table: Table) -> bool:
        """Return whether the time until the next look at an open table is not over."""
        if table.base_path in self._owed:
            return False
        return self.waits(table.base_path, self.interval_s(table))

    def waits(self, base_path: str, interval_s: float) -> bool:
        """Return whether an interval since the last look at a table that may be closed is not over."""
        return self._clock.monotonic_s() < self._looked_at_s.get(base_path, -math.inf) + interval_s

    def is_current(self, table: Table) -> bool:
        """Return whether the mirror has told all that is known of an open table, and no news. An audit does not believe it."""
        head = None if self._news is None or not table.capabilities.log_is_truth else self._news.head(table.base_path, table.uid)
        return head == table.state.sequence and self._clock.monotonic_s() < self._audit_at_s[table.base_path]

    def at_rest(self, base_path: str, quiet_s: float = REST_AFTER_S) -> tuple[str, int] | None:
        """Return uid and head of a table that had no step for so long and has no pending action, as the mirror tells; else None."""
        return None if self._news is None else self._news.at_rest(base_path, quiet_s)

    def moved(self) -> set[str] | None:
        """Return the base paths of the tables of which the mirror told news since the last call.

        None, too, unless a mirror lives for every shard: any table may have some.
        """
        return None if self._news is None else self._news.moved()

    def audit_at_s(self, base_path: str) -> float:
        """Return when a table is refreshed although the mirror tells that it has no news."""
        return self._audit_at_s[base_path]

    def takes_identity(self, base_path: str, interval_s: float) -> bool:
        """Return whether the caller must check now that no other table was created at the place of one, looked at so often."""
        now_s = self._clock.monotonic_s()
        if now_s < self._identified_at_s.get(base_path, -math.inf) + max(self._rescan_s, _LOOKS_PER_IDENTITY * interval_s):
            return False
        self._identified_at_s[base_path] = now_s
        return True

    def opened(self, base_path: str) -> None:
        """Note that a table was opened, whose identity was read."""
        self._identified_at_s[base_path] = self._clock.monotonic_s()

    def owes(self, base_path: str) -> None:
        """Note that the service could not work on what a look at a table showed: the next visit looks again."""
        self._owed.add(base_path)

    def looked(self, base_path: str) -> None:
        """Note that a table was refreshed."""
        self._owed.discard(base_path)
        now_s = self._clock.monotonic_s()
        self._looked_at_s[base_path] = now_s
        # Spread, because a service that starts refreshes all tables at once.
        self._audit_at_s[base_path] = now_s + self._audit_s * (0.75 + shard_of(base_path, _SPREAD) / (4 * _SPREAD))

    def places(self) -> int | None:
        """Return a number that changes when tables come or go, as the mirror tells; None unless a mirror lives for every shard.

        The mirror itself learns of them from notifications, if at all.
        """
        if self._news is None:
            return self.told_places()
        self._news.start()
        if not self._waited:
            # What rests need not be opened: that takes ten requests for each table, and minutes for thousands of them.
            self._waited = True
            self._news.wait(NEWS_LIMIT_S)
        return self._news.places()

    def oldest_s(self) -> float | None:
        """Return when the table was looked at that waits longest, on the monotonic clock; None without tables."""
        return min(self._looked_at_s.values(), default=None)

    def retain(self, base_paths: Collection[str]) -> None:
        """Forget all other tables."""
        for known in (self._looked_at_s, self._identified_at_s, self._audit_at_s):
            for base_path in known.keys() - base_paths:
                del known[base_path]
        self._owed.intersection_update(base_paths)

    def close(self) -> None:
        """End what reads the news."""
        if self._news is not None:
            self._news.stop()
