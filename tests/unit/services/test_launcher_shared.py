"""The launcher with plans that share applications: each plan has its own outcome, attempts, log and events."""

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.plans import schedule_clustering
from tests.unit.services.fleet import hint, write
from tests.unit.services.test_launcher import EPOCH, HeldPlatform, jobs, launcher, name_of, planned

from tideline_events import JOBS
from tideline_events.errors import PublisherFenced
from tideline_launcher.application import End, EndKind, LaunchRefused, PlanKey
from tideline_launcher.log_files import read_job_log
from tideline_launcher.metrics import APPLICATIONS, PLANS, RUNNING
from tideline_launcher.names import is_shared_name
from tideline_spark.invocation import ExitCode
from tideline_spark.outcomes import PLAN_BEGINS, PLAN_ENDED, PLANS_BEGIN, Outcomes, PlanOutcome
from tideline_table.action import run_clustering
from tideline_table.errors import Recovery
from tideline_table.hudi.instant import State

DONE, FAILED = PlanOutcome(ExitCode.SUCCEEDED), PlanOutcome(ExitCode.FAILED, Recovery.RETRY)


def plans_of(fleet, *names):
    """A pending plan of each table, in the order in which they share an application."""
    found = [planned(fleet, name) for name in names]
    return sorted(found, key=lambda plan: plan[1])


def begun(count, *outcomes):
    """The report of an application that began `count` plans, the first of which ended so."""
    return Outcomes(frozenset(range(count)), dict(enumerate(outcomes)))


def made(platform):
    """The attempts of each application, by their plans' instants."""
    return [[(p.key.instant, p.attempt) for p in spec.plans] for spec in platform.specs]


def keys(plans):
    return [PlanKey(instant, table.uid) for table, instant in plans]


def states(fleet):
    """The states of each attempt in the job events."""
    found = {}
    for event in fleet.events(JOBS.name):
        found.setdefault(event.application_id, []).append(event.state)
    return found


def test_small_plans_of_several_tables_and_of_one_run_in_one_application(fleet):
    plans = plans_of(fleet, "a", "b", "c")
    table = plans[0][0]
    for n in range(2):
        write(table, 100 + n, city="rome")
    plans.append((table, schedule_clustering(table)))
    platform = HeldPlatform()
    service, context = launcher(fleet, platform, options={"tideline.clustering.yields": "5"}, application_timeout_s=60)
    service.tick()
    service.tick()
    (spec,) = platform.specs
    assert is_shared_name(spec.name)
    assert [p.key for p in spec.plans] == keys(plans)
    assert [(p.name, p.base_path) for p in spec.plans] == [(name_of(t, i, 1), t.storage.root) for t, i in plans]
    assert all(p.options == {"tideline.clustering.yields": "5"} for p in spec.plans)
    assert (spec.timeout_s, spec.resources.executors) == (60, 0)
    assert (context.metrics.value(RUNNING), context.metrics.value(PLANS)) == (1, 4)
    assert {e.reason for e in fleet.events(JOBS.name)} == {f"in application {spec.name}"}
    for table, instant in plans:
        run_clustering(table, instant)
    platform.end(EndKind.SUCCEEDED, outcomes=begun(4, *[DONE] * 4))
    service.tick()
    assert states(fleet) == {name_of(t, i, 1): ["submitted", "running", "succeeded"] for t, i in plans}
    assert context.metrics.value(APPLICATIONS, outcome="succeeded") == 4
    assert platform.known() == []


def test_the_settings_say_how_many_share(fleet):
    plans = plans_of(fleet, "a", "b", "c")
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, max_applications=9, sharing={"max_plans": 2})
    service.tick()
    assert [[p.key for p in s.plans] for s in platform.specs] == [keys(plans[:2]), keys(plans[2:])]
    assert platform.last.name == platform.plan.name, "an application of one plan has the name of its attempt"


def test_a_batch_waits_for_more_plans_no_longer_than_the_setting(fleet):
    planned(fleet, "a")
    table = fleet.create("b")
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, sharing={"max_wait_s": 3.0})
    assert service.tick() == pytest.approx(3, abs=0.5), "it wakes up by itself when the wait is over"
    assert platform.specs == []
    for n in range(2):
        write(table, 10 * n)
    schedule_clustering(table)
    hint(service, table)
    fleet.clock.advance(3)
    service.tick()
    assert [len(s.plans) for s in platform.specs] == [2]


def test_the_failure_of_one_plan_fails_no_other_and_is_tried_again_alone(fleet):
    good, bad, other = plans = plans_of(fleet, "a", "b", "c")
    platform = HeldPlatform()
    service, context = launcher(fleet, platform, max_attempts=2)
    service.tick()
    for table, instant in (good, other):
        run_clustering(table, instant)
    platform.end(EndKind.FAILED, "exit code 1", outcomes=begun(3, DONE, FAILED, DONE))
    service.tick()
    assert made(platform) == [[(i, 1) for _, i in plans], [(bad[1], 2)]]
    assert platform.last.name == name_of(*bad, 2)
    platform.end(EndKind.FAILED, "exit code 1")
    service.tick()
    assert bad[0].refresh().actions[bad[1]].state is State.ROLLED_BACK
    assert states(fleet) == {
        name_of(*good, 1): ["submitted", "running", "succeeded"],
        name_of(*bad, 1): ["submitted", "running", "failed"],
        name_of(*bad, 2): ["retried", "running", "failed", "given_up"],
        name_of(*other, 1): ["submitted", "running", "succeeded"],
    }
    assert context.metrics.value(APPLICATIONS, outcome="succeeded") == 2


def test_a_plan_that_kills_its_driver_takes_its_neighbours_down_once_and_fails_by_itself(fleet):
    """The plan that ran gets more memory, then is given up. The others run again alone, and none of that counts against them."""
    plans = plans_of(fleet, "a", "b", "c", "d")
    done, poison, *neighbours = plans
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, max_attempts=1, max_applications=9)
    service.tick()
    run_clustering(*done)
    platform.end(EndKind.OUT_OF_MEMORY, "OOMKilled", outcomes=begun(2, DONE))
    service.tick()
    assert made(platform)[1:] == [[(i, 2)] for _, i in plans[1:]], "each alone, at once"
    memory = {s.plans[0].key.instant: s.resources.driver_memory_bytes for s in platform.specs[1:]}
    assert memory[poison[1]] > memory[neighbours[0][1]] == memory[neighbours[1][1]]
    poisoned = next(s.name for s in platform.specs if s.name == name_of(*poison, 2))
    for table, instant in neighbours:
        run_clustering(table, instant)
    for name, (application,) in [(n, a) for n, a in platform.by_name.items() if len(a) == 1]:
        kind = EndKind.FAILED if name == poisoned else EndKind.SUCCEEDED
        platform.by_name[name] = (replace(application, end=End(kind, "", EPOCH)),)
    service.tick()
    service.tick()
    assert len(platform.specs) == 4
    found = states(fleet)
    assert found[name_of(*poison, 2)][-1] == "given_up"
    for plan in neighbours:
        assert (found[name_of(*plan, 1)][-1], found[name_of(*plan, 2)][-1]) == ("failed", "succeeded")
    assert Counter(s for s in found[name_of(*done, 1)]) == Counter(submitted=1, running=1, succeeded=1)


def test_the_next_plan_of_a_table_whose_plan_killed_its_driver_runs_alone_until_one_succeeds(fleet):
    """Otherwise each plan that the planner makes again would kill the drivers of further neighbours."""
    (table, poison), neighbour = plans_of(fleet, "a", "b")
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, max_attempts=1, max_applications=9)
    service.tick()
    platform.end(EndKind.FAILED, "exit code 137 (SIGKILL)", outcomes=begun(1))
    service.tick()
    assert table.refresh().actions[poison].state is State.ROLLED_BACK
    assert made(platform)[1:] == [[(neighbour[1], 2)]]

    def next_plans():
        found = []
        for name in ("a", "c", "d"):
            opened = fleet.open(name)
            for n in range(2):
                write(opened, 100 * len(platform.specs) + 10 * n)
            found.append((opened, schedule_clustering(opened)))
        return found

    for name in ("c", "d"):
        fleet.create(name)
    fleet.clock.advance(61)
    first = next_plans()
    service.tick()
    assert [[p.key for p in s.plans] for s in platform.specs[2:]] == [keys(first[:1]), keys(first[1:])]
    for opened, instant in first:
        run_clustering(opened, instant)
    for name in [s.name for s in platform.specs[2:]]:
        platform.by_name[name] = tuple(replace(a, end=End(EndKind.SUCCEEDED, "", EPOCH)) for a in platform.by_name[name])
    service.tick()
    following = next_plans()
    for opened, _ in following:
        hint(service, opened)
    service.tick()
    assert [p.key for p in platform.last.plans] == keys(following)


def test_a_plan_that_the_table_has_completed_succeeded_whatever_its_driver_reported(fleet):
    """The node is gone, and with it the report: the tables tell which plans were completed."""
    done, undone = plans_of(fleet, "a", "b")
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform)
    service.tick()
    run_clustering(*done)
    platform.end(EndKind.LOST, "NodeLost")
    service.tick()
    found = {e.application_id: (e.state, e.reason) for e in fleet.events(JOBS.name) if e.state in ("succeeded", "failed")}
    assert found[name_of(*done, 1)] == (
        "succeeded",
        "succeeded: completed before: lost: the shared application ended before this plan ran (lost: NodeLost)",
    )
    assert found[name_of(*undone, 1)][0] == "failed"
    assert made(platform)[1:] == [[(undone[1], 2)]]


def test_an_application_that_does_not_start_is_tried_again_with_all_its_plans(fleet):
    plans = plans_of(fleet, "a", "b")
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, max_attempts=1)
    service.tick()
    platform.end(EndKind.NOT_STARTED, "ImagePullBackOff")
    service.tick()
    assert len(platform.specs) == 1, "after a pause"
    fleet.clock.advance(61)
    service.tick()
    assert made(platform) == [[(i, n) for _, i in plans] for n in (1, 2)]
    assert platform.specs[0].name != platform.specs[1].name


def test_a_refused_launch_delays_all_its_plans(fleet):
    plans_of(fleet, "a", "b")
    platform = HeldPlatform()
    platform.refuses = LaunchRefused("quota")
    service, _ = launcher(fleet, platform)
    service.tick()
    assert sorted(h.disturbances for h in service._histories.values()) == [1, 1]
    platform.refuses = None
    fleet.clock.advance(61)
    service.tick()
    assert [len(s.plans) for s in platform.specs] == [2]


def test_a_new_launcher_adopts_a_shared_application_and_counts_each_plan(fleet):
    plans = plans_of(fleet, "a", "b", "c")
    platform = HeldPlatform(keeps=True)
    service, _ = launcher(fleet, platform, max_attempts=2, max_applications=9)
    service.tick()
    fleet.stop(service)
    service, context = launcher(fleet, platform, max_attempts=2, max_applications=9)
    service.tick()
    assert len(platform.specs) == 1
    assert (context.metrics.value(RUNNING), context.metrics.value(PLANS)) == (1, 3)
    platform.end(EndKind.FAILED, "exit code 137 (SIGKILL)", outcomes=begun(1))
    service.tick()
    assert made(platform)[1:] == [[(i, 2)] for _, i in plans]
    # Also a launcher that did not see the death knows from what is left that they run alone, and how often each failed.
    fleet.stop(service)
    for name in [s.name for s in platform.specs[1:]]:
        platform.by_name.pop(name)
    service, _ = launcher(fleet, platform, max_attempts=2, max_applications=9)
    service.tick()
    assert made(platform)[4:] == [[(i, 2)] for _, i in plans]
    assert [service._histories[key].failures for key in keys(plans)] == [1, 0, 0]


def test_two_launchers_that_group_differently_run_no_plan_twice(fleet):
    """The second one sees two plans more: those that run are left to their application, whatever its name."""
    first = plans_of(fleet, "a", "b")
    platform = HeldPlatform(keeps=True)
    one, _ = launcher(fleet, platform, max_applications=9)
    one.tick()
    later = plans_of(fleet, "c", "d")
    other, _ = launcher(fleet, platform, max_applications=9)

    class Blind(HeldPlatform):
        """A watch that does not show the pods of the other launcher yet."""

        def known(self):
            return []

    blind = Blind(keeps=True)
    blind.specs, blind.by_name = platform.specs, platform.by_name
    blind.attempts = platform.attempts
    other._applications = blind
    with suppress(PublisherFenced):
        other.tick()
    assert [[p.key for p in s.plans] for s in platform.specs] == [keys(first), keys(later)]
    other._applications = platform
    for service in (one, other) * 2:
        with suppress(PublisherFenced):
            service.tick()
    assert len(platform.specs) == 2


def test_each_failed_plan_has_its_own_lines_of_the_log_in_its_table(fleet):
    plans = plans_of(fleet, "a", "b", "c")
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, job_log_bytes=1024, max_applications=9)
    service.tick()
    name = platform.last.name
    log = json.dumps({"event": PLANS_BEGIN}) + "\n"
    for table, instant in plans[:2]:
        fields = {"table": table.storage.root, "instant": instant}
        log += "\n".join((json.dumps({"event": PLAN_BEGINS, **fields}), "x" * 700, f"line of {instant}", "")) + "\n"
        if instant == plans[0][1]:
            log += json.dumps({"event": PLAN_ENDED, **fields}) + "\n"
    platform.logs[name] = log.encode()
    platform.end(EndKind.FAILED, "exit code 137 (SIGKILL)", outcomes=begun(2, FAILED))
    service.tick()
    for table, instant in plans:
        found = read_job_log(table.storage, name_of(table, instant, 1))
        assert len(found) <= 1024
        assert [i for _, i in plans if f"line of {i}".encode() in found] == ([instant] if instant != plans[2][1] else [])


def test_an_end_is_handled_once_and_kept_for_the_launcher_of_another_table(fleet):
    """The application also has a plan of a table that this launcher does not serve."""
    ((table, instant),) = plans_of(fleet, "a")
    platform = HeldPlatform(keeps=True)
    service, context = launcher(fleet, platform)
    service.tick()
    (mine,) = platform.known()
    other = replace(mine, name="elsewhere", key=PlanKey(instant, "elsewhere"))
    run_clustering(table, instant)
    ended = End(EndKind.SUCCEEDED, "", EPOCH)
    platform.by_name = {"shared-1": tuple(replace(a, shared="shared-1", end=ended) for a in (mine, other))}
    for _ in range(3):
        service.tick()
    assert context.metrics.value(APPLICATIONS, outcome="succeeded") == 1
    assert [state for state, *_ in jobs(fleet)] == ["submitted", "running", "succeeded"]
    assert not any(a.is_collected for a in platform.known())
