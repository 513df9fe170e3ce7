"""The planner follows a write of Apache Hudi that a due compaction waits for: the gap behind it may last for a moment only."""

from datetime import timedelta

from tests.unit.services.fleet import update
from tests.unit.services.test_planner_policies import small_files
from tests.unit.services.test_unlocked_writers import shared, write_of_hudi

from tideline_planner.metrics import PLANS
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_runtime.planning.examination import next_look
from tideline_table.hudi import time_from_instant
from tideline_table.table import Table, TableType

EVERY_S = 60.0


def begun(table: Table) -> str:
    """A write that Apache Hudi began, and that the mirror adopted."""
    instant = table.timeline.mint(table.refresh())
    for suffix in ("requested", "inflight"):
        table.storage.put(f".hoodie/{instant}.deltacommit.{suffix}", b"")
    assert table.timeline.heal(0.0)
    return instant


def test_a_compaction_is_planned_right_behind_the_write_that_it_waits_for(fleet):
    table = shared(fleet, TableType.MOR)
    small_files(table, count=1)
    update(table, 0)
    options = {"hoodie.compact.inline.max.delta.commits": "1"}
    service, context = fleet.service(PlannerService, PlannerSettings, "planner", options=options, poll_interval_s=EVERY_S)
    written = begun(table)
    waited_s = [service.tick() or EVERY_S]
    for _ in range(3):
        fleet.clock.advance(waited_s[-1])
        waited_s.append(service.tick() or EVERY_S)
    assert max(waited_s) < 1, "a young write may end soon"
    assert table.refresh().pending_compactions() == []
    table.storage.put(f".hoodie/{written}.deltacommit", b"{}")
    fleet.clock.advance(waited_s[-1])
    service.tick()
    (plan,) = table.refresh().pending_compactions()
    assert plan.instant > written
    assert context.metrics.value(PLANS, service="compaction") == 1


def test_a_write_that_begins_before_the_plan_is_published_is_followed(fleet, monkeypatch):
    table = shared(fleet, TableType.MOR)
    small_files(table, count=1)
    update(table, 0)
    options = {"hoodie.compact.inline.max.delta.commits": "1"}
    service, _ = fleet.service(PlannerService, PlannerSettings, "planner", options=options, poll_interval_s=EVERY_S)
    publish = service._publish
    monkeypatch.setattr(service, "_publish", lambda *given: (begun(table), publish(*given))[1])
    assert (service.tick() or EVERY_S) < 1, "the gap is lost: the next one is behind this write"
    assert table.refresh().pending_compactions() == []


def test_nothing_is_followed_while_no_compaction_is_due(fleet):
    table = shared(fleet, TableType.MOR)
    small_files(table, count=1)
    update(table, 0)
    service, _ = fleet.service(PlannerService, PlannerSettings, "planner", poll_interval_s=EVERY_S)
    begun(table)
    assert (service.tick() or EVERY_S) > EVERY_S / 2


def test_nothing_is_followed_where_a_writer_does_not_take_the_lock(fleet):
    """Behind the end of the write the planner may plan as little as before it: the looks cost requests without end."""
    table = shared(fleet, TableType.MOR)
    small_files(table, count=1)
    update(table, 0)
    write_of_hudi(table, unlocked=True)
    options = {"hoodie.compact.inline.max.delta.commits": "1"}
    service, _ = fleet.service(PlannerService, PlannerSettings, "planner", options=options, poll_interval_s=EVERY_S)
    begun(table)
    assert (service.tick() or EVERY_S) > EVERY_S / 2


def test_looks_at_a_long_write_are_rare():
    now, ages_s = time_from_instant("20260101000000000"), (0, 1, 20, 3600, 86_400)
    waits = [(next_look("20260101000000000", now + timedelta(seconds=s)) - now).total_seconds() - s for s in ages_s]
    assert [round(wait, 3) for wait in waits] == [0.2, 0.2, 1.0, 5.0, 120.0]
