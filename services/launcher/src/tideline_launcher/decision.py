"""Launch decisions: a pure function of pending plans, running applications and the histories of plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tideline_launcher.application import Application, PlanKey
from tideline_launcher.history import History
from tideline_launcher.resources import PlanWork, Resources, granted, resources_for
from tideline_launcher.settings import ResourceSettings
from tideline_table.action import TableService

_NEW = History()


@dataclass(frozen=True, slots=True)
class TableLimits:
    """The caps of one table, in place of the launcher's. `max_executors` of its resources has no meaning: that holds for all tables."""

    max_attempts: int
    resources: ResourceSettings


@dataclass(frozen=True, slots=True)
class PendingPlan:
    """A plan that is not completed. `is_driven` is true while Apache Hudi or a live process executes it."""

    key: PlanKey
    base_path: str
    table_name: str
    is_driven: bool
    service: TableService = TableService.CLUSTERING
    work: PlanWork = field(default_factory=PlanWork)
    limits: TableLimits | None = None
    """The caps of its table, None for those of the launcher."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A plan to launch now, with its resources."""

    plan: PendingPlan
    resources: Resources


@dataclass(frozen=True, slots=True)
class Decision:
    """The plans to launch now and the plans to give up."""

    launch: tuple[Launch, ...]
    give_up: tuple[PendingPlan, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """The caps of a launcher."""

    max_applications: int
    max_attempts: int
    resources: ResourceSettings


def decide(
    plans: Sequence[PendingPlan],
    running: Collection[Application],
    histories: Mapping[PlanKey, History],
    limits: Limits,
    now_s: float,
) -> Decision:
    """Choose plans to launch, oldest first, with one application per plan, within the limits.

    A plan that a live process runs is left alone, a plan whose pause is not over waits, an exhausted one is given up. If no executor
    is free, later plans that need none may still start. A plan gets fewer executors than it wants if fewer are free.
    """
    taken = {a.key for a in running}
    idle = [p for p in sorted(plans, key=lambda p: p.key) if p.key not in taken and not p.is_driven]
    past = {p.key: histories.get(p.key, _NEW) for p in idle}
    give_up = tuple(p for p in idle if past[p.key].is_exhausted((p.limits or limits).max_attempts))
    ready = [p for p in idle if p not in give_up and past[p.key].not_before_s <= now_s]
    slots = max(0, limits.max_applications - len(running))
    used = sum(a.executors for a in running)
    used_by_table: dict[str, int] = {}
    for application in running:
        uid = application.key.table_uid
        used_by_table[uid] = used_by_table.get(uid, 0) + application.executors
    launch: list[Launch] = []
    for plan in ready:
        if len(launch) >= slots:
            break
        uid, caps = plan.key.table_uid, (plan.limits or limits).resources
        free = min(limits.resources.max_executors - used, caps.max_executors_per_table - used_by_table.get(uid, 0))
        resources = granted(resources_for(plan.work, caps, past[plan.key].memory_step), free=free)
        if resources is None:
            continue
        used += resources.executors
        used_by_table[uid] = used_by_table.get(uid, 0) + resources.executors
        launch.append(Launch(plan, resources))
    return Decision(tuple(launch), give_up)
