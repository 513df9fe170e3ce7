"""Health of a service: whether its main loop is alive and whether it is ready, with reasons. Module `http` serves the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from tideline_runtime.redaction import redacted_text
from tideline_table.clock import Clock

PROBE_EVERY_S = 1.0
"""How long results of probes are kept, in seconds, so that frequent requests put no load on a dependency."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check: `is_ok`, or the reasons against it, one sentence each.

    `conditions` are obstacles, by topic, that do not make the service unready (yet), although it works worse than it should or
    not at all.
    """

    reasons: tuple[str, ...] = ()
    conditions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Whether there are no reasons."""
        return not self.reasons


@dataclass(frozen=True, slots=True)
class _Obstacle:
    reason: str
    begun_s: float
    after_s: float


class Health:
    """The health of one service, as the routes `/healthz` and `/readyz` show it. Thread-safe.

    A service registers its dependencies with `require`. The main loop calls `beat` at every turn; a long tick calls `beat` in
    between.
    """

    def __init__(self, clock: Clock, live_deadline_s: float) -> None:
        self._clock = clock
        self._live_deadline_s = live_deadline_s
        self._last_beat_s = clock.monotonic_s()
        self._obstacles: dict[str, _Obstacle] = {"start": _Obstacle("not started yet", clock.monotonic_s(), 0.0)}
        self._probes: dict[str, Callable[[], None]] = {}
        self._probed_at_s: float | None = None
        self._unreachable: dict[str, str] = {}
        self._lock = Lock()
        self._probing = Lock()

    def beat(self) -> None:
        """Record a sign of life of the main loop."""
        self._last_beat_s = self._clock.monotonic_s()

    def require(self, name: str, probe: Callable[[], None]) -> None:
        """Make readiness depend on `probe`, which raises if the dependency `name` does not answer.

        The probe must bound its own time.

        A thread other than the main thread calls the probe, at most about once in `PROBE_EVERY_S` seconds.
        """
        with self._lock:
            self._probes[name] = probe

    def obstruct(self, topic: str, reason: str, *, after_s: float = 0.0) -> None:
        """Make the service unready because of `reason`, until `clear(topic)`.

        Until `after_s` seconds have passed since the first call for this topic, the reason is only a condition of a ready
        service. With `math.inf`, the reason always stays a condition.
        """
        with self._lock:
            before = self._obstacles.get(topic)
            begun_s = before.begun_s if before else self._clock.monotonic_s()
            self._obstacles[topic] = _Obstacle(redacted_text(reason), begun_s, after_s)

    def clear(self, topic: str) -> None:
        """Remove the obstacle `topic`, if there is one."""
        with self._lock:
            self._obstacles.pop(topic, None)

    def started(self) -> None:
        """Record that the start of the service is complete."""
        self.clear("start")

    def stopping(self) -> None:
        """Make the service unready because it was asked to stop and takes no more work."""
        self.obstruct("stop", "stopping")

    def live(self) -> Verdict:
        """Return whether the main loop gave a sign of life within the deadline."""
        silent_s = self._clock.monotonic_s() - self._last_beat_s
        if silent_s <= self._live_deadline_s:
            return Verdict()
        return Verdict((f"no sign of life of the main loop for {silent_s:.0f} s; the limit is {self._live_deadline_s:.0f} s",))

    def ready(self) -> Verdict:
        """Return whether the service is started, has no obstacle, and all its dependencies answer. Takes as long as the probes."""
        # One caller runs the probes and the other callers take the last results, so that slow probes do not pile up.
        if self._probing.acquire(blocking=self._probed_at_s is None):
            try:
                self._probe()
            finally:
                self._probing.release()
        now_s = self._clock.monotonic_s()
        with self._lock:
            due = {topic: o.reason for topic, o in self._obstacles.items() if now_s - o.begun_s >= o.after_s}
            waiting = {topic: o.reason for topic, o in self._obstacles.items() if topic not in due}
            own = [f"{topic}: {reason}" for topic, reason in due.items()]
            unreachable = [f"{name} is not reachable: {reason}" for name, reason in self._unreachable.items()]
            return Verdict((*own, *unreachable), waiting)

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
    except Exception as error:  # noqa: BLE001 - any error of a probe is its result, shown to the client
        return redacted_text(f"{type(error).__name__}: {error}")
    return None
