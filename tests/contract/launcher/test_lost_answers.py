"""A thousand launches by two launchers at once, while answers of the API server come late or are lost after success."""

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import TypeVar

import httpx
import pytest
from tests.contract.launcher.api_proxy import ApiProxy
from tests.contract.launcher.conftest import pod_spec, settings_for, wait_until
from tests.contract.launcher.kubelet import Namespace
from tests.real.kubernetes_api import KubernetesApi

from tideline_launcher.application import PlanKey
from tideline_launcher.kubernetes import DriverPods
from tideline_launcher.kubernetes.pod_spec import INSTANT
from tideline_runtime.errors import DependencyDown
from tideline_table.clock import ManualClock

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PLANS, ATTEMPTS = 250, 4
LIMIT_S = 300.0
ENDED = ("Succeeded", "Failed")
DAYS_S = 200_000.0
T = TypeVar("T")


class Kubelet:
    """Lets every new pod end with an error, and keeps what the API server reports of the pods, in its order."""

    def __init__(self, namespace: Namespace, client: httpx.Client) -> None:
        self.created: Counter[str] = Counter()
        self.overlaps: set[str] = set()
        self._namespace = namespace
        self._client = client
        self._alive: dict[str, set[str]] = defaultdict(set)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        # An event ends the wait for the next one.
        self._namespace.create(pod_spec_of_nothing())
        self._thread.join()

    def _run(self) -> None:
        for kind, pod in self._events():
            if self._stopped.is_set():
                return
            name, plan = pod["metadata"]["name"], pod["metadata"]["labels"][INSTANT]
            is_alive = kind != "DELETED" and pod["status"]["phase"] not in ENDED
            (self._alive[plan].add if is_alive else self._alive[plan].discard)(name)
            if len(self._alive[plan]) > 1:
                self.overlaps.add(plan)
            if kind == "ADDED":
                self.created[name] += 1
                self._namespace.finish(name, 1)

    def _events(self) -> Iterator[tuple[str, dict]]:
        path = f"/api/v1/namespaces/{self._namespace.name}/pods"
        version = self._client.get(path).json()["metadata"]["resourceVersion"]
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "3600"}
        with self._client.stream("GET", path, params=query, timeout=None) as answer:
            for line in answer.iter_lines():
                event = json.loads(line)
                yield event["type"], event["object"]


def pod_spec_of_nothing() -> dict:
    container = {
        "name": "c",
        "image": "spark:1",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": security}
    return {"metadata": {"name": "the-end"}, "spec": spec}


class Launcher:
    """What a launcher does with the plans that it sees, all through a proxy. `troubles` counts requests without an answer."""

    def __init__(self, api: KubernetesApi, namespace: Namespace, seed: int, clock: ManualClock) -> None:
        self.troubles = 0
        self.proxy = ApiProxy(api, lost=0.1, late=0.03, late_s=0.6, seed=seed)
        settings = settings_for(
            api, namespace, kubeconfig=api.kubeconfig(url=self.proxy.url), request_timeout_s=0.5, finished_ttl_s=60
        )
        self.pods = DriverPods(settings, clock)
        self.pods.start(lambda: None)

    def close(self) -> None:
        self.pods.close(0)
        self.proxy.close()

    def work(self) -> None:
        """Bring each plan to its last attempt: launch the next one whenever all that are known have ended."""
        for n in range(PLANS):
            wait_until(lambda n=n: self._is_exhausted(f"{20260101000000000 + n}"), LIMIT_S)

    def _is_exhausted(self, instant: str) -> bool:
        key = PlanKey(instant, "uid-1")
        try:
            known = self.pods.attempts([key])
            if all(a.end is not None for a in known):
                if len(known) == ATTEMPTS:
                    return True
                self.pods.launch(pod_spec(max((a.attempt for a in known), default=0) + 1, instant=instant))
        except DependencyDown:
            self.troubles += 1
        return False

    def clear(self) -> bool:
        """Collect what has ended and delete what is old. Return whether nothing is known any more."""
        for driver in {a.driver for a in self._asked(self.pods.known) or () if not a.is_collected}:
            self._asked(lambda driver=driver: self.pods.collect(driver))
        self._asked(self.pods.tidy)
        return self._asked(self.pods.known) == []

    def _asked(self, request: Callable[[], T]) -> T | None:
        """What a request returns, None if its answer did not come."""
        try:
            return request()
        except DependencyDown:
            self.troubles += 1
            return None


def test_a_thousand_launches_of_two_launchers_with_late_and_lost_answers(kubernetes_api, namespace):
    clock = ManualClock(datetime.now(UTC))
    with ExitStack() as stack:
        client = stack.enter_context(kubernetes_api.client())
        kubelet = stack.enter_context(closing(Kubelet(namespace, client)))
        launchers = [stack.enter_context(closing(Launcher(kubernetes_api, namespace, seed, clock))) for seed in (1, 2)]
        with ThreadPoolExecutor(len(launchers)) as pool:
            for done in [pool.submit(launcher.work) for launcher in launchers]:
                done.result()
        assert kubelet.overlaps == set()
        names = {
            pod_spec(attempt + 1, instant=f"{20260101000000000 + n}").name for n in range(PLANS) for attempt in range(ATTEMPTS)
        }
        assert kubelet.created == dict.fromkeys(names, 1), "each attempt has one pod, created once"
        clock.advance(DAYS_S)
        wait_until(lambda: all(launcher.clear() for launcher in launchers), LIMIT_S)
        assert namespace.pods() == {}
        for launcher in launchers:
            assert launcher.proxy.lost > PLANS * ATTEMPTS * 0.02
            assert launcher.proxy.late > 0
        assert sum(launcher.troubles for launcher in launchers) > 0
