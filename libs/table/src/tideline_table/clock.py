"""Injected time: production code asks a `Clock`, tests and the simulator hold its hands."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Where all of Tideline gets its time from."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Let `duration_s` seconds pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """See `Clock.now`."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(duration_s)


class ManualClock:
    """A clock that moves only when told to; `sleep` moves it."""

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
