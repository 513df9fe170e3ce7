"""The arguments of `tideline_spark.application` for an application, on any platform."""

from __future__ import annotations

from pathlib import Path

from tideline_launcher.application import ApplicationSpec, PlanRequest
from tideline_spark.invocation import Invocation, SharedInvocation


def shared_name_of(spec: ApplicationSpec) -> str:
    """Return the name of an application of several plans, empty for one of a single plan."""
    return spec.name if len(spec.plans) > 1 else ""


def arguments_of(spec: ApplicationSpec, local_cores: int, outcomes: Path) -> list[str]:
    """Return the arguments for an application.

    An application of several plans writes the end of each plan into the file `outcomes`.
    """
    if shared_name_of(spec):
        return SharedInvocation(tuple(_invocation(plan) for plan in spec.plans), local_cores, outcomes).arguments()
    (plan,) = spec.plans
    return _invocation(plan, local_cores).arguments()


def _invocation(plan: PlanRequest, local_cores: int = 0) -> Invocation:
    return Invocation(plan.service, plan.base_path, plan.key.instant, plan.options, local_cores)
