import json
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.plans import schedule_clustering, schedule_compaction, schedule_log_compaction
from tests.unit.services.fleet import HEARTBEAT_GONE_S, Fleet, update, write

from tideline_events import HINTS, JOBS, EventLogUnavailable
from tideline_events.errors import PublisherFenced
from tideline_launcher.application import (
    Application,
    ApplicationSpec,
    Condition,
    End,
    EndKind,
    LaunchRefused,
    Obstacle,
    PlanKey,
    PlanRequest,
)
from tideline_launcher.history import LOSSES_AT_ONCE
from tideline_launcher.kubernetes.pod_spec import applications_from
from tideline_launcher.local_processes import LocalProcesses
from tideline_launcher.log_files import read_job_log
from tideline_launcher.metrics import APPLICATIONS, EXECUTORS, OBSTACLES, RUNNING
from tideline_launcher.names import application_name
from tideline_launcher.plan_ends import plan_ends
from tideline_launcher.plan_execution import LauncherService
from tideline_launcher.resources import Resources
from tideline_launcher.settings import GIB, LauncherSettings
from tideline_runtime.errors import DependencyDown
from tideline_spark.invocation import Invocation, parse
from tideline_spark.outcomes import Outcomes
from tideline_table.action import run_clustering, run_compaction
from tideline_table.action.decision import TableService
from tideline_table.coordination import roll_back
from tideline_table.errors import Recovery
from tideline_table.hudi.instant import Action, State
from tideline_table.log.body import Bare
from tideline_table.log.table_log import Draft
from tideline_table.table import TableType, findings_of, is_given_up_plan

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NOT_SHARED = {"max_plans": 1}


def running(instant, table="t", executors=0):
    return Application(f"{table}-{instant}", PlanKey(instant, table), 1, TableService.CLUSTERING, f"/{table}", executors, 0, EPOCH)


class HeldPlatform:
    """Applications that run until the test ends them; ended ones are kept like finished pods if `keeps` is set."""

    name = "held"
    poll_interval_s = 0.5

    def __init__(self, *, keeps=False):
        self.specs = []
        self.by_name = {}
        self.logs = {}
        self.refuses = None
        self.closed_within_s = None
        self._keeps = keeps

    @property
    def last(self):
        return self.specs[-1]

    @property
    def plan(self):
        """The only plan of the last application."""
        (plan,) = self.last.plans
        return plan

    def end(self, kind, reason="", recovery=None, ended=EPOCH, outcomes=None):
        name, end = self.last.name, End(kind, reason, ended, recovery)
        ends = plan_ends(len(self.last.plans), end, outcomes or Outcomes())
        self.by_name[name] = tuple(replace(a, end=e) for a, e in zip(self.by_name[name], ends, strict=True))

    def _change(self, name, **change):
        self.by_name[name] = tuple(replace(a, **change) for a in self.by_name[name])

    def condition(self, condition):
        self._change(self.last.name, condition=condition)

    def start(self, wake):
        pass

    def launch(self, spec):
        if self.refuses is not None:
            raise self.refuses
        if spec.name not in self.by_name:
            self.specs.append(spec)
            self.by_name[spec.name] = applications_from(spec)

    def known(self):
        return [a for applications in self.by_name.values() for a in applications]

    def attempts(self, keys):
        return [a for a in self.known() if a.key in keys]

    def log_tail(self, name, max_bytes):
        return self.logs.get(name, b"")[-max_bytes:]

    def collect(self, name):
        if self._keeps:
            self._change(name, is_collected=True)
        else:
            del self.by_name[name]

    def tidy(self):
        pass

    def close(self, grace_s):
        self.closed_within_s = grace_s


def launcher(fleet: Fleet, platform, **explicit):
    """A launcher of Spark applications; tests of resident workers give `workers`."""
    return fleet.service(LauncherService, LauncherSettings, "launcher", platform, **{"workers": {"count": 0}, **explicit})


def planned(fleet, name="trips"):
    table = fleet.create(name)
    for n in range(2):
        write(table, 10 * n)
    return table, schedule_clustering(table)


def name_of(table, instant, attempt):
    return application_name(table.definition.name, table.base_path, instant, attempt)


def jobs(fleet):
    return [(e.state, e.application_id.rpartition("-")[2], e.reason) for e in fleet.events(JOBS.name)]


def test_launches_one_application_per_plan_and_sees_it_succeed(fleet):
    table, instant = planned(fleet)
    platform = HeldPlatform()
    service, context = launcher(fleet, platform, options={"tideline.clustering.yields": "5"})
    assert service.tick() is not None
    service.tick()
    (application,) = platform.specs
    assert application.name == name_of(table, instant, 1)
    (plan,) = application.plans
    assert (plan.service, plan.base_path, plan.key.instant) == ("clustering", table.storage.root, instant)
    assert plan.options == {"tideline.clustering.yields": "5"}
    assert context.metrics.value(RUNNING) == 1
    run_clustering(table, instant)
    platform.end(EndKind.SUCCEEDED)
    service.tick()
    fleet.clock.advance(5)
    assert service.tick() is None, "nothing to wait for"
    assert len(platform.specs) == 1
    assert jobs(fleet) == [("submitted", "1", None), ("running", "1", None), ("succeeded", "1", "succeeded")]
    (event, *_) = fleet.events(JOBS.name)
    assert (event.table_uid, event.plan_instant, event.runner) == (table.uid, instant, "held")
    (hint,) = fleet.events(HINTS.name)
    assert (hint.table_uid, hint.base_path, hint.reason) == (table.uid, table.storage.root, "clustering succeeded")
    assert context.metrics.value(APPLICATIONS, outcome="succeeded") == 1
    assert context.metrics.value(RUNNING) == 0


def test_applications_take_the_locks_of_the_services(fleet):
    planned(fleet)
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, locks="storage:")
    service.tick()
    service.tick()
    assert platform.last.locks == "storage:"


def test_an_application_that_yielded_is_no_failure_and_not_launched_again(fleet):
    table, instant = planned(fleet)
    platform = HeldPlatform()
    service, context = launcher(fleet, platform, max_attempts=1)
    service.tick()
    roll_back(table.timeline, instant, force=True)
    platform.end(EndKind.YIELDED)
    service.tick()
    assert len(platform.specs) == 1
    assert context.metrics.value(APPLICATIONS, outcome="yielded") == 1
    table.refresh()
    # The next plan of the same table starts with a clean record.
    schedule_clustering(table)
    service.tick()
    assert platform.last.name.endswith("-1")
    assert len(platform.specs) == 2


def test_failures_are_retried_then_given_up_and_rolled_back(fleet):
    table, instant = planned(fleet)
    platform = HeldPlatform()
    service, context = launcher(fleet, platform, max_attempts=3)
    for attempt in (1, 2, 3):
        service.tick()
        assert platform.last.name == name_of(table, instant, attempt)
        platform.end(EndKind.FAILED, "exit code 1")
    service.tick()
    assert len(platform.specs) == 3
    assert table.refresh().actions[instant].state is State.ROLLED_BACK
    assert jobs(fleet) == [
        ("submitted", "1", None),
        ("running", "1", None),
        ("failed", "1", "exit code 1"),
        ("retried", "2", None),
        ("running", "2", None),
        ("failed", "2", "exit code 1"),
        ("retried", "3", None),
        ("running", "3", None),
        ("failed", "3", "exit code 1"),
        ("given_up", "3", "3 attempts failed, the last one: exit code 1"),
    ]
    assert context.metrics.value(APPLICATIONS, outcome="failed") == 3
    assert context.metrics.value(APPLICATIONS, outcome="given_up") == 1
    service.tick()
    assert len(platform.specs) == 3


def test_a_compaction_is_launched_and_never_rolled_back(fleet):
    table = fleet.create(type=TableType.MOR)
    write(table, 0)
    update(table, 0)
    instant = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": "1"})
    platform = HeldPlatform()
    service, context = launcher(fleet, platform, max_attempts=2)
    error = {"error": "CorruptMetadata", "found": "a log file of no block", "recovery": "retry", "exit_code": 1}
    for _ in range(2):
        service.tick()
        assert platform.plan.service == "compaction"
        assert platform.plan.key.instant == instant
        platform.logs[platform.last.name] = f"{json.dumps(error)}\nafter it\n".encode()
        platform.end(EndKind.FAILED, "exit code 1")
    for _ in range(3):
        service.tick()
    assert len(platform.specs) == 2
    assert table.refresh().actions[instant].state is State.REQUESTED, "writers append to its slices"
    why = (
        f"2 attempts failed, the last one: CorruptMetadata: a log file of no block; its log: tideline job logs {platform.last.name}"
    )
    assert jobs(fleet)[-1] == ("given_up", "2", f"{why} --tables PATH")
    (found,) = (f.text for f in findings_of(table) if f.kind == "given_up")
    assert why in found
    assert context.metrics.value(APPLICATIONS, outcome="given_up") == 1
    fleet.stop(service)
    again = HeldPlatform()
    service, _ = launcher(fleet, again)
    service.tick()
    run_compaction(table, instant)
    again.end(EndKind.SUCCEEDED)
    service.tick()
    service.tick()
    assert len(again.specs) == 1


def test_an_application_that_ran_too_long_counts_as_failed(fleet):
    table, instant = planned(fleet)
    platform = HeldPlatform()
    service, context = launcher(fleet, platform, application_timeout_s=50)
    service.tick()
    assert platform.last.timeout_s == 50
    platform.end(EndKind.TIMED_OUT, "stopped after 51 s")
    service.tick()
    assert platform.last.name == name_of(table, instant, 2)
    assert ("failed", "1", "timed_out: stopped after 51 s") in jobs(fleet)
    assert context.metrics.value(APPLICATIONS, outcome="timed_out") == 1


def test_attempts_that_the_platform_ends_do_not_count_and_come_again_at_once(fleet):
    table, instant = planned(fleet)
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, max_attempts=1)
    for attempt in range(1, LOSSES_AT_ONCE + 2):
        service.tick()
        assert platform.last.name == name_of(table, instant, attempt)
        platform.end(EndKind.LOST, "Evicted")
    service.tick()
    assert len(platform.specs) == LOSSES_AT_ONCE + 1, "after several losses in a row the next attempt waits"
    fleet.clock.advance(61)
    service.tick()
    assert len(platform.specs) == LOSSES_AT_ONCE + 2
    assert table.refresh().actions[instant].state is State.REQUESTED


def test_an_application_without_enough_memory_gets_more_until_the_cap(fleet):
    _, _ = planned(fleet)
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, max_attempts=1, resources={"max_driver_memory_bytes": 2 * GIB})
    memory = []
    for _ in range(2):
        service.tick()
        memory.append(platform.last.resources.driver_memory_bytes)
        platform.end(EndKind.OUT_OF_MEMORY, "OOMKilled")
    assert memory == sorted(set(memory))
    assert memory[-1] == 2 * GIB
    service.tick()
    assert len(platform.specs) == 2, "at the cap another failure counts, and one attempt is allowed"
    assert jobs(fleet)[-1] == ("given_up", "2", "1 attempts failed, the last one: out_of_memory: OOMKilled")


def test_an_error_that_no_retry_cures_is_given_up_at_once(fleet):
    table, instant = planned(fleet)
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform)
    service.tick()
    platform.end(EndKind.FAILED, "exit code 1", Recovery.STOP)
    service.tick()
    assert len(platform.specs) == 1
    assert jobs(fleet)[-1] == ("given_up", "1", "its error is permanent: exit code 1")
    assert table.refresh().actions[instant].state is State.ROLLED_BACK


def test_a_refused_launch_is_shown_and_tried_again_later_and_later(fleet):
    planned(fleet)
    platform = HeldPlatform()
    service, context = launcher(fleet, platform)
    platform.refuses = LaunchRefused("pods is forbidden", remedy="grant it")
    pauses = []
    for _ in range(4):
        pauses.append(service.tick())
        fleet.clock.advance(5.01)
    assert platform.specs == []
    assert pauses == [pytest.approx(s, abs=0.5) for s in (5, 5, 5, 5)], "no longer than the poll interval"
    history = next(iter(service._histories.values()))
    assert 2 <= history.disturbances <= 3, "pauses of 5 and 10 s: fewer launches than ticks"
    assert context.metrics.value(OBSTACLES, obstacle="refused") == 1
    assert "refused: pods is forbidden; grant it" in context.health.ready().reasons[-1]
    platform.refuses = None
    fleet.clock.advance(61)
    service.tick()
    service.tick()
    assert len(platform.specs) == 1
    assert context.metrics.value(OBSTACLES, obstacle="refused") == 0
    assert not [r for r in context.health.ready().reasons if r.startswith("applications")]


@pytest.mark.parametrize(("obstacle", "is_ready"), [(Obstacle.IMAGE, False), (Obstacle.UNSCHEDULABLE, True)])
def test_an_application_that_does_not_start_is_shown(fleet, obstacle, is_ready):
    planned(fleet)
    platform = HeldPlatform()
    service, context = launcher(fleet, platform)
    service.tick()
    platform.condition(Condition(obstacle, "why"))
    service.tick()
    assert context.metrics.value(OBSTACLES, obstacle=obstacle.value) == 1
    assert (f"applications: {obstacle}: why" not in context.health.ready().reasons) == is_ready


def test_the_log_of_a_failed_application_is_kept_with_its_table(fleet):
    table, _ = planned(fleet)
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, job_log_bytes=1024, job_logs_kept=1)
    names = []
    for text in (b"x" * 2000 + b"first", b"second"):
        service.tick()
        names.append(platform.last.name)
        platform.logs[names[-1]] = text
        platform.end(EndKind.FAILED, "exit code 1")
    service.tick()
    assert read_job_log(table.storage, names[1]) == b"second"
    assert read_job_log(table.storage, names[0]) is None, "one log per table is kept"


def test_a_new_launcher_adopts_what_runs_and_counts_earlier_attempts(fleet):
    table, instant = planned(fleet)
    platform = HeldPlatform(keeps=True)
    service, _ = launcher(fleet, platform, max_attempts=3)
    service.tick()
    platform.end(EndKind.FAILED, "exit code 1")
    service.tick()
    assert platform.last.name == name_of(table, instant, 2)
    fleet.stop(service)
    service, context = launcher(fleet, platform, max_attempts=3)
    service.tick()
    assert len(platform.specs) == 2
    assert context.metrics.value(RUNNING) == 1
    assert context.metrics.value(EXECUTORS) == 0
    platform.end(EndKind.FAILED, "exit code 1")
    service.tick()
    assert platform.last.name == name_of(table, instant, 3)
    platform.end(EndKind.FAILED, "exit code 1")
    service.tick()
    assert len(platform.specs) == 3
    assert table.refresh().actions[instant].state is State.ROLLED_BACK


def test_two_launchers_run_one_application_of_a_plan(fleet):
    planned(fleet)
    platform = HeldPlatform(keeps=True)
    one, _ = launcher(fleet, platform)
    other, _ = launcher(fleet, platform)

    def tick(*launchers):
        for service in launchers:
            # The event log takes events of the later launcher only.
            with suppress(PublisherFenced):
                service.tick()

    for _ in range(3):
        tick(one, other)
    assert len(platform.specs) == 1
    platform.end(EndKind.LOST, "Evicted")
    for _ in range(3):
        tick(other, one)
    assert [s.plans[0].attempt for s in platform.specs] == [1, 2]


def test_an_application_of_an_unknown_table_is_left_to_its_launcher(fleet):
    platform = HeldPlatform()
    platform.by_name["x"] = (replace(running("1", "elsewhere"), end=End(EndKind.LOST, "", EPOCH)),)
    service, context = launcher(fleet, platform)
    service.tick()
    assert "x" in platform.by_name
    assert context.metrics.value(RUNNING) == 0


def test_a_platform_that_does_not_answer_delays_the_tick(fleet, monkeypatch):
    planned(fleet)
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform)

    def refuse():
        raise DependencyDown("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(platform, "known", refuse)
        with pytest.raises(DependencyDown):
            service.tick()
    service.tick()
    assert len(platform.specs) == 1


def test_no_more_than_allowed_run_at_once_oldest_plan_first(fleet):
    _, first = planned(fleet, "b")
    table, second = planned(fleet, "a")
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, max_applications=1, sharing=NOT_SHARED)
    service.tick()
    service.tick()
    assert [a.plans[0].key.instant for a in platform.specs] == [first]
    run_clustering(fleet.open("b"), first)
    platform.end(EndKind.SUCCEEDED)
    service.tick()
    assert [a.plans[0].key.instant for a in platform.specs] == [first, second]
    assert platform.plan.base_path == table.storage.root


def test_a_restarted_launcher_adopts_a_plan_when_its_heartbeat_is_gone_not_before(fleet):
    table, instant = planned(fleet)
    table.timeline.append(lambda _: Draft(instant, Action.REPLACE_COMMIT, State.REQUESTED, State.INFLIGHT, "CLUSTER", Bare()))
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform)
    service.tick()
    assert platform.specs == []
    fleet.clock.advance(HEARTBEAT_GONE_S)
    service.tick()
    assert [a.name for a in platform.specs] == [name_of(table, instant, 1)]


def test_stop_ends_every_application_and_leaves_the_plans(fleet):
    (first, one), (second, two) = planned(fleet, "a"), planned(fleet, "b")
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, max_applications=2, sharing=NOT_SHARED)
    service.tick()
    fleet.stop(service)
    assert len(platform.specs) == 2
    assert platform.closed_within_s is not None
    assert [t.refresh().actions[i].state for t, i in ((first, one), (second, two))] == [State.REQUESTED] * 2
    again = HeldPlatform()
    service, _ = launcher(fleet, again, max_applications=2, sharing=NOT_SHARED)
    service.tick()
    assert [a.name for a in again.specs] == [a.name for a in platform.specs]


def test_an_event_log_that_is_down_delays_job_events_but_no_application(fleet, monkeypatch):
    planned(fleet)
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform)

    def refuse(*_):
        raise EventLogUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(service._events._publisher, "publish", refuse)
        for _ in range(2):
            with pytest.raises(EventLogUnavailable):
                service.tick()
        assert len(platform.specs) == 1
    service.tick()
    assert jobs(fleet) == [("submitted", "1", None), ("running", "1", None)]


def test_launches_nothing_more_once_it_is_asked_to_stop(fleet):
    planned(fleet)
    platform = HeldPlatform()
    service, context = launcher(fleet, platform)
    context.request_stop()
    service.tick()
    assert platform.specs == []


def test_arguments_are_read_back_as_they_were_given(tmp_path):
    options = {"a.first": "1", "b.empty": "", "c.equals": "x=y", "d.spaces and -dashes": "--options -5, z"}
    given = Invocation(TableService.COMPACTION, "-odd path", "20260101000000000", options, 3, tmp_path / "-result")
    assert parse(given.arguments()) == given


def test_every_setting_reaches_the_application(fleet, tmp_path):
    """A real process: the plan is completed, so it ends before it needs Spark, unless a setting is wrong.

    Each one takes its turn at being so.
    """
    table, instant = planned(fleet)
    run_clustering(table, instant)
    right = {"tideline.clustering.yields": "5", "hoodie.parquet.compression.codec": "zstd", "tideline.lock.unreachable": "fail"}
    platform = LocalProcesses(tmp_path, 1, fleet.clock)

    def ended(name, options):
        key = PlanKey(instant, table.uid)
        request = PlanRequest(name, key, 1, TableService.CLUSTERING, table.base_path, options)
        platform.launch(ApplicationSpec(name, (request,), Resources(), 120))
        deadline_s = time.monotonic() + 120
        while (application := next(a for a in platform.known() if a.name == name)).end is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        return application.end, platform.log_tail(name, 100_000).decode()

    end, log = ended("right", right)
    assert (end.kind, "completed before" in log) == (EndKind.SUCCEEDED, True), log
    for n, key in enumerate(right):
        end, log = ended(f"wrong-{n}", {**right, key: "no-such-value"})
        assert (end.kind, end.reason, end.recovery) == (EndKind.FAILED, "exit code 1", Recovery.STOP), log
        assert key in log
        assert "no-such-value" in log


def test_a_log_compaction_is_launched_and_rolled_back_when_it_is_given_up(fleet):
    table = fleet.create(type=TableType.MOR)
    write(table, 0)
    for _ in range(2):
        update(table, 0)
    instant = schedule_log_compaction(table, {"hoodie.log.compaction.blocks.threshold": 2})
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, max_attempts=1)
    service.tick()
    assert (platform.plan.service, platform.plan.key.instant) == (TableService.LOG_COMPACTION, instant)
    platform.end(EndKind.FAILED, "broken")
    service.tick()
    assert table.refresh().actions[instant].state is State.ROLLED_BACK
    assert not is_given_up_plan(table.storage, instant), "nobody has to retry or cancel it"
    assert [state for state, *_ in jobs(fleet)][-1] == "given_up"
