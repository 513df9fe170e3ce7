"""The clock port and its adapters. Production code reads time from a `Clock`; tests and the simulator inject a `ManualClock`."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """The source of time for all of Tideline."""

    def now(self) -> datetime:
        """Return the wall clock time as an aware datetime in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never runs backwards. Only differences are meaningful."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Wait for `duration_s` seconds."""
        ...


class SystemClock:
    """The clock of the machine."""

    now = staticmethod(partial(datetime.now, UTC))
    monotonic_s = staticmethod(time.monotonic)

    def sleep(self, duration_s: float) -> None:
        """See `Clock.sleep`. `time.sleep` is looked up at each call: a process that replaces it is obeyed."""
        time.sleep(duration_s)


class ManualClock:
    """A clock that moves only through `advance` and `sleep`."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._monotonic_s = 0.0

    def now(self) -> datetime:
        """See `Clock.now`."""
        return self._now

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return self._monotonic_s

    def sleep(self, duration_s: float) -> None:
        """Advance by `duration_s` without waiting."""
        self.advance(duration_s)

    def advance(self, duration_s: float) -> None:
        """Move both clocks forward by `duration_s` seconds."""
        self._now += timedelta(seconds=duration_s)
        self._monotonic_s += duration_s
