import shutil
from contextlib import closing

import pytest
from tests.plans import schedule_clustering
from tests.unit.services.fleet import HEARTBEAT_GONE_S, Fleet, begin, die, update, write

from tideline_events import (
    HINTS,
    TIMELINE,
    EventLogUnavailable,
    Hint,
    InvalidEvent,
    PublisherFenced,
    PublishUnknown,
    encode,
)
from tideline_mirror.metrics import ENTRIES, HEALED
from tideline_mirror.mirroring import HEAL_AFTER_S, SCRUB_EVERY_S, MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_runtime import event_link
from tideline_runtime.shard_publishers import ShardPublishers
from tideline_table.action import run_clustering
from tideline_table.coordination import roll_back
from tideline_table.log.entry import IDENTITY_PATH
from tideline_table.storage import exists
from tideline_table.table import TableType


def mirror(fleet: Fleet, **explicit):
    return fleet.service(MirrorService, MirrorSettings, "mirror", **explicit)


def published(fleet, table):
    return [e for e in fleet.events(TIMELINE.name) if e.table_uid == table.uid]


def test_publishes_each_entry_once_gapless_and_says_what_it_was(fleet):
    table = fleet.create()
    write(table, 0)
    write(table, 10, city="bergen")
    schedule_clustering(table, {"tideline.clustering.min.input.files": 1})
    run_clustering(table)
    roll_back(table.timeline, die(table), force=True)
    service, context = mirror(fleet)
    assert service.tick() is None
    service.tick()
    events = published(fleet, table)
    assert [e.sequence for e in events] == list(range(1, table.state.sequence + 1))
    assert context.metrics.value(ENTRIES, table=table.uid) == table.state.sequence
    told = [(e.action, e.from_state, e.to_state, e.datachange) for e in events]
    assert told == [
        ("commit", None, "inflight", False),
        ("commit", "inflight", "completed", True),
        ("commit", None, "inflight", False),
        ("commit", "inflight", "completed", True),
        ("clustering", None, "requested", False),
        ("clustering", "requested", "inflight", False),
        ("clustering", "inflight", "completed", False),
        ("commit", None, "inflight", False),
        ("rollback", None, "inflight", False),
        ("rollback", "inflight", "completed", False),
    ]
    assert (events[3].rows_inserted, events[3].partitions, events[3].writer_id) == (5, ("bergen",), "writer")
    assert events[3].completion_time is not None
    assert events[2].completion_time is None
    assert events[9].undone_instant == events[7].instant
    record = fleet.event_log.cursor(table.uid)
    assert (record.sequence, record.table.name, record.health, record.pending_plans) == (10, "trips", "healthy", ())


def test_small_batches_bring_the_next_tick_at_once(fleet):
    table = fleet.create()
    for n in range(2):
        write(table, 10 * n)
    service, _ = mirror(fleet, batch_entries=2)
    assert [service.tick(), service.tick(), service.tick()] == [0.0, 0.0, None]
    assert [e.sequence for e in published(fleet, table)] == [1, 2, 3, 4]


def test_the_cursor_survives_a_restart(fleet):
    table = fleet.create()
    write(table, 0)
    service, _ = mirror(fleet)
    service.tick()
    fleet.stop(service)
    write(table, 10)
    service, _ = mirror(fleet)
    service.tick()
    assert [e.sequence for e in published(fleet, table)] == [1, 2, 3, 4]


def test_a_second_instance_of_the_shard_fences_the_first(fleet):
    table = fleet.create()
    first, _ = mirror(fleet)
    write(table, 0)
    first.tick()
    second, _ = mirror(fleet)
    write(table, 10)
    with pytest.raises(PublisherFenced):
        first.tick()
    second.tick()
    write(table, 20)
    with pytest.raises(PublisherFenced):
        first.tick()
    second.tick()
    assert [e.sequence for e in published(fleet, table)] == list(range(1, 7))


def test_creates_timeline_files_that_the_head_entry_lacks_but_not_early(fleet):
    table = fleet.create()
    committed = write(table, 0)
    file = fleet.folder / "tables" / "trips" / ".hoodie" / f"{committed.instant}.commit"
    content = file.read_bytes()
    file.unlink()
    service, context = mirror(fleet)
    service.tick()
    service.tick()
    assert not file.exists()
    fleet.clock.advance(HEAL_AFTER_S + 1)
    service.tick()
    assert file.read_bytes() == content
    assert context.metrics.value(HEALED) == 1
    service.tick()
    assert context.metrics.value(HEALED) == 1


def test_tables_of_others_and_copies_are_left_alone(fleet):
    table = fleet.create()
    write(table, 0)
    shutil.copytree(fleet.path("trips"), fleet.path("copy"))
    write(fleet.create("foreign"), 0)
    (fleet.folder / "tables" / "foreign" / IDENTITY_PATH).unlink()
    before = sorted((fleet.folder / "tables" / "foreign").rglob("*"))
    service, _ = mirror(fleet)
    service.tick()
    service.tick()
    assert {e.table.name for e in fleet.events(TIMELINE.name)} == {"trips"}
    assert {e.table.base_path for e in fleet.events(TIMELINE.name)} == {table.storage.root}
    assert sorted((fleet.folder / "tables" / "foreign").rglob("*")) == before


def test_a_table_created_again_at_the_same_place_is_a_new_one(fleet):
    old = fleet.create()
    write(old, 0)
    write(old, 10)
    service, _ = mirror(fleet)
    service.tick()
    shutil.rmtree(fleet.path("trips"))
    new = fleet.create()
    write(new, 0)
    fleet.clock.advance(61)  # tables_rescan_s
    service.tick()
    assert [e.sequence for e in published(fleet, new)] == [1, 2]
    assert [e.sequence for e in published(fleet, old)] == [1, 2, 3, 4]


def test_a_broken_table_does_not_starve_the_others(fleet, monkeypatch):
    sick, well = fleet.create("a-sick"), fleet.create("well")
    write(sick, 0)
    write(well, 0)
    service, _ = mirror(fleet)
    of = service._record

    def record(table, sequence):
        if table.uid == sick.uid:
            raise InvalidEvent("a state that no event can say")
        return of(table, sequence)

    monkeypatch.setattr(service, "_record", record)
    service.tick()
    assert published(fleet, sick) == []
    assert [e.sequence for e in published(fleet, well)] == [1, 2]
    monkeypatch.undo()
    service.tick()
    assert [e.sequence for e in published(fleet, sick)] == [1, 2]


def test_unreadable_log_entries_stop_their_table_only(fleet):
    sick, well = fleet.create("a-sick"), fleet.create("well")
    write(sick, 0)
    write(well, 0)
    entry = fleet.folder / "tables" / "a-sick" / ".hoodie/.tideline/log" / f"{2:020d}.json"
    content = entry.read_bytes()
    entry.write_bytes(b"{")
    service, _ = mirror(fleet)
    service.tick()
    assert [e.sequence for e in published(fleet, well)] == [1, 2]
    entry.write_bytes(content)
    service.tick()
    assert [e.sequence for e in published(fleet, sick)] == [1, 2]


class UncertainPublisher:
    """Publishes, but the first time nobody hears of it; is finished then, as the port says."""

    def __init__(self, real, is_first):
        self.real, self.is_first, self.ended = real, is_first, False

    def publish_transitions(self, *batch):
        assert not self.ended
        self.real.publish_transitions(*batch)
        if self.is_first:
            self.ended = True
            raise PublishUnknown("no answer")

    def publish(self, *records):
        self.real.publish(*records)

    def close(self):
        self.real.close()


def test_after_an_unknown_outcome_a_new_publisher_goes_on_where_the_log_stands(fleet, monkeypatch):
    taken = []

    def open_event_log(url, **options):
        log = fleet.event_log
        real = type(log)(log._path, fleet.clock)

        def publisher(writer_id):
            taken.append(UncertainPublisher(log.publisher(writer_id), not taken))
            return taken[-1]

        real.publisher = publisher
        return real

    monkeypatch.setattr(event_link, "open_event_log", open_event_log)
    table = fleet.create()
    write(table, 0)
    service, _ = mirror(fleet)
    with pytest.raises(PublishUnknown):
        service.tick()
    write(table, 10)
    service.tick()
    assert len(taken) == 2
    assert [e.sequence for e in published(fleet, table)] == [1, 2, 3, 4]


def test_an_unreachable_event_log_is_told_and_nothing_is_lost(fleet, monkeypatch):
    table = fleet.create()
    write(table, 0)
    service, _ = mirror(fleet)

    def refuse(*_):
        raise EventLogUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(service._publishers._opened[0].publisher, "publish_transitions", refuse)
        with pytest.raises(EventLogUnavailable):
            service.tick()
    service.tick()
    assert [e.sequence for e in published(fleet, table)] == [1, 2]


def test_a_hint_wakes_it_and_garbage_does_not_stop_the_watch(fleet):
    table = fleet.create()
    _, context = mirror(fleet)
    publisher = fleet.event_log.publisher("somebody")
    record = encode(Hint(table_uid=table.uid, time=fleet.clock.now()))
    for _ in range(400):
        # Only hints after the start of the watch count; when it has begun is its own affair.
        publisher.publish(type(record)(HINTS.name, b"key", b"no event"), record)
        if context.wakeup.wait(0.025):
            break
    assert context.wakeup.is_set()
    publisher.close()


def hint(fleet, context, table):
    context.wakeup.clear()
    with closing(fleet.event_log.publisher("somebody")) as publisher:
        for _ in range(400):
            publisher.publish(encode(Hint(table_uid=table.uid, time=fleet.clock.now())))
            if context.wakeup.wait(0.025):
                return
    raise AssertionError("no hint arrived")


def test_between_two_visits_of_all_tables_only_hinted_ones_are_visited(fleet):
    one, two = fleet.create("one"), fleet.create("two")
    service, context = mirror(fleet, poll_interval_s=60.0)
    assert service.tick() is None
    for table in (one, two):
        write(table, 0)
    hint(fleet, context, two)
    assert 0 < service.tick() <= 60
    assert (len(published(fleet, one)), len(published(fleet, two))) == (0, 2)
    fleet.clock.advance(61)
    hint(fleet, context, two)
    assert service.tick() is None
    assert (len(published(fleet, one)), len(published(fleet, two))) == (2, 2)


def test_after_a_failed_visit_of_hinted_tables_all_are_visited(fleet, monkeypatch):
    table = fleet.create()
    service, context = mirror(fleet, poll_interval_s=60.0)
    service.tick()
    write(table, 0)
    hint(fleet, context, table)
    with monkeypatch.context() as patched:
        patched.setattr(ShardPublishers, "publish_transitions", lambda *_: (_ for _ in ()).throw(EventLogUnavailable("away")))
        with pytest.raises(EventLogUnavailable):
            service.tick()
    assert service.tick() is None
    assert len(published(fleet, table)) == 2


def test_the_record_tells_of_writers_that_died(fleet):
    table = fleet.create()
    instant = die(table)
    fleet.clock.advance(HEARTBEAT_GONE_S)
    service, _ = mirror(fleet)
    service.tick()
    record = fleet.event_log.cursor(table.uid)
    assert record.health == "stuck"
    assert instant in record.health_reason
    assert [(p.instant, p.action, p.state) for p in record.pending_plans] == [(instant, "commit", "inflight")]


def test_stops_between_tables(fleet):
    for name in ("a", "b"):
        transaction = begin(fleet.create(name))
        transaction.abandon()
    service, context = mirror(fleet)
    context.request_stop()
    service.tick()
    assert fleet.events(TIMELINE.name) == []


def test_scrubs_what_came_back_behind_its_end(fleet):
    """Nobody writes any more, and other readers would take the write for completed."""
    table = fleet.create()
    write(table, 0)
    dead = die(table)
    roll_back(table.timeline, dead, force=True)
    service, _ = mirror(fleet)
    service.tick()
    service.tick()
    late = f".hoodie/{dead}.commit"
    table.storage.put(late, b"{}")
    service.tick()
    assert exists(table.storage, late), "looked for a moment ago"
    fleet.clock.advance(SCRUB_EVERY_S)
    service.tick()
    assert not exists(table.storage, late)


def test_publishes_on_beside_an_intruder_and_tells_of_it(fleet, capsys):
    table = fleet.create()
    write(table, 0)
    unlogged = ".hoodie/20200101000000000.commit"
    table.storage.put(unlogged, b"{}")
    service, _ = mirror(fleet)
    service.tick()
    service.tick()
    assert "no Tideline writer made" in capsys.readouterr().out
    table.storage.delete(unlogged)
    write(table, 10)
    table.storage.put(unlogged, b"{}")
    service.tick()
    assert [e.sequence for e in published(fleet, table)] == [1, 2, 3, 4]


def test_the_record_counts_base_files_and_logs_of_the_latest_slices(fleet):
    table = fleet.create(type=TableType.MOR)
    write(table, 0)
    update(table, 0)
    service, _ = mirror(fleet)
    service.tick()
    (latest,) = table.state.latest_slices()
    record = fleet.event_log.cursor(table.uid)
    assert (record.file_count, record.log_file_count) == (2, 1)
    assert record.log_size_bytes == latest.log_files[0].size_bytes > 0
    assert record.size_bytes == latest.size_bytes + record.log_size_bytes
