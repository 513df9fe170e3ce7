"""Faults: each takes a driver pod that works on an inflight plan and ends something."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path

from e2e.cluster.commands import wait_until
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.cluster.kubectl import kubectl
from e2e.fleet.pods import DRIVER, Journal, SeenPod
from e2e.fleet.release import NAMESPACE, RELEASE
from e2e.fleet.tables import state_of
from tideline_table.hudi import State
from tideline_table.table import Table

POLL_S = 0.2
FOUND_TIMEOUT_S = 180.0
END_TIMEOUT_S = 240.0
PROCESSES = Path("/proc")

Fault = Callable[[Folders, SeenPod], str]
"""Injects the fault beside a driver pod and returns what was done in a few words."""


def delete_by_force(folders: Folders, pod: SeenPod) -> str:
    """Delete the driver pod without a grace period."""
    kubectl(folders, "delete", "pod", pod.name, f"--namespace={NAMESPACE}", "--force", "--grace-period=0")
    return f"pod {pod.name} deleted by force"


def kill_process(_: Folders, pod: SeenPod) -> str:
    """Kill the first process of the driver's container, and with it the container."""
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
    return f"process {pid} of pod {pod.name} killed by SIGKILL"


def delete_launcher(folders: Folders, pod: SeenPod) -> str:
    """Delete the launcher's pod while the driver runs."""
    selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=launcher"
    kubectl(folders, "delete", "pod", f"--selector={selector}", f"--namespace={NAMESPACE}", "--wait=false")
    return f"launcher's pod deleted while {pod.name} runs"


def busy_driver(journal: Journal, tables: Mapping[str, Table], struck: Container[str]) -> SeenPod:
    """Return a driver pod that works on an inflight plan whose instant is not in `struck`. Raises ClusterError if none is found in time."""
    by_uid = {table.uid: table for table in tables.values()}
    deadline_s = time.monotonic() + FOUND_TIMEOUT_S
    while time.monotonic() < deadline_s:
        for pod in journal.present(DRIVER):
            if (
                pod.phase == "Running"
                and pod.instant not in struck
                and pod.table_uid in by_uid
                and state_of(by_uid[pod.table_uid], pod.instant) is State.INFLIGHT
            ):
                return pod
        time.sleep(POLL_S)
    raise ClusterError(f"found no driver pod with an inflight plan for {FOUND_TIMEOUT_S:.0f} s; expected one")


def await_plan(table: Table, instant: str) -> None:
    """Wait until a plan is completed. Raises ClusterError if it is rolled back or takes too long."""

    def has_ended() -> bool:
        state = state_of(table, instant)
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
