"""How often the mirror looks at a table: often while it is written, ever more rarely while it is quiet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tideline_events import TableRecord
from tideline_mirror.settings import MirrorSettings
from tideline_runtime.table_settings import TableSettings
from tideline_table.clock import Clock

FRESHNESS_S = 300.0
"""Most seconds between two looks at a table in an object store, unless the setting `freshness_s` says others."""
QUIET_FRACTION = 0.1
"""A table is looked at after this part of the time since its last step: that costs little, and what wakes up is seen soon."""
SETTLES_S = 60.0
"""Time after its last step in which a table is looked at although notifications tell of the next one: it may need mending."""
RARELY = 60
"""How many times rarer than a busy table one is put in order that has been quiet for long."""


class Pace:
    """The intervals of one mirror. `known`: the last record of each table by uid."""

    def __init__(
        self,
        clock: Clock,
        per_table: TableSettings[MirrorSettings],
        known: Mapping[str, TableRecord],
        tells: Callable[[str], bool] = lambda _: False,
        owes: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Take what is asked with the base path of a table.

        `tells`: whether notifications would tell of its next step. `owes`: whether one may have happened that they do not tell.
        """
        self._tells, self._owes = tells, owes
        self._clock = clock
        self._per_table = per_table
        self._known = known

    def look_s(self, uid: str, base_path: str) -> float:
        """Return the seconds between two looks at a table of which everything is published."""
        if self._owes(base_path):
            return 0.0
        own, quiet_s = self._per_table.of(base_path), self.quiet_s(uid)
        if quiet_s > SETTLES_S and self._tells(base_path):
            return own.notified_freshness_s
        freshness_s = own.freshness_s
        if freshness_s is None:
            freshness_s = 0.0 if base_path.startswith(("file:", "/")) else FRESHNESS_S
        return min(freshness_s, QUIET_FRACTION * quiet_s)

    def quiet_s(self, uid: str) -> float:
        """Return the seconds since the last step of a table; 0 if nothing is known of it."""
        record = self._known.get(uid)
        since = None if record is None else record.quiet_since or record.time
        return 0.0 if since is None else max(0.0, (self._clock.now() - since).total_seconds())

    def check_s(self, interval_s: float, uid: str) -> float:
        """Return the interval of a check that a busy table gets each `interval_s`."""
        return max(interval_s, min(RARELY * interval_s, QUIET_FRACTION * self.quiet_s(uid)))
