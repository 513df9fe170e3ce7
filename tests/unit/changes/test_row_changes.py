"""A topic of row changes, applied from its start, equals the table after every step of it."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.plans import schedule_archival, schedule_clean, schedule_clustering, schedule_compaction, schedule_log_compaction
from tests.unit.changes.conftest import SHORT_S, Changes, records_of, settle
from tests.unit.services.fleet import SCHEMA, die, rows

from tideline_changes.positions import positions_of
from tideline_changes.streaming import ChangesService
from tideline_changes.topics import CHECK_EVERY_S, DELETED_AFTER_S, TableTopics
from tideline_events import CHANGES_POSITIONS, DEAD_LETTER, MIRRORS, TABLES, EventLogUnavailable, Record, TopicMismatch
from tideline_events.sqlite import SqliteEventLog, SqlitePublisher
from tideline_mirror.mirroring import MirrorService
from tideline_mirror.settings import MirrorSettings
from tideline_table.action import (
    create_savepoint,
    delete_partitions,
    restore_to_savepoint,
    run_archival,
    run_clean,
    run_clustering,
    run_compaction,
    run_log_compaction,
    write_rows,
)
from tideline_table.errors import TidelineError
from tideline_table.storage import LocalStorage
from tideline_table.table import BloomIndex, Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

BOTH = pytest.mark.parametrize("kind", [TableType.COW, TableType.MOR])


def upsert(
    table: Table, first: int, count: int = 5, city: str = "oslo", fare: float = 1.0, operation: Operation = Operation.UPSERT
) -> None:
    given = rows(first, count, city).set_column(2, SCHEMA.field("fare"), pa.array([fare] * count, pa.float64()))
    write_rows(table, given, operation, parallelism=1)


def compacted(table: Table) -> None:
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    run_compaction(table)


def log_compacted(table: Table) -> None:
    schedule_log_compaction(table, {"hoodie.log.compaction.blocks.threshold": 2})
    run_log_compaction(table)


def clustered(table: Table) -> None:
    schedule_clustering(table, {"tideline.clustering.min.input.files": 1})
    run_clustering(table)


def cleaned(table: Table) -> None:
    schedule_clean(table, {"hoodie.cleaner.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.cleaner.fileversions.retained": 1})
    run_clean(table)


def steps(kind: TableType) -> Iterator[Callable[[Table], object]]:
    yield lambda t: upsert(t, 0, 10)
    yield lambda t: upsert(t, 5, 10, fare=2.0)
    yield lambda t: upsert(t, 0, 6, "bergen", fare=3.0)
    yield lambda t: upsert(t, 3, 4, operation=Operation.DELETE)
    yield lambda t: upsert(t, 900, 4, operation=Operation.DELETE)
    yield die
    if kind is TableType.MOR:
        yield log_compacted
        yield compacted
        yield lambda t: upsert(t, 6, 3, fare=4.0)
    yield clustered
    yield lambda t: upsert(t, 1, 4, fare=5.0)
    yield create_savepoint
    yield cleaned
    yield lambda t: upsert(t, 50, 3, operation=Operation.INSERT_OVERWRITE)
    yield lambda t: delete_partitions(t, ["bergen"])
    yield lambda t: upsert(t, 0, 4, "turku", operation=Operation.INSERT_OVERWRITE_TABLE)


@BOTH
def test_the_topic_equals_the_table_after_each_step(fleet: Changes, kind: TableType) -> None:
    table = fleet.create(type=kind)
    service = fleet.run(batch_rows=4)
    settle(service)
    for act in steps(kind):
        act(table)
        table.refresh()
        settle(service)
        fleet.check(table)
    replica = fleet.replica()
    assert set(replica.ops) == {"t", "c", "u", "d"}
    assert replica.truncations == 1
    restore_to_savepoint(table, next(iter(table.state.savepoints)))
    settle(service)
    after = fleet.check(table)
    assert (after.truncations, len(after.rows)) == (2, len(after.ops) - len(replica.ops) - 1)
    upsert(table, 0, 3, fare=9.0)
    settle(service)
    assert fleet.check(table).truncations == 2


@BOTH
def test_a_service_that_comes_late_catches_up_write_by_write(fleet: Changes, kind: TableType) -> None:
    table = fleet.create(type=kind)
    service = fleet.run()
    settle(service)
    for first in range(0, 12, 2):
        upsert(table, first, 4, fare=float(first))
    settle(service)
    replica = fleet.check(table)
    sequences = sorted({sequence for sequence, _ in replica.places})
    assert sequences == sorted(a.sequence for a in table.state.completed_writes())
    assert replica.ops.count("u") == 10


def test_what_was_cleaned_or_archived_comes_as_a_new_snapshot(fleet: Changes) -> None:
    table = fleet.create()
    service = fleet.run()
    upsert(table, 0)
    settle(service)
    for first in range(8):
        upsert(table, first, fare=float(first))
    cleaned(table)
    settle(service)
    assert fleet.check(table).truncations == 2
    for first in range(8):
        upsert(table, first, fare=float(first))
    fleet.clock.advance(3601)
    schedule_archival(table, {"hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3, "hoodie.cleaner.commits.retained": 1})
    run_archival(table)
    settle(service)
    assert fleet.check(table).truncations == 3
    upsert(table, 2, fare=-1.0)
    settle(service)
    assert fleet.check(table).truncations == 3


def test_cleaning_spares_what_a_snapshot_reads_behind_which_rows_were_written(fleet: Changes, monkeypatch) -> None:
    table, cities = fleet.create(), "abc"
    for city in cities:
        upsert(table, 0, 2, city)
    service = fleet.run(batch_rows=1)
    publish, published = service.publish, itertools.count()

    def then_write_and_clean(*arguments: Any) -> None:
        publish(*arguments)
        number = next(published)
        if number == 0:  # the truncation
            for city in cities:
                upsert(table, 0, 2, city, fare=2.0)
        if number == 1:  # the first row: the lease is held
            cleaned(table)

    monkeypatch.setattr(service, "publish", then_write_and_clean)
    settle(service)
    assert fleet.check(table).truncations == 1


@pytest.mark.parametrize("index", [BloomIndex(across_partitions=True), None])
def test_a_row_that_moves_to_another_partition(fleet: Changes, index: BloomIndex | None) -> None:
    """With keys that are unique in the table it keeps its key, and its deletion comes first."""
    table = fleet.create(index=index)
    service = fleet.run(batch_rows=1)
    upsert(table, 0, 4, "a")
    upsert(table, 0, 4, "z")
    settle(service)
    upsert(table, 0, 2, "m")
    settle(service)
    upsert(table, 1, 3, "b")
    settle(service)
    replica = fleet.check(table)
    assert replica.truncations == 1
    assert {tuple(json.loads(key)) for key in replica.rows} == {("id",) if index else ("id", "city")}
    if index:
        assert replica.ops[-6:] == ["d", "d", "d", "c", "c", "c"]


def test_records_are_as_debezium_writes_them(fleet: Changes) -> None:
    table = fleet.create()
    service = fleet.run(fleet="north")
    settle(service)
    upsert(table, 0, 1)
    settle(service)
    upsert(table, 0, 1, operation=Operation.DELETE)
    settle(service)
    truncation, created, deleted, tombstone = records_of(fleet.event_log, "tideline.changes.trips")
    value = json.loads(created.value or b"")
    assert created.key == b'{"id":"k0","city":"oslo"}'
    assert (value["before"], value["after"], value["op"]) == (None, {"id": "k0", "city": "oslo", "fare": 1.0}, "c")
    (write, _) = sorted(a.sequence for a in table.refresh().completed_writes())
    source = value["source"]
    assert (source["connector"], source["name"], source["snapshot"]) == ("tideline", "north", "false")
    assert (source["table"], source["uid"], source["sequence"], source["row"]) == ("trips", table.uid, write, 0)
    assert json.loads(truncation.value or b"")["op"] == "t"
    assert truncation.key is None
    assert json.loads(deleted.value or b"")["before"] == value["after"]
    assert (tombstone.key, tombstone.value) == (created.key, None)


def test_schemas_describe_the_values(fleet: Changes) -> None:
    table = fleet.create()
    service = fleet.run(schemas=True, tombstones=False)
    settle(service)
    upsert(table, 0, 1)
    upsert(table, 0, 1, operation=Operation.DELETE)
    settle(service)
    _, created, deleted = records_of(fleet.event_log, "tideline.changes.trips")
    key, value = json.loads(created.key or b""), json.loads(created.value or b"")
    assert key["payload"] == {"id": "k0", "city": "oslo"}
    fields = {field["field"]: field for field in value["schema"]["fields"]}
    assert list(fields) == ["before", "after", "source", "op", "ts_ms"] == list(value["payload"])
    assert [(f["field"], f["type"]) for f in fields["after"]["fields"]] == [
        ("id", "string"),
        ("city", "string"),
        ("fare", "double"),
    ]
    assert {f["field"] for f in fields["source"]["fields"]} == value["payload"]["source"].keys()
    assert value["schema"]["name"] == "tideline.changes.trips.Envelope"
    assert json.loads(deleted.value or b"")["payload"]["op"] == "d"


def test_decimals_keep_all_digits(fleet: Changes) -> None:
    kind = pa.decimal128(38, 10)
    schema = pa.schema([pa.field("id", kind, nullable=False), ("city", pa.string()), ("most", pa.decimal128(38, 0))])
    create_table(fleet.path("trips"), TableRequest("trips", schema, ("id",), ("city",)), fleet.clock)
    digits = "12345678901234567890123456789012345678"
    given = {"id": [Decimal(digits).scaleb(-10, Context(prec=38))], "city": ["x"], "most": [Decimal(f"-{digits}")]}
    service = fleet.run()
    settle(service)
    write_rows(fleet.open(), pa.table(given, schema), Operation.UPSERT, parallelism=1)
    settle(service)
    _, created = records_of(fleet.event_log, "tideline.changes.trips")
    written = json.loads(created.key or b"")["id"], json.loads(created.value or b"")["after"]["most"]
    assert [int.from_bytes(base64.b64decode(text), "big", signed=True) for text in written] == [int(digits), -int(digits)]


def test_a_pause_keeps_the_position_and_a_number_begins_a_new_snapshot(fleet: Changes) -> None:
    table = fleet.create()
    upsert(table, 0)
    service = fleet.run()
    settle(service)
    fleet.stop(service)
    paused = fleet.run(enabled=False)
    upsert(table, 3)
    settle(paused)
    assert len(fleet.replica().rows) == 5
    fleet.stop(paused)
    again = fleet.run()
    settle(again)
    replica = fleet.check(table)
    assert (replica.truncations, sorted(replica.ops[6:])) == (1, [*"cccuu"])
    fleet.stop(again)
    settle(fleet.run(snapshot=1))
    assert fleet.check(table).truncations == 2
    fleet.stop(fleet._services[-1])
    settle(fleet.run(snapshot=1))
    assert fleet.check(table).truncations == 2


def test_a_policy_chooses_the_tables(fleet: Changes, tmp_path) -> None:
    tables = [fleet.create("a"), fleet.create("b")]
    for table in tables:
        upsert(table, 0)
    policy = tmp_path / "policy.yaml"
    chosen = {
        "name": "followed",
        "match": {"paths": [fleet.path("b")]},
        "settings": {"changes": {"enabled": True, "topic": "bees"}},
    }
    policy.write_text(json.dumps({"version": 1, "rules": [chosen]}))
    settle(fleet.run(enabled=False, policy_file=policy))
    fleet.check(tables[1], "bees")
    assert records_of(fleet.event_log, "tideline.changes.a") == []


def test_two_tables_do_not_share_a_topic(fleet: Changes) -> None:
    first, second = fleet.create("a"), fleet.create("b")
    upsert(first, 0)
    service = fleet.run(topic="same")
    settle(service)
    upsert(second, 100)
    settle(service)
    fleet.check(first, "same")
    ((why, _),) = service._tables.refusals().values()
    assert second.uid in why
    assert first.uid in why
    assert len(fleet.event_log.last_records(CHANGES_POSITIONS)) == 1


@pytest.mark.parametrize("another", [False, True])
def test_after_an_aborted_publication_the_service_goes_on_behind_the_last_one(fleet: Changes, monkeypatch, another: bool) -> None:
    """Also if it has read the positions since that table began, because another one began."""
    table = fleet.create()
    upsert(table, 0)
    service = fleet.run()
    settle(service)
    if another:
        fleet.create("another")
        settle(service)
    upsert(table, 3)
    settle(service)
    publish, aborts = SqlitePublisher.publish, iter([True])

    def aborted_once(publisher: SqlitePublisher, *records: Record) -> None:
        if next(aborts, False):
            raise EventLogUnavailable("the publication was aborted")
        publish(publisher, *records)

    monkeypatch.setattr(SqlitePublisher, "publish", aborted_once)
    upsert(table, 6)
    with pytest.raises(EventLogUnavailable):
        settle(service)
    settle(service)
    replica = fleet.check(table)
    assert replica.truncations == 1
    assert len(replica.places) == len(set(replica.places)), "none twice"


def settle_for_long(fleet: Changes, service: ChangesService) -> None:
    """Until failures of one topic count as lasting."""
    with suppress(EventLogUnavailable):
        settle(service)
    fleet.clock.advance(CHECK_EVERY_S)
    settle(service)


@pytest.mark.parametrize("refused", ["creation", "publication"])
def test_a_topic_that_the_event_log_refuses_ends_the_visits_of_its_table_only(fleet: Changes, monkeypatch, refused: str) -> None:
    first, second = fleet.create("a"), fleet.create("b")
    upsert(first, 0)
    upsert(second, 0)
    ensure, publish = SqliteEventLog.ensure_topics, SqlitePublisher.publish

    def refuse(topics: Collection[str]) -> None:
        if "tideline.changes.a" in topics:
            raise EventLogUnavailable("topic tideline.changes.a: not authorized")

    with monkeypatch.context() as patch:
        if refused == "creation":
            patch.setattr(SqliteEventLog, "ensure_topics", lambda log, names=(): (refuse(names), ensure(log, names))[1])
        else:
            patch.setattr(
                SqlitePublisher, "publish", lambda to, *records: (refuse([r.topic for r in records]), publish(to, *records))[1]
            )
        service = fleet.run()
        settle_for_long(fleet, service)
        fleet.check(second, "b")
        ((why, _),) = service._tables.refusals().values()
        assert "tideline.changes.a: not authorized" in why
        assert service._backlog[first.uid] >= 1, "the alert TidelineChangesLagging sees it"
    fleet.clock.advance(600)
    settle(service)
    fleet.check(first, "a")
    assert not service._tables.refusals()
    assert service._backlog == {first.uid: 0, second.uid: 0}


@pytest.mark.parametrize("error", [EventLogUnavailable, TopicMismatch])
def test_a_topic_that_is_altered_ends_the_visits_of_its_table_only(fleet: Changes, monkeypatch, error: type[TidelineError]) -> None:
    tables = [fleet.create("a"), fleet.create("b")]
    service = fleet.run()
    settle(service)
    ensure = SqliteEventLog.ensure_topics

    def altered(log: SqliteEventLog, names: Collection[str] = ()) -> frozenset[str]:
        if "tideline.changes.a" in names:
            raise error("topic tideline.changes.a is altered")
        return ensure(log, names)

    monkeypatch.setattr(SqliteEventLog, "ensure_topics", altered)
    for table in tables:
        upsert(table, 0)
    fleet.clock.advance(CHECK_EVERY_S)
    settle_for_long(fleet, service)
    fleet.check(tables[1], "b")
    ((why, _),) = service._tables.refusals().values()
    assert "tideline.changes.a is altered" in why


def test_the_topic_of_a_table_that_is_gone_is_not_created_again(fleet: Changes, monkeypatch, tmp_path) -> None:
    fleet.create("a")
    fleet.create("b")
    service = fleet.run()
    settle(service)
    (tmp_path / "tables" / "a").rename(tmp_path / "gone")
    settle(service)
    asked: list[str] = []
    monkeypatch.setattr(SqliteEventLog, "ensure_topics", lambda _, names=(): (asked.extend(names), frozenset())[1])
    fleet.clock.advance(CHECK_EVERY_S)
    settle(service)
    assert asked == ["tideline.changes.b"]


def test_a_date_that_cannot_be_published_ends_the_visits_of_its_table_only(fleet: Changes) -> None:
    schema = pa.schema([SCHEMA.field("id"), ("city", pa.string()), ("day", pa.date32())])
    create_table(fleet.path("a"), TableRequest("a", schema, ("id",), ("city",)), fleet.clock)
    other = fleet.create("b")
    service = fleet.run()
    settle(service)
    far = pa.table({"id": ["k"], "city": ["x"], "day": pa.array([3_000_000], pa.date32())}, schema)
    write_rows(fleet.open("a"), far, Operation.UPSERT, parallelism=1)
    upsert(other, 0)
    settle(service)
    fleet.check(other, "b")
    ((why, _),) = service._tables.refusals().values()
    assert "date value out of range" in why


def test_a_refused_change_of_topic_keeps_the_position(fleet: Changes, tmp_path) -> None:
    """The service has not read yet that a table of another fleet has the topic."""
    other, table = fleet.create("a"), fleet.create("b")
    own = {"policy_file": tmp_path / "policy.yaml", "tables": (table.base_path,)}

    def choose(topic: str) -> None:
        rule = {"name": topic, "match": {"paths": [table.base_path]}, "settings": {"changes": {"topic": topic}}}
        own["policy_file"].write_text(json.dumps({"version": 1, "rules": [rule]}))

    choose("bees")
    service = fleet.run(**own)
    for first in (0, 3):
        upsert(table, first)
        settle(service)
    settle(fleet.run(fleet="north", topic="taken", tables=(other.base_path,)))
    choose("taken")
    settle(service)
    fleet.clock.advance(60)  # a policy file counts once it stays as it is
    settle(service)
    assert service._tables.refusals().keys() == {table.storage.root}
    fleet.stop(service)
    choose("bees")
    settle(fleet.run(**own))
    assert fleet.check(table, "bees").truncations == 1


def test_a_topic_is_not_taken_from_a_table_that_cannot_be_reached_for_a_moment(fleet: Changes, tmp_path) -> None:
    first, second = fleet.create("a"), fleet.create("b")
    upsert(first, 0)
    service = fleet.run(topic="same")
    settle(service)
    there, away = tmp_path / "tables" / "a", tmp_path / "away"
    for _ in range(2):
        there.rename(away)
        settle(service)
        fleet.clock.advance(DELETED_AFTER_S / 2)
        settle(service)
        away.rename(there)
        settle(service)
        assert service._tables.refusals().keys() == {second.storage.root}
        fleet.clock.advance(DELETED_AFTER_S)
    upsert(first, 3)
    settle(service)
    assert fleet.check(first, "same").truncations == 1
    there.rename(away)
    settle(service)
    fleet.clock.advance(DELETED_AFTER_S)
    settle(service)
    assert fleet.check(second, "same").truncations == 2


def test_a_topic_is_not_taken_from_a_table_of_another_fleet(fleet: Changes, tmp_path) -> None:
    """Its storage may be out of reach for this one."""
    first, second = fleet.create("a"), fleet.create("b")
    upsert(first, 0)
    settle(fleet.run(fleet="north", topic="same", tables=(first.base_path,)))
    (tmp_path / "tables" / "a").rename(tmp_path / "away")
    service = fleet.run(topic="same", tables=(second.base_path,))
    settle(service)
    fleet.clock.advance(DELETED_AFTER_S)
    settle(service)
    ((why, _),) = service._tables.refusals().values()
    assert "of fleet 'north'" in why
    assert len(fleet.event_log.last_records(CHANGES_POSITIONS)) == 1


def test_two_tables_with_positions_in_one_topic_are_both_refused(fleet: Changes) -> None:
    first, second = fleet.create("a"), fleet.create("b")
    service = fleet.run(topic="same")
    settle(service)
    fleet.stop(service)
    ((_, position),) = positions_of(fleet.event_log.last_records(CHANGES_POSITIONS).values()).items()
    with closing(fleet.event_log.publisher("another")) as publisher:
        publisher.publish(replace(position, table_uid=second.uid, base_path=second.base_path).record())
    service = fleet.run(topic="same")
    settle(service)
    assert service._tables.refusals().keys() == {first.storage.root, second.storage.root}


def test_a_table_created_again_in_the_same_place_takes_its_topic_over(fleet: Changes, tmp_path) -> None:
    table = fleet.create()
    upsert(table, 0)
    service = fleet.run()
    settle(service)
    (tmp_path / "tables" / "trips").rename(tmp_path / "gone")
    again = fleet.create()
    upsert(again, 3, 4)
    settle(service)
    assert fleet.check(again).truncations == 2
    assert len(fleet.event_log.last_records(CHANGES_POSITIONS)) == 1


def test_an_older_copy_of_a_table_begins_anew(fleet: Changes, tmp_path) -> None:
    """Its next entries have sequences that are published."""
    table = fleet.create()
    upsert(table, 0)
    folder, copy = tmp_path / "tables" / "trips", tmp_path / "copy"
    shutil.copytree(folder, copy)
    upsert(table, 3)
    upsert(table, 6)
    service = fleet.run()
    settle(service)
    fleet.stop(service)
    shutil.rmtree(folder)
    copy.rename(folder)
    service = fleet.run()
    settle(service)
    again = fleet.open()
    assert fleet.check(again).truncations == 2
    upsert(again, 100)
    settle(service)
    assert fleet.check(again).truncations == 2


def test_a_heartbeat_says_that_a_quiet_table_is_followed(fleet: Changes) -> None:
    table = fleet.create()
    upsert(table, 0)
    service = fleet.run(heartbeat_s=60)

    def beat() -> tuple[int, int]:
        settle(service)
        (record,) = fleet.event_log.last_records(CHANGES_POSITIONS).values()
        position = json.loads(record.value or b"")
        return position["sequence"], position["published_ms"]

    (sequence, first) = beat()
    fleet.clock.advance(31)
    assert beat() == (sequence, first)
    fleet.clock.advance(31)
    reached, second = beat()
    assert (reached, second - first >= 60_000) == (sequence, True)
    assert fleet.check(table).ops == ["t", *"rrrrr"]


def test_a_heartbeat_says_nothing_of_a_commit_of_which_the_mirror_has_not_told(fleet: Changes) -> None:
    table = fleet.create()
    upsert(table, 0)
    mirror, _ = fleet.service(MirrorService, MirrorSettings, "mirror")
    settle(mirror)
    service = fleet.run(heartbeat_s=60)
    settle(service)
    fleet.clock.advance(61)
    mirror.tick()
    news = service._tables.looks._news
    assert news is not None
    news.stop()
    with closing(fleet.event_log.tail([TABLES.name, MIRRORS.name])) as tail:
        while not tail.is_at_end():
            news.take(tail.poll(SHORT_S), is_at_end=tail.is_at_end())
    opened = service._tables.by_uid(table.uid)
    assert opened is not None
    assert service._tables.looks.is_current(opened)
    upsert(table, 50)
    committed_ms = fleet.clock.now().timestamp() * 1000
    fleet.clock.advance(5)
    settle(service)
    (record,) = fleet.event_log.last_records(CHANGES_POSITIONS).values()
    position = json.loads(record.value or b"")
    assert position["published_ms"] < committed_ms or position["sequence"] == table.state.sequence


def test_a_position_says_no_later_time_than_up_to_which_all_changes_are_published(fleet: Changes, monkeypatch) -> None:
    """The time was that of the record, also where a part of a commit was published, and behind a visit that missed a commit."""
    table = fleet.create()
    upsert(table, 0)
    service = fleet.run(batch_rows=2)
    settle(service)

    def published() -> tuple[int, int]:
        (record,) = fleet.event_log.last_records(CHANGES_POSITIONS).values()
        position = json.loads(record.value or b"")
        return position["sequence"], position["published_ms"]

    reached = published()
    publish, found, recorded_ms = TableTopics.keep, [], []

    def slow(topics, number, position) -> None:
        publish(topics, number, position)
        found.append(published())
        if len(found) == 1:
            fleet.clock.advance(10)
            recorded_ms.append(fleet.clock.now().timestamp() * 1000)
            upsert(fleet.open(), 50)
            fleet.clock.advance(10)

    monkeypatch.setattr(TableTopics, "keep", slow)
    upsert(table, 100)
    service.tick()
    *in_part, (sequence, complete_ms) = found
    assert set(in_part) == {reached}, "a part of the commit"
    assert len(in_part) == 2
    assert sequence == table.refresh().sequence - 2
    assert reached[1] < complete_ms < recorded_ms[0], "the second commit is not published"
    settle(service)
    assert published()[1] > recorded_ms[0]
    fleet.check(table)
    settle(fleet.run(batch_rows=2, snapshot=1))
    assert [at for _, at in found if not at] == [0] * 8, "while the snapshot of 15 rows is published"


@pytest.mark.parametrize("mode", ["observe", "services"])
def test_nothing_is_written_to_an_observed_table(fleet: Changes, tmp_path, monkeypatch, mode: str) -> None:
    table = fleet.create()
    upsert(table, 0)
    policy = tmp_path / "policy.yaml"
    policy.write_text(json.dumps({"version": 1, "rules": [{"match": {"tables": [fleet.path("trips")]}, "mode": mode}]}))
    written: list[str] = []
    put = LocalStorage.put
    monkeypatch.setattr(LocalStorage, "put", lambda storage, path, data: (written.append(path), put(storage, path, data)))
    settle(fleet.run(batch_rows=1, policy_file=policy))
    assert fleet.check(table).ops == ["t", *"rrrrr"]
    assert bool(written) == (mode == "services"), "a reader lease"


def test_a_lost_event_log_gets_a_snapshot(fleet: Changes) -> None:
    table = fleet.create()
    upsert(table, 0)
    service = fleet.run()
    settle(service)
    fleet.stop(service)
    for path in (fleet.folder / "state").glob("events.db*"):
        path.unlink()
    settle(fleet.run())
    assert fleet.check(table).ops == ["t", *"rrrrr"]


def test_a_row_that_no_record_can_hold_is_a_dead_letter(fleet: Changes) -> None:
    schema = pa.schema([SCHEMA.field("id"), ("city", pa.string()), ("text", pa.string())])
    create_table(fleet.path("trips"), TableRequest("trips", schema, ("id",), ("city",)), fleet.clock)
    service = fleet.run()
    settle(service)
    given = {"id": ["small", "grows", "big"], "city": ["x"] * 3, "text": ["y", "y" * 600_000, "y" * 1_100_000]}
    write_rows(fleet.open(), pa.table(given, schema), Operation.UPSERT, parallelism=1)
    given = {"id": ["grows"], "city": ["x"], "text": ["z" * 600_000]}
    write_rows(fleet.open(), pa.table(given, schema), Operation.UPSERT, parallelism=1)
    write_rows(fleet.open(), pa.table(given, schema), Operation.DELETE, parallelism=1)
    write_rows(fleet.open(), pa.table({"id": ["big"], "city": ["x"], "text": [""]}, schema), Operation.DELETE, parallelism=1)
    settle(service)
    *_, changed, _, _, deleted, tombstone = records_of(fleet.event_log, "tideline.changes.trips")
    value = json.loads(changed.value or b"")
    assert (value["op"], value["before"], value["after"]["text"][:1]) == ("u", None, "z"), "the row before is left out"
    value = json.loads(deleted.value or b"")
    assert (value["op"], value["before"], value["after"]) == ("d", None, None)
    assert deleted.key == tombstone.key == b'{"id":"big","city":"x"}'
    (dead,) = fleet.events(DEAD_LETTER.name)
    assert dead.topic == "tideline.changes.trips"
    assert dead.key == b'{"id":"big","city":"x"}'
    assert dead.value_truncated


def test_tables_that_cannot_be_followed_are_refused_by_name(fleet: Changes) -> None:
    fleet.create(meta_fields=False)
    service = fleet.run()
    settle(service)
    ((why, _),) = service._tables.refusals().values()
    assert "table 'trips', which has no meta fields" in why
    assert records_of(fleet.event_log, "tideline.changes.trips") == []


def test_a_snapshot_without_truncation(fleet: Changes) -> None:
    """Debezium's JDBC sink refuses a record without a key, even where it does not truncate."""
    table = fleet.create()
    upsert(table, 0, 3)
    settle(fleet.run(truncations=False))
    assert fleet.check(table).ops == ["r"] * 3
    settle(fleet.run(truncations=False, snapshot=1))
    assert [json.loads(record.value or b"")["op"] for record in records_of(fleet.event_log, "tideline.changes.trips")] == ["r"] * 6
