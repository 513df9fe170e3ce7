"""Events that no connector writes: each is refused as a record, and none ends the application another way."""

import json
import random

import pyarrow as pa
import pytest
from tests.unit.ingest.debezium_events import avro_envelope, avro_event, connect, event, field, with_schema
from tests.unit.ingest.registries import answering
from tests.unit.ingest.topics import Topics, application, new_table, row

from tideline_ingest.batch import Received
from tideline_ingest.screening import REFUSALS
from tideline_runtime.errors import InvalidSetting
from tideline_table.clock import SystemClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableRequest, create_table

T0 = ("t", 0)
JUNK = (None, True, -1, 2**70, 1.5, "", "x", [], [1], {}, {"a": {}}, "\ud800", [[]], {"type": "struct"}, {"fields": 7})
FIELDS = [field("id", "string"), field("ts", "int64", "io.debezium.time.MicroTimestamp"), field("amount", "bytes")]
FIELDS += [field("region", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2")]
EVENTS = {
    "debezium": [
        event("u", row("a"), row("a", 2)),
        event("d", row("a"), None),
        with_schema(event("c", None, row("a")), *FIELDS),
        with_schema(event("d", row("a"), None), *FIELDS),
    ],
    "dms": [{"Op": "D", **row("a")}, {"data": row("a"), "metadata": {"record-type": "data", "operation": "update"}}],
    "none": [row("a"), {**row("a"), "deep": {"x": [{"y": 1}]}}],
}


def mutated(document, choose):
    """The document with one of its values replaced, or without it."""
    whole = json.loads(json.dumps(document))
    at, path = whole, []
    while isinstance(at, dict | list) and at and (not path or choose.random() < 0.8):
        key = choose.choice(list(at)) if isinstance(at, dict) else choose.randrange(len(at))
        path.append((at, key))
        at = at[key]
    holder, key = path[-1]
    if choose.random() < 0.2:
        del holder[key]
    else:
        holder[key] = choose.choice(JUNK)
    return whole


@pytest.mark.parametrize("unknown", ["refuse", "ignore", "evolve"])
@pytest.mark.parametrize("envelope", EVENTS)
@pytest.mark.parametrize("partitions", [(), ("region",)])
def test_what_an_event_is_made_into_is_taken_or_refused(tmp_path, envelope, unknown, partitions):
    storage = MemoryStorage()
    new_table(storage, SystemClock(), partition_fields=partitions, ordering_field="")
    service, _ = application(Topics(), storage, tmp_path, envelope=envelope, unknown_fields=unknown)
    service.start()
    intake, choose, refused = service._intake, random.Random(7), 0
    for _ in range(50):
        whole = choose.choice(EVENTS[envelope])
        for _ in range(choose.randrange(1, 3)):
            whole = mutated(whole, choose)
        record = Received(T0, 0, choose.choice([None, b"", b"a", b'{"id": "a"}', b"[]"]), json.dumps(whole).encode())
        growth = intake._choice.growth([record])
        if growth is not None:
            intake._refused, intake._schema = growth.refused, growth.schema
            intake._decoder = intake._choice.decoder(growth.schema)
        try:
            intake._accept([record])
        except REFUSALS:
            refused += 1
    service.stop()
    assert 0 < refused < 50


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["fields"].pop(0),
        lambda s: s["fields"][4].update(type="int"),
        lambda s: s["fields"][1].update(type=["null", "string"]),
        lambda s: s["fields"][0]["type"][1]["fields"].pop(0),
        lambda s: s["fields"][0]["type"][1]["fields"][0].update(type=connect("long", "io.debezium.time.Date")),
        lambda s: s["fields"][0]["type"][1]["fields"][2].update(type=connect("string", "io.debezium.time.MicroTimestamp")),
    ],
)
def test_schemas_that_are_no_envelopes_of_the_table(tmp_path, change):
    schema = avro_envelope(("id", "string"), ("region", "string"), ("ts", "long"), ("amount", "double"))
    changed = json.loads(json.dumps(schema))
    change(changed)
    storage = MemoryStorage()
    new_table(storage, SystemClock(), partition_fields=(), ordering_field="")
    with answering() as answers:
        lead = answers.register(1, changed)
        settings = {"envelope": "debezium", "format": "avro_registry", "schema_registry": answers.url}
        service, _ = application(Topics(), storage, tmp_path, **settings)
        service.start()
        value = lead + avro_event(schema, "c", None, row("a"))
        with pytest.raises(REFUSALS):
            service._intake._accept([Received(T0, 0, None, value)])
        service.stop()


def test_a_table_that_json_cannot_hold_is_refused_at_the_start(tmp_path):
    storage = MemoryStorage()
    schema = pa.schema([("id", pa.string()), ("m", pa.map_(pa.string(), pa.int64()))])
    create_table(storage.root, TableRequest("t", schema, ("id",)), SystemClock(), storage)
    service, _ = application(Topics(), storage, tmp_path, envelope="debezium")
    with pytest.raises(InvalidSetting, match="maps"):
        service.start()
