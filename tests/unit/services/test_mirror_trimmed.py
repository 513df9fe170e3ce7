"""A mirror that was away for longer than the table log keeps entries: it says what is gone and goes on with what is there."""

from tests.unit.services.fleet import Fleet, write

from tideline_events import TIMELINE
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_table.log.checkpoint import write_checkpoint
from tideline_table.log.entry import entry_path
from tideline_table.log.retention import trim


def mirror(fleet: Fleet):
    return fleet.service(MirrorService, MirrorSettings, "mirror")[0]


def trimmed(table, floor):
    write_checkpoint(table.storage, table.state)
    trim(table.storage, floor)


def published(fleet, table):
    return [e.sequence for e in fleet.events(TIMELINE.name) if e.table_uid == table.uid]


def test_a_new_mirror_starts_where_the_log_begins(fleet):
    table = fleet.create()
    for n in range(4):
        write(table, 10 * n)
    trimmed(table, 5)
    mirror(fleet).tick()
    assert published(fleet, table) == [6, 7, 8]
    assert fleet.event_log.cursor(table.uid).sequence == 8


def test_a_running_mirror_jumps_over_the_hole(fleet):
    table = fleet.create()
    write(table, 0)
    service = mirror(fleet)
    service.tick()
    assert published(fleet, table) == [1, 2]
    for n in range(1, 4):
        write(table, 10 * n)
    trimmed(table, 5)
    fleet.clock.advance(8 * 24 * 3600)  # the event log forgets, too
    assert service.tick() == 0.0
    service.tick()
    assert published(fleet, table) == [6, 7, 8]
    write(table, 90)
    service.tick()
    assert published(fleet, table) == [6, 7, 8, 9, 10]


def test_a_restarted_mirror_publishes_no_void_entry(fleet):
    """Another process that slept left an entry at a freed place."""
    table = fleet.create()
    for n in range(4):
        write(table, 10 * n)
    content = table.storage.read(entry_path(1))
    trimmed(table, 5)
    table.storage.put(entry_path(1), content)
    mirror(fleet).tick()
    assert published(fleet, table) == [6, 7, 8]


def test_a_running_mirror_publishes_no_void_entry(fleet):
    """It was away while the log was trimmed past its cursor, and another process that slept for longer left an entry there."""
    table = fleet.create()
    write(table, 0)
    service = mirror(fleet)
    service.tick()
    for n in range(1, 4):
        write(table, 10 * n)
    content = table.storage.read(entry_path(3))
    trimmed(table, 5)
    table.storage.put(entry_path(3), content)
    assert service.tick() == 0.0
    service.tick()
    assert published(fleet, table) == [1, 2, 6, 7, 8]


def test_a_lost_entry_is_trouble_not_the_end_of_the_log(fleet):
    table = fleet.create()
    write(table, 0)
    service = mirror(fleet)
    service.tick()
    write(table, 10)
    table.storage.delete(entry_path(3))
    for _ in range(2):
        assert service.tick() is None
    assert published(fleet, table) == [1, 2]
