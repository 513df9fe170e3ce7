"""Small plans of several tables in one Spark application: the launcher, a real process and real tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.plans import schedule_clustering
from tests.spark.test_application import children_of
from tests.unit.services.fleet import Fleet, write

from tideline_events import JOBS
from tideline_launcher.local_processes import LocalProcesses
from tideline_launcher.local_records import left_behind
from tideline_launcher.log_files import read_job_log
from tideline_launcher.names import application_name
from tideline_launcher.plan_execution import LauncherService
from tideline_launcher.settings import LauncherSettings
from tideline_spark.application import main
from tideline_spark.invocation import MODULE, ExitCode, Invocation, SharedInvocation
from tideline_spark.outcomes import PlanOutcome, read_outcomes
from tideline_table.action import TableService, run_clustering
from tideline_table.action.clustering.run import cluster_here
from tideline_table.action.clustering.task import ClusteredGroup, ClusteringTask
from tideline_table.coordination import roll_back
from tideline_table.errors import Recovery
from tideline_table.hudi import State
from tideline_table.table import Table

pytestmark = pytest.mark.timeout(900)
LIMIT_S = 400.0
TICK_S = 0.2
STEP_S = 0.01
"""Much less than a plan takes."""
HEARTBEAT = {"hoodie.client.heartbeat.interval_in_ms": "1000"}
"""A driver that was killed counts as dead after seconds."""


@dataclass(frozen=True)
class Planned:
    """A pending plan."""

    table: Table
    instant: str

    @property
    def state(self) -> State:
        return self.table.refresh().actions[self.instant].state

    def name(self, attempt: int) -> str:
        return application_name(self.table.definition.name, self.table.base_path, self.instant, attempt)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.close()


@pytest.fixture
def service(fleet: Fleet) -> LauncherService:
    return fleet.service(LauncherService, LauncherSettings, "launcher", options=HEARTBEAT, workers={"count": 0}, start=False)[0]


def planned(fleet: Fleet, tables: int, plans_each: int) -> list[Planned]:
    """Plans of several tables, in the order in which they run: each rewrites two small files of a partition of its own."""
    found = []
    for name in (f"table{n}" for n in range(tables)):
        table = fleet.create(name)
        for number in range(plans_each):
            for half in range(2):
                write(table, 100 * number + 10 * half, city=f"city{number}")
            instant = schedule_clustering(table)
            assert instant is not None
            found.append(Planned(table, instant))
    return sorted(found, key=lambda plan: plan.instant)


def run_until(service: LauncherService, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        service.tick()
        if condition():
            return
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(TICK_S)


def stop_when(condition: Callable[[], bool], send: Callable[[int], None]) -> None:
    """Stop the processes that get the signals when the condition holds. They stand still during each look."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        send(signal.SIGSTOP)
        if condition():
            return
        send(signal.SIGCONT)
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(STEP_S)


def job_states(fleet: Fleet) -> dict[str, list[str]]:
    """The states of each attempt, by its name, as the job events have them."""
    found: dict[str, list[str]] = {}
    for event in fleet.events(JOBS.name):
        found.setdefault(event.application_id, []).append(event.state)
    return found


def logs(fleet: Fleet) -> list[str]:
    return sorted(path.stem for path in (fleet.folder / "state" / "applications").glob("*.log"))


def processes(service: LauncherService) -> LocalProcesses:
    assert isinstance(service._applications, LocalProcesses)
    return service._applications


def test_ten_plans_of_five_tables_run_in_one_application_and_one_of_them_fails(fleet: Fleet, service: LauncherService) -> None:
    plans = planned(fleet, tables=5, plans_each=2)
    bad = plans[3]
    victim = next(s for s in bad.table.slices() if s.group.partition_path == "city" + str(plans_before(plans, bad)))
    bad.table.storage.delete(victim.path)
    rows = {id(p): p.table.read().num_rows for p in plans if p.table is not bad.table}
    service.start()
    run_until(service, lambda: all(states[-1] in ("succeeded", "failed") for states in job_states(fleet).values()))

    (shared,) = logs(fleet)
    assert shared.startswith("shared-"), "one process ran them all"
    assert {p.instant: p.state for p in plans} == {p.instant: State.ROLLED_BACK if p is bad else State.COMPLETED for p in plans}, (
        "the failure of one plan neither failed nor stopped the others"
    )
    assert job_states(fleet) == {p.name(1): ["submitted", "running", "failed" if p is bad else "succeeded"] for p in plans}, (
        "each plan has its own outcome"
    )
    assert {id(p): p.table.read().num_rows for p in plans if p.table is not bad.table} == rows

    kept = read_job_log(bad.table.storage, bad.name(1))
    assert kept is not None
    assert b"ObjectNotFound" in kept
    assert [p.instant for p in plans if p.instant.encode() in kept] == [bad.instant], "no line of another plan"
    for other in plans:
        if other is not bad:
            assert read_job_log(other.table.storage, other.name(1)) is None
    assert list(left_behind(fleet.folder / "state")) == []
    assert not list((fleet.folder / "state" / "applications").glob("*.outcomes"))


def plans_before(plans: list[Planned], plan: Planned) -> int:
    """How many plans of the same table are older."""
    return sum(p.table is plan.table and p.instant < plan.instant for p in plans)


def test_a_driver_killed_in_the_middle_fails_only_the_plan_that_ran_and_each_other_one_runs_again_alone(
    fleet: Fleet, service: LauncherService
) -> None:
    plans = planned(fleet, tables=3, plans_each=1)
    service.start()
    service.tick()
    (shared,) = logs(fleet)
    (launched,) = processes(service)._launched.values()
    assert launched.process is not None
    group = launched.process.pid
    stop_when(
        lambda: plans[0].state is State.COMPLETED and plans[1].state is State.INFLIGHT, lambda number: os.killpg(group, number)
    )
    os.killpg(group, signal.SIGKILL)
    done, cut = plans[:1], plans[1:2]
    run_until(service, lambda: all(p.state is State.COMPLETED for p in plans) and not processes(service).known())

    again = [p for p in plans if p not in done]
    assert logs(fleet) == sorted([shared, *(p.name(2) for p in again)]), (
        "each without an outcome ran again alone, the others did not"
    )
    states = job_states(fleet)
    for p in plans:
        assert states[p.name(1)] == ["submitted", "running", "succeeded" if p in done else "failed"]
        assert states.get(p.name(2)) == (None if p in done else ["retried", "running", "succeeded"])
    reasons = {e.application_id: e.reason for e in fleet.events(JOBS.name) if e.state == "failed"}
    assert all("(SIGKILL)" in reasons[p.name(1)] for p in cut)
    assert all("before this plan ran (failed: exit code -9 (SIGKILL))" in reasons[p.name(1)] for p in again[1:])


def test_sigterm_rolls_back_the_plan_that_runs_and_leaves_the_next_ones(fleet: Fleet, tmp_path: Path) -> None:
    plans = planned(fleet, tables=4, plans_each=1)
    report = tmp_path / "outcomes"
    requests = tuple(Invocation(TableService.CLUSTERING, p.table.base_path, p.instant) for p in plans)
    arguments = SharedInvocation(requests, 1, report).arguments()
    running = subprocess.Popen([sys.executable, "-m", MODULE, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        stop_when(lambda: running.poll() is not None or plans[1].state is State.INFLIGHT, running.send_signal)
        assert running.poll() is None, running.communicate()[1]
        children = children_of(running.pid)
        # The JVM stands still until the signal is out.
        for child in children:
            os.kill(child, signal.SIGSTOP)
        running.send_signal(signal.SIGTERM)
        running.send_signal(signal.SIGCONT)
        for child in children:
            os.kill(child, signal.SIGCONT)
        _, stderr = running.communicate(timeout=300)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == ExitCode.TERMINATED, stderr
    states = [p.state for p in plans]
    found = read_outcomes(report.read_text())
    assert states[0] is State.COMPLETED
    assert states[-1] is State.REQUESTED, "the next plans did not begin"
    assert State.INFLIGHT not in states, "the plan that ran was rolled back"
    codes = {State.COMPLETED: ExitCode.SUCCEEDED, State.ROLLED_BACK: ExitCode.TERMINATED}
    assert found.ended == {
        n: PlanOutcome(codes[s], Recovery.RETRY if s is State.ROLLED_BACK else None) for n, s in enumerate(states) if s in codes
    }
    assert all(child not in children_of(running.pid) for child in children)


def test_a_plan_that_another_live_driver_runs_is_left_to_it_and_the_next_plans_run(fleet: Fleet, tmp_path: Path) -> None:
    """Two launchers may group plans differently at the same time.

    The entry that begins a plan, and heartbeats, decide which driver runs it.
    """
    plans = planned(fleet, tables=3, plans_each=1)
    report = tmp_path / "outcomes"
    requests = tuple(Invocation(TableService.CLUSTERING, p.table.base_path, p.instant) for p in plans)
    both = plans[1]
    reader = Table.open(both.table.base_path, clock=fleet.clock)

    def while_the_other_application_runs(tasks: Sequence[ClusteringTask]) -> list[ClusteredGroup]:
        ended = subprocess.run(
            [sys.executable, "-m", MODULE, *SharedInvocation(requests, 1, report).arguments()],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert ended.returncode == ExitCode.SUCCEEDED, ended.stderr
        assert reader.refresh().actions[both.instant].state is State.INFLIGHT, "it was neither run nor rolled back there"
        return cluster_here(tasks)

    committed = run_clustering(both.table, both.instant, run=while_the_other_application_runs)
    assert committed is not None
    assert {n: o.exit_code for n, o in read_outcomes(report.read_text()).ended.items()} == {0: 0, 1: ExitCode.YIELDED, 2: 0}
    assert [p.state for p in plans] == [State.COMPLETED] * 3
    assert len(both.table.slices()) == 1, "files of one attempt"


def test_each_plan_has_its_own_options_and_errors(
    fleet: Fleet, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, without Spark: these plans end before they use it."""
    monkeypatch.setattr("tideline_spark.application.SparkOnDemand.get", lambda _: None)
    one, other = planned(fleet, tables=2, plans_each=1)
    run_clustering(one.table, one.instant)
    roll_back(other.table.timeline, other.instant, force=True)
    completed = Invocation(TableService.CLUSTERING, one.table.base_path, one.instant)
    requests = (
        completed,
        replace(completed, options={"tideline.lock.unreachable": "no-such-value"}),
        replace(completed, table="/nowhere"),
        Invocation(TableService.CLUSTERING, other.table.base_path, other.instant),
        replace(completed, service=TableService.COMPACTION),
        completed,
    )
    report = tmp_path / "outcomes"
    assert main(SharedInvocation(requests, 1, report).arguments()) == ExitCode.FAILED
    ended = read_outcomes(report.read_text()).ended
    assert [ended[n].exit_code for n in range(6)] == [0, ExitCode.FAILED, ExitCode.FAILED, ExitCode.SUPERSEDED, ExitCode.FAILED, 0]
    assert ended[1].recovery is Recovery.STOP
    log = capfd.readouterr().err
    assert log.count("no-such-value") == 1, "options are in no other plan's lines"

    def fails(*_: object) -> None:
        raise RuntimeError("a mistake in the code")

    report.unlink()
    monkeypatch.setattr("tideline_spark.plan_run._run", fails)
    assert main(SharedInvocation((completed, completed), 1, report).arguments()) == ExitCode.FAILED
    assert read_outcomes(report.read_text()).ended == dict.fromkeys((0, 1), PlanOutcome(ExitCode.FAILED)), (
        "nor do other errors stop it"
    )


def test_a_dead_jvm_ends_the_application_and_leaves_the_next_plans_without_outcome(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "outcomes"
    monkeypatch.setattr("tideline_spark.application.SparkOnDemand.is_lost", lambda _: True)
    request = Invocation(TableService.CLUSTERING, "/nowhere", "20260101000000000")
    assert main(SharedInvocation((request, request), 1, report).arguments()) == ExitCode.FAILED
    found = read_outcomes(report.read_text())
    assert (found.begun, set(found.ended)) == (frozenset({0}), {0})
    assert "Spark's JVM has ended" in capfd.readouterr().err
