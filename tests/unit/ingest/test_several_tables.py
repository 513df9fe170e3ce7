"""One process for several tables: which topics go where, and that no table suffers for another one."""

import threading

import pytest
from tests.unit.ingest.topics import MemoryReader, Topics, held, ids, new_table, row

from tideline_ingest.assignment import assigned, check_assignment, has_several_tables
from tideline_ingest.errors import PoisonRecord, TablesSetAside
from tideline_ingest.ingestion import IngestService
from tideline_ingest.metrics import COMMITS, TABLES
from tideline_ingest.settings import IngestSettings
from tideline_ingest.several_tables import SeveralTables, ingest_service
from tideline_runtime.contract import ServiceContext
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.health import Health
from tideline_runtime.metrics import READY, Metrics
from tideline_table.clock import SystemClock
from tideline_table.storage import MemoryStorage

WAIT_S = 60


def settings_of(**given):
    own = {"application_id": "app", "table": "/lake/{topic}", "brokers": "b:1", "topics": ("^shop[.]",), "locks": "memory:"}
    return IngestSettings.load(environment={}, **{**own, **given})


def tables(settings, *existing):
    return {path: found.topics for path, found in assigned(settings, existing).items()}


def test_patterns_and_names():
    existing = ("shop.a", "shop.b", "other", "__shop.c")
    assert tables(settings_of(), *existing) == {"/lake/shop.a": ("shop.a",), "/lake/shop.b": ("shop.b",)}
    assert tables(settings_of(topics=("x", "y"))) == {"/lake/x": ("x",), "/lake/y": ("y",)}
    assert tables(settings_of(table="/lake/all"), *existing) == {"/lake/all": ("shop.a", "shop.b")}
    grouped = settings_of(topics=(r"^(?P<db>\w+)[.](?P<name>\w+)$",), table="/lake/{db}/{name}_raw")
    assert tables(grouped, *existing) == {"/lake/shop/a_raw": ("shop.a",), "/lake/shop/b_raw": ("shop.b",)}


def test_settings_of_single_topics():
    settings = settings_of(
        per_topic={"^shop[.]": {"envelope": "debezium"}, "shop.b": {"table": "/else", "batch_rows": 7, "csv": {"delimiter": ";"}}},
        forms={"*": "epoch_ms"},
    )
    a, b = (assigned(settings, ("shop.a", "shop.b"))[path] for path in ("/lake/shop.a", "/else"))
    assert (a.envelope, a.batch_rows, a.forms, a.csv.delimiter) == ("debezium", 50_000, {"*": "epoch_ms"}, ",")
    assert (b.envelope, b.batch_rows, b.forms, b.csv.delimiter) == ("debezium", 7, {"*": "epoch_ms"}, ";")
    assert not has_several_tables(a)


def test_dead_letters_are_not_fed():
    settings = settings_of(poison="dead_letter", dead_letter_topic="{topic}.bad")
    found = assigned(settings, ("shop.a", "shop.a.bad", "shop.b", "shop.b.bad"))
    assert {path: f.dead_letter_topic for path, f in found.items()} == {
        "/lake/shop.a": "shop.a.bad",
        "/lake/shop.b": "shop.b.bad",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topics": ("^(",)}, "pattern"),
        ({"per_topic": {"a": {"brokers": "x"}}}, "'per_topic' has 'brokers'"),
        ({"per_topic": {"a": {"kafka_options": {}}}}, "'per_topic' has 'kafka_options'"),
        ({"per_topic": {"a": {"batch_rows": "many"}}}, "batch_rows"),
        ({"table": "/lake/{nope}"}, "has {nope}"),
        ({"topics": (r"^shop(?P<rest>.*)$",), "table": "/lake/{rest}"}, "{rest} is '..' for topic 'shop..'"),
        ({"table": "/lake/one", "per_topic": {"shop.a": {"batch_rows": 1}}}, "for topics 'shop..' and 'shop.a' of one table"),
    ],
)
def test_settings_that_are_wrong(given, message):
    settings = settings_of(**given)

    def judge():
        check_assignment(settings)
        assigned(settings, ("shop.a", "shop.b", "shop.."))

    with pytest.raises(InvalidSetting) as caught:
        judge()
    assert message in str(caught.value)


class House:
    """Topics in memory, each with a table, and a process that feeds them."""

    def __init__(self, *names, **given):
        self.clock, self.topics, self.names = SystemClock(), Topics(), set(names)
        self.storages = {f"/lake/{name}": self.storage() for name in names}
        for name in names:
            self.topics.records[name, 0] = []
        self.context = ServiceContext("ingest", self.clock, Metrics("ingest"), Health(self.clock, 300))
        settings = settings_of(poll_interval_s=0.01, topic_rescan_s=3600, retry_backoff_max_s=0.01, **given)
        self.service = SeveralTables(settings, self.context, topics=lambda: self.names, factory=self.application)
        self.moved = threading.Event()

    def storage(self):
        storage = MemoryStorage()
        new_table(storage, self.clock, partition_fields=())
        return storage

    def application(self, settings, context):
        own = Topics()
        own.records = {place: kept for place, kept in self.topics.records.items() if place[0] in settings.topics}
        storage = self.storages[settings.table]
        return IngestService(settings, context, storage=storage, reader=MemoryReader(own, settings.partitions))

    def send(self, name, key, value):
        self.topics.send((name, 0), key, value)

    def until(self, condition):
        deadline_s = self.clock.monotonic_s() + WAIT_S
        while not condition():
            assert self.clock.monotonic_s() < deadline_s
            self.moved.wait(0.005)

    def fed(self, name):
        return (held(self.storages[f"/lake/{name}"]) or {}).get((name, 0), 0)


def test_each_table_has_its_own_offsets_and_poison_stops_only_its_own():
    house = House("shop.a", "shop.b", "shop.c")
    for n in range(6):
        house.send("shop.a", f"a{n}", row(f"a{n}", n))
        house.send("shop.c", f"c{n}", row(f"c{n}", n))
    house.send("shop.b", "b0", row("b0"))
    house.send("shop.b", "b1", {"id": "b1", "ts": "x"})
    house.service.start()
    try:
        house.until(lambda: house.fed("shop.a") == 6 and house.fed("shop.c") == 6)
        failed = house.service._running["/lake/shop.b"]
        failed.thread.join(WAIT_S)
        assert isinstance(failed.failure, PoisonRecord)
        assert house.service.tick() is None
        metrics = house.context.metrics
        assert (metrics.value(TABLES, state="running"), metrics.value(TABLES, state="set_aside")) == (2, 1)
        assert metrics.value(READY) == 0, "an application does not tell of the process"
        with pytest.raises(TablesSetAside, match=r"/lake/shop.b: PoisonRecord: record 1 of shop.b/0"):
            house.service._check()
        house.send("shop.a", "a9", row("a9"))
        house.until(lambda: house.fed("shop.a") == 7)
        assert ids(house.storages["/lake/shop.b"]) == []
        house.topics.records["shop.b", 0].pop()
        house.service._rescan_s = 0
        house.service.tick()
        house.until(lambda: house.fed("shop.b") == 1)
        house.service._check()
        house.until(lambda: metrics.value(COMMITS) == 4)
    finally:
        house.service.stop()
    assert not any(a.thread.is_alive() for a in house.service._running.values())
    assert ids(house.storages["/lake/shop.b"]) == ["b0"]
    assert ids(house.storages["/lake/shop.a"]) == [*(f"a{n}" for n in range(6)), "a9"]


def test_topics_that_appear_get_a_table_and_those_that_went_end():
    house = House("shop.a")
    house.send("shop.a", "a", row("a"))
    house.service.start()
    try:
        house.until(lambda: house.fed("shop.a") == 1)
        house.storages["/lake/shop.b"] = house.storage()
        house.send("shop.b", "b", row("b"))
        gone = house.service._running["/lake/shop.a"]
        house.names = {"shop.b"}
        house.service._rescan_s = 0
        house.service.tick()
        house.until(lambda: house.fed("shop.b") == 1)
        assert not gone.thread.is_alive()
        assert set(house.service._running) == {"/lake/shop.b"}
    finally:
        house.service.stop()


def test_a_new_topic_that_fits_no_table_does_not_stop_the_others():
    house = House("shop.a", "shop.b", per_topic={"shop.x": {"table": "/lake/shop.a", "batch_rows": 3}})
    house.service.start()
    try:
        house.names = {"shop.a", "shop.b", "shop.x"}
        house.service._rescan_s = 0
        house.service.tick()
        assert any("other settings for topics" in reason for reason in house.context.health.ready().reasons)
        house.send("shop.a", "a", row("a"))
        house.until(lambda: house.fed("shop.a") == 1)
    finally:
        house.service.stop()


def test_a_table_that_is_missing_is_opened_when_it_is_there(tmp_path):
    house = House("shop.a")
    house.storages["/lake/shop.a"] = MemoryStorage()
    house.send("shop.a", "a", row("a"))
    house.service.start()
    try:
        house.service._running["/lake/shop.a"].thread.join(WAIT_S)
        with pytest.raises(TablesSetAside, match=r"/lake/shop.a"):
            house.service._check()
        new_table(house.storages["/lake/shop.a"], house.clock, partition_fields=())
        house.service._rescan_s = 0
        house.service.tick()
        house.until(lambda: house.fed("shop.a") == 1)
    finally:
        house.service.stop()


def test_an_application_that_hangs_lets_the_process_appear_dead():
    house = House("shop.a")
    house.service.start()
    try:
        house.until(lambda: not house.service._running["/lake/shop.a"].context.health.ready().reasons)
        application = house.service._running["/lake/shop.a"]
        object.__setattr__(application.context, "health", Health(house.clock, -1e9))
        ticking = threading.Thread(target=house.service.tick)
        ticking.start()
        ticking.join(0.05)
        assert ticking.is_alive()
        house.context.request_stop()
        ticking.join(WAIT_S)
        assert not ticking.is_alive()
    finally:
        house.service.stop()


@pytest.mark.parametrize(
    ("given", "several"),
    [({}, True), ({"topics": ("a", "b"), "table": "/t"}, False), ({"topics": ("a",), "table": "/t", "per_topic": {"a": {}}}, True)],
)
def test_which_service_the_settings_ask_for(given, several):
    clock = SystemClock()
    context = ServiceContext("ingest", clock, Metrics("ingest"), Health(clock, 300))
    assert isinstance(ingest_service(settings_of(**given), context), SeveralTables if several else IngestService)
