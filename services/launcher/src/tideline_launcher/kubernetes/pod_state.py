"""The attempts of a driver pod, and their state: pure functions of the pod, as the API server describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from tideline_launcher.application import Application, Condition, End, EndKind, Obstacle, PlanKey
from tideline_launcher.failure import exit_text, kind_of_exit, recovery_in
from tideline_launcher.kubernetes.api import Pod
from tideline_launcher.plan_ends import plan_ends
from tideline_spark.outcomes import read_outcomes
from tideline_table.action import TableService

DOMAIN = "tideline.dev"
APPLICATION = f"{DOMAIN}/application"
"""Annotation: which plans the application runs, in JSON."""
COLLECTED = f"{DOMAIN}/collected"
"""Annotation: when a launcher handled the end."""
CONTAINER = "driver"

_IMAGE = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable"}
_CONFIGURATION = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"}
_TERMINAL = ("Succeeded", "Failed")


def identity_text(applications: Sequence[Application]) -> str:
    """Return the annotation that `applications_of` reads.

    For one plan, it has the form of launchers without shared applications.
    """
    first = applications[0]
    rest = {"executors": first.executors, "memory_step": first.memory_step}
    if not first.shared:
        return json.dumps({**_identity(first), **rest})
    return json.dumps({"plans": [{"name": a.name, **_identity(a)} for a in applications], **rest})


def _identity(application: Application) -> dict[str, str | int]:
    return {
        "table": application.key.table_uid,
        "instant": application.key.instant,
        "attempt": application.attempt,
        "service": application.service.value,
        "base_path": application.base_path,
    }


def is_terminal(pod: Pod) -> bool:
    """Return whether the pod's containers have ended for good."""
    return _status(pod).get("phase") in _TERMINAL


def applications_of(pod: Pod, now: datetime, start_timeout: timedelta) -> tuple[Application, ...]:
    """Return the attempts that a driver pod makes, in their order; empty for a pod without the launcher's annotation.

    A pod that has not started within `start_timeout` counts as ended. The launcher must delete such a pod (`Applications.collect`).
    """
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    try:
        name = str(metadata["name"])
        found = json.loads(annotations[APPLICATION])
        shared = name if "plans" in found else ""
        plans = [(str(plan["name"]), plan) for plan in found["plans"]] if shared else [(name, found)]
        end = end_of(pod, now, start_timeout)
        ends = plan_ends(len(plans), end, read_outcomes(end_message(pod) if shared else "")) if end is not None else None
        return tuple(
            Application(
                name=attempt_name,
                key=PlanKey(str(plan["instant"]), str(plan["table"])),
                attempt=int(plan["attempt"]),
                service=TableService(plan["service"]),
                base_path=str(plan["base_path"]),
                executors=int(found["executors"]),
                memory_step=int(found["memory_step"]),
                created=_time(metadata["creationTimestamp"]),
                condition=condition_of(pod),
                end=ends[number] if ends is not None else None,
                is_collected=COLLECTED in annotations,
                shared=shared,
            )
            for number, (attempt_name, plan) in enumerate(plans)
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()


def condition_of(pod: Pod) -> Condition | None:
    """Return why a pod does not start; None for a pod that runs, that has ended, or whose status shows no obstacle."""
    status = _status(pod)
    if status.get("phase") != "Pending":
        return None
    waiting = _container(pod, "waiting")
    reason = str(waiting.get("reason") or "")
    text = ": ".join(filter(None, (reason, str(waiting.get("message") or ""))))
    if reason in _IMAGE:
        return Condition(Obstacle.IMAGE, text)
    if reason in _CONFIGURATION:
        return Condition(Obstacle.CONFIGURATION, text)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return Condition(Obstacle.UNSCHEDULABLE, str(condition.get("message") or condition.get("reason")))
    return None


def end_of(pod: Pod, now: datetime, start_timeout: timedelta) -> End | None:
    """Return the end of the application; None while it is not certain that the application has ended."""
    status = _status(pod)
    metadata = pod["metadata"]
    if is_terminal(pod):
        return _ended(pod)
    created = _time(metadata["creationTimestamp"])
    if status.get("phase") == "Pending" and now - created > start_timeout and not metadata.get("deletionTimestamp"):
        condition = condition_of(pod)
        why = condition.text if condition is not None else "no reason in the pod's status"
        return End(EndKind.NOT_STARTED, f"not started within {start_timeout}: {why}", now)
    return None


def end_message(pod: Pod) -> str:
    """Return the container's termination message: outcomes of plans, or the last lines of the driver's log.

    Empty if it has none.
    """
    return str(_container(pod, "terminated").get("message") or "")


def _ended(pod: Pod) -> End:
    status, terminated = _status(pod), _container(pod, "terminated")
    created = pod["metadata"]["creationTimestamp"]
    ended = _time(terminated.get("finishedAt") or _transition(status) or created)
    reason = str(status.get("reason") or "")
    why = ": ".join(filter(None, (reason, str(status.get("message") or ""))))
    if reason == "DeadlineExceeded":
        return End(EndKind.TIMED_OUT, why, ended)
    code = terminated.get("exitCode")
    kind = kind_of_exit(code) if isinstance(code, int) else EndKind.LOST
    if kind in (EndKind.SUCCEEDED, EndKind.YIELDED, EndKind.SUPERSEDED):
        return End(kind, exit_text(int(code or 0)), ended)
    if terminated.get("reason") == "OOMKilled":
        return End(EndKind.OUT_OF_MEMORY, f"OOMKilled, {exit_text(int(code or 0))}", ended)
    disrupted = _disruption(status)
    if reason or disrupted or code is None or terminated.get("reason") == "ContainerStatusUnknown":
        # A pod-level reason names what the node or the control plane did: Evicted, NodeLost, Preempting, Terminated, OutOfmemory
        # ...
        return End(EndKind.LOST, why or disrupted or "the node reported no exit code", ended)
    if terminated.get("reason") in _CONFIGURATION:
        return End(EndKind.NOT_STARTED, f"{terminated['reason']}: {terminated.get('message') or ''}", ended)
    return End(kind, exit_text(code), ended, recovery_in(end_message(pod)))


def _disruption(status: Mapping[str, Any]) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"{condition.get('reason')}: {condition.get('message') or ''}"
    return ""


def _transition(status: Mapping[str, Any]) -> str:
    times = [c.get("lastTransitionTime") for c in status.get("conditions") or ()]
    return max((str(t) for t in times if t), default="")


def _status(pod: Pod) -> Mapping[str, Any]:
    return pod.get("status") or {}


def _container(pod: Pod, state: str) -> Mapping[str, Any]:
    for container in _status(pod).get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            return (container.get("state") or {}).get(state) or {}
    return {}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
