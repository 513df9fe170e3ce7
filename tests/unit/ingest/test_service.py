"""One application, tick by tick: exactly once wherever it dies, and however many there are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.plans import schedule_clustering
from tests.unit.ingest.topics import Topics, application, held, ids, new_table, numbered, open_table, row, run
from tests.unit.locks.unreachable import nobody_there
from tests.unit.table.shared import SHARING

from tideline_ingest.errors import OffsetsLost, PoisonRecord, TopicUnavailable
from tideline_ingest.ingestion import IngestService
from tideline_ingest.metrics import COMMITS, GAPS, LAG, MOVED, RECORDS
from tideline_locks import LockTimeout, LockUnreachable, open_hudi_lock
from tideline_locks.table_lock import attach_lock
from tideline_runtime.errors import InputRefused, InvalidSetting
from tideline_table.action import check_table, create_metadata
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock, SystemClock
from tideline_table.coordination.reservations import Reservation
from tideline_table.errors import ClusteringFirst, ProgressMoved, SchemaMismatch
from tideline_table.hudi.instant import Action, State
from tideline_table.storage import LocalStorage, MemoryStorage
from tideline_table.table import Table, share_table

T0, T1 = ("t", 0), ("t", 1)
MOCK = {"test.mock.num.brokers": "1"}
"""Options of a client of Kafka that has brokers built in."""


class Died(BaseException):
    """The process is gone: nothing on the way may take it for an error of its own."""


class MortalStorage(MemoryStorage):
    """Another process's view of the same objects, which ends before or after its n-th change."""

    def __init__(self, objects: MemoryStorage, dies_at: int, *, after: bool) -> None:
        super().__init__(objects.root)
        self._objects, self._lock = objects._objects, objects._lock
        self.left, self._after = dies_at, after

    def _change(self, change):
        if self.left <= 0:
            raise Died
        self.left -= 1
        if self.left == 0 and not self._after:
            raise Died
        change()
        if self.left == 0:
            raise Died

    def put(self, path, data):
        self._change(lambda: MemoryStorage.put(self, path, data))

    def put_if_absent(self, path, data):
        self._change(lambda: MemoryStorage.put_if_absent(self, path, data))

    def delete(self, path):
        self._change(lambda: MemoryStorage.delete(self, path))

    @contextmanager
    def open_output(self, path) -> Iterator:
        if self.left <= 0:
            raise Died
        with super().open_output(path) as sink:
            yield sink
            self._change(lambda: None)


def test_batches_and_their_offsets(storage, tmp_path):
    topics = numbered(10)
    service, context = application(topics, storage, tmp_path)
    run(service, 3)
    assert ids(storage) == sorted(f"k{n}" for n in range(10))
    assert held(storage) == {T0: 5, T1: 5}
    metrics = context.metrics
    assert metrics.value(COMMITS) == 3
    assert metrics.value(RECORDS, kind="row") == 10
    assert metrics.value(LAG, topic="t", partition="0") == 0
    topics.send(T1, "late", row("late"))
    service, _ = application(topics, storage, tmp_path)
    run(service, 2)
    assert held(storage) == {T0: 5, T1: 6}
    assert len(open_table(storage).state.completed_writes()) == 4, "a tick without records commits nothing"


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_change_of_storage(tmp_path, after):
    """Inserts: a record that is ingested twice stands twice."""
    expected = sorted(f"k{n}" for n in range(8))
    deaths = 0
    for dies_at in range(1, 200):
        objects = MemoryStorage()
        new_table(objects, SystemClock())
        topics = numbered(8)
        service, _ = application(topics, MortalStorage(objects, dies_at, after=after), tmp_path, operation="insert")
        try:
            run(service, 2)
        except Died:
            deaths += 1
        else:
            break
        successor, _ = application(topics, objects, tmp_path, operation="insert")
        run(successor, 3)
        assert ids(objects) == expected, f"died at change {dies_at}"
        assert held(objects) == {T0: 4, T1: 4}
    assert deaths > 15


def test_a_zombie_commits_nothing(storage, tmp_path):
    topics = numbered(12)
    zombie, context = application(topics, storage, tmp_path, operation="insert")
    zombie.start()
    zombie.tick()
    other, _ = application(topics, storage, tmp_path, operation="insert")
    run(other, 1)
    with pytest.raises(ProgressMoved):
        zombie.tick()
    assert context.metrics.value(MOVED) == 1
    assert len(ids(storage)) == 8
    zombie.tick()
    zombie.stop()
    assert ids(storage) == sorted(f"k{n}" for n in range(12)), "it goes on behind the other one"


def test_applications_of_one_table_do_not_disturb_each_other(storage, tmp_path):
    topics, others = numbered(4), Topics()
    for n in range(4):
        others.send(T0, None, row(f"o{n}"))
    first, _ = application(topics, storage, tmp_path)
    second, _ = application(others, storage, tmp_path, application_id="other")
    for service in (first, second):
        service.start()
    for service in (first, second, first, second):
        service.tick()
    for service in (first, second):
        service.stop()
    assert ids(storage) == ["k0", "k1", "k2", "k3", "o0", "o1", "o2", "o3"]
    assert (held(storage), held(storage, "other")) == ({T0: 2, T1: 2}, {T0: 4})


def test_told_to_stop_a_batch_is_left_to_the_next_instance(storage, tmp_path):
    service, context = application(numbered(4), storage, tmp_path)
    service.start()
    context.request_stop()
    service.tick()
    service.stop()
    assert not open_table(storage).state.completed_writes()


def test_starting_at_the_end_is_committed_before_anything_is_read(storage, tmp_path):
    topics = numbered(4)
    service, _ = application(topics, storage, tmp_path, start_at="latest")
    run(service, 1)
    assert held(storage) == {T0: 2, T1: 2}
    topics.send(T0, None, row("new"))
    service, _ = application(topics, storage, tmp_path, start_at="latest")
    run(service, 1)
    assert ids(storage) == ["new"]


def test_lost_records(storage, tmp_path):
    topics = numbered(8)
    service, _ = application(topics, storage, tmp_path)
    run(service, 1)
    topics.first[T1] = 3
    service, _ = application(topics, storage, tmp_path)
    with pytest.raises(OffsetsLost, match="t/1 was ingested up to offset 2"):
        run(service, 1)
    assert len(ids(storage)) == 4
    service, context = application(topics, storage, tmp_path, on_lost_offsets="continue")
    run(service, 1)
    assert context.metrics.value(GAPS) == 1
    assert ids(storage) == sorted(f"k{n}" for n in range(8) if n != 5)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_topic_that_is_made_anew_under_a_reader(storage, tmp_path, goes_on):
    """It has grown past the offset that is read on from, so Kafka answers as if nothing had happened."""
    topics = numbered(4)
    topics.ids["t"] = "old"
    service, context = application(topics, storage, tmp_path, on_lost_offsets="continue" if goes_on else "fail")
    service.start()
    service.tick()
    assert held(storage) == {T0: 2, T1: 2}
    topics.records.clear()
    topics.ids["t"] = "new"
    for n in range(6):
        topics.send(("t", n % 2), f"n{n}", row(f"n{n}", n))
    if goes_on:
        for _ in range(3):
            service.tick()
        assert context.metrics.value(GAPS) == 2
    else:
        with pytest.raises(OffsetsLost, match="created again"):
            service.tick()
    service.stop()
    new = [f"n{n}" for n in range(6)] if goes_on else []
    assert ids(storage) == ["k0", "k1", "k2", "k3", *new]


@pytest.mark.parametrize(
    ("value", "reason"),
    [(b"{", "JSON"), (row(None), "id"), (row(""), "record key"), ({"id": "x", "more": 1}, "unexpected field"), (None, "no value")],
)
def test_a_poison_record_is_named_and_nothing_of_its_batch_is_written(storage, tmp_path, value, reason):
    topics = numbered(3)
    topics.send(T1, "bad", value)
    service, _ = application(topics, storage, tmp_path, batch_rows=10)
    with pytest.raises(PoisonRecord, match=r"record 1 of t/1 cannot be ingested \(.*" + reason) as refused:
        run(service, 1)
    assert isinstance(refused.value, InputRefused)
    assert (refused.value.topic, refused.value.partition, refused.value.offset) == ("t", 1, 1)
    assert not open_table(storage).state.completed_writes()


@pytest.mark.parametrize("region", ["x" * 300, "p/" + "é" * 150])
def test_a_record_of_a_partition_that_the_disk_cannot_have_is_poison(tmp_path, region):
    """Otherwise its batch fails for ever, and nobody says which record it is."""
    disk = LocalStorage(tmp_path / "table")
    new_table(disk, SystemClock())
    topics = numbered(3)
    topics.send(T1, "bad", row("bad", region=region))
    service, _ = application(topics, disk, tmp_path, batch_rows=10)
    with pytest.raises(PoisonRecord, match=r"record 1 of t/1 cannot be ingested \(.*the limit of file systems"):
        run(service, 1)


def test_a_key_that_a_record_index_cannot_hold_is_poison(storage, tmp_path):
    """Its commit succeeded, and from then on no writer could follow it with the index: ingestion ended for ever."""
    create_metadata(open_table(storage), ("record_index",))
    topics = numbered(3)
    topics.send(T1, "bad", row("k" * 32_758))
    topics.send(T1, "good", row("good"))
    service, context = application(
        topics, storage, tmp_path, batch_rows=10, poison="dead_letter", dead_letter_topic="aside", kafka_options=MOCK
    )
    run(service, 1)
    assert ids(storage) == ["good", "k0", "k1", "k2"]
    assert context.metrics.value(RECORDS, kind="dead_letter") == 1
    assert not check_table(open_table(storage))


def test_what_cannot_be_set_aside_is_not_skipped(storage, tmp_path):
    """Dead letters are written before the commit that skips their records: a crash in between repeats them and loses none."""
    topics = numbered(1)
    topics.send(T0, "bad", b"no JSON")
    aside = {"poison": "dead_letter", "dead_letter_topic": "aside"}
    with pytest.raises(TopicUnavailable, match="nothing was committed"):
        run(application(topics, storage, tmp_path, kafka_timeout_s=1, **aside)[0], 1)
    assert (ids(storage), held(storage)) == ([], None)
    # The next instance finds brokers: those that the client has built in.
    service, context = application(topics, storage, tmp_path, kafka_options=MOCK, **aside)
    run(service, 1)
    assert (ids(storage), held(storage)) == (["k0"], {T0: 2})
    assert context.metrics.value(RECORDS, kind="dead_letter") == 1


def test_progress_of_another_kind_is_left_alone(storage, tmp_path):
    topics = numbered(4)
    service, _ = application(topics, storage, tmp_path)
    run(service, 1)
    service, _ = application(topics, storage, tmp_path, application_id="other", tombstones="delete", key_format="json")
    run(service, 1)
    assert held(storage) == held(storage, "other") == {T0: 2, T1: 2}


@pytest.mark.parametrize(("unreachable", "goes_on"), [("wait", False), ("fail", False), ("storage", True)])
def test_a_redis_that_is_not_there(tmp_path, unreachable, goes_on):
    objects = LocalStorage(tmp_path / "table")
    new_table(objects, SystemClock())
    options = {"tideline.lock.unreachable": unreachable, "tideline.lock.wait": "3600" if unreachable == "fail" else "0.3"}
    with nobody_there() as url:
        service, _ = application(numbered(4), objects, tmp_path, locks=url, options=options)
        if goes_on:
            run(service, 1)
        else:
            with pytest.raises(LockUnreachable):
                run(service, 1)
    assert len(ids(objects)) == (4 if goes_on else 0)
    assert bool(objects.list_folder(".hoodie/.tideline/locks").folders) is goes_on
    service, _ = application(numbered(4), objects, tmp_path)
    run(service, 0 if goes_on else 1)
    assert len(ids(objects)) == 4, "what could not be committed is read again"


def test_it_waits_for_a_write_of_the_same_file_groups(storage, tmp_path, caplog):
    run(application(numbered(4), storage, tmp_path)[0], 1)
    other = open_table(storage)
    attach_lock(other, "memory:")
    begun = WriteTransaction.begin(other.timeline, other.lock, "UPSERT")
    groups = frozenset(s.group.file_id for s in other.slices())
    assert other.reservations.claim(Reservation(begun.instant, groups)) == []
    topics = numbered(4)
    topics.send(T0, "k0", row("k0", 9))
    with caplog.at_level("INFO"):
        run(application(topics, storage, tmp_path, options={"tideline.write.intent.wait": "0.1"})[0], 1)
    assert f"continues beside {begun.instant}, which it waited for" in caplog.text
    begun.roll_back()


def test_it_gives_signs_of_life_while_a_clustering_goes_first_and_takes_the_batch_in_behind_it(tmp_path):
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    new_table(storage, clock)
    topics = numbered(4)
    service, context = application(topics, storage, tmp_path, clock=clock)
    service.start()
    service.tick()
    table = Table.open(storage.root, storage=storage, clock=clock)
    options = {"tideline.clustering.yields": 0, "tideline.clustering.min.input.files": 1}
    assert schedule_clustering(table, options)
    topics.send(T0, "k0", row("k0", 9, 9.0))
    refused = 0
    while held(storage)[T0] == 2 and refused < 100:
        began_s = clock.monotonic_s()
        try:
            service.tick()
        except ClusteringFirst:
            refused += 1
            assert clock.monotonic_s() - began_s > 60
        assert context.health.live().is_ok
    assert refused == 2, "nobody runs it: its priority lapses"
    assert held(storage) == {T0: 3, T1: 2}
    assert table.refresh().pending_clusterings()
    service.stop()


def test_a_table_that_apache_hudi_writes_too(tmp_path):
    objects = MemoryStorage()
    new_table(objects, SystemClock())
    topics = numbered(8)
    run(application(topics, objects, tmp_path)[0], 1)
    share_table(open_table(objects), SHARING, open_hudi_lock)
    service, _ = application(topics, objects, tmp_path, options={"tideline.lock.wait": "0.2"})
    shared = Table.open(objects.root, storage=objects, hudi_lock=open_hudi_lock)
    with open_hudi_lock(objects, SHARING, "hudi", SystemClock(), shared.options).hold(), pytest.raises(LockTimeout):
        run(service, 1)
    assert len(ids(objects)) == 4
    service, _ = application(topics, objects, tmp_path)
    run(service, 1)
    assert ids(objects) == sorted(f"k{n}" for n in range(8))
    assert held(objects) == {T0: 4, T1: 4}
    assert {a.state for a in shared.refresh().actions.values() if a.action is Action.COMMIT} <= {State.COMPLETED, State.ROLLED_BACK}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"tombstones": "delete"}, "key_format"),
        ({"tombstones": "delete", "key_format": "json", "operation": "insert"}, "tombstones"),
        ({"poison": "dead_letter"}, "dead_letter_topic"),
        ({"poison": "dead_letter", "dead_letter_topic": "t"}, "dead_letter_topic"),
        ({"format": "avro"}, "schema_files"),
        ({"schema_files": ("nowhere.avsc",)}, "schema_files"),
        ({"format": "avro_single_object"}, "schema_files"),
    ],
)
def test_settings_that_do_not_fit_stop_the_start(storage, tmp_path, given, named):
    service, _ = application(numbered(1), storage, tmp_path, **given)
    with pytest.raises(InvalidSetting) as refused:
        service.start()
    assert refused.value.name == f"ingest.{named}"
    service.stop()


@pytest.mark.parametrize(
    "fields", ['{"name": "id", "type": "string"}, {"name": "more", "type": "long"}', '{"name": "ts", "type": "long"}']
)
def test_a_schema_that_does_not_fit_the_table_stops_the_start(storage, tmp_path, fields):
    """Not one record after the other as poison."""
    schema = tmp_path / "value.avsc"
    schema.write_text('{"type": "record", "name": "r", "fields": [' + fields + "]}")
    service, _ = application(numbered(1), storage, tmp_path, format="avro", schema_files=(schema,))
    with pytest.raises(InvalidSetting, match="do not fit the table") as refused:
        service.start()
    assert isinstance(refused.value.__cause__, SchemaMismatch)
    service.stop()


def test_partitions_that_are_left_to_another_application_are_not_lost(storage, tmp_path):
    """It stopped, and said that the topic had lost them."""
    topics = numbered(8)
    run(application(topics, storage, tmp_path)[0], 1)
    assert held(storage) == {T0: 2, T1: 2}
    run(application(topics, storage, tmp_path, partitions=(0,))[0], 1)
    assert held(storage) == {T0: 4, T1: 2}
    run(application(topics, storage, tmp_path)[0], 1)
    assert held(storage) == {T0: 4, T1: 4}
    del topics.records[T1]
    with pytest.raises(OffsetsLost, match="no longer has this partition"):
        run(application(topics, storage, tmp_path)[0], 1)


@pytest.mark.parametrize("has_reader", [True, False])
def test_kafka_options_that_the_client_refuses_are_named_without_their_values(storage, tmp_path, has_reader):
    options = {"sasl.pasword": "hunter22"}
    service, context = application(
        numbered(1), storage, tmp_path, kafka_options=options, poison="dead_letter", dead_letter_topic="aside"
    )
    service = service if has_reader else IngestService(service._settings, context, storage=storage)
    with pytest.raises(
        InvalidSetting, match=r"ingest.kafka_options has 'sasl.pasword'; .* No such configuration property"
    ) as caught:
        service.start()
    assert (caught.value.name, caught.value.origin) == ("ingest.kafka_options", "argument")
    assert "correct ingest.kafka_options" in caught.value.remedy
    assert "hunter22" not in str(caught.value)
    service.stop()
