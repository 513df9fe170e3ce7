"""The consequences of earlier attempts at a plan for the next one: a fold of their ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tideline_launcher.application import Application, Condition, End, EndKind, Place
from tideline_launcher.failure import cause_in
from tideline_runtime.loop import Backoff
from tideline_table.errors import Recovery

LOSSES_AT_ONCE = 3
"""Attempts in a row that the platform may end before the next attempt has to wait."""
_REGULAR = (EndKind.SUCCEEDED, EndKind.YIELDED, EndKind.SUPERSEDED)


@dataclass(frozen=True, slots=True)
class History:
    """The past of one plan. The default is a plan without attempts."""

    attempt: int = 0
    """Number of the last attempt, 0 for none."""
    failures: int = 0
    """Attempts that count against the maximum."""
    disturbances: int = 0
    """Attempts in a row that ended, or did not start, for reasons outside of the plan."""
    memory_step: int = 0
    not_before_s: float = 0.0
    """Monotonic time of the earliest next attempt."""
    is_hopeless: bool = False
    """Whether the application reported recovery STOP: the same attempt fails again until a user changes something."""
    is_alone: bool = False
    """Whether the next attempt shares no application, because an attempt ended without a result. The plan may have killed its
    driver, and then it must not affect other plans; or another plan killed the driver, and then it must not affect this plan
    again."""
    needs_spark: bool = False
    """Whether the next attempt runs on Spark: an attempt in a resident worker failed or was lost, for whatever reason."""
    cause: str = ""
    """How the last attempt ended that counts against the maximum."""
    condition: Condition | None = None
    """Why the last attempt did not start."""

    def is_exhausted(self, max_attempts: int) -> bool:
        """Return whether the plan is to be given up."""
        return self.is_hopeless or self.failures >= max_attempts

    def why_given_up(self, name: str, log: bytes | None) -> str:
        """Return the cause in one line, from the log of the last attempt, `name`, if it was kept and tells."""
        cause = (cause_in(log.decode(errors="replace")) if log else "") or self.cause
        why = "its error is permanent" if self.is_hopeless else f"{self.failures} attempts failed, the last one"
        return f"{why}: {cause}" + (f"; its log: tideline job logs {name} --tables PATH" if log else "")

    def after(self, ended: Application, now_s: float, backoff: Backoff, *, can_grow: bool) -> History:
        """Return the history after an attempt ended.

        `can_grow`: the next attempt may get more memory. `now_s` is monotonic time.
        """
        assert ended.end is not None
        kind = ended.end.kind
        is_alone = self.is_alone or kind not in (*_REGULAR, EndKind.NOT_STARTED)
        then = replace(
            self,
            attempt=max(self.attempt, ended.attempt),
            condition=ended.condition,
            is_alone=is_alone,
            needs_spark=self.needs_spark or _left_worker(ended, ended.end),
        )
        if kind is EndKind.OUT_OF_MEMORY and can_grow:
            return replace(then, memory_step=ended.memory_step + 1, disturbances=0)
        if kind in (EndKind.LOST, EndKind.NOT_STARTED):
            free = LOSSES_AT_ONCE if kind is EndKind.LOST else 0
            return then.disturbed(now_s, backoff, free)
        if kind in _REGULAR:
            # The plan should no longer be pending. If it is, it must not be launched without a pause.
            return then.disturbed(now_s, backoff, 0)
        is_hopeless = _is_hopeless(ended, ended.end)
        return replace(then, failures=self.failures + 1, disturbances=0, is_hopeless=is_hopeless, cause=ended.end.text)

    def disturbed(self, now_s: float, backoff: Backoff, free: int, condition: Condition | None = None) -> History:
        """Return the history after an attempt that ended, or did not start, for reasons outside of the plan.

        The next attempt waits, longer after each disturbance in a row; after the first `free` disturbances it does not wait.
        """
        count = self.disturbances + 1
        pause_s = backoff.pause_s(count - free, 0.0) if count > free else 0.0
        return replace(self, disturbances=count, not_before_s=now_s + pause_s, condition=condition or self.condition)


def _left_worker(ended: Application, end: End) -> bool:
    # On Spark the plan has its own memory, its own processes and another image, which may hold extensions that the launcher's
    # image lacks.
    return ended.place is Place.WORKER and end.kind not in _REGULAR


def _is_hopeless(ended: Application, end: End) -> bool:
    return ended.place is not Place.WORKER and end.kind is EndKind.FAILED and end.recovery is Recovery.STOP


def history_of(applications: Iterable[Application], now_s: float, backoff: Backoff) -> History:
    """Return the history of a plan from its attempts, for a launcher that did not observe their ends.

    Pauses begin now, because another machine's clock recorded the ends.
    """
    history = History()
    for application in sorted(applications, key=lambda a: a.attempt):
        if application.end is not None:
            history = history.after(application, now_s, backoff, can_grow=True)
        else:
            history = replace(history, attempt=max(history.attempt, application.attempt))
    return history
