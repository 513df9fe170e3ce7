"""Which tables a tick of the planner visits, and when it publishes plans for those that events name."""

from tests.unit.services.fleet import hint
from tests.unit.services.test_planner_policies import LEAST, THRESHOLDS, clusterings, planner, put, small_files

from tideline_planner.planning import PlannerService
from tideline_runtime.policy.live import SETTLE_S
from tideline_table.action import run_clustering
from tideline_table.errors import StorageError
from tideline_table.table import Table


def tables_of(fleet, *names, files=0):
    tables = [fleet.create(name) for name in names]
    for table in tables:
        small_files(table, count=files)
    return tables


def started(fleet, policy="", **more):
    """A planner that has visited all tables once."""
    service, context = planner(fleet, put(fleet, f"defaults: {{{THRESHOLDS}}}\n{policy}"), poll_interval_s=60.0, **more)
    service.tick()
    return service, context


def test_between_two_visits_of_all_tables_only_hinted_ones_are_planned(fleet):
    one, two = tables_of(fleet, "one", "two")
    service, _ = started(fleet)
    for table in (one, two):
        small_files(table)
    hint(service, two)
    assert 0 < service.tick() <= 60
    assert (clusterings(one), clusterings(two)) == (0, 1)
    fleet.clock.advance(61)
    hint(service, two)
    assert service.tick() is None
    assert (clusterings(one), clusterings(two)) == (1, 1)


def test_a_table_hinted_during_a_visit_of_all_tables_is_planned_before_the_visit_goes_on(fleet, monkeypatch):
    tables = tables_of(fleet, "a", "b", "c", "d")
    service, _ = started(fleet)
    last = tables[3]
    fleet.clock.advance(61)
    seen, examine = [], PlannerService._examine

    def watched(self, table, tick):
        examine(self, table, tick)
        seen.append((table.definition.name, clusterings(last)))
        if table.definition.name == "a":
            small_files(last)
            hint(service, last)

    monkeypatch.setattr(PlannerService, "_examine", watched)
    service.tick()
    assert seen == [("a", 0), ("d", 0), ("b", 0), ("c", 1), ("d", 1)]


def test_a_pause_that_begins_holds_a_hinted_table_back(fleet):
    (table,) = tables_of(fleet, "one")
    service, _ = started(fleet)
    small_files(table)
    put(fleet, f"defaults: {{{THRESHOLDS}, pause: {{reason: migration}}}}")
    hint(service, table)
    service.tick()  # notices the change, and lets the file settle
    assert clusterings(table) == 1, "the policies in force have no pause"
    run_clustering(table)
    small_files(table, 100)
    fleet.clock.advance(SETTLE_S + 1)
    hint(service, table)
    assert service.tick() == 0.0, "all tables are visited by the new policies at once"
    service.tick()
    assert clusterings(table) == 0


def test_the_budget_of_the_fleet_counts_tables_that_are_not_hinted(fleet):
    one, two = tables_of(fleet, "one", "two", files=3)
    size = sum(s.total_bytes for s in one.refresh().latest_slices())
    file = put(
        fleet, f"fleet: {{bytes_per_day: {int(1.2 * size)}}}\ndefaults: {{{THRESHOLDS}, options: {{{LEAST}: 3}}, priority: 10}}"
    )
    service, _ = planner(fleet, file, poll_interval_s=60.0)
    service.tick()
    (planned,) = (table for table in (one, two) if clusterings(table))
    (waiting,) = {one, two} - {planned}
    run_clustering(planned)
    small_files(waiting, 100, count=1)
    hint(service, waiting)
    service.tick()
    assert clusterings(waiting) == 0


def test_a_hinted_table_that_fails_is_not_planned_and_all_are_visited_next(fleet, monkeypatch):
    one, two = tables_of(fleet, "one", "two")
    service, _ = started(fleet)
    small_files(one)
    hint(service, one)
    with monkeypatch.context() as outage:
        outage.setattr(Table, "refresh", lambda _: (_ for _ in ()).throw(StorageError("the store is away")))
        service.tick()
    assert clusterings(one) == 0
    small_files(two)
    hint(service, one)
    service.tick()
    assert clusterings(one) == 1
