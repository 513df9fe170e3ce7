"""The end of each plan of an application: a pure function of the end of the application and of the outcomes that it reported."""

from __future__ import annotations

from tideline_launcher.application import End, EndKind
from tideline_launcher.failure import exit_text, kind_of_exit
from tideline_spark.invocation import ExitCode
from tideline_spark.outcomes import Outcomes

_REGULAR = (EndKind.SUCCEEDED, EndKind.YIELDED, EndKind.SUPERSEDED)


def plan_ends(plans: int, end: End, outcomes: Outcomes) -> tuple[End, ...]:
    """Return the ends of the plans of an application, in the order of the plans. `end` is the end of the application.

    - A plan with an outcome ended with that outcome, whatever happened to the application later.
    - The plan that ran when the application died, or that SIGTERM ended, has the end of the application, because it may be the
      cause.
    - A plan that did not begin is lost, which does not count as a failure. The same holds for every plan without an outcome if
      the report was lost with the node, because then the launcher cannot know which plan ran.
    - If the application never started, no plan did.
    """
    return tuple(_plan_end(number, plans, end, outcomes) for number in range(plans))


def _plan_end(number: int, plans: int, end: End, outcomes: Outcomes) -> End:
    outcome = outcomes.ended.get(number)
    if outcome is not None and outcome.exit_code != ExitCode.TERMINATED:
        return End(kind_of_exit(outcome.exit_code), exit_text(outcome.exit_code), end.ended, outcome.recovery)
    if plans == 1 or end.kind is EndKind.NOT_STARTED:
        return end
    how = f"{end.kind}: {end.reason}" if end.reason else end.kind.value
    if number in outcomes.begun:
        if end.kind in _REGULAR:
            return End(EndKind.LOST, f"the shared application ended without an outcome of this plan ({how})", end.ended)
        # Without the recovery of the application's last error, which may be the error of an earlier plan.
        return End(end.kind, end.reason, end.ended)
    return End(EndKind.LOST, f"the shared application ended before this plan ran ({how})", end.ended)
