"""`python -m e2e.smoke`: run the smoke test on the running cluster, say what was seen, and delete its namespace."""

from __future__ import annotations

import json
import sys
from typing import Any

from e2e.cluster.cluster import step
from e2e.cluster.commands import wait_until
from e2e.cluster.errors import ClusterError
from e2e.cluster.folders import Folders
from e2e.cluster.kubectl import apply, kubectl
from e2e.images.image import version
from e2e.smoke import objects

POD_TIMEOUT_S = 300.0
SHOWN_CHARACTERS = 3000


def run(folders: Folders) -> None:
    """Run the smoke test. Raises ClusterError where something is not as expected."""
    apply(folders, [objects.namespace()])
    apply(folders, [*objects.accounts(), *objects.spark_configuration()])
    try:
        _require_refusal(folders)
        with step("service pod"):
            said = _finished(folders, objects.service_pod()).strip()
        if said != version():
            raise ClusterError(f"the service pod printed {said!r}; expected version {version()}")
        print(f"service pod: {said}")
        with step("Spark driver and executor"):
            said = _finished(folders, objects.driver_pod())
        _check_job(said)
    finally:
        with step("delete the namespace"):
            kubectl(folders, "delete", "namespace", objects.NAMESPACE, "--wait=true", timeout_s=POD_TIMEOUT_S)


def _require_refusal(folders: Folders) -> None:
    """Prove that the namespace's rules are in force: a pod that may run as root is refused."""
    pod = objects.service_pod()
    del pod["spec"]["securityContext"]
    try:
        apply(folders, [pod])
    except ClusterError as error:
        if "violates PodSecurity" not in str(error):
            raise
        return
    raise ClusterError("a pod that may run as root was accepted; expected restricted Pod Security to refuse it")


def _finished(folders: Folders, pod: dict[str, Any]) -> str:
    """Run a pod to its end and return its log. Raises ClusterError if it fails."""
    name = pod["metadata"]["name"]
    apply(folders, [pod])
    in_namespace = f"--namespace={objects.NAMESPACE}"

    def phase() -> str:
        return kubectl(folders, "get", "pod", name, in_namespace, "--output=jsonpath={.status.phase}")

    try:
        wait_until(f"pod {name} ends", lambda: phase() in {"Succeeded", "Failed"}, timeout_s=POD_TIMEOUT_S)
    except ClusterError as error:
        described = kubectl(folders, "describe", "pod", name, in_namespace)
        raise ClusterError(f"{error}: {described[-SHOWN_CHARACTERS:]}") from error
    said = kubectl(folders, "logs", name, in_namespace)
    if phase() != "Succeeded":
        raise ClusterError(f"pod {name} failed: {said[-SHOWN_CHARACTERS:]}")
    return said


def _check_job(said: str) -> None:
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    # The host name of an executor is its pod's name: the work was not done in the driver.
    executors = [host for host in (found[-1]["hosts"] if found else []) if host.startswith(f"{objects.DRIVER_POD}-exec-")]
    if not found or not found[-1]["is_right"] or not executors:
        raise ClusterError(f"the job printed {said[-SHOWN_CHARACTERS:]!r}; expected the right sum, computed in an executor")
    print(f"Spark job: right, computed in {', '.join(executors)}")


def main() -> None:
    """Run, or end with one line."""
    try:
        run(Folders.from_environment())
    except ClusterError as error:
        sys.exit(f"error: {error}")
    print("smoke test passed")


if __name__ == "__main__":
    main()
