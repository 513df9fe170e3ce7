"""Change events of a database on a real Kafka: one process feeds its tables, and they are what the database's are."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.ingest.applications import Place, await_records, committed
from tests.real.schema_registry import RegistryServer
from tests.unit.ingest.debezium_events import avro_envelope, connect, decimal_base64, event, field, with_schema

from tideline_table.schema import META_FIELDS
from tideline_table.table import Table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("region", pa.string()),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("lsn", pa.int64()),
    ]
)
CONNECT = [
    field("id", "int64"),
    field("region", "string"),
    field("day", "int32", "io.debezium.time.Date"),
    field("price", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2"),
    field("at", "int64", "io.debezium.time.MicroTimestamp"),
]
AVRO = avro_envelope(
    ("id", "long"),
    ("region", "string"),
    ("day", connect("int", "io.debezium.time.Date")),
    ("price", "string"),
    ("at", connect("long", "io.debezium.time.MicroTimestamp")),
)
NEGATED = "select * replace (make_timestamptz(-epoch_us(at)) as at) from records"
WANTED = "region <> 'w' and price < 500"
Change = tuple[str, "dict[str, Any] | None", "dict[str, Any] | None", int]


@pytest.fixture
def client(server: RegistryServer) -> Iterator[SchemaRegistryClient]:
    with closing(SchemaRegistryClient({"url": server.url})) as made:
        yield made


def history(seed: int, count: int) -> tuple[list[Change], dict[int, dict[str, Any]]]:
    """A snapshot and then changes of one table, with their positions; and what the table holds at last."""
    choose, state, changes = random.Random(seed), {}, []
    for lsn in range(1, count + 1):
        key = choose.randrange(200)
        before = state.get(key)
        if before is not None and choose.random() < 0.25:
            changes.append(("d", state.pop(key), None, lsn))
            continue
        cents = choose.randrange(-99_999, 99_999)
        after = {"id": key, "region": choose.choice("nsew"), "day": lsn % 20_000, "price": f"{cents / 100:.2f}", "at": lsn * 10**12}
        changes.append(("u" if before else "r" if lsn < count // 4 else "c", before, after, lsn))
        state[key] = {**after, "lsn": lsn}
    return changes, state


def as_json(change: Change) -> bytes:
    op, before, after, lsn = change
    images = [image and {**image, "price": decimal_base64(image["price"], 2)} for image in (before, after)]
    return json.dumps(with_schema(event(op, *images, lsn=lsn), *CONNECT)).encode()


def rows(path: str) -> list[tuple[Any, ...]]:
    """The rows, with times as the numbers of the events."""
    table = Table.open(path)
    assert not set(table.schema.names) & set(META_FIELDS)
    found = table.read(SCHEMA.names)
    numbers = {"day": pa.int32(), "price": pa.string(), "at": pa.int64()}
    columns = {name: found[name].cast(numbers.get(name, found[name].type)) for name in SCHEMA.names}
    return sorted(tuple(row.values()) for row in pa.table(columns).to_pylist())


@pytest.mark.timeout(600)
def test_one_process_feeds_the_tables_of_a_database(place: Place, server: RegistryServer, client: SchemaRegistryClient) -> None:
    """One topic in JSON and one in Avro, which goes through a query; rows that move between partitions, kill -9 twice.

    A third table has a poison record, and the others do not wait for it.
    """
    changes = {name: history(seed, 900) for seed, name in enumerate(("orders", "prices"))}
    paths = {name: place.create(name, SCHEMA, ordering_field="lsn") for name in (*changes, "broken")}
    topics = {name: place.topic(f"shop.{name}", 3) for name in paths}
    serializer = AvroSerializer(client, json.dumps(AVRO))
    context = SerializationContext(topics["prices"], MessageField.VALUE)

    def as_avro(change: Change) -> bytes:
        op, before, after, lsn = change
        source = {"connector": "postgresql", "ts_ms": lsn, "snapshot": "false", "lsn": lsn}
        found = {"before": before, "after": after, "source": source, "transaction": None, "op": op, "ts_ms": lsn}
        value = serializer(found, context)
        assert value is not None
        return value

    sent = {}
    for name, encode in (("orders", as_json), ("prices", as_avro)):
        records = []
        for change in changes[name][0]:
            key = (change[2] or change[1] or {})["id"]
            records.append((str(key).encode(), encode(change), key % 3))
            if change[0] == "d":
                records.append((str(key).encode(), None, key % 3))
        sent[name] = records
    place.send(topics["broken"], [(b"1", b'{"op": "c", "after": {"id": "one"}}', 0)])
    application = place.application(
        "shop",
        f"{place.folder}/{{name}}",
        r"^shop[.](?P<name>\w+)$",
        envelope="debezium",
        envelope_columns=json.dumps({"lsn": "source.lsn"}),
        per_topic=json.dumps({"shop.prices": {"format": "avro_registry", "transform": f"{NEGATED} where {WANTED}"}}),
        schema_registry=server.url,
        batch_rows=300,
        options={"hoodie.client.heartbeat.interval_in_ms": "1000"},
    )
    tables = {name: Table.open(path) for name, path in paths.items()}
    for part in range(3):
        for name, records in sent.items():
            place.send(topics[name], records[part * len(records) // 3 : (part + 1) * len(records) // 3])
        process = application.start()
        for name, records in sent.items():
            await_records(tables[name], "shop", (part + 1) * len(records) // 3 - (0 if part == 2 else 100))
        application.kill(process) if part < 2 else application.await_line("PoisonRecord", part + 1)
    assert application.stop(process) == 0
    for name, (_, state) in changes.items():
        wanted = [found for found in state.values() if name == "orders" or (found["region"] != "w" and float(found["price"]) < 500)]
        signs = {"at": -1 if name == "prices" else 1}
        expected = sorted(tuple(found[n] * signs.get(n, 1) for n in SCHEMA.names) for found in wanted)
        assert rows(paths[name]) == expected
    assert not sum(committed(tables["broken"], "shop").next.values())
    assert all("'id'" in line["found"] for line in application.lines() if line.get("error") == "PoisonRecord")
