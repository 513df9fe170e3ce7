"""Every pod that was seen: a thread lists the pods of the namespace and keeps what it saw after a pod is gone."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster.folders import Folders
from e2e.fleet.release import NAMESPACE
from tideline_launcher.kubernetes.api import PodApi
from tideline_runtime.api_server import ApiServer, api_client
from tideline_table.errors import TidelineError

POLL_S = 0.5
REQUEST_TIMEOUT_S = 10.0
DRIVER, EXECUTOR = "spark-driver", "spark-executor"
ENDED = ("Succeeded", "Failed")


@dataclass
class SeenPod:
    """A pod as it was last seen. Times are seconds of the monotonic clock."""

    uid: str
    name: str
    component: str
    instant: str
    """`shared` for a driver of several plans."""
    table_uid: str
    service: str
    plans: frozenset[tuple[str, str]]
    """Table and instant of each plan of a driver."""
    first_s: float
    last_s: float
    phases: list[str] = field(default_factory=list)
    containers: list[str] = field(default_factory=list)
    """Ids of the containers as containerd knows them."""

    @property
    def phase(self) -> str:
        return self.phases[-1]

    def belongs_to(self, driver: SeenPod) -> bool:
        """Return whether this is an executor pod of a driver pod. Its name says so: the launcher sets the prefix."""
        return self.component == EXECUTOR and self.name.startswith(f"{driver.name}-exec-")

    def line(self) -> str:
        """Return the pod in one line for the summary."""
        return f"{self.component:14} {self.name}: {' → '.join(self.phases)}, seen for {self.last_s - self.first_s:.0f} s"


class Journal:
    """Watches inside the `with` block. It may be read afterwards."""

    def __init__(self, folders: Folders) -> None:
        self._api = PodApi(ApiServer(api_client(folders.kubeconfig, "e2e"), REQUEST_TIMEOUT_S), NAMESPACE)
        self._seen: dict[str, SeenPod] = {}
        self._overlaps: set[tuple[str, str]] = set()
        self._present: set[str] = set()
        self._guard = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pod-journal", daemon=True)

    def __enter__(self) -> Journal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def pods(self, component: str = "") -> list[SeenPod]:
        """Return the pods seen so far, oldest first."""
        with self._guard:
            return [pod for pod in self._seen.values() if component in ("", pod.component)]

    def present(self, component: str) -> list[SeenPod]:
        """Return the pods that exist now."""
        with self._guard:
            return [pod for pod in self._seen.values() if pod.component == component and pod.uid in self._present]

    def overlaps(self) -> list[str]:
        """Return the plans for which two driver pods were alive at once."""
        with self._guard:
            return sorted(f"{table} {instant}" for table, instant in self._overlaps)

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_S):
            try:
                listed = self._api.list("").items
            except TidelineError:
                # The next listing may succeed; a pod that lived between two listings is not seen.
                continue
            self.take(listed, time.monotonic())

    def take(self, listed: Iterable[Mapping[str, Any]], now_s: float) -> None:
        """Note one listing of all pods."""
        with self._guard:
            alive: dict[tuple[str, str], int] = defaultdict(int)
            self._present = set()
            for pod in listed:
                seen = self._note(pod, now_s)
                self._present.add(seen.uid)
                if seen.component == DRIVER and seen.phase not in ENDED:
                    for plan in seen.plans:
                        alive[plan] += 1
            self._overlaps |= {plan for plan, count in alive.items() if count > 1}

    def _note(self, pod: Mapping[str, Any], now_s: float) -> SeenPod:
        metadata, status = pod["metadata"], pod.get("status") or {}
        labels = metadata.get("labels") or {}
        uid = str(metadata["uid"])
        if uid not in self._seen:
            named = [str(labels.get(f"tideline.dev/{name}", "")) for name in ("instant", "table", "service")]
            component = str(labels.get("app.kubernetes.io/component", "other"))
            self._seen[uid] = SeenPod(
                uid, str(metadata["name"]), component, named[0], named[1], named[2], _plans_of(metadata), now_s, now_s
            )
        seen = self._seen[uid]
        seen.last_s = now_s
        phase = str(status.get("phase", "Unknown"))
        if not seen.phases or seen.phase != phase:
            seen.phases.append(phase)
        ids = [str(c.get("containerID", "")).rpartition("//")[2] for c in status.get("containerStatuses") or ()]
        seen.containers = [i for i in ids if i]
        return seen


def _plans_of(metadata: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    text = (metadata.get("annotations") or {}).get("tideline.dev/application")
    if not text:
        return frozenset()
    found = json.loads(text)
    return frozenset((str(plan["table"]), str(plan["instant"])) for plan in found.get("plans", [found]))
