"""Tables that get columns for fields of JSON which they lack."""

import pyarrow as pa
import pytest
from tests.unit.ingest.debezium_events import event, field, with_schema
from tests.unit.ingest.topics import SCHEMA, Topics, application, ids, new_table, open_table, row, run

from tideline_ingest.errors import PoisonRecord
from tideline_runtime.errors import InvalidSetting
from tideline_table.clock import SystemClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableRequest, create_table

T0 = ("t", 0)
EVOLVE = {"unknown_fields": "evolve"}


def fed(tmp_path, values, *, ticks=1, storage=None, **settings):
    if storage is None:
        storage = MemoryStorage()
        new_table(storage, SystemClock(), partition_fields=(), ordering_field="")
    topics = Topics()
    for value in values:
        topics.send(T0, None, value)
    service, _ = application(topics, storage, tmp_path, **{**EVOLVE, "batch_rows": 20, **settings})
    run(service, ticks)
    return storage


def columns(storage):
    table = open_table(storage)
    return {f.name: f.type for f in table.schema if f.name not in SCHEMA.names}


def test_fields_of_each_kind_become_columns(tmp_path):
    more = {
        "n": 1,
        "x": 1,
        "flag": True,
        "text": "t",
        "tags": ["a"],
        "deep": {"n": 1, "more": [{"y": 1.5}]},
        "nothing": None,
        "empty": [],
        "void": {},
    }
    storage = fed(tmp_path, [row("a"), {**row("b"), **more}, {**row("c"), "x": 1.5, "deep": {"later": "z"}}])
    found = columns(storage)
    deep = pa.struct([("n", pa.int64()), ("more", pa.list_(pa.struct([("y", pa.float64())]))), ("later", pa.string())])
    kinds = {name: str(kind).replace("element:", "item:").replace("array:", "item:") for name, kind in found.items()}
    assert kinds == {
        "n": "int64",
        "x": "double",
        "flag": "bool",
        "text": "string",
        "tags": "list<item: string>",
        "deep": str(deep),
    }
    rows = {r["id"]: r for r in open_table(storage).read(["id", *found]).to_pylist()}
    assert set(rows["a"].values()) == {"a", None}
    assert rows["b"]["deep"] == {"n": 1, "more": [{"y": 1.5}], "later": None}
    assert (rows["b"]["x"], rows["c"]["x"], rows["c"]["deep"]) == (1.0, 1.5, {"n": None, "more": None, "later": "z"})
    assert open_table(storage).schema.field("n").nullable


def test_later_batches_grow_again_and_structs_get_members(tmp_path):
    values = [{**row("a"), "at": {"x": 1}}, {**row("b"), "at": {"y": "z"}}, {**row("c"), "at": {"x": 2}, "k": 1}]
    storage = fed(tmp_path, values, batch_rows=1, ticks=3)
    rows = open_table(storage).read(["id", "at", "k"]).to_pylist()
    assert sorted(rows, key=lambda r: r["id"]) == [
        {"id": "a", "at": {"x": 1, "y": None}, "k": None},
        {"id": "b", "at": {"x": None, "y": "z"}, "k": None},
        {"id": "c", "at": {"x": 2, "y": None}, "k": 1},
    ]


def test_the_first_value_decides_and_others_are_poison(tmp_path):
    values = [{**row("a"), "v": 1}, {**row("b"), "v": "x"}]
    with pytest.raises(PoisonRecord, match="field 'v' has the value \"x\", which is no int64") as caught:
        fed(tmp_path, values)
    assert caught.value.offset == 1
    with pytest.raises(PoisonRecord, match="field 'v' has the value \"x\", which is no int64"):
        fed(tmp_path, values, batch_rows=1, ticks=2)


@pytest.mark.parametrize("name", ["a-b", "1a", "", "ä", "_hoodie_is_deleted"])
def test_a_name_that_no_column_can_have_is_poison_and_the_others_grow(tmp_path, name):
    class Letters:
        written = ()

        def write(self, rejected):
            self.written += tuple(rejected)

        def close(self):
            pass

    letters, storage, topics = Letters(), MemoryStorage(), Topics()
    new_table(storage, SystemClock(), partition_fields=(), ordering_field="")
    for value in ({**row("a"), "fine": 1}, {**row("b"), name: 1, "only_here": 2}, {**row("c"), "at": {name: 1}}, row("d")):
        topics.send(T0, None, value)
    service, _ = application(topics, storage, tmp_path, poison="dead_letter", dead_letter_topic="d", batch_rows=20, **EVOLVE)
    service._dead_letters = letters
    run(service, 1)
    assert [r.record.offset for r in letters.written] == [1, 2]
    assert all(repr(name)[1:-1] in r.reason for r in letters.written)
    assert ids(storage) == ["a", "d"]
    assert set(columns(storage)) == {"fine"}, "a record that is not ingested adds nothing"


def test_declared_types_come_from_the_record(tmp_path):
    shape = [field("id", "string"), field("ts", "int64"), field("born", "int32", "io.debezium.time.Date")]
    shape += [field("price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2", **{"connect.decimal.precision": "9"})]
    shape += [field("at", "int64", "io.debezium.time.MicroTimestamp"), field("zoned", "string", "io.debezium.time.ZonedTimestamp")]
    image = {"id": "a", "ts": 1, "born": 1, "price": "AMg=", "at": 1_000_000, "zoned": "2026-01-31T12:30:00Z"}
    storage = fed(tmp_path, [with_schema(event("c", None, image), *shape)], envelope="debezium")
    assert columns(storage) == {
        "born": pa.date32(),
        "price": pa.decimal128(9, 2),
        "at": pa.timestamp("us", tz="UTC"),
        "zoned": pa.timestamp("us", tz="UTC"),
    }
    assert str(open_table(storage).read(["price"]).to_pylist()[0]["price"]) == "2.00"


def test_events_without_a_schema_grow_by_their_values(tmp_path):
    values = [event("c", None, {**row("a"), "more": 1.5}), event("d", {**row("b"), "old": 1}, None)]
    assert columns(fed(tmp_path, values, envelope="debezium")) == {"more": pa.float64()}
    assert columns(fed(tmp_path, [{"Op": "U", **row("a"), "more": 1}], envelope="dms")) == {"more": pa.int64()}


@pytest.mark.parametrize("how", ["refuse", "ignore"])
def test_otherwise_the_table_keeps_its_columns(tmp_path, how):
    storage = MemoryStorage()
    create_table(storage.root, TableRequest("t", SCHEMA, ("id",)), SystemClock(), storage)
    values = [{**row("a"), "more": 1}]
    if how == "refuse":
        with pytest.raises(PoisonRecord, match="unexpected field 'more'"):
            fed(tmp_path, values, storage=storage, unknown_fields=how)
    else:
        fed(tmp_path, values, storage=storage, unknown_fields=how)
        assert ids(storage) == ["a"]
    assert columns(storage) == {}


def test_only_json_without_a_schema_grows(tmp_path):
    with pytest.raises(InvalidSetting, match="JSON without schema_files"):
        fed(tmp_path, [], format="csv")
