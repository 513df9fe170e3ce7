"""What resident workers promise beside what every platform does: one plan at a time, in a process that may die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.launcher import faulty_worker
from tests.contract.launcher.conftest import ended, wait_until
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.services.fleet import Fleet, update, write

from tideline_events import DECISIONS, JOBS, VerdictEvent
from tideline_launcher import worker_process
from tideline_launcher.application import ApplicationSpec, EndKind, Place, PlanKey, PlanRequest
from tideline_launcher.log_files import read_job_log
from tideline_launcher.metrics import WORKER_ENDS, WORKER_PLANS
from tideline_launcher.plan_execution import LauncherService
from tideline_launcher.resident_workers import ResidentWorkers
from tideline_launcher.resources import Resources
from tideline_launcher.settings import LauncherSettings, WorkerSettings
from tideline_launcher.worker_process import WorkerNotStarted, memory_of, start_worker
from tideline_planner.metrics import PLANS, REWRITTEN
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_runtime.metrics import Metrics
from tideline_table.action import TableService, run_clustering
from tideline_table.errors import Recovery
from tideline_table.hudi import State
from tideline_table.table import TableType

TIMEOUT_S = 600.0
HEARTBEAT = {"hoodie.client.heartbeat.interval_in_ms": "1000"}
"""A worker that was killed counts as dead after seconds."""
MEMORY = 384 * 2**20


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.close()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("launcher")


@pytest.fixture
def workers(fleet: Fleet, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> Iterator[ResidentWorkers]:
    """One worker, whose plans can be faulty."""
    monkeypatch.setattr(worker_process, "MODULE", faulty_worker.__name__)
    monkeypatch.setattr(worker_process, "_STOP_GRACE_S", 0.5)
    made = ResidentWorkers(fleet.folder / "state", WorkerSettings(count=1, memory_bytes=MEMORY), fleet.clock, metrics)
    made.start(lambda: None)
    yield made
    made.close(0.1)


@pytest.fixture
def plan(fleet: Fleet) -> tuple[str, str, str]:
    """A completed plan, which takes no time: base path, uid and instant."""
    table = fleet.create("trips")
    for n in range(2):
        write(table, 10 * n)
    instant = schedule_clustering(table)
    assert instant is not None
    run_clustering(table, instant)
    return table.base_path, table.uid, instant


def spec(plan: tuple[str, str, str], attempt: int, fault: str = "", timeout_s: float = TIMEOUT_S) -> ApplicationSpec:
    base_path, uid, instant = plan
    name = f"trips-0123456789-{instant}-{attempt}"
    options = {"fault": fault} if fault else {}
    request = PlanRequest(name, PlanKey(instant, uid), attempt, TableService.CLUSTERING, base_path, options)
    return ApplicationSpec(name, (request,), Resources(), timeout_s, place=Place.WORKER)


def process_of(workers: ResidentWorkers, name: str) -> int:
    wait_until(lambda: workers._held[name].worker is not None)
    worker = workers._held[name].worker
    assert worker is not None
    return worker.pid


@pytest.mark.parametrize(
    ("fault", "timeout_s", "kind", "reason", "recovery", "counted"),
    [
        (faulty_worker.GROW, TIMEOUT_S, EndKind.OUT_OF_MEMORY, "bytes of memory", None, "out_of_memory"),
        (faulty_worker.ALLOCATE, TIMEOUT_S, EndKind.OUT_OF_MEMORY, "an allocation", None, "out_of_memory"),
        (faulty_worker.HANG, 1.0, EndKind.TIMED_OUT, "stopped after", None, "timed_out"),
        (faulty_worker.CRASH, TIMEOUT_S, EndKind.FAILED, "(SIGSEGV)", None, "died"),
        (faulty_worker.RAISE, TIMEOUT_S, EndKind.FAILED, "exit code 1", None, None),
    ],
)
def test_a_plan_that_ends_its_worker_ends_no_other_plan(workers, metrics, plan, fault, timeout_s, kind, reason, recovery, counted):
    bad, good = spec(plan, 1, fault, timeout_s), spec(plan, 2)
    workers.launch(bad)
    workers.launch(good)
    end = ended(workers, bad.name).end
    assert (end.kind, end.recovery) == (kind, recovery)
    assert reason in end.reason
    assert f"fault {fault}".encode() in workers.log_tail(bad.name, 100_000), "its log has its lines"
    assert ended(workers, good.name).end.kind is EndKind.SUCCEEDED, "the next plan has a new worker"
    assert b"fault \n" in workers.log_tail(good.name, 100_000)
    assert fault.encode() not in workers.log_tail(good.name, 100_000), "and no line of another one"
    if counted is not None:
        assert metrics.value(WORKER_ENDS, reason=counted) == 1


def test_an_error_of_the_engine_leaves_the_worker_alive(workers, plan):
    base_path, uid, instant = plan
    refused = spec((base_path + "-gone", uid, instant), 1)
    workers.launch(refused)
    assert ended(workers, refused.name).end.recovery is Recovery.STOP
    good = spec(plan, 2)
    workers.launch(good)
    assert ended(workers, good.name).end.kind is EndKind.SUCCEEDED
    assert workers.log_tail(refused.name, 100_000).count(b'"exit_code": 1') == 1


def test_a_worker_is_replaced_after_its_plans_and_ends_when_idle(fleet, metrics, plan):
    settings = WorkerSettings(count=1, max_plans=2, idle_s=0.3)
    workers = ResidentWorkers(fleet.folder / "state", settings, fleet.clock, metrics)
    started = []

    def counted(*arguments):
        started.append(start_worker(*arguments))
        return started[-1]

    workers.make_worker = counted
    for number in range(3):
        workers.launch(spec(plan, number + 1))
    wait_until(lambda: all(a.end is not None for a in workers.known()))
    assert len(started) == 2
    wait_until(lambda: started[1]._process.poll() is not None)
    assert [metrics.value(WORKER_ENDS, reason=reason) for reason in ("recycled", "idle")] == [1, 1]
    workers.close(1)


def test_a_worker_that_does_not_start_blames_no_plan(fleet, metrics, plan):
    workers = ResidentWorkers(fleet.folder / "state", WorkerSettings(count=1), fleet.clock, metrics)

    def broken(*_):
        raise WorkerNotStarted("the worker ended before it was ready (exit code 1)")

    workers.make_worker = broken
    workers.launch(spec(plan, 1))
    end = ended(workers, spec(plan, 1).name).end
    assert end.kind is EndKind.NOT_STARTED
    assert "before it was ready" in end.reason
    assert "worker-0.log" in end.reason
    workers.close(1)


def test_an_error_of_the_launcher_loses_one_plan_and_no_later_one(workers, plan, monkeypatch):
    def fails(*_):
        raise PermissionError("the log cannot be read")

    started = []
    workers.make_worker = lambda *arguments: started.append(start_worker(*arguments)) or started[-1]
    bad, good = spec(plan, 1, faulty_worker.RAISE), spec(plan, 2)
    with monkeypatch.context() as patched:
        patched.setattr(workers, "log_tail", fails)
        workers.launch(bad)
        end = ended(workers, bad.name).end
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)
    assert (end.kind, "the log cannot be read" in end.reason) == (EndKind.LOST, True)
    workers.launch(good)
    assert ended(workers, good.name).end.kind is EndKind.SUCCEEDED


def test_closing_leaves_no_process_and_no_record(workers, plan):
    hanging, waiting = spec(plan, 1, faulty_worker.HANG), spec(plan, 2)
    workers.launch(hanging)
    workers.launch(waiting)
    process = process_of(workers, hanging.name)
    assert memory_of(process) > 0
    workers.close(0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert not list((workers._state / "applications").glob("*.json")), "nothing was wrong with them"


def test_a_killed_launcher_takes_its_workers_with_it(fleet, plan):
    program = f"""
import sys, time
from pathlib import Path
from tests.contract.launcher.test_resident_workers import *
from tideline_table.clock import SystemClock
worker_process.MODULE = faulty_worker.__name__
workers = ResidentWorkers(Path({str(fleet.folder)!r}), WorkerSettings(count=1), SystemClock(), Metrics("launcher"))
hanging = spec({plan!r}, 1, faulty_worker.HANG)
workers.launch(hanging)
print("\\nprocess", process_of(workers, hanging.name), flush=True)
time.sleep(600)
"""
    launcher = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    process = next(int(line.split()[1]) for line in launcher.stdout if line.startswith(b"process "))
    os.kill(process, 0)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_until(is_gone)


def run_until(service, condition):
    deadline_s = time.monotonic() + 120
    while not condition():
        service.tick()
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(0.05)


def test_the_launcher_runs_small_plans_of_both_services_without_spark(fleet, monkeypatch):
    """One of them fails: its log is in its table, and its error is an event; the others are completed."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    tables = [fleet.create("a"), fleet.create("b"), fleet.create("c", type=TableType.MOR)]
    for table in tables[:2]:
        for n in range(2):
            write(table, 10 * n)
    merged = tables[2]
    write(merged, 0)
    update(merged, 0)
    plans = [(table, schedule_clustering(table)) for table in tables[:2]]
    compaction = schedule_compaction(merged, {"hoodie.compact.inline.max.delta.commits": 1})
    assert compaction is not None
    plans.append((merged, compaction))
    (bad, failed), *good = plans
    bad.storage.delete(bad.slices()[0].path)
    rows = [table.read().num_rows for table, _ in good]
    service, context = fleet.service(LauncherService, LauncherSettings, "launcher", workers={"count": 2})

    def states():
        return {e.plan_instant: (e.state, e.runner) for e in fleet.events(JOBS.name)}

    run_until(service, lambda: all(s in ("succeeded", "failed") for s, _ in states().values()) and len(states()) == 3)
    assert states() == {failed: ("failed", "worker")} | {instant: ("succeeded", "worker") for _, instant in good}
    assert bad.refresh().actions[failed].state is State.ROLLED_BACK
    assert [table.refresh().actions[instant].state for table, instant in good] == [State.COMPLETED] * 2
    assert [table.read().num_rows for table, _ in good] == rows
    (name,) = [e.application_id for e in fleet.events(JOBS.name) if e.state == "failed"]
    log = read_job_log(bad.storage, name)
    assert json.loads(log.splitlines()[-1])["error"] == "ObjectNotFound"
    assert context.metrics.value(WORKER_PLANS) == 0
    assert service._applications.known() == []


def test_log_files_that_pile_up_are_merged_by_planner_and_worker(fleet, monkeypatch):
    """A policy switches log compaction on; compaction waits for many more writes."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    rule = "services: {logcompaction: true}, logcompaction: {files: 3}, options: {hoodie.compact.inline.max.delta.commits: 100}"
    file = fleet.folder / "policies.yaml"
    file.write_text(f"version: 1\nfleet: {{bytes_per_day: 1 GiB}}\ndefaults: {{{rule}}}\n")
    table = fleet.create("a", type=TableType.MOR)
    write(table, 0)
    planner, planned = fleet.service(PlannerService, PlannerSettings, "planner", policy_file=str(file))
    launcher, _ = fleet.service(LauncherService, LauncherSettings, "launcher", policy_file=str(file), workers={"count": 1})
    for _ in range(3):
        planner.tick()
        assert table.refresh().pending_log_compactions() == []
        update(table, 0)
    rows = table.read().sort_by("id")
    planner.tick()
    (plan,) = table.refresh().pending_log_compactions()
    assert planned.metrics.value(PLANS, service="logcompaction") == 1
    run_until(launcher, lambda: table.refresh().actions[plan.instant].state is State.COMPLETED)
    run_until(launcher, lambda: fleet.events(JOBS.name)[-1].state == "succeeded")
    assert {(e.action, e.plan_instant, e.runner) for e in fleet.events(JOBS.name)} == {("logcompaction", plan.instant, "worker")}
    (merged,) = table.slices()
    assert [log.instant for log in merged.applied.log_files] == [plan.instant]
    assert table.read().sort_by("id").equals(rows)
    planner.tick()
    assert table.refresh().pending_log_compactions() == []
    written = sum(log.size_bytes for log in merged.applied.log_files)
    assert planned.metrics.value(REWRITTEN) == written > 0
    fleet.stop(planner)
    verdicts = [e.verdict for e in fleet.events(DECISIONS.name) if isinstance(e, VerdictEvent) and e.service == "logcompaction"]
    assert verdicts == ["not_due", "planned", "not_due"]


def test_a_plan_whose_worker_was_killed_is_tried_again_on_spark(fleet, monkeypatch):
    table = fleet.create("a")
    for n in range(2):
        write(table, 10 * n)
    instant = schedule_clustering(table)
    assert instant is not None
    monkeypatch.setattr(worker_process, "MODULE", faulty_worker.__name__)
    service, _ = fleet.service(LauncherService, LauncherSettings, "launcher", workers={"count": 1})
    workers = service._applications._workers
    launched = []
    monkeypatch.setattr(service._applications._spark, "launch", launched.append)
    real = workers.make_worker

    def stopped(*arguments):
        worker = real(*arguments)
        os.killpg(worker.pid, signal.SIGSTOP)
        return worker

    workers.make_worker = stopped
    service.tick()
    (attempt,) = workers.known()
    os.killpg(process_of(workers, attempt.name), signal.SIGKILL)
    assert "(SIGKILL)" in ended(workers, attempt.name).end.reason
    service.tick()
    (again,) = launched
    assert (again.place, again.plans[0].attempt, again.plans[0].key.instant) == (Place.SPARK, 2, instant)


def in_flight(fleet, monkeypatch, **workers):
    """A launcher with a plan that a worker has begun and never ends: service, table and instant, and what it launches on Spark."""
    table = fleet.create("a")
    for n in range(2):
        write(table, 10 * n)
    instant = schedule_clustering(table)
    monkeypatch.setattr(worker_process, "MODULE", faulty_worker.__name__)
    monkeypatch.setenv(faulty_worker.HANG_IN_TASKS, "1")
    given = {"options": HEARTBEAT, "workers": {"count": 1}, **workers}
    service, _ = fleet.service(LauncherService, LauncherSettings, "launcher", **given)
    launched = []
    monkeypatch.setattr(service._applications._spark, "launch", launched.append)
    run_until(service, lambda: table.refresh().actions[instant].state is State.INFLIGHT)
    return service, table, instant, launched


def test_the_next_attempt_at_a_plan_that_a_killed_worker_had_begun_waits_for_its_heartbeat(fleet, monkeypatch):
    service, table, instant, launched = in_flight(fleet, monkeypatch)
    workers = service._applications._workers
    (attempt,) = workers.known()
    os.killpg(process_of(workers, attempt.name), signal.SIGKILL)
    died_s = time.monotonic()
    assert ended(workers, attempt.name).end.kind is EndKind.FAILED
    service.tick()
    assert launched == []
    run_until(service, lambda: bool(launched))
    assert time.monotonic() - died_s > 1
    assert table.refresh().actions[instant].state is State.INFLIGHT
    assert (launched[0].place, launched[0].plans[0].attempt) == (Place.SPARK, 2)


def test_a_launcher_that_stops_lets_its_worker_roll_back_the_plan(fleet, monkeypatch):
    service, table, instant, _ = in_flight(fleet, monkeypatch)
    fleet.stop(service)
    assert table.refresh().actions[instant].state is State.ROLLED_BACK
