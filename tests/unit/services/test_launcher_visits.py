"""Which tables a tick of the launcher visits, and when it launches plans of those that events name."""

import pytest
from tests.plans import schedule_clustering
from tests.unit.services.fleet import hint, write
from tests.unit.services.test_launcher import NOT_SHARED, HeldPlatform, jobs, launcher
from tests.unit.services.test_planner_policies import put

from tideline_launcher.application import EndKind, LaunchRefused
from tideline_launcher.pending_plans import PendingPlans
from tideline_runtime.errors import DependencyDown
from tideline_runtime.policy.live import SETTLE_S
from tideline_table.action import run_clustering


def tables_of(fleet, *names):
    """Tables without a plan, each with two small files."""
    tables = [fleet.create(name) for name in names]
    for table in tables:
        for n in range(2):
            write(table, 10 * n)
    return tables


def started(fleet, platform, **more):
    """A launcher that has visited all tables once."""
    service, context = launcher(fleet, platform, **{"poll_interval_s": 60.0, "sharing": NOT_SHARED, **more})
    service.tick()
    return service, context


@pytest.fixture
def visits(monkeypatch):
    """Let acts happen when the table of a name was visited.

    Returns the names of the tables visited, with the applications launched by then.
    """
    seen, acts, of = [], {}, PendingPlans._of

    def watched(self, table):
        found, name = of(self, table), table.definition.name
        seen.append((name, len(visits.platform.specs)))
        acts.pop(name, lambda: None)()
        return found

    def visits(platform, **given):
        visits.platform = platform
        acts.update(given)
        return seen

    monkeypatch.setattr(PendingPlans, "_of", watched)
    visits.platform = HeldPlatform()
    yield visits
    assert not acts


def keys(platform):
    return [(plan.base_path.rsplit("/", 1)[-1], plan.attempt) for spec in platform.specs for plan in spec.plans]


def test_between_two_visits_of_all_tables_plans_of_hinted_ones_are_launched(fleet):
    one, two = tables_of(fleet, "one", "two")
    platform = HeldPlatform()
    service, _ = started(fleet, platform, max_applications=2)
    for table in (one, two):
        schedule_clustering(table)
    hint(service, two)
    service.tick()
    assert keys(platform) == [("two", 1)]
    fleet.clock.advance(61)
    service.tick()
    assert keys(platform) == [("two", 1), ("one", 1)]


def test_a_plan_of_a_table_hinted_during_a_visit_of_all_tables_is_launched_before_the_visit_goes_on(fleet, visits):
    *_, last = tables_of(fleet, "a", "b", "c", "d")
    platform = HeldPlatform()
    service, _ = started(fleet, platform)
    fleet.clock.advance(61)
    told = []
    seen = visits(
        platform,
        a=lambda: (schedule_clustering(last), hint(service, last)),
        c=lambda: told.extend(state for state, *_ in jobs(fleet)),
    )
    seen.clear()
    service.tick()
    assert seen == [("a", 0), ("d", 0), ("b", 0), ("c", 1), ("d", 1)]
    assert told == ["submitted", "running"], "its events do not wait for the visit either"
    assert keys(platform) == [("d", 1)], "not launched again after the visit"
    service.tick()
    run_clustering(last)
    platform.end(EndKind.SUCCEEDED)
    service.tick()
    assert [state for state, *_ in jobs(fleet)] == ["submitted", "running", "succeeded"]
    fleet.clock.advance(61)
    service.tick()
    assert keys(platform) == [("d", 1)]


def test_an_application_that_ended_during_the_visit_is_handled_after_it(fleet, visits):
    first, second, *_ = tables_of(fleet, "a", "b", "c", "d")
    platform = HeldPlatform()
    service, _ = started(fleet, platform, max_applications=1)
    schedule_clustering(first)
    hint(service, first)
    service.tick()
    assert keys(platform) == [("a", 1)]
    fleet.clock.advance(61)
    seen = visits(
        platform,
        b=lambda: (schedule_clustering(second), hint(service, second)),
        c=lambda: (platform.end(EndKind.FAILED, "exit code 1"), hint(service, first), hint(service, second)),
    )
    seen.clear()
    service.tick()
    assert [name for name, _ in seen] == ["a", "a", "b", "b", "c", "a", "b", "d"]
    # The plan of `b` gets the place that the visit has seen free. How the attempt at `a` ended counts before the next one.
    assert keys(platform) == [("a", 1), ("b", 1)]
    run_clustering(second)
    platform.end(EndKind.SUCCEEDED)
    service.tick()
    service.tick()
    assert keys(platform) == [("a", 1), ("b", 1), ("a", 2)]


def test_no_more_applications_than_allowed_run_during_a_visit(fleet, visits):
    tables = tables_of(fleet, "a", "b", "c", "d")
    platform = HeldPlatform()
    service, _ = started(fleet, platform, max_applications=2)
    fleet.clock.advance(61)

    def plan(*positions):
        for at in positions:
            schedule_clustering(tables[at])
            hint(service, tables[at])

    visits(platform, a=lambda: plan(0), b=lambda: plan(2, 3))
    service.tick()
    assert keys(platform) == [("a", 1), ("c", 1)], "in the order of their plans"
    service.tick()
    assert len(platform.specs) == 2


@pytest.mark.parametrize("error", [LaunchRefused("the quota is used up"), DependencyDown("no answer")])
def test_a_launch_that_fails_does_not_end_the_visit(fleet, visits, error):
    tables = tables_of(fleet, "a", "b", "c")
    platform = HeldPlatform()
    service, _ = started(fleet, platform)
    fleet.clock.advance(61)
    platform.refuses = error
    seen = visits(platform, a=lambda: (schedule_clustering(tables[2]), hint(service, tables[2])))
    seen.clear()
    wait_s = service.tick()
    assert [name for name, _ in seen] == ["a", "c", "b", "c"]
    assert platform.specs == []
    assert wait_s is not None
    assert wait_s <= 60
    platform.refuses = None
    fleet.clock.advance(10)
    service.tick()
    assert keys(platform) == [("c", 1)]


@pytest.mark.parametrize("has_application", [False, True])
def test_a_table_that_fails_from_the_start_holds_up_no_launch_of_another_one(fleet, visits, monkeypatch, has_application):
    """Its application of an earlier launcher counts all the same."""
    tables = tables_of(fleet, "a", "b", "c")
    platform = HeldPlatform()
    if has_application:
        schedule_clustering(tables[1])
        fleet.stop(started(fleet, platform)[0])
        assert keys(platform) == [("b", 1)]
    before, of = len(platform.specs), PendingPlans._of

    def fails(self, table):
        if table.definition.name == "b":
            raise DependencyDown("its storage answers no more")
        return of(self, table)

    monkeypatch.setattr(PendingPlans, "_of", fails)
    seen = visits(platform)
    service, _ = launcher(fleet, platform, poll_interval_s=60.0, sharing=NOT_SHARED, max_applications=1)
    with pytest.raises(DependencyDown):
        service.tick()
    visits(platform, a=lambda: [(schedule_clustering(table), hint(service, table)) for table in tables[1:]])
    seen.clear()
    with pytest.raises(DependencyDown):
        service.tick()
    assert seen == [("a", before), ("c", before), ("c", 1)], "launched before the visit went on, if there is room"
    assert keys(platform) == [("b" if has_application else "c", 1)]


def test_while_new_policies_come_into_force_hinted_tables_are_launched_after_the_visit(fleet, visits):
    """As when shards were taken over: what is known of the tables is not that of one moment until all were visited."""
    tables = tables_of(fleet, "a", "b", "c")
    platform = HeldPlatform()
    service, _ = started(fleet, platform, policy_file=put(fleet, "rules: []"))
    put(fleet, "defaults: {priority: 60}")
    fleet.clock.advance(61)
    service.tick()  # notices the change, and lets the file settle
    fleet.clock.advance(61 + SETTLE_S)
    seen = visits(platform, a=lambda: (schedule_clustering(tables[2]), hint(service, tables[2])))
    seen.clear()
    service.tick()
    assert seen == [("a", 0), ("c", 0), ("b", 0), ("c", 0)]
    assert keys(platform) == [("c", 1)]


def test_a_batch_that_waits_for_more_plans_is_launched_during_the_visit_when_it_has_waited(fleet, visits):
    tables = tables_of(fleet, "a", "b", "c", "d")
    platform = HeldPlatform()
    service, _ = started(fleet, platform, sharing={"max_wait_s": 30.0})
    fleet.clock.advance(61)
    seen = visits(platform, a=lambda: (schedule_clustering(tables[0]), hint(service, tables[0])), c=lambda: fleet.clock.advance(31))
    seen.clear()
    service.tick()
    assert seen == [("a", 0), ("a", 0), ("b", 0), ("c", 0), ("d", 1)]
    assert keys(platform) == [("a", 1)]
