"""What services write beside the tables, on a full disk."""

import os

import pytest
from tests.full_disk.small_disk import PAGE_BYTES

from tideline_events.errors import EventLogUnavailable
from tideline_events.sqlite import SqliteEventLog
from tideline_launcher.application import ApplicationSpec, PlanKey, PlanRequest
from tideline_launcher.local_processes import LocalProcesses
from tideline_launcher.resources import Resources
from tideline_runtime.running import Running, announce, read_running
from tideline_table.action import TableService
from tideline_table.clock import SystemClock
from tideline_table.errors import StorageFull

RUNNING = Running("cleaner", 1, "127.0.0.1", 80, "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize("free_pages", [0, 1, 4])
def test_an_event_log_that_cannot_be_made(disk, free_pages):
    disk.fill(free_pages * PAGE_BYTES)
    with pytest.raises(EventLogUnavailable, match=r"full|No space left|disk I/O"):
        SqliteEventLog(disk.folder / "state/events.db", SystemClock()).ensure_topics()
    disk.free()
    SqliteEventLog(disk.folder / "state/events.db", SystemClock()).ensure_topics()


def test_the_file_of_a_running_service(disk):
    path = disk.folder / "cleaner.json"
    disk.fill()
    with pytest.raises(StorageFull, match=r"cleaner\.json"):
        announce(path, RUNNING)
    disk.free()
    assert [p.name for p in disk.folder.iterdir()] == []
    announce(path, RUNNING)
    assert read_running(path) == RUNNING


def test_an_application_whose_log_has_no_inode(disk):
    disk.fill_names()
    plan = PlanRequest("clustering-1", PlanKey("20260101000000000", "uid"), 1, TableService.CLUSTERING, "/nowhere", {})
    spec = ApplicationSpec(plan.name, (plan,), Resources(), 60)
    with pytest.raises(StorageFull, match="applications"):
        LocalProcesses(disk.folder / "state", 1, SystemClock()).launch(spec)
    assert not os.path.exists(disk.folder / "state")
