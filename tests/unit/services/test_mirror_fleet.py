"""The mirror beside deleted, moved and adopted tables, other fleets, and an event log that does not answer."""

from __future__ import annotations

import shutil
from contextlib import closing

import pytest
from tests.unit.services.fleet import write
from tests.unit.services.test_mirror import mirror, published

from tideline_events import TABLES, EventLogUnavailable, PublishUnknown, TableDeleted, decode, table_deletion
from tideline_mirror.absent import CHECK_ABSENT_EVERY_S, DELETED_AFTER_S
from tideline_mirror.metrics import BEHIND
from tideline_mirror.mirroring import CHECK_EVERY_S, MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_runtime import event_link
from tideline_table.action import adopt
from tideline_table.table import Table


def removed(fleet):
    with closing(fleet.event_log.subscribe([TABLES.name], f"removed-{fleet.clock.monotonic_s()}")) as subscription:
        return [event.table_uid for event in map(decode, subscription.poll(0)) if isinstance(event, TableDeleted)]


def wait(fleet, service, duration_s):
    for _ in range(round(duration_s / CHECK_ABSENT_EVERY_S) + 1):
        fleet.clock.advance(CHECK_ABSENT_EVERY_S + 1)
        service.tick()


def test_a_deleted_table_leaves_the_event_log_but_not_at_the_first_look(fleet):
    """It stayed healthy for ever."""
    kept, gone = fleet.create("kept"), fleet.create("gone")
    for table in (kept, gone):
        write(table, 0)
    service, _ = mirror(fleet)
    service.tick()
    shutil.rmtree(fleet.path("gone"))
    wait(fleet, service, CHECK_ABSENT_EVERY_S)
    assert removed(fleet) == []
    wait(fleet, service, DELETED_AFTER_S)
    assert removed(fleet) == [gone.uid]
    assert [record.table_uid for record in fleet.event_log.table_records()] == [kept.uid]


def test_a_table_that_was_deleted_while_no_mirror_ran_leaves_the_event_log_too(fleet):
    gone, kept = fleet.create("gone"), fleet.create("kept")
    write(gone, 0)
    service, _ = mirror(fleet)
    service.tick()
    fleet.stop(service)
    shutil.rmtree(fleet.path("gone"))
    service, _ = mirror(fleet)
    service.tick()
    wait(fleet, service, DELETED_AFTER_S)
    assert removed(fleet) == [gone.uid]
    assert kept.uid != gone.uid


def test_tables_of_another_fleet_stay(fleet):
    write(fleet.create("other"), 0)
    service, _ = mirror(fleet)
    service.tick()
    fleet.stop(service)
    shutil.rmtree(fleet.path("other"))
    write(fleet.create("own"), 0)
    service, _ = mirror(fleet, tables=(fleet.path("own"),))
    service.tick()
    wait(fleet, service, DELETED_AFTER_S)
    assert removed(fleet) == []


def test_a_moved_table_names_the_uid_that_it_had(fleet):
    old = fleet.create("old")
    write(old, 0)
    service, _ = mirror(fleet)
    service.tick()
    shutil.move(fleet.path("old"), fleet.path("new"))
    adopt(Table.open(fleet.path("new"), clock=fleet.clock))
    wait(fleet, service, DELETED_AFTER_S)
    assert removed(fleet) == [old.uid]
    (record,) = fleet.event_log.table_records()
    assert (record.table_uid, record.former_uid, record.table.base_path) == (
        fleet.open("new").uid,
        old.uid,
        fleet.open("new").storage.root,
    )


def test_two_fleets_publish_to_one_event_log(fleet):
    """Both had the same writer id and ended each other."""
    one, two = fleet.create("one"), fleet.create("two")
    mirrors = [
        fleet.service(MirrorService, MirrorSettings, "mirror", fleet=name, tables=(fleet.path(name),))[0] for name in ("one", "two")
    ]
    for n in range(2):
        for table in (one, two):
            write(table, 10 * n)
        for service in mirrors:
            service.tick()
    assert [[e.sequence for e in published(fleet, table)] for table in (one, two)] == [[1, 2, 3, 4]] * 2


def test_a_start_reads_the_records_of_all_tables_at_once(fleet, monkeypatch):
    """Each table read its partition: half a second of a start for each."""
    tables = [fleet.create(f"t{n}") for n in range(4)]
    for table in tables:
        write(table, 0)
    service, _ = mirror(fleet)
    service.tick()
    fleet.stop(service)
    asked = []
    log = type(fleet.event_log)
    for name in ("cursor", "table_records"):
        real = getattr(log, name)
        monkeypatch.setattr(log, name, lambda *given, real=real, name=name: asked.append(name) or real(*given))
    write(tables[0], 10)
    service, _ = mirror(fleet)
    service.tick()
    assert asked == ["table_records"]
    assert [[e.sequence for e in published(fleet, table)] for table in tables] == [[1, 2, 3, 4], [1, 2], [1, 2], [1, 2]]


def test_while_the_event_log_is_away_the_delay_grows_and_the_service_is_not_ready(fleet, monkeypatch):
    """The delay was observed at publications only, of which there are none; an idle mirror stayed ready."""
    table = fleet.create()
    service, context = mirror(fleet)
    service.tick()
    context.health.started()
    write(table, 0)

    def away(*_):
        raise EventLogUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(service._publishers._opened[0].publisher, "publish_transitions", away)
        with pytest.raises(EventLogUnavailable):
            service.tick()
        assert not context.health.ready().is_ok  # not only after the third attempt, of 30 seconds each
        fleet.clock.advance(100)
        patch.setattr(event_link.EventLink, "check", away)
        with pytest.raises(EventLogUnavailable):
            service.tick()
        assert context.metrics.value(BEHIND) >= 100
        assert not context.health.ready().is_ok
    service.tick()
    assert context.metrics.value(BEHIND) == 0
    assert context.health.ready().is_ok


def test_a_deleted_topic_of_states_is_created_and_filled_again(fleet, monkeypatch):
    table = fleet.create()
    write(table, 0)
    service, _ = mirror(fleet)
    service.tick()
    with closing(fleet.event_log.publisher("deletion")) as publisher:
        publisher.publish(table_deletion(table.uid))
    monkeypatch.setattr(event_link.EventLink, "check", lambda _: frozenset({TABLES.name}))
    fleet.clock.advance(CHECK_EVERY_S + 1)
    service.tick()
    record = fleet.event_log.cursor(table.uid)
    assert (record.sequence, [e.sequence for e in published(fleet, table)]) == (2, [1, 2, 1, 2])


def test_a_replaced_event_log_is_filled_again(fleet):
    """The mirror published into the deleted file until it ended."""
    table = fleet.create()
    write(table, 0)
    service, _ = mirror(fleet)
    service.tick()
    for file in (fleet.folder / "state").glob("events.db*"):
        file.unlink()
    fleet.event_log.ensure_topics()
    write(table, 10)
    with pytest.raises(PublishUnknown):
        service.tick()
    service.tick()
    assert [e.sequence for e in published(fleet, table)] == [1, 2, 3, 4]
    assert fleet.event_log.cursor(table.uid).sequence == 4
