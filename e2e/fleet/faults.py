"""Faults of pods: each takes a driver pod that works on an inflight plan and ends something."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import wait_until
from e2e.cluster.errors import ClusterError
from e2e.cluster.kubectl import kubectl
from e2e.fleet import events, tables
from e2e.fleet.pods import DRIVER, EXECUTOR, SeenPod
from e2e.fleet.release import NAMESPACE, RELEASE
from e2e.fleet.session import Session
from e2e.fleet.source import UPDATED
from e2e.fleet.tables import state_of
from tideline_table.hudi import State
from tideline_table.table import Table

POLL_S = 0.2
FOUND_TIMEOUT_S = 300.0
END_TIMEOUT_S = 420.0
PROCESSES = Path("/proc")


@dataclass(frozen=True)
class Scene:
    """A driver pod that works on an inflight plan of `table`; `executors` are its running executor pods."""

    session: Session
    table: Table
    driver: SeenPod
    executors: Sequence[SeenPod]


Fault = Callable[[Scene], str]
"""Injects the fault beside a working driver pod and returns what was done in a few words."""


def delete_driver(scene: Scene) -> str:
    """Delete the driver pod without a grace period."""
    delete_by_force(scene.session, scene.driver.name)
    return f"driver pod {scene.driver.name} deleted by force"


def kill_driver(scene: Scene) -> str:
    """Kill the first process of the driver's container, and with it the container."""
    pid = kill_first_process(scene.driver)
    return f"process {pid} of driver pod {scene.driver.name} killed by SIGKILL"


def delete_executor(scene: Scene) -> str:
    """Delete an executor pod of the driver without a grace period."""
    name = scene.executors[0].name
    delete_by_force(scene.session, name)
    return f"executor pod {name} deleted by force"


def delete_launcher(scene: Scene) -> str:
    """Delete the launcher's pod while the driver runs."""
    place = (f"--selector={selector('launcher')}", f"--namespace={NAMESPACE}")
    kubectl(scene.session.folders, "delete", "pod", *place, "--wait=false")
    return f"launcher's pod deleted while {scene.driver.name} runs"


def selector(component: str) -> str:
    """Return the labels of a service's pods."""
    return f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={component}"


def delete_by_force(session: Session, name: str) -> None:
    """Delete a pod without a grace period."""
    kubectl(session.folders, "delete", "pod", name, f"--namespace={NAMESPACE}", "--force", "--grace-period=0")


def kill_first_process(pod: SeenPod) -> int:
    """Kill the first process of a pod's container and return its id. Raises ClusterError if the pod has ended."""
    pid = first_process(pod.containers)
    if pid is None:
        raise ClusterError(f"found no process of pod {pod.name}; expected the first process of its container")
    handle = os.pidfd_open(pid)
    try:
        # The handle stays with one process: it is still the container's when this is asked after it was opened.
        if first_process(pod.containers) != pid:
            raise ClusterError(f"pod {pod.name} ended before its process could be killed")
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)
    return pid


def busy_scene(session: Session, struck: Container[str], *, with_executor: bool = False) -> Scene:
    """Return a driver pod that works on an inflight plan whose instant is not in `struck`.

    Raises ClusterError if none is found in time.

    With `with_executor` an executor pod of it runs, too. Plans that writers may win against are left out.
    """
    by_uid = {table.uid: table for table in session.opened.values()}
    deadline_s = time.monotonic() + FOUND_TIMEOUT_S
    while time.monotonic() < deadline_s:
        running = [pod for pod in session.journal.present(EXECUTOR) if pod.phase == "Running"]
        for pod in session.journal.present(DRIVER):
            executors = [executor for executor in running if executor.belongs_to(pod)]
            if (
                pod.phase == "Running"
                and pod.instant not in struck
                and pod.table_uid in by_uid
                and (executors or not with_executor)
                and not may_lose(pod.service, by_uid[pod.table_uid])
                and state_of(by_uid[pod.table_uid], pod.instant) is State.INFLIGHT
            ):
                return Scene(session, by_uid[pod.table_uid], pod, executors)
        time.sleep(POLL_S)
    wanted = "an inflight plan and a running executor" if with_executor else "an inflight plan"
    raise ClusterError(f"found no driver pod with {wanted} for {FOUND_TIMEOUT_S:.0f} s; expected one")


def may_lose(service: str, table: Table) -> bool:
    """Return whether a plan may be rolled back without any fault: a clustering whose file groups the writers update meanwhile."""
    return service == "clustering" and table.definition.name in UPDATED


def await_plan(scene: Scene) -> None:
    """Wait until the plan of a scene is completed. Raises ClusterError if it is rolled back or takes too long."""
    table, instant = scene.table, scene.driver.instant

    def has_ended() -> bool:
        state = state_of(table, instant)
        if state is State.NONE:
            # It has ended and was archived: only its events tell how.
            found = events.read_transitions(scene.session.servers, tables.heads({table.definition.name: table}))
            ends = {event.to_state for event in found if (event.table_uid, event.instant) == (table.uid, instant)}
            state = State.COMPLETED if State.COMPLETED.value in ends else State.ROLLED_BACK
        if state is State.ROLLED_BACK:
            raise ClusterError(
                f"plan {instant} of {table.definition.name} was rolled back; expected another attempt to complete it"
            )
        return state is State.COMPLETED

    wait_until(f"plan {instant} of {table.definition.name} is completed", has_ended, timeout_s=END_TIMEOUT_S)


def first_process(containers: list[str], processes: Path = PROCESSES) -> int | None:
    """Return the id of the process that is number 1 in one of the containers; None if none runs."""
    for folder in processes.glob("[0-9]*"):
        # A process may end while it is looked at.
        with contextlib.suppress(OSError):
            groups = (folder / "cgroup").read_text()
            if not any(container in groups for container in containers):
                continue
            numbers = [line.split() for line in (folder / "status").read_text().splitlines() if line.startswith("NSpid:")]
            if numbers and numbers[0][-1] == "1":
                return int(folder.name)
    return None
