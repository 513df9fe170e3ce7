"""What one write learns while it loses against others, and the turn that it takes because of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tideline_table.config import CLUSTERING_UPDATE_STRATEGY, PRIORITY_AFTER, PRIORITY_WAIT_S, WRITE_RETRIES, Options
from tideline_table.errors import ClusteringFirst, WriteConflict
from tideline_table.table.facade import Table
from tideline_table.transaction.intents import Intent, Turn, await_turn, withdraw
from tideline_table.transaction.priority import await_clustering

_LOGGER = logging.getLogger(__name__)


class Contention:
    """The file groups that a write needed so far and how often it lost, over all of its attempts. Not for several threads."""

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
        """Whether it lost to writers of ours so often that they wait for it.

        Apache Hudi's know of no priority. One that lost to them as often in spite of it has it no more: ours would wait for nothing.
        """
        return self._lost_in_vain < self.options[PRIORITY_AFTER] <= self._losses

    @property
    def attempts(self) -> int:
        """How many the write has by now: the first one that met a clustering with priority does not count."""
        return self.options[WRITE_RETRIES] + 1 + len(self._gave_way_to)

    def lost(self, conflict: WriteConflict) -> None:
        """An attempt ended with `conflict`."""
        if self._waits_for(conflict):
            self._gave_way_to.add(conflict.with_instant)
        elif not self._is_with_peer(conflict):
            self._losses += 1
        elif self.has_priority:
            self._lost_in_vain += 1

    def give_way(self, conflict: WriteConflict) -> None:
        """Wait for the clustering that went first, if it was one. Raises `ClusteringFirst` when the write waited as long as it may."""
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
        return isinstance(conflict, ClusteringFirst) and self.options[CLUSTERING_UPDATE_STRATEGY] == "yield"

    def _is_with_peer(self, conflict: WriteConflict) -> bool:
        other = self.table.state.actions.get(conflict.with_instant)
        return other is not None and other.is_peers

    def needs(self, rewrites: Iterable[str], appends: Iterable[str]) -> None:
        """The write turned out to write over the file groups `rewrites`, and to append log files to `appends`."""
        self._groups |= frozenset(rewrites)
        self._appends |= frozenset(appends)

    def take_turn(self, instant: str) -> Turn:
        """Wait until the file groups that the write needs, as far as it knows, are its own to write."""
        intent = Intent(instant, self._groups, self.has_priority, self._appends - self._groups)
        if not intent.written:
            return Turn.AT_ONCE
        self._posted.add(instant)
        return await_turn(self.table.intents, self.table.timeline, intent, self.options)

    def end_turn(self) -> None:
        """The attempt is over: whoever waits for it may go on."""
        for instant in self._posted:
            withdraw(self.table.intents, instant)
        self._posted.clear()
