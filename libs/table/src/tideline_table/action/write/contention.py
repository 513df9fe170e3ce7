"""What one write keeps of lost attempts: the file groups that it needs, its losses, and how it waits before the next attempt."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tideline_table.config import PRIORITY_AFTER, PRIORITY_WAIT_S, WRITE_RETRIES, Options
from tideline_table.coordination.priority import await_clustering, waits_for_clusterings
from tideline_table.coordination.reservations import Reservation, Turn, await_turn, withdraw
from tideline_table.errors import ClusteringFirst, WriteConflict
from tideline_table.table.facade import Table

_LOGGER = logging.getLogger(__name__)


class Contention:
    """The file groups that a write needed so far and the number of its losses, over all its attempts. Not thread-safe."""

    def __init__(self, table: Table, options: Options) -> None:
        self.table = table
        self.options = options
        self._losses = 0
        self._lost_in_vain = 0
        self._groups: frozenset[str] = frozenset()
        self._appends: frozenset[str] = frozenset()
        self._posted: set[str] = set()
        self._gave_way_to: set[str] = set()
        self._waited_s = 0.0

    @property
    def has_priority(self) -> bool:
        """Whether the write lost to Tideline writers so often that they wait for it.

        Apache Hudi's writers ignore priority. After as many losses to them, the write has no priority any more: waiting writers
        would not help it.
        """
        return self._lost_in_vain < self.options[PRIORITY_AFTER] <= self._losses

    @property
    def attempts(self) -> int:
        """The number of attempts that the write has by now: the first loss to each clustering with priority does not count."""
        return self.options[WRITE_RETRIES] + 1 + len(self._gave_way_to)

    def lost(self, conflict: WriteConflict) -> None:
        """Record that an attempt ended with `conflict`."""
        if self._waits_for(conflict):
            self._gave_way_to.add(conflict.with_instant)
        elif not self._is_with_hudi(conflict):
            self._losses += 1
        elif self.has_priority:
            self._lost_in_vain += 1

    def give_way(self, conflict: WriteConflict) -> None:
        """Wait for the clustering if `conflict` is with one that has priority. Raises `ClusteringFirst` if the wait is too long."""
        if not self._waits_for(conflict):
            return
        clustering, clock, longest_s = conflict.with_instant, self.table.clock, self.options[PRIORITY_WAIT_S]
        _LOGGER.info("a write waits for clustering %s", clustering)
        began_s = clock.monotonic_s()
        is_over = await_clustering(self.table.timeline, clustering, self.options, max(0.0, longest_s - self._waited_s))
        self._waited_s += clock.monotonic_s() - began_s
        if not is_over:
            raise ClusteringFirst(
                f"{conflict.found} and was waited for {self._waited_s:.0f} s",
                with_instant=clustering,
                expected=f"its end within {longest_s:g} s ({PRIORITY_WAIT_S.key})",
                remedy=conflict.remedy,
            )

    def _waits_for(self, conflict: WriteConflict) -> bool:
        return isinstance(conflict, ClusteringFirst) and waits_for_clusterings(self.options)

    def _is_with_hudi(self, conflict: WriteConflict) -> bool:
        other = self.table.state.actions.get(conflict.with_instant)
        return other is not None and other.is_by_hudi

    def needs(self, rewrites: Iterable[str], appends: Iterable[str]) -> None:
        """Record that the write rewrites the file groups `rewrites` and appends log files to `appends`."""
        self._groups |= frozenset(rewrites)
        self._appends |= frozenset(appends)

    def take_turn(self, instant: str) -> Turn:
        """Reserve the file groups that the write is known to need, and wait until no other write goes first."""
        reservation = Reservation(instant, self._groups, self.has_priority, self._appends - self._groups)
        if not reservation.written:
            return Turn.AT_ONCE
        self._posted.add(instant)
        return await_turn(self.table.reservations, self.table.timeline, reservation, self.options)

    def end_turn(self) -> None:
        """Withdraw the reservations of the attempt, so that waiting writers may go on."""
        for instant in self._posted:
            withdraw(self.table.reservations, instant)
        self._posted.clear()
