"""Avro as Confluent's own serializer writes it, with a real schema registry: ingested once, whatever dies, the registry too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.ingest.applications import SCHEMA, Application, Place, await_records, committed, contents, row
from tests.ingest.test_records import dead_letters
from tests.real.schema_registry import RegistryServer

from tideline_table.table import Table

UNKNOWN = b"\x00\x7f\xff\xff\xff\x02a"


def record(*fields: tuple[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "shop.Order", "fields": [{"name": name, "type": kind} for name, kind in fields]})


FIRST = (("id", "string"), ("region", "string"), ("ts", "long"), ("amount", ["null", "double"]))
OLDER = record(*FIRST[:3])
NEWER = record(*FIRST, ("note", ["null", "string"]))


@pytest.fixture
def client(server: RegistryServer) -> Iterator[SchemaRegistryClient]:
    with closing(SchemaRegistryClient({"url": server.url})) as made:
        yield made


def value_with(client: SchemaRegistryClient, topic: str, schema: str | Schema, found: Any, part: str = MessageField.VALUE) -> bytes:
    content = AvroSerializer(client, schema)(found, SerializationContext(topic, part))
    assert content is not None
    return content


def feeder(place: Place, server: RegistryServer, table: str, topic: str, aside: str, **more: Any) -> Application:
    settings = {"format": "avro_registry", "schema_registry": server.url, "poison": "dead_letter", "dead_letter_topic": aside}
    return place.application(topic, table, topic, **settings, **more)


def test_everything_is_there_once_though_application_and_registry_die(
    place: Place, server: RegistryServer, client: SchemaRegistryClient
) -> None:
    """Blind inserts, so that a record that was ingested twice stands twice.

    The last writer's schema comes while nobody can say what it is.
    """
    topic, aside, path = (
        place.topic("registered-orders", 2),
        place.topic("registered-orders-aside", 1),
        place.create(partition_fields=()),
    )
    known = AvroSerializer(client, record(*FIRST))
    older, newer = AvroSerializer(client, OLDER), AvroSerializer(client, NEWER)
    context = SerializationContext(topic, MessageField.VALUE)
    rows = [row(f"k{n:04d}", "r", n, n + 0.5) for n in range(1200)]
    values = [(older if n % 3 == 0 else known)(found, context) for n, found in enumerate(rows[:800])]
    values += [newer({**found, "note": f"n{found['ts']}"}, context) for found in rows[800:]]
    bad = [UNKNOWN, values[5][:-3]]
    place.send(topic, ((None, v, n % 2) for n, v in enumerate(values[:600])))

    # Behind a writer that died over the same file groups the next one waits until its heartbeat is missed.
    options = {"tideline.write.schema.evolution": "evolve", "hoodie.client.heartbeat.interval_in_ms": "1000"}
    more = {"operation": "insert", "batch_rows": 100, "options": options}
    application = feeder(place, server, path, topic, aside, **more)
    process, table = application.start(), Table.open(path)
    await_records(table, topic, 300)
    application.kill(process)
    process = application.start()
    place.send(topic, ((None, v, n % 2) for n, v in enumerate([*bad, *values[600:800]])))
    await_records(table, topic, 802)

    server.stop()
    place.send(topic, ((None, v, n % 2) for n, v in enumerate(values[800:])))
    application.await_line("RegistryUnavailable")
    application.kill(process)
    process = application.start()
    application.await_said("offsets found")
    tried = sum(line.get("error") == "RegistryUnavailable" for line in application.lines())
    application.await_line("RegistryUnavailable", tried + 4)  # more than failures of other kinds would be forgiven
    assert process.is_alive()
    assert sum(committed(table, topic).next.values()) == 802
    server.start()
    await_records(table, topic, 1202)
    assert application.stop(process) == 0

    expected = [
        (f["id"], f["ts"], None if n < 800 and n % 3 == 0 else f["amount"], f"n{n}" if n >= 800 else None)
        for n, f in enumerate(rows)
    ]
    found = Table.open(path).read(["id", "ts", "amount", "note"]).to_pylist()
    assert sorted(tuple(f.values()) for f in found) == expected
    letters = {letter["value"]: letter["tideline-reason"] for letter in dead_letters(place, aside, 2)}
    assert set(letters) == set(bad)
    assert letters[UNKNOWN] == "unknown schema id 2147483647; expected an id of the registry"
    assert {line["reason"] for line in application.said("dead letter")} == set(letters.values()), "nothing else went aside"


def test_keys_references_and_schemas_that_are_not_avro(place: Place, server: RegistryServer, client: SchemaRegistryClient) -> None:
    home = pa.struct([("street", pa.string())])
    topic, aside = place.topic("registered-people", 1), place.topic("registered-people-aside", 1)
    path = place.create(partition_fields=(), schema=SCHEMA.append(pa.field("home", home)))
    address = json.dumps({"type": "record", "name": "shop.Address", "fields": [{"name": "street", "type": "string"}]})
    client.register_schema("registered-addresses", Schema(address, "AVRO"))
    whole = Schema(record(*FIRST, ("home", "shop.Address")), "AVRO", [SchemaReference("shop.Address", "registered-addresses", 1)])
    sent = [value_with(client, topic, whole, {**row(key, "r", 1, 1.0), "home": {"street": f"{key} street"}}) for key in "abc"]
    strange = json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"})
    alien = client.register_schema("alien", Schema(strange, "JSON"))
    gone = value_with(client, topic, '"string"', "b", MessageField.KEY)
    place.send(topic, [*((None, v, 0) for v in sent), (gone, None, 0), (None, b"\x00" + alien.to_bytes(4, "big") + b"{}", 0)])

    application = feeder(place, server, path, topic, aside, tombstones="delete", key_format="avro_registry")
    process, table = application.start(), Table.open(path)
    await_records(table, topic, 5)
    assert application.stop(process) == 0
    assert [found[0] for found in contents(table)] == ["a", "c"]
    assert {f["home"]["street"] for f in table.read(["home"]).to_pylist()} == {"a street", "c street"}
    assert [letter["tideline-reason"] for letter in dead_letters(place, aside, 1)] == [
        f"schema {alien} of the registry is of type JSON; expected an Avro schema"
    ]
