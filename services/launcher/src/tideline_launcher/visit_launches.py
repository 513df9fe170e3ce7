"""The plans that one tick launches before its visit of all tables has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tideline_launcher.application import Application, PlanKey
from tideline_launcher.decision import PendingPlan


@dataclass(slots=True)
class VisitLaunches:
    """The plans that a tick launched while it visited tables."""

    known: Sequence[Application]
    """The attempts that the platform knew at the start of the tick."""
    started: set[PlanKey] = field(default_factory=set)
    """Plans that the tick tried to launch. The next tick sees whether their applications started."""
    wait_until_s: float | None = None
    """Monotonic time at which a batch that waits for more plans is to be launched, as of the last decision."""

    def is_due(self, now_s: float) -> bool:
        """Return whether a batch has waited long enough."""
        return self.wait_until_s is not None and now_s >= self.wait_until_s

    def free(self, plans: Iterable[PendingPlan], now_known: Iterable[Application] = ()) -> list[PendingPlan]:
        """Return the plans that no application has run since the tick began.

        If an application ended meanwhile, its table may have been visited before that. Only the next visit then shows whether
        the plan is still pending.
        """
        busy = self.started | {a.key for a in (*self.known, *now_known) if not a.is_collected}
        return [plan for plan in plans if plan.key not in busy]

    def left_alone(self, plans: Iterable[PendingPlan]) -> list[PendingPlan]:
        """Return `plans`, with `is_driven` set for those that the tick tried to launch."""
        return [replace(plan, is_driven=True) if plan.key in self.started else plan for plan in plans]
