import pytest
from tests.unit.services.fleet import HEARTBEAT_GONE_S, Fleet, update, write

from tideline_events import HINTS, JOBS, EventLogUnavailable
from tideline_launcher.decision import (
    EXIT_SUPERSEDED,
    EXIT_YIELDED,
    Outcome,
    PendingPlan,
    PlanKey,
    application_name,
    decide,
    outcome_of,
)
from tideline_launcher.metrics import APPLICATIONS, RUNNING
from tideline_launcher.service import LauncherService
from tideline_launcher.settings import LauncherSettings
from tideline_table.table import TableType, run_clustering, run_compaction, schedule_clustering, schedule_compaction
from tideline_table.timeline.instant import Action, State
from tideline_table.timeline.log import Draft
from tideline_table.transaction import roll_back


def plan(instant, *, driven=False, table="t"):
    return PendingPlan(PlanKey(instant, table), f"/{table}", table, driven)


@pytest.mark.parametrize(
    ("plans", "running", "failures", "most", "launch", "give_up"),
    [
        ([], [], {}, 1, [], []),
        (["1"], [], {}, 1, ["1"], []),
        (["3", "1", "2"], [], {}, 2, ["1", "2"], []),
        (["1", "2"], ["1"], {}, 1, [], []),
        (["1", "2"], ["1"], {}, 2, ["2"], []),
        (["1", "2"], ["8", "9"], {}, 1, [], []),
        (["1!", "2"], [], {}, 1, ["2"], []),
        (["1"], [], {"1": 2}, 1, ["1"], []),
        (["1", "2"], [], {"1": 3}, 1, ["2"], ["1"]),
        (["1", "2"], ["2"], {"1": 4}, 1, [], ["1"]),
        (["1!"], [], {"1": 3}, 1, [], []),
        (["1"], ["1"], {"1": 3}, 1, [], []),
    ],
)
def test_decision(plans, running, failures, most, launch, give_up):
    """Plans by instant; a `!` marks one that somebody drives."""
    decision = decide(
        [plan(p.rstrip("!"), driven=p.endswith("!")) for p in plans],
        {PlanKey(i, "t") for i in running},
        {PlanKey(i, "t"): n for i, n in failures.items()},
        max_applications=most,
        max_attempts=3,
    )
    assert ([p.key.instant for p in decision.launch], [p.key.instant for p in decision.give_up]) == (launch, give_up)


def test_equal_instants_of_two_tables_are_two_plans():
    plans = [plan("1", table="b"), plan("1", table="a")]
    decision = decide(plans, {PlanKey("1", "a")}, {}, max_applications=2, max_attempts=3)
    assert [p.key.table_uid for p in decision.launch] == ["b"]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (0, Outcome.SUCCEEDED),
        (EXIT_YIELDED, Outcome.YIELDED),
        (EXIT_SUPERSEDED, Outcome.SUPERSEDED),
        (1, Outcome.FAILED),
        (137, Outcome.FAILED),
        (-9, Outcome.FAILED),
    ],
)
def test_outcome(code, outcome):
    assert outcome_of(code) is outcome


def test_names_are_fit_for_kubernetes_and_the_same_for_everyone():
    assert application_name("My_Trips.v2", "20260101000000000", 2) == "my-trips-v2-20260101000000000-2"


class HeldApplication:
    """Runs until the test sets its exit code."""

    def __init__(self, spec):
        self.spec = spec
        self.exit_code = None
        self.stopped_within_s = None

    def stop(self, grace_s):
        self.stopped_within_s = grace_s
        self.exit_code = -15


class HeldRunner:
    name = "held"

    def __init__(self):
        self.applications = []

    def launch(self, spec):
        self.applications.append(HeldApplication(spec))
        return self.applications[-1]

    @property
    def last(self):
        return self.applications[-1]


def launcher(fleet: Fleet, runner, **explicit):
    return fleet.service(LauncherService, LauncherSettings, "launcher", runner, **explicit)


def planned(fleet, name="trips"):
    table = fleet.create(name)
    for n in range(2):
        write(table, 10 * n)
    return table, schedule_clustering(table)


def jobs(fleet):
    return [(e.state, e.application_id.rpartition("-")[2], e.reason) for e in fleet.events(JOBS.name)]


def test_launches_one_application_per_plan_and_sees_it_succeed(fleet):
    table, instant = planned(fleet)
    runner = HeldRunner()
    service, context = launcher(fleet, runner, options={"tideline.clustering.yields": "5"})
    assert service.tick() is not None
    service.tick()
    (application,) = runner.applications
    assert application.spec.name == f"trips-{instant}-1"
    assert (application.spec.service, application.spec.base_path, application.spec.instant) == (
        "clustering",
        table.storage.root,
        instant,
    )
    assert application.spec.options == {"tideline.clustering.yields": "5"}
    assert context.metrics.value(RUNNING) == 1
    run_clustering(table, instant)
    application.exit_code = 0
    assert service.tick() is None
    assert len(runner.applications) == 1
    assert jobs(fleet) == [("submitted", "1", None), ("running", "1", None), ("succeeded", "1", "succeeded")]
    (event, *_) = fleet.events(JOBS.name)
    assert (event.table_uid, event.plan_instant, event.runner) == (table.uid, instant, "held")
    (hint,) = fleet.events(HINTS.name)
    assert (hint.table_uid, hint.base_path, hint.reason) == (table.uid, table.storage.root, "clustering succeeded")
    assert context.metrics.value(APPLICATIONS, outcome="succeeded") == 1
    assert context.metrics.value(RUNNING) == 0


def test_applications_take_the_locks_of_the_services(fleet):
    planned(fleet)
    runner = HeldRunner()
    service, _ = launcher(fleet, runner, locks="storage:")
    service.tick()
    service.tick()
    assert runner.last.spec.locks == "storage:"


def test_an_application_that_yielded_is_no_failure_and_not_launched_again(fleet):
    table, instant = planned(fleet)
    runner = HeldRunner()
    service, context = launcher(fleet, runner, max_attempts=1)
    service.tick()
    roll_back(table.timeline, instant, force=True)
    runner.last.exit_code = EXIT_YIELDED
    service.tick()
    assert len(runner.applications) == 1
    assert context.metrics.value(APPLICATIONS, outcome="yielded") == 1
    table.refresh()
    # The next plan of the same table starts with a clean record.
    schedule_clustering(table)
    service.tick()
    assert runner.last.spec.name.endswith("-1")
    assert len(runner.applications) == 2


def test_failures_are_retried_then_given_up_and_rolled_back(fleet):
    table, instant = planned(fleet)
    runner = HeldRunner()
    service, context = launcher(fleet, runner, max_attempts=3)
    for attempt in (1, 2, 3):
        service.tick()
        assert runner.last.spec.name == f"trips-{instant}-{attempt}"
        runner.last.exit_code = 1
    service.tick()
    assert len(runner.applications) == 3
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
        ("given_up", "3", "3 attempts failed"),
    ]
    assert context.metrics.value(APPLICATIONS, outcome="failed") == 3
    assert context.metrics.value(APPLICATIONS, outcome="given_up") == 1
    service.tick()
    assert len(runner.applications) == 3


def test_a_compaction_is_launched_and_never_rolled_back(fleet):
    table = fleet.create(type=TableType.MOR)
    write(table, 0)
    update(table, 0)
    instant = schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": "1"})
    runner = HeldRunner()
    service, context = launcher(fleet, runner, max_attempts=2)
    for _ in range(2):
        service.tick()
        assert runner.last.spec.service == "compaction"
        assert runner.last.spec.instant == instant
        runner.last.exit_code = 1
    for _ in range(3):
        service.tick()
    assert len(runner.applications) == 2
    assert table.refresh().actions[instant].state is State.REQUESTED, "writers append to its slices"
    assert jobs(fleet)[-1] == ("given_up", "2", "2 attempts failed")
    assert context.metrics.value(APPLICATIONS, outcome="given_up") == 1
    fleet.stop(service)
    again = HeldRunner()
    service, _ = launcher(fleet, again)
    service.tick()
    run_compaction(table, instant)
    again.last.exit_code = 0
    service.tick()
    service.tick()
    assert len(again.applications) == 1


def test_an_application_that_runs_too_long_is_stopped_and_counts_as_failed(fleet):
    planned(fleet)
    runner = HeldRunner()
    service, _ = launcher(fleet, runner, application_timeout_s=50)
    service.tick()
    fleet.clock.advance(49)
    service.tick()
    assert runner.last.stopped_within_s is None
    first = runner.last
    fleet.clock.advance(2)
    service.tick()
    assert first.stopped_within_s is not None
    assert runner.last.spec.name.endswith("-2")
    assert ("failed", "1", "stopped after 51 s") in jobs(fleet)


def test_no_more_than_allowed_run_at_once_oldest_plan_first(fleet):
    _, first = planned(fleet, "b")
    table, second = planned(fleet, "a")
    runner = HeldRunner()
    service, _ = launcher(fleet, runner, max_applications=1)
    service.tick()
    service.tick()
    assert [a.spec.instant for a in runner.applications] == [first]
    run_clustering(fleet.open("b"), first)
    runner.last.exit_code = 0
    service.tick()
    assert [a.spec.instant for a in runner.applications] == [first, second]
    assert runner.last.spec.base_path == table.storage.root


def test_a_restarted_launcher_adopts_a_plan_when_its_heartbeat_is_gone_not_before(fleet):
    table, instant = planned(fleet)
    table.timeline.append(lambda _: Draft(instant, Action.REPLACE_COMMIT, State.REQUESTED, State.INFLIGHT, "CLUSTER", {}))
    runner = HeldRunner()
    service, _ = launcher(fleet, runner)
    service.tick()
    assert runner.applications == []
    fleet.clock.advance(HEARTBEAT_GONE_S)
    service.tick()
    assert [a.spec.name for a in runner.applications] == [f"trips-{instant}-1"]


def test_stop_ends_every_application_and_leaves_the_plans(fleet):
    (first, one), (second, two) = planned(fleet, "a"), planned(fleet, "b")
    runner = HeldRunner()
    service, _ = launcher(fleet, runner, max_applications=2)
    service.tick()
    fleet.stop(service)
    assert len(runner.applications) == 2
    assert all(a.stopped_within_s for a in runner.applications)
    assert [t.refresh().actions[i].state for t, i in ((first, one), (second, two))] == [State.REQUESTED] * 2
    again = HeldRunner()
    service, _ = launcher(fleet, again, max_applications=2)
    service.tick()
    assert [a.spec.name for a in again.applications] == [a.spec.name for a in runner.applications]


def test_an_event_log_that_is_down_delays_job_events_but_no_application(fleet, monkeypatch):
    planned(fleet)
    runner = HeldRunner()
    service, _ = launcher(fleet, runner)

    def refuse(*_):
        raise EventLogUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(service._events._publisher, "publish", refuse)
        for _ in range(2):
            with pytest.raises(EventLogUnavailable):
                service.tick()
        assert len(runner.applications) == 1
    service.tick()
    assert jobs(fleet) == [("submitted", "1", None), ("running", "1", None)]


def test_launches_nothing_more_once_it_is_asked_to_stop(fleet):
    planned(fleet)
    runner = HeldRunner()
    service, context = launcher(fleet, runner)
    context.request_stop()
    service.tick()
    assert runner.applications == []
