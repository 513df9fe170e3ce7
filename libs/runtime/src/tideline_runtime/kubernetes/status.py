"""The status of a HudiTable as a pure function of the facts that services have. Each service writes its own fields."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from tideline_runtime.kubernetes.resource import Resource
from tideline_runtime.table_source import JobFacts, TableFacts, Trouble

MAX_PLANS = 20
"""Most pending plans that the status lists; `pendingPlanCount` counts all."""
_MAX_MESSAGE = 2000
_FACTS = ("sequence", "lastInstant", "pendingPlans", "pendingPlanCount")
TABLE_FIELDS = frozenset({"observedGeneration", *_FACTS})
"""Fields of the mirror beside its conditions."""
JOB_FIELDS = frozenset({"lastJob"})
"""Fields of the launcher."""

Status = Mapping[str, Any]


def table_status(resource: Resource, refusal: Trouble | None, found: TableFacts | Trouble | None) -> dict[str, Any]:
    """Return the fields of the mirror. `found` is None for a table on which the resource does not want the mirror.

    With a `Trouble`, the facts of the current status stay.
    """
    if refusal is not None:
        accepted = _condition(resource, "Accepted", "False", refusal.reason, refusal.text)
        ready = _condition(resource, "Ready", "False", "NotAccepted", "no service works on a table by this resource")
        return {"observedGeneration": resource.generation, "conditions": [accepted, ready]}
    accepted = _condition(resource, "Accepted", "True", "Valid", "")
    status: dict[str, Any] = {"observedGeneration": resource.generation}
    if isinstance(found, TableFacts):
        ready = _condition(resource, "Ready", "True", "Mirrored", "")
        status |= _facts(found)
    elif found is None:
        ready = _condition(resource, "Ready", "Unknown", "NotMirrored", "the mirror is not among the services of this resource")
    else:
        ready = _condition(resource, "Ready", "False", found.reason, found.text)
        status |= {name: resource.status[name] for name in _FACTS if name in resource.status}
    return {**status, "conditions": [accepted, ready]}


def job_status(job: JobFacts) -> dict[str, Any]:
    """Return the fields of the launcher."""
    last: dict[str, Any] = {
        "name": job.application,
        "service": job.service,
        "instant": job.instant,
        "attempt": job.attempt,
        "state": job.state,
        "time": _time(job.time),
    }
    if job.reason:
        last["reason"] = job.reason[:_MAX_MESSAGE]
    return {"lastJob": last}


def patch(wanted: Status, current: Status, owned: Collection[str], now: datetime) -> dict[str, Any] | None:
    """Return the status to apply for a service that owns the fields `owned`; None if `current` has the wanted values.

    A condition keeps its `lastTransitionTime` while its status stays the same. Server-side apply removes an owned field that
    the result leaves out.
    """
    shown = {condition.get("type"): condition for condition in current.get("conditions") or ()}
    made: dict[str, Any] = dict(wanted)
    if "conditions" in wanted:
        made["conditions"] = []
        for condition in wanted["conditions"]:
            before = shown.get(condition["type"]) or {}
            since = before.get("lastTransitionTime") if before.get("status") == condition["status"] else None
            made["conditions"].append({**condition, "lastTransitionTime": since or _time(now)})
    are_shown = all(shown.get(condition["type"]) == condition for condition in made.get("conditions", ()))
    return None if are_shown and all(current.get(name) == made.get(name) for name in owned) else made


def _facts(found: TableFacts) -> dict[str, Any]:
    plans = [{"instant": p.instant, "action": p.action, "state": p.state} for p in found.pending[:MAX_PLANS]]
    facts: dict[str, Any] = {"sequence": found.sequence, "pendingPlans": plans, "pendingPlanCount": len(found.pending)}
    return {**facts, "lastInstant": found.last_instant} if found.last_instant else facts


def _condition(resource: Resource, kind: str, status: str, reason: str, text: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": text[:_MAX_MESSAGE],
        "observedGeneration": resource.generation,
    }


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
