"""A writer's clock, checked against the time of the store, which dates the files of the table.

Two requests learn the store's time, and the monotonic clock carries it on for `VALID_S` seconds. A process needs them once in that
period, and again if its clock moved away from the store's.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tideline_table.clock import Clock
from tideline_table.config import INSTANT_SKEW_S, Options
from tideline_table.coordination.heartbeat import store_time
from tideline_table.errors import ClockSkew
from tideline_table.hudi.instant import time_from_instant
from tideline_table.storage import Storage

VALID_S = 600.0
"""An oscillator with an error of 100 ppm is off by 60 ms after this time."""
_PATIENCE = timedelta(seconds=5)
"""The longest wait for an instant, however far clocks may differ."""
_TICK = timedelta(milliseconds=20)
"""File systems use the kernel's tick, which lags behind its clock by less than this."""


class CheckedClock:
    """The clock of this process, never behind the known time of the store. Thread-safe."""

    def __init__(self, storage: Storage, clock: Clock, options: Options) -> None:
        self._storage = storage
        self._clock = clock
        self.monotonic_s, self.sleep = clock.monotonic_s, clock.sleep
        self._allowed = timedelta(seconds=options[INSTANT_SKEW_S])
        self.unit = timedelta(seconds=0 if storage.root.startswith(("file:", "memory:")) else 1)
        """The rounding of the store's times: object stores keep whole seconds."""
        self._learned: tuple[datetime, float] | None = None
        """A time of the store, and the monotonic clock at that time or later."""

    def now(self) -> datetime:
        """See `Clock.now`."""
        return max(self._clock.now(), self._least())

    def by_store(self) -> datetime:
        """Return the time that the store gives to a file written now: this clock's, within what is known of the store's time."""
        least = self._least()
        return min(max(self._clock.now(), least), least + self.unit) if self._learned else self._clock.now()

    def check_not_ahead(self) -> None:
        """Raise `ClockSkew` if this machine's clock is further ahead of the store's time than the options allow.

        Asks the store only if no recent answer proves the opposite.
        """
        if (
            self._learned
            and self.monotonic_s() - self._learned[1] <= VALID_S
            and self._clock.now() - self._least() <= self._allowed
        ):
            return
        # Read the clock before the request, so that a slow reply cannot make it look ahead.
        asked = self._clock.now()
        ahead = asked - self._learn()
        if ahead > self._allowed + self.unit + _TICK:
            raise ClockSkew(
                f"this machine's clock lies {ahead.total_seconds():.1f} s ahead of the time of the store; nothing was written",
                expected=f"at most {self._allowed.total_seconds():g} s",
                remedy="set this machine's clock by NTP (where the store's clock is wrong, that one) and retry",
            )

    def ahead(self, instant: str) -> timedelta:
        """Return how far `instant` is ahead of the store's time; zero if it is near enough to wait for: some seconds at most."""
        moment, patience = time_from_instant(instant), min(self._allowed, _PATIENCE) + timedelta(seconds=1)
        if moment - self.by_store() > patience:
            self._learn()
        ahead = moment - self.by_store()
        return ahead if ahead > patience else timedelta(0)

    def check_reached(self, instant: str, what: str) -> None:
        """Raise `ClockSkew` while `instant` is ahead of the store's time: its slice would be dated before its own instant."""
        ahead = self.ahead(instant)
        if ahead:
            raise ClockSkew(
                f"{what} would lie {ahead.total_seconds():.1f} s ahead of the time of the store, because the last instant of the "
                "table does",
                expected="an instant that the store's time has reached: Apache Hudi places log files by file times (instant "
                f"{instant})",
                remedy="writes go on; retry when that time has come. 'tideline show PATH' names the writer whose clock was ahead",
            )

    def _least(self) -> datetime:
        if self._learned is None:
            return datetime.min.replace(tzinfo=self._clock.now().tzinfo)
        stated, at_s = self._learned
        return stated + timedelta(seconds=self._clock.monotonic_s() - at_s)

    def _learn(self) -> datetime:
        stated = store_time(self._storage)
        self._learned = stated, self.monotonic_s()
        return stated
