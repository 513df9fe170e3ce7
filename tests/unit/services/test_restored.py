"""Savepoints and restores as the services see them: events say what happened, and a restore that died is finished."""

from __future__ import annotations

from tests.unit.services.fleet import HEARTBEAT_GONE_S, write

from tideline_cleaner.cleaning import CleanerService
from tideline_cleaner.settings import CleanerSettings
from tideline_events import TIMELINE
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_planner.planning import PlannerService
from tideline_planner.settings import PlannerSettings
from tideline_table.action import create_savepoint, delete_savepoint, restore_to_savepoint
from tideline_table.action.restore.steps import request_restore
from tideline_table.hudi.instant import Action, State


def test_the_mirror_tells_of_them(fleet):
    table = fleet.create()
    write(table, 0)
    at = create_savepoint(table).instant
    write(table, 10)
    second = create_savepoint(table).instant
    delete_savepoint(table, second)
    write(table, 20)
    done = restore_to_savepoint(table, at)
    service, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    service.tick()
    events = [e for e in fleet.events(TIMELINE.name) if e.table_uid == table.uid]
    assert [e.sequence for e in events] == list(range(1, table.state.sequence + 1))
    told = [(e.action, e.from_state, e.to_state, e.datachange, e.timeline_file) for e in events if e.action != "commit"]
    assert told == [
        ("savepoint", None, "completed", False, f".hoodie/{at}.savepoint"),
        ("savepoint", None, "completed", False, f".hoodie/{second}.savepoint"),
        ("savepoint", "completed", "rolledback", False, f".hoodie/{second}.savepoint"),
        ("restore", None, "requested", False, f".hoodie/{done.instant}.restore.requested"),
        ("restore", "requested", "inflight", False, f".hoodie/{done.instant}.restore.inflight"),
        ("restore", "inflight", "completed", True, f".hoodie/{done.instant}.restore"),
    ]
    assert (events[-2].undone_instant, events[-1].undone_instant, events[-1].files_deleted) == (second, second, done.files_deleted)


def test_the_cleaner_finishes_one_that_died_and_nobody_plans_beside_it(fleet):
    table = fleet.create()
    write(table, 0)
    at = create_savepoint(table).instant
    rows = table.read().num_rows
    write(table, 10)
    pending = request_restore(table.timeline, lambda state: state.savepoints[at])
    cleaner, _ = fleet.service(CleanerService, CleanerSettings, "cleaner")
    planner, _ = fleet.service(PlannerService, PlannerSettings, "planner", clustering_min_files=2, clustering_min_commits=1)
    for service in (cleaner, planner):
        service.tick()
    assert table.refresh().restoring == pending
    fleet.clock.advance(HEARTBEAT_GONE_S)
    cleaner.tick()
    state = table.refresh()
    assert (state.restoring, state.actions[pending].state) == ("", State.COMPLETED)
    assert table.read().num_rows == rows
    assert not [a for a in state.pending() if a.action is not Action.REPLACE_COMMIT]
