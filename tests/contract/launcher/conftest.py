"""The platforms that applications run on: each with a way to end an application as a test wants it."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.contract.launcher.kubelet import Namespace
from tests.plans import schedule_clustering
from tests.real.kubernetes_api import KubernetesApi, running_kubernetes_api
from tests.unit.services.fleet import Fleet, write

from tideline_launcher.application import Application, Applications, ApplicationSpec, EndKind, PlanKey, PlanRequest
from tideline_launcher.kubernetes import DriverPods
from tideline_launcher.local_processes import LocalProcesses
from tideline_launcher.names import application_name, shared_name
from tideline_launcher.resident_workers import ResidentWorkers
from tideline_launcher.resources import Resources
from tideline_launcher.settings import KubernetesSettings, WorkerSettings
from tideline_launcher.worker_process import WorkerProcess, start_worker
from tideline_runtime.metrics import Metrics
from tideline_spark.invocation import ExitCode
from tideline_table.action import TableService, run_clustering
from tideline_table.clock import Clock
from tideline_table.coordination import roll_back

WAIT_LIMIT_S = 300.0
WEAK_TOKEN = "weak-token"
_NUMBERS = itertools.count(1)
ERROR_LINE = '{"event": "clustering ended without a commit", "recovery": "stop", "exit_code": 1}\n'


def wait_until(condition: Callable[[], bool], limit_s: float = WAIT_LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(0.02)


@dataclass
class Platform:
    """A place for applications. `make` opens it as a further launcher would."""

    kind: str
    make: Callable[[], Applications]
    spec: Callable[..., ApplicationSpec]
    """An application that ends as its first argument says, once `let_end` is called."""
    shared_spec: Callable[..., ApplicationSpec]
    """An application of several plans that end as its arguments say, once `let_all_end` is called."""
    let_end: Callable[[str, EndKind], None]
    let_all_end: Callable[[str, Sequence[EndKind]], None]
    kill: Callable[[str], None]
    outlives_launchers: bool
    opened: list[Applications] = field(default_factory=list)

    def open(self) -> Applications:
        applications = self.make()
        self.opened.append(applications)
        applications.start(lambda: None)
        return applications

    def close(self, applications: Applications) -> None:
        self.opened.remove(applications)
        applications.close(0.1)

    def kill_launcher(self, applications: Applications) -> None:
        """End a launcher without its consent; applications that do not outlive it end with it."""
        if self.outlives_launchers:
            self.close(applications)
            return
        for driver in {a.driver for a in applications.known() if a.end is None}:
            self.kill(driver)
            all_ended(applications, driver)
        self.opened.remove(applications)


def application(applications: Applications, name: str) -> Application | None:
    return next((a for a in applications.known() if a.name == name), None)


def all_ended(applications: Applications, driver: str) -> list[Application]:
    """The attempts of an application once it has ended."""
    found: list[Application] = []

    def have_ended() -> bool:
        found[:] = [a for a in applications.known() if a.driver == driver]
        return bool(found) and all(a.end is not None for a in found)

    wait_until(have_ended)
    return found


def ended(applications: Applications, name: str) -> Application:
    """The application once it has ended."""
    found: list[Application] = []

    def has_ended() -> bool:
        known = application(applications, name)
        found[:] = [known] if known is not None and known.end is not None else []
        return bool(found)

    wait_until(has_ended)
    return found[0]


@pytest.fixture(scope="session")
def kubernetes_api() -> Iterator[KubernetesApi]:
    with running_kubernetes_api({WEAK_TOKEN: "weak"}) as server:
        yield server


@pytest.fixture
def namespace(kubernetes_api) -> Iterator[Namespace]:
    """A new namespace that enforces the restricted Pod Security standard, and what a kubelet would do in it."""
    with kubernetes_api.client() as client:
        yield Namespace(client, f"jobs-{os.getpid()}-{next(_NUMBERS)}")


def pod_spec(attempt: int = 1, *, executors: int = 0, instant: str = "20260101000000000", uid: str = "uid-1") -> ApplicationSpec:
    name = application_name("trips", f"s3://lake/{uid}", instant, attempt)
    key = PlanKey(instant, uid)
    resources = Resources(executors=executors, executor_overhead_bytes=2**30 if executors else 0)
    plan = PlanRequest(name, key, attempt, TableService.CLUSTERING, f"s3://lake/{uid}", {"a": "b"})
    return ApplicationSpec(name, (plan,), resources, 600, "storage:")


def together(plans: Sequence[PlanRequest]) -> ApplicationSpec:
    """An application of these plans."""
    return ApplicationSpec(shared_name(plan.name for plan in plans), tuple(plans), Resources(), 600, "storage:")


def settings_for(api: KubernetesApi, namespace: Namespace, **more: object) -> KubernetesSettings:
    given = {"namespace": namespace.name, "kubeconfig": api.kubeconfig(), "image": "spark:1", **more}
    return KubernetesSettings.model_validate(given)


@pytest.fixture(params=["local", "workers", pytest.param("kubernetes", marks=pytest.mark.cluster)])
def platform(request, tmp_path, monkeypatch) -> Iterator[Platform]:
    with ExitStack() as closing:
        made = {"local": _local, "workers": _workers, "kubernetes": _kubernetes}[request.param](request, tmp_path, closing)
        yield made
        for applications in made.opened:
            applications.close(0.1)


def _local(request, tmp_path: Path, closing: ExitStack) -> Platform:
    platform: Platform

    def process_of(name: str) -> int:
        (found,) = [a._launched[name].process.pid for a in platform.opened if name in a._launched]
        return found

    class HeldProcesses(LocalProcesses):
        """Freezes each process until the test lets it end."""

        def launch(self, spec: ApplicationSpec) -> None:
            is_new = spec.name not in self._launched
            super().launch(spec)
            if is_new:
                os.killpg(self._launched[spec.name].process.pid, signal.SIGSTOP)

    platform = _on_this_machine("local", tmp_path, closing, process_of, lambda clock: HeldProcesses(tmp_path / "state", 1, clock))
    return platform


def _workers(request, tmp_path: Path, closing: ExitStack) -> Platform:
    platform: Platform

    def process_of(name: str) -> int:
        def worker() -> WorkerProcess | None:
            return next((a._held[name].worker for a in platform.opened if name in a._held), None)

        wait_until(lambda: worker() is not None)
        return worker().pid

    def held(*arguments) -> WorkerProcess:
        """A worker that is frozen until the test lets its plan begin."""
        worker = start_worker(*arguments)
        os.killpg(worker.pid, signal.SIGSTOP)
        return worker

    def make(clock: Clock) -> ResidentWorkers:
        # One worker for each plan, so that each begins frozen.
        workers = ResidentWorkers(tmp_path / "state", WorkerSettings(count=2, max_plans=1), clock, Metrics("launcher"))
        workers.make_worker = held
        return workers

    platform = _on_this_machine("workers", tmp_path, closing, process_of, make)
    return platform


def _on_this_machine(
    kind: str,
    tmp_path: Path,
    closing: ExitStack,
    process_of: Callable[[str], int],
    make: Callable[[Clock], Applications],
) -> Platform:
    """A platform of local processes that stand still until the test sends them SIGCONT."""
    fleet = Fleet(tmp_path)
    closing.callback(fleet.close)
    table = fleet.create("trips")
    for n in range(2):
        write(table, 10 * n)
    done = schedule_clustering(table)
    run_clustering(table, done)
    for n in range(2, 4):
        write(table, 10 * n)
    undone = schedule_clustering(table)
    roll_back(table.timeline, undone, force=True)

    def request(kind: EndKind, attempt: int = 1) -> PlanRequest:
        # A completed plan ends at once with success, a rolled-back one is superseded; neither needs Spark.
        instant = done if kind is not EndKind.SUPERSEDED else undone
        options = {"tideline.lock.unreachable": "no-such-value"} if kind is EndKind.FAILED else {}
        name = application_name("trips", table.base_path, instant, attempt)
        key = PlanKey(instant, table.uid)
        return PlanRequest(name, key, attempt, TableService.CLUSTERING, table.base_path, options)

    def spec(kind: EndKind, attempt: int = 1) -> ApplicationSpec:
        made = request(kind, attempt)
        return ApplicationSpec(made.name, (made,), Resources(), 600)

    def shared_spec(*kinds: EndKind) -> ApplicationSpec:
        # Attempts of other numbers, so that plans of one kind differ.
        return together([request(kind, number) for number, kind in enumerate(kinds, 1)])

    def let_end(name: str, kind: EndKind) -> None:
        os.killpg(process_of(name), signal.SIGCONT)

    def let_all_end(name: str, _: Sequence[EndKind]) -> None:
        os.killpg(process_of(name), signal.SIGCONT)

    def kill(name: str) -> None:
        os.killpg(process_of(name), signal.SIGKILL)

    return Platform(kind, lambda: make(fleet.clock), spec, shared_spec, let_end, let_all_end, kill, outlives_launchers=False)


def _kubernetes(request, tmp_path: Path, closing: ExitStack) -> Platform:
    api, namespace = request.getfixturevalue("kubernetes_api"), request.getfixturevalue("namespace")
    clock = Fleet(tmp_path).clock
    codes = {EndKind.SUCCEEDED: 0, EndKind.SUPERSEDED: ExitCode.SUPERSEDED, EndKind.FAILED: 1}

    def let_end(name: str, kind: EndKind) -> None:
        namespace.run(name)
        namespace.finish(name, int(codes[kind]), message=ERROR_LINE if kind is EndKind.FAILED else "completed before\n")

    def let_all_end(name: str, kinds: Sequence[EndKind]) -> None:
        namespace.run(name)
        lines = (f"begin {n}\nend {n} {int(codes[k])} {'stop' if k is EndKind.FAILED else '-'}\n" for n, k in enumerate(kinds))
        namespace.finish(name, int(EndKind.FAILED in kinds), message="".join(lines))

    def kill(name: str) -> None:
        namespace.run(name)
        namespace.finish(name, 137)

    def make() -> DriverPods:
        return DriverPods(settings_for(api, namespace), clock)

    def spec(kind: EndKind, attempt: int = 1) -> ApplicationSpec:
        return pod_spec(attempt)

    def shared_spec(*kinds: EndKind) -> ApplicationSpec:
        return together([pod_spec(uid=f"uid-{number}").plans[0] for number in range(len(kinds))])

    return Platform("kubernetes", make, spec, shared_spec, let_end, let_all_end, kill, outlives_launchers=True)
