"""Change events of Debezium: the table is what the database's was."""

import base64
import io
import json
import random
from datetime import UTC, date, datetime, time
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from tests.unit.ingest.debezium_events import (
    SOURCES,
    avro_envelope,
    avro_event,
    connect,
    decimal_base64,
    encoded,
    event,
    field,
    with_schema,
)
from tests.unit.ingest.registries import answering
from tests.unit.ingest.topics import Topics, application, held, new_table, open_table, row, run

import tideline
from tideline_ingest.batch import Received
from tideline_ingest.errors import PoisonRecord
from tideline_ingest.growth import grown
from tideline_ingest.metrics import COMMITS
from tideline_runtime.errors import InvalidSetting
from tideline_table.clock import SystemClock
from tideline_table.storage import MemoryStorage, open_storage
from tideline_table.table import TableRequest, TableType, create_table

T0 = ("t", 0)
DEBEZIUM = {"envelope": "debezium"}
AVRO = avro_envelope(("id", "string"), ("region", "string"), ("ts", "long"), ("amount", "double"))


@pytest.fixture
def answers():
    with answering() as made:
        yield made


@pytest.fixture(params=["json", "json with schema", "avro"])
def fed(request, answers, tmp_path):
    """Sends events of the table's columns in one of the forms, and runs an application until they are in the table."""

    class Fed:
        topics = Topics()
        storage = MemoryStorage()
        is_avro = request.param == "avro"
        lead = answers.register(7, AVRO)

        def send(self, op, before, after, lsn=1, place=T0):
            if self.is_avro:
                value = self.lead + avro_event(AVRO, op, before, after, lsn)
            else:
                value = event(op, before, after, lsn=lsn)
                if request.param == "json with schema":
                    columns = [field("id", "string"), field("region", "string"), field("ts", "int64"), field("amount", "double")]
                    value = encoded(with_schema(value, *columns))
            self.topics.send(place, (after or before or {}).get("id"), value)

        def run(self, ticks=1, **settings):
            more = {"format": "avro_registry", "schema_registry": answers.url} if self.is_avro else {}
            service, context = application(self.topics, self.storage, tmp_path, **DEBEZIUM, **more, **settings)
            run(service, ticks)
            return context

        def rows(self):
            found = open_table(self.storage).read(["id", "region", "ts", "amount"]).to_pylist()
            return sorted(found, key=lambda r: (r["id"], r["region"] or ""))

    return Fed()


def test_a_snapshot_then_changes(fed):
    new_table(fed.storage, SystemClock(), partition_fields=(), ordering_field="")
    for key in "abc":
        fed.send("r", None, row(key, 1))
    fed.send("c", None, row("d", 2))
    fed.send("u", row("a", 1), row("a", 3, 9.0))
    fed.send("d", row("b", 1), None)
    fed.topics.send(T0, "b", None)
    fed.send("u", None, row("c", 4))
    fed.run(batch_rows=20)
    assert fed.rows() == [row("a", 3, 9.0), row("c", 4), row("d", 2)]
    assert held(fed.storage) == {T0: 8}


def test_before_only_needs_the_key_for_a_deletion(fed):
    new_table(fed.storage, SystemClock(), partition_fields=(), ordering_field="")
    fed.send("c", None, row("a"))
    fed.send("c", None, row("b"))
    fed.send("d", {"id": "a", "region": None, "ts": None, "amount": None}, None)
    fed.run()
    assert fed.rows() == [row("b")]


@pytest.mark.parametrize("kind", [TableType.COW, TableType.MOR])
@pytest.mark.parametrize("ordering", ["", "ts"])
def test_the_last_event_of_a_key_wins(fed, kind, ordering):
    """In every batch, whatever its size: the state of a database that each event changed, one by one."""
    new_table(fed.storage, SystemClock(), partition_fields=(), ordering_field=ordering, type=kind)
    choose, state = random.Random(5), {}
    for lsn in range(1, 60):
        key = f"k{choose.randrange(5)}"
        place = ("t", int(key[1:]) % 2)
        if key in state and choose.random() < 0.4:
            fed.send("d", state.pop(key), None, lsn, place)
            fed.topics.send(place, key, None)
        else:
            found = row(key, lsn, choose.random())
            fed.send("u" if key in state else "c", state.get(key), found, lsn, place)
            state[key] = found
    service_rows = [state[key] for key in sorted(state)]
    total = sum(map(len, fed.topics.records.values()))
    for _ in range(total):
        if sum((held(fed.storage) or {}).values()) == total:
            break
        fed.run(batch_rows=30)
    assert fed.rows() == service_rows


@pytest.mark.parametrize(("ordering", "commits"), [("", 1), ("ts", 3)])
def test_rows_that_return_after_their_deletion(fed, ordering, commits):
    new_table(fed.storage, SystemClock(), partition_fields=(), ordering_field=ordering)
    for ts in (1, 2, 3):
        fed.send("c", None, row("a", ts))
        if ts < 3:
            fed.send("d", row("a", ts), None)
    context = fed.run(commits, batch_rows=20)
    assert fed.rows() == [row("a", 3)]
    assert context.metrics.value(COMMITS) == commits


def test_a_row_that_changes_its_partition_moves(fed):
    new_table(fed.storage, SystemClock(), ordering_field="")
    for key in "ab":
        fed.send("r", None, row(key, 1, region="north"))
    fed.send("u", row("a", 1, region="north"), row("a", 2, region="south"))
    fed.send("u", row("b", 1, region="north"), row("b", 2, region="north"))
    fed.run(batch_rows=2)
    fed.run(batch_rows=2)
    assert fed.rows() == [row("a", 2, region="south"), row("b", 2, region="north")]


def test_a_move_within_the_partition_of_a_generator_is_none(tmp_path):
    """Another value of the partition column that names the same partition must not delete the row that is written."""
    storage, topics = MemoryStorage(), Topics()
    schema = pa.schema([("id", pa.string()), ("at", pa.int64())])
    daily = {
        "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
        "hoodie.keygen.timebased.output.dateformat": "yyyy-MM-dd",
    }
    made = TableRequest("t", schema, ("id",), ("at",), key_generator="TIMESTAMP", key_settings=daily)
    create_table(storage.root, made, SystemClock(), storage)
    topics.send(T0, "a", event("u", {"id": "a", "at": 1_000}, {"id": "a", "at": 2_000}))
    service, _ = application(topics, storage, tmp_path, **DEBEZIUM)
    run(service, 1)
    assert open_table(storage).read(["id", "at"]).to_pylist() == [{"id": "a", "at": 2_000}]


def test_a_deletion_that_does_not_name_the_partition_is_poison(fed):
    new_table(fed.storage, SystemClock(), ordering_field="")
    fed.send("d", {"id": "a", "region": None, "ts": None, "amount": None}, None)
    with pytest.raises(PoisonRecord, match=r"without the field 'region'.*REPLICA IDENTITY FULL"):
        fed.run()


@pytest.mark.parametrize(
    ("op", "before", "after", "reason"),
    [
        ("t", None, None, "field 'op' has the value 't'; expected one of c, r, u and d"),
        ("c", row("a"), None, "in the field 'after' of an event"),
    ],
)
def test_poison_events_name_the_field(fed, op, before, after, reason):
    new_table(fed.storage, SystemClock(), partition_fields=(), ordering_field="")
    fed.send("c", None, row("a"))
    fed.send(op, before, after)
    with pytest.raises(PoisonRecord, match=reason):
        fed.run()


def test_a_required_column_that_is_null_is_poison(fed):
    new_table(fed.storage, SystemClock(), partition_fields=(), ordering_field="")
    fed.send("c", None, {**row("a"), "id": None})
    with pytest.raises(PoisonRecord, match="'id'"):
        fed.run()


def test_a_value_that_the_database_did_not_tell_is_poison(fed):
    """PostgreSQL does not tell large values that an update left as they were: the text in their place is no value."""
    new_table(fed.storage, SystemClock(), partition_fields=(), ordering_field="")
    fed.send("c", None, row("a"))
    fed.send("u", None, {**row("a", 2), "region": "__debezium_unavailable_value"})
    with pytest.raises(PoisonRecord, match=r"field 'region' has the value '__debezium_unavailable_value'.*REPLICA IDENTITY FULL"):
        fed.run()


@pytest.mark.parametrize("version", [6, 9])
def test_a_table_with_the_rule_of_postgres_keeps_what_the_database_did_not_tell(tmp_path, version):
    columns = [("id", pa.string()), ("note", pa.string()), ("_event_lsn", pa.int64()), ("_change_operation_type", pa.string())]
    path = str(tmp_path / "t")
    tideline.create(path, schema=pa.schema(columns), key="id", merge="postgres_debezium", table_version=version)
    topics, storage = Topics(), open_storage(path)
    topics.send(T0, "a", event("c", None, {"id": "a", "note": "long"}, lsn=1))
    topics.send(T0, "b", event("c", None, {"id": "b", "note": "short"}, lsn=2))
    taken = {"_event_lsn": "source.lsn", "_change_operation_type": "op"}
    service, _ = application(topics, storage, tmp_path, **DEBEZIUM, envelope_columns=taken)
    run(service, 1)
    topics.send(T0, "a", event("u", None, {"id": "a", "note": "__debezium_unavailable_value"}, lsn=3))
    run(service, 1)
    found = tideline.open(path).read(["id", "note", "_event_lsn"]).to_pylist()
    assert sorted(tuple(r.values()) for r in found) == [("a", "long", 3), ("b", "short", 2)]


def test_an_ordering_column_from_the_position_in_the_source(fed):
    schema = pa.schema([("id", pa.string()), ("region", pa.string()), ("ts", pa.int64()), ("amount", pa.float64())])
    wide = schema.append(pa.field("lsn", pa.int64())).append(pa.field("at", pa.timestamp("us", tz="UTC")))
    create_table(fed.storage.root, TableRequest("t", wide, ("id",), (), "lsn"), SystemClock(), fed.storage)
    fed.send("c", None, row("a", 5), lsn=7)
    fed.send("u", row("a", 5), row("a", 4), lsn=9)
    fed.send("u", row("a", 4), row("a", 3), lsn=8)
    fed.run(envelope_columns={"lsn": "source.lsn", "at": "ts_ms"})
    found = open_table(fed.storage).read(["id", "ts", "lsn", "at"]).to_pylist()
    assert found == [{"id": "a", "ts": 4, "lsn": 9, "at": datetime.fromtimestamp(1_700_000_000.123, UTC)}]


TYPES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("day", pa.date32()),
        ("at_ms", pa.timestamp("us", tz="UTC")),
        ("at_us", pa.timestamp("us")),
        ("at_ns", pa.timestamp("us", tz="UTC")),
        ("zoned", pa.timestamp("us", tz="UTC")),
        ("clock", pa.time64("us")),
        ("price", pa.decimal128(10, 2)),
        ("free", pa.decimal128(20, 4)),
        ("text_price", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("nanos", pa.int64()),
    ]
)
AT = datetime(2026, 1, 31, 12, 30, 0, 250_000, UTC)
MICROS = int(AT.timestamp() * 1_000_000)
EXPECTED = {
    "id": 1,
    "day": date(2026, 1, 31),
    "at_ms": AT,
    "at_us": AT.replace(tzinfo=None),
    "at_ns": AT,
    "zoned": AT,
    "clock": time(12, 30),
    "price": Decimal("-12.50"),
    "free": Decimal("3.1250"),
    "text_price": Decimal("7.25"),
    "raw": b"\x00\xff",
    "nanos": MICROS * 1000 + 1,
}
NUMBERS = {
    "id": 1,
    "day": (date(2026, 1, 31) - date(1970, 1, 1)).days,
    "at_ms": MICROS // 1000,
    "at_us": MICROS,
    "at_ns": MICROS * 1000,
    "zoned": "2026-01-31T14:30:00.25+02:00",
    "clock": 45_000_000_000,
    "text_price": "7.25",
    "nanos": MICROS * 1000 + 1,
}
CONNECT = [
    field("id", "int64"),
    field("day", "int32", "io.debezium.time.Date"),
    field("at_ms", "int64", "io.debezium.time.Timestamp"),
    field("at_us", "int64", "io.debezium.time.MicroTimestamp"),
    field("at_ns", "int64", "io.debezium.time.NanoTimestamp"),
    field("zoned", "string", "io.debezium.time.ZonedTimestamp"),
    field("clock", "int64", "io.debezium.time.MicroTime"),
    field("price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2"),
    field("free", "struct", "io.debezium.data.VariableScaleDecimal"),
    field("text_price", "string"),
    field("raw", "bytes"),
    field("nanos", "int64", "io.debezium.time.NanoTimestamp"),
]


def read_types(topics, tmp_path, columns=TYPES, **settings):
    storage = MemoryStorage()
    create_table(storage.root, TableRequest("t", columns, ("id",)), SystemClock(), storage)
    service, _ = application(topics, storage, tmp_path, **DEBEZIUM, **settings)
    run(service, 1)
    return open_table(storage).read(columns.names).to_pylist()


def test_the_types_of_json_with_a_schema(tmp_path):
    image = {
        **NUMBERS,
        "price": decimal_base64("-12.50", 2),
        "free": {"scale": 3, "value": decimal_base64("3.125", 3)},
        "raw": base64.b64encode(b"\x00\xff").decode(),
    }
    topics = Topics()
    topics.send(T0, "1", with_schema(event("c", None, image), *CONNECT))
    topics.send(T0, "2", with_schema(event("c", None, {"id": 2}), *CONNECT))
    topics.send(T0, "3", with_schema(event("c", None, {"id": 3, "day": 0}), *CONNECT[:2]))
    one, two, three = sorted(read_types(topics, tmp_path), key=lambda r: r["id"])
    assert one == EXPECTED
    assert set(two.values()) == {2, None}
    assert three["day"] == date(1970, 1, 1)


def test_the_types_of_json_without_a_schema(tmp_path):
    image = {**NUMBERS, "price": decimal_base64("-12.50", 2), "raw": base64.b64encode(b"\x00\xff").decode()}
    topics = Topics()
    topics.send(T0, "1", event("c", None, image))
    forms = {"*": "epoch_us", "at_ms": "epoch_ms", "at_ns": "epoch_ns", "zoned": "text", "text_price": "text"}
    assert read_types(topics, tmp_path, forms=forms) == [{**EXPECTED, "free": None}]


def test_the_types_of_avro(answers, tmp_path):
    decimal = connect("bytes", "org.apache.kafka.connect.data.Decimal", logicalType="decimal", precision=10, scale=2)
    scaled = connect("record", "io.debezium.data.VariableScaleDecimal", name="VariableScaleDecimal", namespace="io.debezium.data")
    scaled["fields"] = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
    schema = avro_envelope(
        ("id", "long"),
        ("day", connect("int", "io.debezium.time.Date")),
        ("at_ms", connect("long", "io.debezium.time.Timestamp")),
        ("at_us", connect("long", "io.debezium.time.MicroTimestamp")),
        ("at_ns", connect("long", "io.debezium.time.NanoTimestamp")),
        ("zoned", connect("string", "io.debezium.time.ZonedTimestamp")),
        ("clock", connect("long", "io.debezium.time.MicroTime")),
        ("price", decimal),
        ("free", scaled),
        ("text_price", "string"),
        ("raw", "bytes"),
        ("nanos", connect("long", "io.debezium.time.NanoTimestamp")),
    )
    lead = answers.register(3, schema)
    free = {"scale": 3, "value": (3125).to_bytes(2, "big")}
    image = {**NUMBERS, "price": Decimal("-12.50"), "free": free, "raw": b"\x00\xff"}
    topics = Topics()
    topics.send(T0, "1", lead + avro_event(schema, "c", None, image))
    topics.send(T0, "2", lead + avro_event(schema, "c", None, {"id": 2}))
    found = read_types(topics, tmp_path, format="avro_registry", schema_registry=answers.url)
    one, two = sorted(found, key=lambda r: r["id"])
    assert one == EXPECTED
    assert set(two.values()) == {2, None}


def test_a_schema_with_new_fields_gives_the_table_columns_of_their_meaning(answers, tmp_path):
    more = (
        ("day", connect("int", "io.debezium.time.Date")),
        ("at", connect("long", "io.debezium.time.MicroTimestamp")),
        ("zoned", connect("string", "io.debezium.time.ZonedTimestamp")),
        ("nanos", connect("long", "io.debezium.time.NanoTimestamp")),
    )
    older = answers.register(1, AVRO)
    schema = avro_envelope(("id", "string"), ("region", "string"), ("ts", "long"), ("amount", "double"), *more)
    newer = answers.register(2, schema)
    image = {**row("b"), "day": 1, "at": MICROS, "zoned": "2026-01-31T12:30:00.25Z", "nanos": 7}
    asked = {"format": "avro_registry", "schema_registry": answers.url}
    for evolution in ("refuse", "evolve"):
        storage, topics = MemoryStorage(), Topics()
        new_table(storage, SystemClock(), partition_fields=())
        topics.send(T0, "a", older + avro_event(AVRO, "c", None, row("a")))
        topics.send(T0, "b", newer + avro_event(schema, "c", None, image))
        topics.send(T0, "c", older + avro_event(AVRO, "d", row("c"), None))
        options = {"tideline.write.schema.evolution": evolution}
        service, _ = application(topics, storage, tmp_path, **DEBEZIUM, **asked, options=options)
        if evolution == "refuse":
            with pytest.raises(PoisonRecord, match="'day', 'at', 'zoned', 'nanos' that the table does not have"):
                run(service, 1)
            continue
        run(service, 1)
        found = sorted(open_table(storage).read(["id", "day", "at", "zoned", "nanos"]).to_pylist(), key=lambda r: r["id"])
        assert found[1] == {"id": "b", "day": date(1970, 1, 2), "at": AT, "zoned": AT, "nanos": 7}
        assert set(found[0].values()) == {"a", None}


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ({"at_ns": MICROS * 1000 + 1}, "field 'at_ns' has the value .*, which is no timestamp.us, tz=UTC. as epoch_ns"),
        ({"day": "2026-01-31"}, "field 'day' has the value .*no date32.day. as epoch_days"),
        ({"price": "12.50"}, "field 'price' has the value .*as base64"),
        ({"clock": 86_400_000_000}, "field 'clock'"),
        ({"free": {"scale": 9, "value": "AQ=="}}, "field 'free'"),
        ({"free": {"scale": 2**30, "value": "AQ=="}}, "field 'free'"),
        ({"gone": 1}, "unexpected field 'gone'"),
    ],
)
def test_poison_values_name_the_field(tmp_path, image, reason):
    topics = Topics()
    topics.send(T0, "1", with_schema(event("c", None, {"id": 1}), *CONNECT))
    topics.send(T0, "2", with_schema(event("c", None, {"id": 2, **image}), *CONNECT))
    with pytest.raises(PoisonRecord, match=reason):
        read_types(topics, tmp_path)


def test_a_deletion_names_the_row_by_its_record_key_if_there_is_no_image(tmp_path):
    storage, topics = MemoryStorage(), Topics()
    new_table(storage, SystemClock(), partition_fields=(), ordering_field="")
    topics.send(T0, "a", event("c", None, row("a")))
    topics.send(T0, "b", event("c", None, row("b")))
    topics.send(T0, '{"id": "a"}', event("d", None, None))
    service, _ = application(topics, storage, tmp_path, **DEBEZIUM)
    run(service, 1)
    assert open_table(storage).read(["id"]).to_pylist() == [{"id": "b"}]


@pytest.mark.parametrize("connector", SOURCES)
def test_the_envelopes_of_each_database(tmp_path, connector):
    storage, topics = MemoryStorage(), Topics()
    new_table(storage, SystemClock(), partition_fields=(), ordering_field="")
    topics.send(T0, "a", event("r", None, row("a"), connector=connector, snapshot="last"))
    topics.send(T0, "a", event("u", row("a"), row("a", 2), connector=connector))
    topics.send(T0, "b", event("c", None, row("b"), connector=connector))
    topics.send(T0, "b", event("d", row("b"), None, connector=connector))
    service, _ = application(topics, storage, tmp_path, **DEBEZIUM)
    run(service, 1)
    assert open_table(storage).read(["id", "ts"]).to_pylist() == [{"id": "a", "ts": 2}]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"operation": "insert"}, "operation 'insert' with an envelope"),
        ({"tombstones": "delete"}, "tombstones"),
        ({"format": "avro", "schema_files": ("x",)}, "format 'avro' with envelope 'debezium'"),
        ({"envelope_columns": {"nope": "ts_ms"}}, "names 'nope'"),
        ({"forms": {"amount": "epoch_ms"}}, "form 'epoch_ms' of 'amount', which is a column of type double"),
        ({"forms": {"nope": "text"}}, "no column of the table"),
        ({"envelope": "none", "envelope_columns": {"ts": "ts_ms"}}, "without an envelope"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, settings, message):
    storage = MemoryStorage()
    new_table(storage, SystemClock())
    service, _ = application(Topics(), storage, tmp_path, **{**DEBEZIUM, **settings})
    with pytest.raises(InvalidSetting, match=message):
        service.start()


FLAT = {"envelope": "debezium_flat"}
FLAT_AVRO = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": name, "type": ["null", kind], "default": None}
        for name, kind in (("id", "string"), ("region", "string"), ("ts", "long"), ("amount", "double"))
    ]
    + [{"name": name, "type": ["null", "string"], "default": None} for name in ("__deleted", "__op")],
}


def flat_avro(lead, image):
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(FLAT_AVRO), image)
    return lead + sink.getvalue()


def flat_json(image):
    shape = [field("id", "string"), field("region", "string"), field("ts", "int64"), field("amount", "double")]
    shape += [field("__deleted", "string"), field("__op", "string")]
    return encoded(with_schema({name: image.get(name) for name in (f["field"] for f in shape)}, *shape, images=False))


@pytest.mark.parametrize("kind", ["json", "json with schema", "avro"])
@pytest.mark.parametrize("tombstones", ["refuse", "delete"])
def test_flattened_rows(answers, tmp_path, kind, tombstones):
    """Rows of `ExtractNewRecordState`: rewritten deletions, `__op`, and tombstones, which delete if the settings say so."""
    storage, topics, lead = MemoryStorage(), Topics(), answers.register(7, FLAT_AVRO)
    new_table(storage, SystemClock(), partition_fields=(), ordering_field="")

    def send(image):
        value = flat_avro(lead, image) if kind == "avro" else flat_json(image) if kind == "json with schema" else encoded(image)
        topics.send(T0, None, value)

    for key in "abcd":
        send({**row(key), "__deleted": "false"})
    send({**row("a", 2), "__op": "u"})
    send({**row("b"), "__deleted": "true"})
    send({**row("c"), "__op": "d"})
    key = {"schema": None, "payload": {"id": "d"}} if kind == "json with schema" else {"id": "d"}
    topics.send(T0, json.dumps(key), None)
    more = {"format": "avro_registry", "schema_registry": answers.url} if kind == "avro" else {}
    service, _ = application(topics, storage, tmp_path, **FLAT, **more, tombstones=tombstones, key_format="json", batch_rows=20)
    run(service, 1)
    left = [row("a", 2)] if tombstones == "delete" else [row("a", 2), row("d")]
    found = open_table(storage).read(["id", "region", "ts", "amount"]).to_pylist()
    assert sorted(found, key=lambda r: r["id"]) == left
    topics.send(T0, json.dumps({**key, "payload": {"id": "a"}} if "payload" in key else {"id": "a"}), None)
    run(service, 1)
    assert open_table(storage).read(["id"]).num_rows == (0 if tombstones == "delete" else 2), "a batch of a tombstone alone"


def test_fields_about_the_event_become_columns_that_the_table_has(tmp_path):
    storage, topics = MemoryStorage(), Topics()
    columns = pa.schema([("id", pa.string()), ("__op", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    create_table(storage.root, TableRequest("t", columns, ("id",)), SystemClock(), storage)
    topics.send(T0, None, encoded({"id": "a", "__op": "c", "__deleted": "false", "__source_ts_ms": MICROS // 1000}))
    service, _ = application(topics, storage, tmp_path, **FLAT, envelope_columns={"at": "__source_ts_ms"})
    run(service, 1)
    assert open_table(storage).read(columns.names).to_pylist() == [{"id": "a", "__op": "c", "at": AT}]


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_a_flattened_deletion_that_does_not_name_its_partition_is_poison(answers, tmp_path, kind):
    storage, topics, lead = MemoryStorage(), Topics(), answers.register(7, FLAT_AVRO)
    new_table(storage, SystemClock(), ordering_field="")
    image = {"id": "a", "__deleted": "true"}
    topics.send(T0, None, flat_avro(lead, image) if kind == "avro" else encoded(image))
    more = {"format": "avro_registry", "schema_registry": answers.url} if kind == "avro" else {}
    service, _ = application(topics, storage, tmp_path, **FLAT, **more)
    with pytest.raises(PoisonRecord, match="without the field 'region'"):
        run(service, 1)


def test_flattened_rows_with_text_keys_are_refused(tmp_path):
    storage = MemoryStorage()
    new_table(storage, SystemClock(), partition_fields=())
    service, _ = application(Topics(), storage, tmp_path, **FLAT, tombstones="delete")
    with pytest.raises(InvalidSetting, match="'key_format' is 'text' with 'debezium_flat'"):
        run(service, 1)


INSTANT = pa.timestamp("us", tz="UTC")
NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("days", pa.list_(pa.date32())),
        ("prices", pa.list_(pa.decimal128(10, 2))),
        ("visit", pa.struct([("at", INSTANT), ("note", pa.string()), ("born", pa.date32()), ("tags", pa.list_(pa.string()))])),
        ("steps", pa.list_(pa.struct([("at", INSTANT), ("cost", pa.decimal128(10, 2))]))),
    ]
)
DAY = NUMBERS["day"]
INSIDE = [
    {
        "id": 1,
        "days": [EXPECTED["day"], None],
        "prices": [Decimal("-12.50")],
        "visit": {"at": AT, "note": "x", "born": EXPECTED["day"], "tags": ["t"]},
        "steps": [{"at": AT, "cost": None}, None, {"at": None, "cost": Decimal("3.25")}],
    },
    {"id": 2, "days": None, "prices": [], "visit": None, "steps": None},
    {
        "id": 3,
        "days": [],
        "prices": None,
        "visit": {"at": None, "note": None, "born": None, "tags": None},
        "steps": [{"at": AT, "cost": None}],
    },
]


def wire(price, at):
    """`INSIDE` as records hold it."""
    return [
        {
            "id": 1,
            "days": [DAY, None],
            "prices": [price("-12.50")],
            "visit": {"at": at, "note": "x", "born": DAY, "tags": ["t"]},
            "steps": [{"at": at, "cost": None}, None, {"at": None, "cost": price("3.25")}],
        },
        INSIDE[1],
        {**INSIDE[2], "steps": [{"at": at, "cost": None}]},
    ]


def sorted_types(*arguments, **settings):
    return sorted(read_types(*arguments, **settings), key=lambda r: r["id"])


def test_types_inside_of_arrays_and_structs_of_json(tmp_path):
    day, micros = field("", "int32", "io.debezium.time.Date"), field("at", "int64", "io.debezium.time.MicroTimestamp")
    tags = {**field("tags", "array"), "items": {"type": "string"}}
    decimal = field("cost", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2")
    shape = [
        field("id", "int64"),
        {**field("days", "array"), "items": day},
        {**field("prices", "array"), "items": decimal},
        {**field("visit", "struct"), "fields": [micros, field("note", "string"), {**day, "field": "born"}, tags]},
        {**field("steps", "array"), "items": {"type": "struct", "fields": [micros, decimal]}},
    ]
    topics = Topics()
    for image in wire(lambda text: decimal_base64(text, 2), MICROS):
        topics.send(T0, None, encoded(with_schema(event("c", None, image), *shape)))
    assert sorted_types(topics, tmp_path, NESTED) == INSIDE
    fresh = grown(pa.schema([NESTED.field("id")]), [Received(T0, 0, None, b"{}")], lambda _: [(wire(str, 0)[0], shape)]).schema
    assert fresh.field("days").type == NESTED.field("days").type
    assert fresh.field("visit").type == NESTED.field("visit").type


def test_types_inside_of_arrays_and_structs_of_json_without_a_schema(tmp_path):
    """Dates are days and decimals base64 there, too; timestamps are texts."""
    topics = Topics()
    for image in wire(lambda text: decimal_base64(text, 2), "2026-01-31T12:30:00.25Z"):
        topics.send(T0, None, event("c", None, image))
    assert sorted_types(topics, tmp_path, NESTED) == INSIDE


def test_types_inside_of_arrays_and_structs_of_avro(answers, tmp_path):
    def null_or(kind):
        return ["null", kind]

    day, micros = connect("int", "io.debezium.time.Date"), connect("long", "io.debezium.time.MicroTimestamp")
    decimal = connect("bytes", "org.apache.kafka.connect.data.Decimal", logicalType="decimal", precision=10, scale=2)

    def record(name, **kinds):
        return {
            "type": "record",
            "name": name,
            "fields": [{"name": n, "type": null_or(k), "default": None} for n, k in kinds.items()],
        }

    def array(kind):
        return {"type": "array", "items": null_or(kind)}

    schema = avro_envelope(
        ("id", "long"),
        ("days", array(day)),
        ("prices", array(decimal)),
        ("visit", record("Visit", at=micros, note="string", born=day, tags=array("string"))),
        ("steps", array(record("Step", at=micros, cost=decimal))),
    )
    lead, topics = answers.register(3, schema), Topics()
    for image in wire(Decimal, MICROS):
        topics.send(T0, None, lead + avro_event(schema, "c", None, image))
    assert sorted_types(topics, tmp_path, NESTED, format="avro_registry", schema_registry=answers.url) == INSIDE
