"""The main loop of a service: tick, judge the outcome, wait for the next reason to look."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from tideline_service.contract import Service, ServiceContext
from tideline_service.errors import TooManyFailures
from tideline_service.logging import get_logger
from tideline_service.metrics import CONSECUTIVE_FAILURES, READY, TICK_TIME, TICKS
from tideline_table.errors import Recovery, TidelineError

_log = get_logger(__name__)

UNREADY_AFTER_RETRIES = 3
"""So many retryable failures in a row count as an obstacle; one or two are everyday life."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from `initial_s` up to `max_s`, each shortened at random by up to half so that a fleet does not march in step."""

    initial_s: float = 0.5
    max_s: float = 60.0

    def pause_s(self, failures: int, fraction: float) -> float:
        """The pause after the `failures`-th failure in a row (from 1); `fraction` in [0, 1) is the draw."""
        # The exponent is bounded before the power: a service may fail for days.
        full_s = min(self.max_s, self.initial_s * 2.0 ** min(failures - 1, 32))
        return full_s * (1.0 - fraction / 2)


def may_be_cured(error: BaseException) -> bool:
    """Whether the same tick may succeed later by itself."""
    return isinstance(error, TidelineError) and error.recovery in (Recovery.RETRY, Recovery.REFRESH)


@dataclass(slots=True)
class Failures:
    """Failures in a row: of any kind, and of those that no retry cures."""

    in_row: int = 0
    incurable_in_row: int = 0


class TickLoop:
    """Runs one service from `start` to the request to stop; the caller stops the service."""

    def __init__(
        self,
        service: Service,
        context: ServiceContext,
        *,
        poll_interval_s: float,
        backoff: Backoff,
        max_consecutive_failures: int,
        live_deadline_s: float,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._service = service
        self._context = context
        self._poll_interval_s = poll_interval_s
        self._backoff = backoff
        self._max_failures = max_consecutive_failures
        self._slice_s = live_deadline_s / 3
        self._draw = draw
        self._failures = Failures()

    def run(self) -> None:
        """Start, then tick until asked to stop.

        Raises what `start` raised if no retry cures it, and `TooManyFailures` after too many incurable failures in a row.
        """
        stopping = self._context.stopping
        if not self._start():
            return
        self._context.health.started()
        _log.info("started")
        while not stopping.is_set():
            # Cleared before the tick: who wakes from here on has seen something that this tick may have missed.
            self._context.wakeup.clear()
            if stopping.is_set():
                return
            pause_s = self._tick()
            # Hints must not turn a failing tick into a busy one.
            self._wait(pause_s, wakes=not self._failures.in_row)

    def _start(self) -> bool:
        failures = 0
        while not self._context.stopping.is_set():
            self._context.health.beat()
            try:
                self._service.start()
            except TidelineError as error:
                if not may_be_cured(error):
                    raise
                failures += 1
                pause_s = self._backoff.pause_s(failures, self._draw())
                self._context.health.obstruct("start", str(error))
                _log.warning("start failed, trying again", pause_s=round(pause_s, 3), failures=failures, exc_info=error)
                self._wait(pause_s, wakes=False)
            else:
                return True
        return False

    def _tick(self) -> float:
        self._context.health.beat()
        metrics = self._context.metrics
        try:
            with metrics.timed(TICK_TIME):
                wanted_s = self._service.tick()
        except Exception as error:  # noqa: BLE001 - the border of the service: every error is judged, logged and counted here
            return self._failed(error)
        metrics.increment(TICKS, outcome="done")
        metrics.set(CONSECUTIVE_FAILURES, 0)
        metrics.set(READY, 1)
        self._failures = Failures()
        self._context.health.clear("tick")
        return self._poll_interval_s if wanted_s is None else wanted_s

    def _failed(self, error: Exception) -> float:
        curable = may_be_cured(error)
        failures = self._failures
        failures.in_row += 1
        failures.incurable_in_row = 0 if curable else failures.incurable_in_row + 1
        metrics = self._context.metrics
        metrics.increment(TICKS, outcome="retry" if curable else "failed")
        metrics.set(CONSECUTIVE_FAILURES, failures.in_row)
        pause_s = self._backoff.pause_s(failures.in_row, self._draw())
        # Readiness first: who reads of the failure in the log finds it there too.
        if not curable or failures.in_row >= UNREADY_AFTER_RETRIES:
            metrics.set(READY, 0)
            self._context.health.obstruct("tick", f"failed {failures.in_row} times in a row: {type(error).__name__}: {error}")
        if curable:
            _log.warning("tick failed, trying again", pause_s=round(pause_s, 3), failures=failures.in_row, exc_info=error)
        else:
            _log.error("tick failed", pause_s=round(pause_s, 3), failures=failures.incurable_in_row, exc_info=error)
        if failures.incurable_in_row >= self._max_failures:
            raise TooManyFailures(
                f"{failures.incurable_in_row} ticks in a row failed, the last with {type(error).__name__}: {error}",
                expected=f"fewer than {self._max_failures}",
                remedy="the log has the tracebacks",
            ) from error
        return pause_s

    def _wait(self, duration_s: float, *, wakes: bool) -> None:
        """Until `duration_s` are over, the service stops, or (if it `wakes`) somebody wakes it. Beats all the while."""
        assert not math.isnan(duration_s), "a tick wants a number of seconds"
        context = self._context
        until_s = context.clock.monotonic_s() + duration_s
        interruption = context.wakeup if wakes else context.stopping
        while not context.stopping.is_set():
            context.health.beat()
            left_s = until_s - context.clock.monotonic_s()
            if left_s <= 0 or interruption.wait(min(left_s, self._slice_s)):
                return
