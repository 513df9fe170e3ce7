"""What a process that is killed right after its commit point leaves on an exclusive table, and who deletes it."""

from __future__ import annotations

import pytest
from tests.unit.table.tables import DEATH_S, compact, contents, new_table, open_table, write

from tideline_table.action import WriteTransaction, roll_back_dead
from tideline_table.clock import ManualClock
from tideline_table.coordination.heartbeat import heartbeat_path
from tideline_table.hudi import Action
from tideline_table.storage import Storage
from tideline_table.table import Table, TableType
from tideline_table.writer.marker import MARKER_FOLDER, MarkerType, create_marker


@pytest.fixture
def place() -> tuple[Table, Storage, ManualClock]:
    return new_table(type=TableType.MOR)


def left(storage: Storage) -> list[str]:
    return sorted(o.path for folder in (".hoodie/.heartbeat", MARKER_FOLDER) for o in storage.list_objects(folder))


def kill_after_commit(storage: Storage, instant: str, path: str) -> None:
    """Put back what the process deletes after the commit point."""
    storage.put(heartbeat_path(instant), b"")
    create_marker(storage, instant, path, MarkerType.CREATE)


def test_recovery_deletes_heartbeat_and_markers_of_a_completed_write(place: tuple[Table, Storage, ManualClock]) -> None:
    table, storage, clock = place
    done = write(table, [("a", "p", 1, "x")])
    kill_after_commit(storage, done.instant, done.stats[0].path)
    found = left(storage)
    assert len(found) == 2
    assert roll_back_dead(open_table(storage, clock)) == []
    assert left(storage) == found, "the process may still be alive"
    clock.advance(DEATH_S + 1)
    assert roll_back_dead(open_table(storage, clock)) == []
    assert left(storage) == []
    assert contents(open_table(storage, clock)) == [("a", "p", 1, "x")]


def test_markers_of_a_write_that_runs_stay(place: tuple[Table, Storage, ManualClock]) -> None:
    table, storage, clock = place
    write(table, [("a", "p", 1, "x")])
    running = WriteTransaction.begin(table.timeline, table.lock, "UPSERT", Action.DELTA_COMMIT)
    create_marker(storage, running.instant, "p/file.parquet", MarkerType.CREATE)
    clock.advance(DEATH_S + 1)
    storage.put(heartbeat_path(running.instant), b"")
    open_table(storage, clock).timeline.tidy_up()
    assert left(storage) == [heartbeat_path(running.instant), f"{MARKER_FOLDER}/{running.instant}/p/file.parquet.marker.CREATE"]
    running.roll_back()


def test_files_of_lost_attempts_of_a_compaction_are_deleted_with_its_markers(place: tuple[Table, Storage, ManualClock]) -> None:
    table, storage, clock = place
    write(table, [("a", "p", 1, "x")])
    write(table, [("a", "p", 2, "y")])
    done = compact(table)
    assert done is not None
    lost = "p/lost_0-0-0_" + done.instant + ".parquet"
    storage.put(lost, b"of a lost attempt")
    kill_after_commit(storage, done.instant, done.stats[0].path)
    create_marker(storage, done.instant, lost, MarkerType.CREATE)
    clock.advance(DEATH_S + 1)
    roll_back_dead(open_table(storage, clock))
    assert left(storage) == []
    assert lost not in [o.path for o in storage.list_objects("p")]
    assert contents(open_table(storage, clock)) == [("a", "p", 2, "y")]
