"""Resources of an application: pure functions of its plan, the caps, and how often earlier attempts ran out of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tideline_launcher.settings import GIB, MIB, ResourceSettings
from tideline_table.action import input_bytes, is_split
from tideline_table.config import Options

JVM_OVERHEAD_BYTES = 384 * MIB
"""Memory of a JVM outside of its heap: Spark's own minimum."""
PYTHON_BYTES = 256 * MIB
"""Memory of a Python process with Arrow before it reads a row."""
_STEP_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class PlanWork:
    """The input of a plan: the bytes that each task reads."""

    task_bytes: tuple[int, ...] = ()

    @property
    def total_bytes(self) -> int:
        """The bytes that all tasks read."""
        return sum(self.task_bytes)


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of an application. Without executors the driver does the work, `cores` tasks at once.

    `memory_step` is the number of times that the memory was raised because an attempt ran out of memory.
    """

    executors: int = 0
    cores: int = 1
    """Tasks at once of each executor, or of the driver alone."""
    heap_bytes: int = GIB
    driver_memory_bytes: int = GIB + JVM_OVERHEAD_BYTES + PYTHON_BYTES
    """Memory of the driver pod."""
    executor_overhead_bytes: int = 0
    """Memory of an executor pod outside of its heap, where the Python workers hold the rows."""
    memory_step: int = 0


def work_of(plan: Mapping[str, Any], options: Options) -> PlanWork:
    """Return the work of a clustering, compaction or log compaction plan in Hudi's form.

    A task without metrics has 0 bytes of input.

    A clustering group that Spark splits (`is_split`, by `options`) counts as one task for each of its output files.
    """
    clustering = plan.get("clusteringPlan")
    tasks = (clustering.get("inputGroups") if clustering else plan.get("operations")) or ()
    sizes = [(input_bytes(task), _files(task)) for task in tasks]
    split = [(size, files if is_split(size, files, options) else 1) for size, files in sizes]
    return PlanWork(tuple(size // files for size, files in split for _ in range(files)))


def _files(task: Mapping[str, Any]) -> int:
    found = task.get("numOutputFileGroups")
    return found if isinstance(found, int) else 1


def resources_for(work: PlanWork, settings: ResourceSettings, memory_step: int = 0) -> Resources:
    """Return the resources for a plan. Each memory step doubles the memory for rows, up to the caps."""
    tasks = max(1, len(work.task_bytes))
    task_memory = int(task_memory_bytes(work, settings) * _STEP_FACTOR**memory_step)
    base = settings.heap_bytes + JVM_OVERHEAD_BYTES
    if work.total_bytes <= settings.driver_only_bytes:
        cores = _cores(min(tasks, settings.driver_cores), task_memory, settings.max_driver_memory_bytes - base - PYTHON_BYTES)
        memory = min(settings.max_driver_memory_bytes, base + PYTHON_BYTES + cores * task_memory)
        return Resources(0, cores, settings.heap_bytes, memory, 0, memory_step)
    slots = min(tasks, math.ceil(work.total_bytes / settings.bytes_per_core))
    cores = _cores(min(slots, settings.executor_cores), task_memory, settings.max_executor_memory_bytes - base)
    executors = min(math.ceil(slots / cores), settings.max_executors_per_application)
    room = max(JVM_OVERHEAD_BYTES, settings.max_executor_memory_bytes - settings.heap_bytes)
    overhead = min(room, JVM_OVERHEAD_BYTES + cores * task_memory)
    driver = min(settings.max_driver_memory_bytes, base + int(2 * PYTHON_BYTES * _STEP_FACTOR**memory_step))
    return Resources(executors, cores, settings.heap_bytes, driver, overhead, memory_step)


def task_memory_bytes(work: PlanWork, settings: ResourceSettings) -> int:
    """Return the memory of a Python process that runs the tasks of a plan one after the other."""
    return PYTHON_BYTES + int(max(work.task_bytes, default=0) * settings.memory_per_input_byte)


def _cores(wanted: int, task_memory: int, room: int) -> int:
    # Fewer tasks at once are better than tasks with too little memory.
    return max(1, min(wanted, room // task_memory if task_memory else wanted))


def can_grow(work: PlanWork, settings: ResourceSettings, memory_step: int) -> bool:
    """Return whether a further memory step gives each task, or the driver, more memory."""
    now, then = resources_for(work, settings, memory_step), resources_for(work, settings, memory_step + 1)
    return _per_task(then) > _per_task(now) or then.driver_memory_bytes > now.driver_memory_bytes


def _per_task(resources: Resources) -> float:
    return (resources.executor_overhead_bytes or resources.driver_memory_bytes) / resources.cores


def shared(wanted: Sequence[Resources]) -> Resources:
    """Return the resources of one driver that runs several plans one after the other: enough for each of them."""
    assert not any(r.executors for r in wanted)
    return Resources(
        executors=0,
        cores=max(r.cores for r in wanted),
        heap_bytes=max(r.heap_bytes for r in wanted),
        driver_memory_bytes=max(r.driver_memory_bytes for r in wanted),
        memory_step=max(r.memory_step for r in wanted),
    )


def granted(wanted: Resources, *, free: int) -> Resources | None:
    """Return `wanted` with at most `free` executors; None if `wanted` has executors and none is free."""
    if not wanted.executors:
        return wanted
    return replace(wanted, executors=min(wanted.executors, free)) if free > 0 else None
