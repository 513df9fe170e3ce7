"""Values that name their schema by an id: what is read, what is refused, and what is not known while the registry does not
answer."""

import json
import socket
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.unit.ingest.registries import answering
from tests.unit.ingest.test_decoding import AT, NEWER, ORDER, datum
from tests.unit.ingest.topics import Topics, application, held, ids, new_table, open_table, row, run

from tideline_ingest.batch import Batch, Received
from tideline_ingest.errors import PoisonRecord, RegistryRefused, RegistryUnavailable, Undecodable
from tideline_ingest.intake import TableIntake
from tideline_ingest.schema_registry import SchemaRegistry
from tideline_ingest.settings import IngestSettings
from tideline_ingest.wire_format import FramedDecoder, KeyTarget
from tideline_runtime.errors import InvalidSetting
from tideline_table.clock import ManualClock, SystemClock
from tideline_table.errors import Recovery
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table

T0 = ("t", 0)
COLUMNS = pa.schema(
    [pa.field("id", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("us", tz="UTC")), ("note", pa.string())]
)


def fields_of(*fields):
    return {"type": "record", "name": "order", "fields": [{"name": name, "type": kind} for name, kind in fields]}


FED = fields_of(("id", "string"), ("region", "string"), ("ts", "long"), ("amount", ["null", "double"]))
"""Of the table in `topics`."""


def with_field(name, kind):
    return {**FED, "fields": [*FED["fields"], {"name": name, "type": ["null", kind]}]}


@pytest.fixture
def answers():
    with answering() as made:
        yield made


@pytest.fixture
def registry(answers):
    with closing(SchemaRegistry.of(loaded(answers.url))) as made:
        yield made


def asked_at(url, **more):
    return {"format": "avro_registry", "schema_registry": url, **more}


def loaded(url, **more):
    own = {"application_id": "a", "table": "t", "brokers": "b:1", "topics": ("t",)}
    return IngestSettings.load(environment={}, **own, **asked_at(url, **more))


def plain(registry):
    """What is decoded, whatever the table."""

    class Target(KeyTarget):
        def admit(self, incoming):
            """All of them."""

    return FramedDecoder(registry, Target(COLUMNS))


def test_values_of_several_schemas_keep_their_order_and_each_id_is_asked_for_once(answers, registry):
    headers = [answers.register(7, ORDER), answers.register(2**31 - 1, NEWER, schemaType="AVRO")]
    values, expected = [], []
    for n in range(20):
        newer = n % 3 == 0
        fields = {"id": f"k{n}", "amount": float(n), "at": AT, **({"note": f"n{n}"} if newer else {})}
        values.append(headers[newer] + datum(NEWER if newer else ORDER, **fields))
        expected.append({"id": f"k{n}", "amount": float(n), "at": AT, "note": f"n{n}" if newer else None})
    decoder = plain(registry)
    assert decoder.decode(values).to_pylist() == expected
    assert plain(registry).decode(values[::-1]).to_pylist() == expected[::-1]
    assert sorted(answers.asked) == ["/schemas/ids/2147483647", "/schemas/ids/7"]
    assert decoder.decode([]).schema == COLUMNS


def test_logical_types(answers, registry):
    price = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    schema = fields_of(("id", "string"), ("day", {"type": "int", "logicalType": "date"}), ("price", price))
    lead = answers.register(1, schema)
    target = KeyTarget(pa.schema([("id", pa.string()), ("day", pa.date32()), ("price", pa.decimal128(10, 2))]))
    day = datetime(2026, 1, 31, tzinfo=UTC).date()
    rows = FramedDecoder(registry, target).decode([lead + datum(schema, id="a", day=day, price=Decimal("12.50"))])
    assert rows.to_pylist() == [{"id": "a", "day": day, "price": Decimal("12.50")}]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "begins with nothing"),
        (b"\x00\x00\x00\x00", "begins with 00000000; expected 00 and the four bytes"),
        (b'{"id": "a"}', "begins with 7b22696422"),
        (b"\x01" + bytes(4) + b"\x02a", "begins with 0100000000"),
        (b"\x00\x00\x00\x00\x09\x02a", "unknown schema id 9"),
        (b"\x00\x00\x00\x00\x01", "not an Avro datum"),
        (b"\x00\x00\x00\x00\x01\x08a", "not an Avro datum"),
        (b"\x00\x00\x00\x00\x02", "schema 2 of the registry is of type JSON"),
        (b"\x00\x00\x00\x00\x03", "schema 3 of the registry is of type PROTOBUF"),
        (b"\x00\x00\x00\x00\x04\x02a", "schema 4 of the registry: an Avro schema that is not a record"),
        (b"\x00\x00\x00\x00\x05\x02a", "schema 5 of the registry: an Avro schema that cannot be read"),
    ],
)
def test_what_is_no_value_of_a_known_schema_is_refused(answers, registry, bad, reason):
    """Alone, and between others."""
    lead = answers.register(1, fields_of(("id", "string")))
    answers.register(2, {"type": "object"}, schemaType="JSON")
    answers.register(3, 'syntax = "proto3";', schemaType="PROTOBUF")
    answers.register(4, '"string"')
    answers.register(5, {"type": "record"})
    good = lead + b"\x02a"
    for values in ([bad], [good, bad], [bad, good], [good, bad, good]):
        with pytest.raises(Undecodable, match=reason):
            plain(registry).decode(values)
    assert plain(registry).decode([good]).column("id").to_pylist() == ["a"]


def test_an_id_that_is_unknown_is_asked_for_again_in_the_next_batch(answers, registry):
    decoder, value = plain(registry), b"\x00\x00\x00\x00\x01\x02a"
    for _ in range(3):
        with pytest.raises(Undecodable):
            decoder.decode([value])
    assert len(answers.asked) == 1
    answers.register(1, fields_of(("id", "string")))
    registry.begin_batch()
    assert decoder.decode([value]).num_rows == 1


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ((500, {"error_code": 50001, "message": "store"}), RegistryUnavailable),
        ((503, "<html>busy</html>"), RegistryUnavailable),
        ((429, {"error_code": 42901, "message": "slowly"}), RegistryUnavailable),
        ((200, "<html>log in here</html>"), RegistryUnavailable),
        ((200, "[]"), RegistryUnavailable),
        ((200, "{}"), RegistryUnavailable),
        ((401, {"error_code": 40101, "message": "who?"}), RegistryRefused),
        ((403, {"error_code": 40301, "message": "no"}), RegistryRefused),
        ((404, "<html>no such page</html>"), RegistryRefused),
        ((404, {"status": 404, "title": "no such page"}), RegistryRefused),
    ],
)
def test_what_the_registry_did_not_say_is_held_against_no_record(answers, registry, failure, kind):
    """Status 404 alone is not enough: a wrong path would make poison of a whole topic."""
    answers.register(1, fields_of(("id", "string")))
    decoder, value = plain(registry), b"\x00\x00\x00\x00\x01\x02a"
    answers.failure = failure
    with pytest.raises(kind) as failed:
        decoder.decode([value])
    assert failed.value.recovery is (Recovery.RETRY if kind is RegistryUnavailable else Recovery.STOP)
    answers.failure = None
    assert decoder.decode([value]).num_rows == 1


def test_nobody_there_or_nobody_in_time(answers):
    with closing(SchemaRegistry.of(loaded("http://127.0.0.1:1"))) as registry, pytest.raises(RegistryUnavailable, match="refused"):
        registry.avro(1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = loaded(f"http://127.0.0.1:{silent.getsockname()[1]}", schema_registry_timeout_s=0.1)
        with closing(SchemaRegistry.of(settings)) as registry, pytest.raises(RegistryUnavailable, match="timed out"):
            registry.avro(1)
    answers.register(1, fields_of(("id", "string")))
    with closing(SchemaRegistry.of(loaded(f"http://127.0.0.1:1,{answers.url}"))) as registry:
        assert json.loads(registry.avro(1))["name"] == "order", "the next one of several is asked"


def test_credentials_are_sent_and_are_secrets(answers):
    answers.register(1, '"string"')
    settings = loaded(answers.url, schema_registry_options={"basic.auth.user.info": "feeder:opensesame"})
    with closing(SchemaRegistry.of(settings)) as registry:
        registry.avro(1)
    assert answers.authorizations == ["Basic ZmVlZGVyOm9wZW5zZXNhbWU="]
    assert "feeder:opensesame" in settings.secret_values()
    assert "opensesame" not in repr(settings)
    assert loaded("https://u:opensesame@registry:8081").secret_values() == ("opensesame",)
    with pytest.raises(InvalidSetting, match=r"no\.such\.option") as refused:
        SchemaRegistry.of(loaded(answers.url, schema_registry_options={"no.such.option": "x"}))
    assert refused.value.name == "ingest.schema_registry_options"


def feed(storage, tmp_path, answers, sent, **more):
    """An application of values, each with the schema and header it was written with."""
    topics = Topics()
    for lead, schema, value in sent:
        topics.send(T0, None, lead + datum(schema, **value))
    return topics, application(topics, storage, tmp_path, **asked_at(answers.url, **more))[0]


def test_while_the_registry_is_away_nothing_is_written_and_nothing_lost(storage, tmp_path, answers):
    lead = answers.register(1, FED)
    topics, service = feed(storage, tmp_path, answers, [(lead, FED, row(f"k{n}")) for n in range(6)])
    answers.failure = (503, "away")
    service.start()
    for _ in range(3):
        with pytest.raises(RegistryUnavailable):
            service.tick()
    assert held(storage) is None
    answers.failure = None
    service.tick()
    answers.failure = (503, "away")
    service.tick()  # what is known is not asked for
    assert held(storage) == {T0: 6}
    answers.register(2, FED)
    topics.send(T0, None, b"\x00\x00\x00\x00\x02" + datum(FED, **row("new")))
    with pytest.raises(RegistryUnavailable):
        service.tick()
    assert held(storage) == {T0: 6}
    answers.failure = None
    service.tick()
    service.stop()
    assert ids(storage) == [*(f"k{n}" for n in range(6)), "new"]


def test_a_new_field_stops_the_application_or_becomes_a_column(storage, tmp_path, answers):
    newer = with_field("note", "string")
    old, new = answers.register(1, FED), answers.register(2, newer)
    sent = [(old, FED, row("a")), (new, newer, {**row("b"), "note": "x"}), (old, FED, row("c"))]
    _, service = feed(storage, tmp_path, answers, sent)
    with pytest.raises(
        PoisonRecord, match=r"record 1 of t/0 .*schema 2 of the registry: column\(s\) 'note' that the table does not have"
    ):
        run(service, 1)
    assert held(storage) is None
    topics, service = feed(storage, tmp_path, answers, sent, options={"tideline.write.schema.evolution": "evolve"})
    service.start()
    service.tick()
    topics.send(T0, None, old + datum(FED, **row("d")))
    topics.send(T0, None, new + datum(newer, **{**row("e"), "note": "y"}))
    service.tick()
    service.stop()
    rows = open_table(storage).read(["id", "note"]).to_pylist()
    assert sorted((r["id"], r["note"]) for r in rows) == [("a", None), ("b", "x"), ("c", None), ("d", None), ("e", "y")]


@pytest.mark.parametrize(
    ("first", "second"), [("string", "long"), ("long", "string"), ("double", {"type": "array", "items": "long"})]
)
def test_of_two_schemas_that_cannot_stand_in_one_table_the_later_one_is_poison(storage, tmp_path, answers, first, second):
    """Each alone could: no decoder takes a batch of both, and one of them has to be named."""
    one, other = with_field("note", first), with_field("note", second)
    leads = [answers.register(1, FED), answers.register(2, one), answers.register(3, other)]
    given = [leads[n] + datum(s, **row(f"k{n}"), **({"note": None} if n else {})) for n, s in enumerate((FED, one, other))]
    settings = loaded(
        answers.url, poison="dead_letter", dead_letter_topic="d", options={"tideline.write.schema.evolution": "evolve"}
    )
    table = Table.open(storage.root, storage=storage, options=settings.options)
    with closing(SchemaRegistry.of(settings)) as registry:
        taken = TableIntake(settings, table, registry).take(batch_of([*given, given[1]]))
    assert [(r.record.offset, r.reason.partition(":")[0]) for r in taken.rejected] == [(2, "schema 3 of the registry")]
    assert taken.rows.column("id").to_pylist() == ["k0", "k1", "k1"]


def batch_of(values, keys=None):
    keys = keys or [None] * len(values)
    return Batch(tuple(Received(T0, n, keys[n], value) for n, value in enumerate(values)), {T0: len(values)}, 0.0)


def test_a_value_that_does_not_fit_the_wider_type_is_poison_alone(storage, tmp_path, answers):
    whole = {**FED, "fields": [*FED["fields"][:3], {"name": "amount", "type": "long"}]}
    leads = [answers.register(1, FED), answers.register(2, whole)]
    values = [leads[1] + datum(whole, **{**row(f"k{n}"), "amount": n}) for n in (2**53, 2**53 + 1)]
    settings = loaded(answers.url, poison="dead_letter", dead_letter_topic="d")
    table = Table.open(storage.root, storage=storage)
    with closing(SchemaRegistry.of(settings)) as registry:
        taken = TableIntake(settings, table, registry).take(batch_of([leads[0] + datum(FED, **row("a")), *values]))
    assert [(r.record.offset, "amount" in r.reason) for r in taken.rejected] == [(2, True)]
    assert taken.rows.column("amount").to_pylist() == [1.0, 2.0**53]


def test_marks_of_deletion_are_kept(storage, tmp_path, answers):
    marked = {**FED, "fields": [*FED["fields"], {"name": "_hoodie_is_deleted", "type": "boolean"}]}
    leads = [answers.register(1, FED), answers.register(2, marked)]
    sent = [(leads[0], FED, row("a")), (leads[0], FED, row("b")), (leads[1], marked, {**row("a", 2), "_hoodie_is_deleted": True})]
    _, service = feed(storage, tmp_path, answers, sent)
    run(service, 1)
    assert ids(storage) == ["b"]


KEY = fields_of(("region", "string"), ("id", "string"))


@pytest.mark.parametrize("bare", [False, True])
def test_keys_of_tombstones(storage, tmp_path, answers, bare):
    if bare:
        storage = MemoryStorage()
        new_table(storage, SystemClock(), partition_fields=())
    lead, key = answers.register(1, FED), answers.register(2, '"string"' if bare else KEY)
    other = answers.register(3, fields_of(("id", "string"), ("what", "string")))

    def key_of(name):
        return key + (b"\x02" if bare else b"\x02r\x02") + name.encode()

    values = [lead + datum(FED, **row(name)) for name in "abc"]
    batch = batch_of(
        [*values, None, None, None, None], [key_of(n) for n in "abca"] + [None, other + b"\x02b\x02x", key_of("c")[:-1]]
    )
    settings = loaded(answers.url, tombstones="delete", key_format="avro_registry", poison="dead_letter", dead_letter_topic="d")
    with closing(SchemaRegistry.of(settings)) as registry:
        taken = TableIntake(settings, Table.open(storage.root, storage=storage), registry).take(batch)
    assert taken.rows.column("id").to_pylist() == ["b", "c"]
    assert taken.removed.column("id").to_pylist() == ["a"]
    assert [r.record.offset for r in taken.rejected] == [4, 5, 6]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"format": "avro_registry"}, "schema_registry"),
        ({"tombstones": "delete", "key_format": "avro_registry"}, "schema_registry"),
        ({"format": "avro_registry", "schema_registry": "http://r:1", "schema_files": ("x.avsc",)}, "schema_files"),
    ],
)
def test_settings_that_do_not_fit_stop_the_start(storage, tmp_path, given, named):
    service, _ = application(Topics(), storage, tmp_path, **given)
    with pytest.raises(InvalidSetting) as refused:
        service.start()
    assert refused.value.name == f"ingest.{named}"
    service.stop()


def test_a_batch_of_unknown_ids_gives_a_sign_of_life_before_each_request(storage, tmp_path, answers):
    """Any five bytes that begin with 00 may be an id that has to be asked for."""
    topics, clock, lived = Topics(), ManualClock(), []
    for number in range(10):
        topics.send(T0, None, b"\x00" + number.to_bytes(4, "big") + b"x")
    service, context = application(topics, storage, tmp_path, clock=clock, batch_rows=10, **asked_at(answers.url))
    answers.on_answer = lambda: (clock.advance(200.0), lived.append(not context.health.live().reasons))
    with pytest.raises(PoisonRecord, match=r"record 0 of t/0 .*schema id 0"):
        run(service, 1)
    assert lived == [True] * 10


def nested(levels):
    """Records in records, each a schema of its own that refers to the one before."""
    yield {"type": "record", "name": "R0", "fields": [{"name": "v", "type": "long"}]}
    for n in range(1, levels):
        yield {"type": "record", "name": f"R{n}", "fields": [{"name": "v", "type": f"R{n - 1}"}]}


KIND = {"type": "enum", "name": "a.Kind", "symbols": ["HOME", "WORK"]}
ADDRESS = {
    "type": "record",
    "name": "a.Address",
    "fields": [{"name": "street", "type": "string"}, {"name": "kind", "type": "Kind"}],
}


def test_references_are_put_in_place(answers, registry):
    """They are known by what they define, whatever the reference is called; an old version that was deleted since, too."""
    kind = answers.refer("kinds", KIND)
    address = answers.refer("addresses", ADDRESS, [kind])
    answers.deleted |= {"/subjects/kinds/versions/3", "/subjects/addresses/versions/3"}
    place = pa.struct([("street", pa.string()), ("kind", pa.string())])
    fields = [("id", "string"), ("first", "Address"), ("then", ["null", {"type": "a.Address"}]), ("kind", "Kind")]
    schema = {**fields_of(*fields), "namespace": "a"}
    target = KeyTarget(pa.schema([("id", pa.string()), ("first", place), ("then", place), ("kind", pa.string())]))
    expected = [
        {"id": "a", "first": {"street": "b", "kind": "WORK"}, "then": None, "kind": "HOME"},
        {"id": "c", "first": {"street": "d", "kind": "HOME"}, "then": {"street": "e", "kind": "HOME"}, "kind": "WORK"},
    ]
    for schema_id, references in ((4, [address]), (5, [kind, address]), (6, [address, kind])):
        lead = answers.register(schema_id, schema, references=references)
        values = [lead + b"\x02a\x02b\x02\x00\x00", lead + b"\x02c\x02d\x00\x02\x02e\x00\x02"]
        assert FramedDecoder(registry, target).decode(values).to_pylist() == expected
    assert answers.asked.count("/subjects/kinds/versions/3") == 1


def test_schemas_that_references_do_not_make_whole_are_refused(answers, registry):
    """With a reason, as every record that cannot be read."""
    schema = fields_of(("id", "string"), ("other", "c.Other"))
    many = [answers.refer(f"many{n}", {"type": "enum", "name": f"E{n}", "symbols": ["A"]}) for n in range(1001)]
    one, two = answers.refer("one", KIND), answers.refer("two", ADDRESS)
    answers.refer("one", KIND, [two])
    answers.refer("two", ADDRESS, [one])
    chain = []
    for n, link in enumerate(nested(200)):
        chain = [answers.refer(f"link{n}", link, chain)]
    refused = (
        ([answers.refer("c.Other", {"type": "enum", "name": "Other", "symbols": ["A"]})], "unknown type 'c.Other'"),
        ([{"name": "c.Other", "subject": "gone", "version": 3}], "no version 3 of 'gone'"),
        ([answers.refer("json", {"type": "object"}, schemaType="JSON")], "'json' in the registry is of type JSON"),
        ([answers.refer("text", "no JSON")], "invalid JSON"),
        ([answers.refer("deep", "[" * 100_000)], "invalid JSON"),
        ([{"name": "c.Other", "subject": "s", "version": None}], "a reference to 's', version None"),
        (many, "more than 1000 referenced schemas"),
        ([one], "unknown type 'Kind'"),
    )
    for schema_id, (references, reason) in enumerate(refused, 7):
        lead = answers.register(schema_id, schema, references=references)
        with pytest.raises(Undecodable, match=rf"schema {schema_id} of the registry with references \(.*({reason})"):
            plain(registry).decode([lead + b"\x02a\x00"])
    lead = answers.register(6, fields_of(("id", "string"), ("v", "R199")), references=chain)
    with pytest.raises(Undecodable, match="nested deeper than 64 levels"):
        plain(registry).decode([lead + b"\x02a\x00"])
