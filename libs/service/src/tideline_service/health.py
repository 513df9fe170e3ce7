"""Health: is the main loop alive, is the service ready, and if not, why not. Judged from values; serving them is `http`'s part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from tideline_service.redaction import redacted_text
from tideline_table.clock import Clock

PROBE_EVERY_S = 1.0
"""Answers of probes are kept so long: a busy scraper does not turn into load on a dependency."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`is_ok`, or the reasons why not, one sentence each."""

    reasons: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        """No reason against it."""
        return not self.reasons


class Health:
    """The state of one service as its probes see it. Thread-safe.

    A service registers what it depends on with `require`; the main loop calls `beat` at every turn, and a tick that takes long
    calls it in between.
    """

    def __init__(self, clock: Clock, live_deadline_s: float) -> None:
        self._clock = clock
        self._live_deadline_s = live_deadline_s
        self._last_beat_s = clock.monotonic_s()
        self._obstacles: dict[str, str] = {"start": "not started yet"}
        self._probes: dict[str, Callable[[], None]] = {}
        self._probed_at_s: float | None = None
        self._unreachable: dict[str, str] = {}
        self._lock = Lock()
        self._probing = Lock()

    def beat(self) -> None:
        """A sign of life of the main loop."""
        self._last_beat_s = self._clock.monotonic_s()

    def require(self, name: str, probe: Callable[[], None]) -> None:
        """Ready only while `probe` returns; it raises when the dependency `name` does not answer. It must bound its own time.

        Called from another thread than the main loop, at most about once in `PROBE_EVERY_S` seconds.
        """
        with self._lock:
            self._probes[name] = probe

    def obstruct(self, topic: str, reason: str) -> None:
        """Not ready because of `reason`, until `clear(topic)`."""
        with self._lock:
            self._obstacles[topic] = reason

    def clear(self, topic: str) -> None:
        """The obstacle `topic`, if there is one, is gone."""
        with self._lock:
            self._obstacles.pop(topic, None)

    def started(self) -> None:
        """The service's start is complete."""
        self.clear("start")

    def stopping(self) -> None:
        """The service was asked to stop: it takes no more work."""
        self.obstruct("stop", "stopping")

    def live(self) -> Verdict:
        """Whether the main loop gave a sign of life within the deadline."""
        silent_s = self._clock.monotonic_s() - self._last_beat_s
        if silent_s <= self._live_deadline_s:
            return Verdict()
        return Verdict((f"main loop silent for {silent_s:.0f} s, allowed are {self._live_deadline_s:.0f} s",))

    def is_obstructed(self) -> bool:
        """Whether the service itself says that it is not ready; asks no dependency."""
        return bool(self._obstacles)

    def ready(self) -> Verdict:
        """Whether the service is started, unobstructed and all that it requires answers. Runs probes; may take as long as they do."""
        # One caller probes, others take the last answer: slow probes do not pile up.
        if self._probing.acquire(blocking=self._probed_at_s is None):
            try:
                self._probe()
            finally:
                self._probing.release()
        with self._lock:
            own = [f"{topic}: {reason}" for topic, reason in self._obstacles.items()]
            return Verdict((*own, *(f"{name} is not reachable: {reason}" for name, reason in self._unreachable.items())))

    def _probe(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._probed_at_s is not None and now_s - self._probed_at_s < PROBE_EVERY_S:
            return
        with self._lock:
            probes = dict(self._probes)
        answers = {name: _failure(probe) for name, probe in probes.items()}
        with self._lock:
            self._unreachable = {name: reason for name, reason in answers.items() if reason is not None}
            self._probed_at_s = now_s


def _failure(probe: Callable[[], None]) -> str | None:
    try:
        probe()
    except Exception as error:  # noqa: BLE001 - whatever a probe raises is its answer, shown to who asks
        return redacted_text(f"{type(error).__name__}: {error}")
    return None
