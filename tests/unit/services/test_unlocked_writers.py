"""What services do on a shared table after a write of Apache Hudi that provably took no lock."""

from __future__ import annotations

import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.services.fleet import Fleet, update
from tests.unit.services.test_launcher import NOT_SHARED, HeldPlatform, launcher
from tests.unit.services.test_planner_policies import small_files

from tideline_locks import open_hudi_lock
from tideline_planner.metrics import FINDINGS
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_planner.watch import LOOK_AGAIN_S
from tideline_table.coordination import SharedTimeline
from tideline_table.table import HudiLockKind, Sharing, Table, TableType, resume_services, share_table

URGENT = {"hoodie.compact.inline.max.delta.commits": "1", "tideline.clustering.min.input.files": "2"}


def shared(fleet: Fleet, kind: TableType) -> Table:
    return share_table(fleet.create(type=kind), Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)


def write_of_hudi(table: Table, *, unlocked: bool) -> str:
    """An empty commit that Apache Hudi left on the timeline, adopted as one that took the lock or not."""
    timeline = table.timeline
    assert isinstance(timeline, SharedTimeline)
    instant = timeline.mint(table.refresh())
    action = table.write_action().value
    for suffix, content in ((f"{action}.requested", b""), (f"{action}.inflight", b""), (action, b"{}")):
        name = "inflight" if suffix == "commit.inflight" else suffix
        table.storage.put(f".hoodie/{instant}.{name}", content or b"")
    if unlocked:
        timeline.follower.unlocked.add(instant)
    assert timeline.heal(0.0)
    assert set(table.state.unlocked) == ({instant} if unlocked else set())
    return instant


@pytest.mark.parametrize("unlocked", [False, True])
def test_the_planner_withdraws_what_nobody_began_and_plans_nothing_until_services_are_resumed(fleet, unlocked):
    table = shared(fleet, TableType.COW)
    small_files(table)
    clustering = schedule_clustering(table)
    assert clustering is not None
    write_of_hudi(table, unlocked=unlocked)
    service, context = fleet.service(
        PlannerService, PlannerSettings, "planner", options={**URGENT, "tideline.clustering.quiet": "0"}
    )
    service.tick()
    assert table.refresh().is_pending(clustering) is not unlocked
    assert context.metrics.value(FINDINGS, kind="unlocked_writer") == unlocked
    small_files(table, 10)
    fleet.clock.advance(LOOK_AGAIN_S)
    service.tick()
    pending = [a.instant for a in table.refresh().pending()]
    assert pending == ([] if unlocked else [clustering])
    if unlocked:
        assert len(resume_services(table)) == 1
        small_files(table, 20)
        fleet.clock.advance(LOOK_AGAIN_S)
        service.tick()
        assert [a.is_clustering for a in table.refresh().pending()] == [True]
        assert context.metrics.value(FINDINGS, kind="unlocked_writer") == 0


@pytest.mark.parametrize("unlocked", [False, True])
def test_the_launcher_begins_no_plan_beside_a_writer_without_the_lock(fleet, unlocked):
    table = shared(fleet, TableType.MOR)
    small_files(table, count=1)
    update(table, 0)
    compaction = schedule_compaction(table, URGENT)
    assert compaction is not None
    write_of_hudi(table, unlocked=unlocked)
    platform = HeldPlatform()
    service, _ = launcher(fleet, platform, poll_interval_s=60.0, sharing=NOT_SHARED)
    service.tick()
    assert len(platform.specs) == (0 if unlocked else 1)
    assert table.refresh().is_pending(compaction)
    if unlocked:
        resume_services(table)
        fleet.clock.advance(61)
        service.tick()
        assert len(platform.specs) == 1
