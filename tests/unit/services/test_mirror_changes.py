"""Changes of tables themselves, and heartbeats: each is published once, whenever the mirror dies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.simulation.faults import SAMPLE_STEP, SimulatedCrash
from tests.unit.services.fleet import write
from tests.unit.services.test_mirror import mirror, published
from tests.unit.services.test_mirror_crashes import Death, tick_of_a_new_mirror
from tests.unit.services.test_mirror_fleet import removed, wait
from tests.unit.table.shared import upgrade

from tideline_events import CATALOG, MIRRORS, TIMELINE
from tideline_locks import open_hudi_lock
from tideline_mirror.absent import DELETED_AFTER_S
from tideline_mirror.metrics import BACKLOG, NAMES
from tideline_mirror.mirroring import DEFINITION_EVERY_S, MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_table.action import adopt
from tideline_table.storage import LocalStorage
from tideline_table.table import HudiLockKind, Sharing, Table, share_table


def changes(fleet, uid=None):
    return [(e.kind, e.previous) for e in fleet.events(CATALOG.name) if uid is None or e.table_uid == uid]


def declare(fleet, name, key, value):
    """As another program does that renames or upgrades a table."""
    properties = Path(fleet.path(name)) / ".hoodie" / "hoodie.properties"
    lines = [line for line in properties.read_text().splitlines() if not line.startswith((f"{key}=", "hoodie.table.checksum="))]
    properties.write_text("\n".join([*lines, f"{key}={value}"]) + "\n")


def test_a_new_table_is_created_once_also_without_a_commit(fleet):
    table = fleet.create()
    for _ in range(2):
        service, _ = mirror(fleet)
        service.tick()
        service.tick()
        fleet.stop(service)
    assert changes(fleet) == [("created", None)]
    record = fleet.event_log.cursor(table.uid)
    assert (record.sequence, record.sharing, record.fleet, record.quiet_since) == (0, "exclusive", "", None)


def test_a_renamed_table_says_the_name_that_it_had(fleet):
    table = fleet.create()
    write(table, 0)
    service, context = mirror(fleet)
    service.tick()
    declare(fleet, "trips", "hoodie.table.name", "journeys")
    fleet.clock.advance(DEFINITION_EVERY_S)
    service.tick()
    service.tick()
    write(table, 10)
    service.tick()
    assert changes(fleet) == [("created", None), ("renamed", "trips")]
    shown = [context.metrics.value(NAMES, table=table.uid, name=name) for name in ("trips", "journeys")]
    assert shown == [0, 1], "queries join the name of now with the uid of other metrics"
    assert [e.table.name for e in published(fleet, table)] == ["trips", "trips", "journeys", "journeys"]
    assert fleet.event_log.cursor(table.uid).table.name == "journeys"


def test_a_table_that_apache_hudi_upgraded_says_so(fleet):
    table = fleet.create()
    service, _ = mirror(fleet)
    service.tick()
    declare(fleet, "trips", "hoodie.table.version", "8")
    fleet.clock.advance(DEFINITION_EVERY_S)
    service.tick()
    assert changes(fleet, table.uid) == [("created", None), ("upgraded", "6")]


def test_a_shared_table_goes_on_in_the_version_that_apache_hudi_gave_it(fleet):
    """The mirror shares it in that version; consumers see one table, without a gap and nothing twice."""
    table = fleet.create()
    write(table, 0)
    shared = share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    service, _ = mirror(fleet)
    service.tick()
    before = published(fleet, table)
    upgrade(shared.storage)
    for _ in range(2):  # the first one finds that the open table has another version now
        fleet.clock.advance(DEFINITION_EVERY_S)
        service.tick()
    write(Table.open(table.base_path, hudi_lock=open_hudi_lock, clock=fleet.clock), 1)
    service.tick()
    found = published(fleet, table)
    assert found[: len(before)] == before
    assert [event.sequence for event in found] == list(range(1, len(found) + 1))
    assert len(found) > len(before) + 2
    assert changes(fleet, table.uid)[-1] == ("upgraded", "6")
    assert fleet.event_log.cursor(table.uid).table.version == 9


def test_a_restarted_mirror_asks_a_table_that_has_not_changed_once_and_opens_it_later(fleet, monkeypatch):
    """It opened every table before it was ready: ten requests each."""
    idle, changed = fleet.create("idle"), fleet.create("changed")
    for table in (idle, changed):
        write(table, 0)
    service, _ = mirror(fleet)
    service.tick()
    fleet.stop(service)
    write(changed, 10)
    service, _ = mirror(fleet)
    asked = []
    for kind in ("read", "stat", "list_folder", "list_objects"):
        real = getattr(LocalStorage, kind)

        def noted(storage, path, *rest, real=real):
            if storage.root == idle.storage.root:
                asked.append(path)
            return real(storage, path, *rest)

        monkeypatch.setattr(LocalStorage, kind, noted)
    service.tick()
    assert len(asked) == 1
    assert len(published(fleet, changed)) == 4
    heartbeats = fleet.events(MIRRORS.name)
    assert heartbeats[-1].tables == 2
    service.tick()
    assert len(asked) > 2
    write(idle, 10)
    service.tick()
    assert [e.sequence for e in published(fleet, idle)] == [1, 2, 3, 4]


def test_a_shared_table_says_so(fleet):
    table = fleet.create()
    write(table, 0)
    service, _ = mirror(fleet)
    service.tick()
    share_table(table, Sharing(HudiLockKind.FILE_SYSTEM), open_hudi_lock)
    service.tick()
    service.tick()
    assert changes(fleet) == [("created", None), ("shared", None)]
    assert fleet.event_log.cursor(table.uid).sharing == "shared"


def test_a_moved_table_says_its_old_place_and_uid_and_the_old_one_is_dropped(fleet):
    old = fleet.create("old")
    write(old, 0)
    service, _ = mirror(fleet)
    service.tick()
    shutil.move(fleet.path("old"), fleet.path("new"))
    adopt(Table.open(fleet.path("new"), clock=fleet.clock))
    new = fleet.open("new")
    wait(fleet, service, DELETED_AFTER_S)
    found = [e for e in fleet.events(CATALOG.name) if e.kind != "created"]
    assert [(e.kind, e.table_uid, e.previous, e.former_uid) for e in found] == [
        ("moved", new.uid, old.storage.root, old.uid),
        ("dropped", old.uid, None, None),
    ]
    assert new.uid in found[1].reason
    assert removed(fleet) == [old.uid]


def test_a_copy_is_created_with_the_uid_of_the_original(fleet):
    original = fleet.create("a")
    write(original, 0)
    shutil.copytree(fleet.path("a"), fleet.path("copy"))
    adopt(Table.open(fleet.path("copy"), clock=fleet.clock))
    service, _ = mirror(fleet)
    service.tick()
    assert [(e.kind, e.former_uid) for e in fleet.events(CATALOG.name)] == [("created", None), ("created", original.uid)]


def test_a_table_that_no_pattern_selects_any_more_is_unmanaged_once_and_managed_again_later(fleet):
    left, kept = fleet.create("left"), fleet.create("kept")
    write(left, 0)
    service, _ = mirror(fleet)
    service.tick()
    fleet.stop(service)
    service, _ = mirror(fleet, tables=(fleet.path("kept"),))
    service.tick()
    assert changes(fleet, left.uid) == [("created", None)]
    for _ in range(2):
        wait(fleet, service, DELETED_AFTER_S)
    assert changes(fleet, left.uid) == [("created", None), ("unmanaged", None)]
    record = fleet.event_log.cursor(left.uid)
    assert (record.health, record.sequence) == ("unmanaged", 2)
    fleet.stop(service)
    write(left, 10)
    service, _ = mirror(fleet)
    service.tick()
    assert changes(fleet, left.uid) == [("created", None), ("unmanaged", None), ("managed", None)]
    assert [e.sequence for e in published(fleet, left)] == [1, 2, 3, 4]
    assert (fleet.event_log.cursor(left.uid).health, changes(fleet, kept.uid)) == ("healthy", [("created", None)])


def test_a_table_that_cannot_be_read_any_more_is_unmanaged(fleet):
    table = fleet.create()
    write(table, 0)
    service, _ = mirror(fleet)
    service.tick()
    fleet.stop(service)
    (fleet.folder / "tables/trips/.hoodie/hoodie.properties").write_text("hoodie.table.version=six\n")
    service, _ = mirror(fleet)
    wait(fleet, service, 2 * DELETED_AFTER_S)
    assert changes(fleet, table.uid) == [("created", None), ("unmanaged", None)]
    assert fleet.event_log.cursor(table.uid).health_reason


def test_a_fleet_says_nothing_about_tables_of_another_one(fleet):
    write(fleet.create("other"), 0)
    fleet.create("own")
    for name, folder in (("north", "other"), ("south", "own")):
        service, _ = fleet.service(MirrorService, MirrorSettings, "mirror", fleet=name, tables=(fleet.path(folder),))
        service.tick()
    wait(fleet, service, DELETED_AFTER_S)
    assert changes(fleet) == [("created", None)] * 2


def test_a_heartbeat_an_interval_and_shard_and_no_record_of_an_idle_table(fleet):
    table = fleet.create()
    write(table, 0)
    service, context = fleet.service(MirrorService, MirrorSettings, "mirror", fleet="north", heartbeat_interval_s=60.0)
    service.tick()
    quiet = fleet.event_log.cursor(table.uid)
    for _ in range(4):
        fleet.clock.advance(31)
        service.tick()
    (heartbeat,) = fleet.events(MIRRORS.name)
    assert (heartbeat.publisher, heartbeat.tables, heartbeat.behind, heartbeat.failing) == ("north.mirror-0-of-1", 1, 0, 0)
    assert (fleet.clock.now() - heartbeat.time).total_seconds() < 60
    assert heartbeat.visited_since <= heartbeat.time
    assert fleet.event_log.cursor(table.uid) == quiet
    assert quiet.quiet_since == published(fleet, table)[-1].time
    assert context.metrics.value(BACKLOG) == 0


def test_the_backlog_counts_entries_that_are_not_published(fleet):
    table = fleet.create()
    for n in range(2):
        write(table, 10 * n)
    service, context = mirror(fleet, batch_entries=1)
    service.tick()
    assert context.metrics.value(BACKLOG) == 3
    while service.tick() is not None:
        continue
    assert context.metrics.value(BACKLOG) == 0


def test_a_table_of_which_only_a_part_is_published_is_behind(fleet):
    """It was counted as quiet as soon as a first batch was published."""
    table = fleet.create()
    for n in range(2):
        write(table, 10 * n)
    service, _ = mirror(fleet, batch_entries=1, heartbeat_interval_s=1.0)
    behind = []
    for _ in range(5):
        fleet.clock.advance(2)
        service.tick()
        (heartbeat,) = fleet.events(MIRRORS.name)
        is_complete = fleet.event_log.cursor(table.uid).sequence == 4
        behind.append(heartbeat.behind)
        assert heartbeat.behind == (not is_complete)
    assert behind == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("kind", ["renamed", "dropped"])
def test_a_change_is_published_once_whenever_the_mirror_dies(fleet, monkeypatch, kind):
    died = 0
    while True:
        name = f"t{died}"
        table = fleet.create(name)
        tick_of_a_new_mirror(fleet, monkeypatch, Death(0))
        if kind == "renamed":
            declare(fleet, name, "hoodie.table.name", "renamed")
        else:
            shutil.rmtree(fleet.path(name))
            fleet.create(name)  # another table at the same place: certain at once
        try:
            tick_of_a_new_mirror(fleet, monkeypatch, Death(died + 1))
        except SimulatedCrash:
            died += SAMPLE_STEP
        else:
            break
        tick_of_a_new_mirror(fleet, monkeypatch, Death(0))
        assert [of for of, _ in changes(fleet, table.uid)] == ["created", kind]
        shutil.rmtree(fleet.path(name))
    assert died >= 10
    assert fleet.events(TIMELINE.name) == []
