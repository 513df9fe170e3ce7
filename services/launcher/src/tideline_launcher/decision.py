"""Launch decisions: a pure function of pending plans, running applications and the histories of plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tideline_launcher.application import Application, Place, PlanKey
from tideline_launcher.history import History
from tideline_launcher.resources import PlanWork, Resources, granted, resources_for, shared, task_memory_bytes
from tideline_launcher.settings import ResourceSettings, SharingSettings, WorkerSettings
from tideline_launcher.sharing import Candidate, batches
from tideline_table.action import TableService

_NEW = History()


@dataclass(frozen=True, slots=True)
class TableLimits:
    """The caps of one table, in place of the launcher's. `resources.max_executors` is not used, because it holds for all tables."""

    max_attempts: int
    resources: ResourceSettings
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    """Only `max_bytes` is used."""


@dataclass(frozen=True, slots=True)
class PendingPlan:
    """A plan that is not completed. `is_driven` is true while Apache Hudi or a live process executes it."""

    key: PlanKey
    base_path: str
    table_name: str
    is_driven: bool
    service: TableService
    work: PlanWork = field(default_factory=PlanWork)
    limits: TableLimits | None = None
    """The caps of its table; None: the caps of the launcher."""
    timeout_s: float = 0.0
    """Time limit of its application. Only plans with equal limits share an application."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Plans to launch now in one application, oldest first, with its resources."""

    plans: tuple[PendingPlan, ...]
    resources: Resources
    place: Place = Place.SPARK

    @property
    def timeout_s(self) -> float:
        """Time limit of the application."""
        return self.plans[0].timeout_s


@dataclass(frozen=True, slots=True)
class Decision:
    """The applications to launch now and the plans to give up."""

    launch: tuple[Launch, ...]
    give_up: tuple[PendingPlan, ...]
    wait_until_s: float | None = None
    """Monotonic time at which a batch that waits for more plans is to be launched. None: no batch waits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The caps of a launcher."""

    max_applications: int
    max_attempts: int
    resources: ResourceSettings
    sharing: SharingSettings = field(default_factory=SharingSettings)
    workers: WorkerSettings = field(default_factory=lambda: WorkerSettings(count=0))


@dataclass(frozen=True, slots=True)
class _Unit:
    """Plans that one application is to run, with the resources that they want. It waits for more plans until `not_before_s`."""

    plans: tuple[PendingPlan, ...]
    wanted: Resources
    not_before_s: float = 0.0


def decide(
    plans: Sequence[PendingPlan],
    running: Collection[Application],
    histories: Mapping[PlanKey, History],
    limits: Limits,
    now_s: float,
    since_s: Mapping[PlanKey, float] | None = None,
    alone: Collection[str] = (),
) -> Decision:
    """Choose plans to launch, oldest first, within the limits.

    The smallest plans run in resident workers, small ones share Spark applications, and each other plan has its own
    application. The decision skips plans that a live process runs and plans whose pause is not over, and gives up exhausted
    plans. If no executor is free, later plans that need none may still start. A plan gets fewer executors than it wants if
    fewer are free. `now_s` is monotonic time; `since_s`: when the launcher first saw each plan; `alone`: uids of tables whose
    plans share no application.
    """
    taken = {a.key for a in running}
    idle = [p for p in sorted(plans, key=lambda p: p.key) if p.key not in taken and not p.is_driven]
    past = {p.key: histories.get(p.key, _NEW) for p in idle}
    give_up = tuple(p for p in idle if past[p.key].is_exhausted((p.limits or limits).max_attempts))
    ready = [p for p in idle if p not in give_up and past[p.key].not_before_s <= now_s]
    in_workers = [p for p in ready if _fits_worker(p, past[p.key], limits)]
    small = {p.key for p in in_workers}
    on_spark = [p for p in ready if p.key not in small]
    launch = _worker_launches(in_workers, running, limits, past)
    slots = max(0, limits.max_applications - len({a.driver for a in running if a.place is Place.SPARK})) + len(launch)
    used = sum(a.executors for a in running)
    used_by_table: dict[str, int] = {}
    for application in running:
        uid = application.key.table_uid
        used_by_table[uid] = used_by_table.get(uid, 0) + application.executors
    wait_until_s: float | None = None
    sharing = [p for p in on_spark if not past[p.key].is_alone and p.key.table_uid not in alone]
    for unit in _units(on_spark, sharing, past, limits, since_s or {}, now_s):
        if len(launch) >= slots:
            break
        if unit.not_before_s > now_s:
            wait_until_s = min(wait_until_s or unit.not_before_s, unit.not_before_s)
            continue
        first = unit.plans[0]
        uid, caps = first.key.table_uid, (first.limits or limits).resources
        free = min(limits.resources.max_executors - used, caps.max_executors_per_table - used_by_table.get(uid, 0))
        resources = granted(unit.wanted, free=free)
        if resources is None:
            continue
        used += resources.executors
        used_by_table[uid] = used_by_table.get(uid, 0) + resources.executors
        launch.append(Launch(unit.plans, resources))
    return Decision(tuple(launch), give_up, wait_until_s)


def _fits_worker(plan: PendingPlan, past: History, limits: Limits) -> bool:
    """Return whether a resident worker runs the plan.

    Such a plan waits for a worker even if Spark has room, because Spark starts slowly.
    """
    caps, workers = plan.limits or limits, limits.workers
    max_bytes = caps.workers.max_bytes
    return (
        workers.count > 0
        and not past.needs_spark
        and 0 < max_bytes >= plan.work.total_bytes
        and task_memory_bytes(plan.work, caps.resources) <= workers.memory_bytes
    )


def _worker_launches(
    plans: Sequence[PendingPlan], running: Collection[Application], limits: Limits, past: Mapping[PlanKey, History]
) -> list[Launch]:
    """Return one application for each plan that a worker can take now, or that may wait in the queue of the workers."""
    workers = limits.workers
    free = workers.count + workers.max_queued - sum(a.place is Place.WORKER for a in running)
    return [
        Launch((p,), Resources(driver_memory_bytes=workers.memory_bytes, memory_step=past[p.key].memory_step), Place.WORKER)
        for p in plans[: max(0, free)]
    ]


def _units(
    ready: Sequence[PendingPlan],
    sharing: Sequence[PendingPlan],
    past: Mapping[PlanKey, History],
    limits: Limits,
    since_s: Mapping[PlanKey, float],
    now_s: float,
) -> list[_Unit]:
    """Return the applications for these plans, in order of their oldest plans, before caps on applications and executors."""
    by_key = {plan.key: plan for plan in ready}
    wanted = {p.key: resources_for(p.work, (p.limits or limits).resources, past[p.key].memory_step) for p in ready}
    small = [p for p in sharing if not wanted[p.key].executors] if limits.sharing.max_plans > 1 else []
    shares = {p.key for p in small}
    units = [_Unit((plan,), wanted[plan.key]) for plan in ready if plan.key not in shares]
    for timeout_s in {p.timeout_s for p in small}:
        alike = [p for p in small if p.timeout_s == timeout_s]
        candidates = [Candidate(p.key, p.work.total_bytes, since_s.get(p.key, now_s)) for p in alike]
        for batch in batches(candidates, limits.sharing):
            members = tuple(by_key[key] for key in batch.keys)
            units.append(_Unit(members, shared([wanted[key] for key in batch.keys]), batch.not_before_s))
    return sorted(units, key=lambda unit: unit.plans[0].key)
