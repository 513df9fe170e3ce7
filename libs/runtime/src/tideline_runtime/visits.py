"""Which tables a tick visits: all tables once per poll interval; in between, the tables that events named."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from tideline_runtime.hinted_tables import HintedTables
from tideline_table.clock import Clock


class Visit:
    """The tables of one tick, as `OpenTables.visit` takes them."""

    def __init__(self, hinted: HintedTables, named: Iterable[str], *, is_full: bool) -> None:
        uids = list(dict.fromkeys(named))
        self.is_full = is_full
        """Whether all tables are visited."""
        self.only: Collection[str] | None = None if is_full else uids
        """The uids of the tables to visit; None: all."""
        self._hinted = hinted
        self._waiting: Iterator[list[str]] = iter([uids] if is_full else [])

    def first(self) -> list[str]:
        """Return the uids to visit next: those that events named since the last call.

        The first call of a visit of all tables also returns the uids that were hinted or due when the visit began.
        """
        return [*next(self._waiting, ()), *self._hinted.take()]


class Visits:
    """The visits of a service's ticks. Only the thread that ticks uses this object; events note tables in `hinted`.

    With thousands of tables, a visit of all of them takes seconds. So between two such visits a tick visits only tables that
    are hinted or due.
    """

    def __init__(self, clock: Clock, interval_s: float, hinted: HintedTables) -> None:
        """`interval_s`: seconds between the end of a visit of all tables and the next one."""
        self._clock = clock
        self._interval_s = interval_s
        self._hinted = hinted
        self._full_again_s = self._until_s = 0.0

    def begin(self, due: Iterable[str] = (), *, full: bool = False) -> Visit:
        """Return the visit of this tick.

        It is one of all tables with `full`, if the interval is over, or if no table is hinted or `due`.

        Unless `end` is called, the next visit is one of all tables, because the hints of this visit are used up.
        """
        named = [*self._hinted.take(), *due]
        is_full = full or not named or self._clock.monotonic_s() >= self._full_again_s
        self._until_s, self._full_again_s = self._full_again_s, 0.0
        return Visit(self._hinted, named, is_full=is_full)

    def end(self, visit: Visit) -> float | None:
        """Record that a visit succeeded. Return the seconds until the next visit of all tables; None for the whole interval."""
        now_s = self._clock.monotonic_s()
        self._full_again_s = now_s + self._interval_s if visit.is_full else self._until_s
        return None if visit.is_full else max(0.0, self._until_s - now_s)
