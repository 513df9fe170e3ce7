"""The main loop of a service: tick, classify the outcome, wait for the next reason to tick."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from tideline_runtime.contract import Service, ServiceContext
from tideline_runtime.errors import InputRefused, TooManyFailures
from tideline_runtime.logging import get_logger
from tideline_runtime.metrics import CONSECUTIVE_FAILURES, READY, TICK_TIME, TICKS
from tideline_table.errors import Recovery, TidelineError

_log = get_logger(__name__)

UNREADY_AFTER_RETRIES = 3
"""Retryable failures in a row that make the service unready; one or two are normal."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from `initial_s` to `max_s`, each shortened at random by up to half, to spread the retries of a fleet."""

    initial_s: float = 0.5
    max_s: float = 60.0

    def pause_s(self, failures: int, fraction: float) -> float:
        """Return the pause after the `failures`-th failure in a row (from 1); `fraction` in [0, 1) is the random number."""
        # The exponent is bounded first, because a service may fail for days.
        full_s = min(self.max_s, self.initial_s * 2.0 ** min(failures - 1, 32))
        return full_s * (1.0 - fraction / 2)


def may_be_cured(error: BaseException) -> bool:
    """Return whether the same call may succeed later without intervention: its recovery is RETRY or REFRESH."""
    return isinstance(error, TidelineError) and error.recovery in (Recovery.RETRY, Recovery.REFRESH)


@dataclass(slots=True)
class TickLoop:
    """Runs one service from `start` to the request to stop. The caller then calls `Service.stop`."""

    service: Service
    context: ServiceContext
    _: KW_ONLY
    poll_interval_s: float
    backoff: Backoff
    max_consecutive_failures: int
    live_deadline_s: float
    draw: Callable[[], float] = random.random
    failures: int = field(default=0, init=False)
    """Failed ticks in a row."""
    incurable: int = field(default=0, init=False)
    """Failed ticks in a row with an error that no retry cures."""

    def run(self) -> None:
        """Start the service, then tick until the request to stop.

        Raises what `start` raised if no retry cures it, `InputRefused` of a tick, and `TooManyFailures` after too many incurable
        failures in a row.
        """
        stopping = self.context.stopping
        if not self._start():
            return
        self.context.health.started()
        _log.info("started")
        while not stopping.is_set():
            # Cleared before the tick: a later wake-up may report a change that this tick misses.
            self.context.wakeup.clear()
            if stopping.is_set():
                return
            pause_s = self._tick()
            # Hints must not shorten the pause after a failed tick.
            self._wait(pause_s, wakes=not self.failures)

    def _start(self) -> bool:
        failures = 0
        while not self.context.stopping.is_set():
            self.context.health.beat()
            try:
                self.service.start()
            except TidelineError as error:
                if not may_be_cured(error):
                    raise
                failures += 1
                pause_s = self.backoff.pause_s(failures, self.draw())
                self.context.health.obstruct("start", str(error))
                _log.warning("start failed, trying again", pause_s=round(pause_s, 3), failures=failures, exc_info=error)
                self._wait(pause_s, wakes=False)
            else:
                return True
        return False

    def _tick(self) -> float:
        self.context.health.beat()
        metrics = self.context.metrics
        try:
            with metrics.timed(TICK_TIME):
                wanted_s = self.service.tick()
        except Exception as error:  # noqa: BLE001 - the border of the service: every error is judged, logged and counted here
            return self._failed(error)
        metrics.increment(TICKS, outcome="done")
        metrics.set(CONSECUTIVE_FAILURES, 0)
        metrics.set(READY, 1)
        self.failures = self.incurable = 0
        self.context.health.clear("tick")
        return self.poll_interval_s if wanted_s is None else wanted_s

    def _failed(self, error: Exception) -> float:
        curable = may_be_cured(error)
        self.failures += 1
        self.incurable = 0 if curable else self.incurable + 1
        metrics = self.context.metrics
        metrics.increment(TICKS, outcome="retry" if curable else "failed")
        metrics.set(CONSECUTIVE_FAILURES, self.failures)
        pause_s = self.backoff.pause_s(self.failures, self.draw())
        # Readiness is set before the failure is logged, so that a reader of the log line finds both consistent.
        if not curable or self.failures >= UNREADY_AFTER_RETRIES:
            metrics.set(READY, 0)
            self.context.health.obstruct("tick", f"failed {self.failures} times in a row: {type(error).__name__}: {error}")
        if curable:
            _log.warning("tick failed, trying again", pause_s=round(pause_s, 3), failures=self.failures, exc_info=error)
        else:
            _log.error("tick failed", pause_s=round(pause_s, 3), failures=self.incurable, exc_info=error)
        if isinstance(error, InputRefused):
            raise error
        if self.incurable >= self.max_consecutive_failures:
            raise TooManyFailures(
                f"{self.incurable} ticks in a row failed, the last with {type(error).__name__}: {error}",
                expected=f"fewer than {self.max_consecutive_failures}",
                remedy="see the tracebacks in the log",
            ) from error
        return pause_s

    def _wait(self, duration_s: float, *, wakes: bool) -> None:
        """Wait until `duration_s` are over, the service stops, or (with `wakes`) a wake-up arrives.

        Calls `Health.beat` meanwhile.
        """
        assert not math.isnan(duration_s), "a tick wants a number of seconds"
        context = self.context
        until_s = context.clock.monotonic_s() + duration_s
        interruption = context.wakeup if wakes else context.stopping
        while not context.stopping.is_set():
            context.health.beat()
            left_s = until_s - context.clock.monotonic_s()
            if left_s <= 0 or interruption.wait(min(left_s, self.live_deadline_s / 3)):
                return
