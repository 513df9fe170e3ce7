"""Tombstones, poison records, lost offsets, new partitions, on a real Kafka."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.ingest.applications import TIMEOUT_S, Place, await_records, contents, row

from tideline_ingest.decoding import fingerprint
from tideline_table.table import Table


def value(key: str, ts: int, amount: float = 1.0) -> bytes:
    return json.dumps(row(key, "r", ts, amount)).encode()


def dead_letters(place: Place, topic: str, count: int) -> list[dict[str, Any]]:
    consumer = Consumer({"bootstrap.servers": place.bootstrap_servers, "group.id": "test", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = consumer.consume(count, timeout=TIMEOUT_S)
        assert [m.error() for m in found] == [None] * count
        return [{**{k: v.decode() for k, v in m.headers() or []}, "value": m.value(), "key": m.key()} for m in found]
    finally:
        consumer.close()


def test_poison_stops_or_goes_aside_and_tombstones_delete(place: Place) -> None:
    path = place.create(partition_fields=())
    topic, aside = place.topic("mixed", 1), place.topic("aside", 1)
    records = [
        (b"a", value("a", 5)),
        (b"b", value("b", 5)),
        (b"a", None),
        (b"c", value("c", 5)),
        (b"a", value("a", 3, 9.0)),
        (b"x", b'{"id": "x", "ts": "five"}'),
        (b"b", None),
        (None, None),
        (b"d", value("d", 1)),
    ]
    place.send(topic, ((key, content, 0) for key, content in records))
    strict = place.application("mixed", path, topic, tombstones="delete", batch_wait_s=2)
    process = strict.start()
    process.join(TIMEOUT_S)
    assert process.exitcode == 1
    failed = [line for line in strict.lines() if line.get("error") == "PoisonRecord"]
    assert failed[-1]["found"].startswith("record 5 of mixed/0 cannot be ingested")
    assert not Table.open(path).state.completed_writes(), "nothing of the batch was written"

    lenient = {"batch_wait_s": 2, "poison": "dead_letter", "dead_letter_topic": aside, "tombstones": "delete"}
    application = place.application("mixed-2", path, topic, **lenient)
    process = application.start()
    table = Table.open(path)
    await_records(table, "mixed-2", len(records))
    assert application.stop(process) == 0
    assert contents(table) == [("a", "r", 3, 9.0), ("c", "r", 5, 1.0), ("d", "r", 1, 1.0)]
    letters = dead_letters(place, aside, 2)
    assert [(found["tideline-offset"], found["key"]) for found in letters] == [("5", b"x"), ("7", None)]
    assert letters[0]["value"] == records[5][1]
    assert letters[0]["tideline-topic"] == topic
    assert "ts" in letters[0]["tideline-reason"]
    assert [line["records"] for line in application.said("committed")] == [4, 5], "a key that comes back waits for the next commit"


WRITERS = tuple(
    json.dumps({"type": "record", "name": "order", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]})
    for fields in (
        {"id": "string", "region": "string", "ts": "long", "amount": ["null", "double"]},
        {"ts": "long", "id": "string", "region": ["null", "string"]},
    )
)
"""Schemas of two producers: the second one has its fields in another order, and knows no amounts."""


def avro(found: dict[str, Any], text: str, lead: bytes = b"") -> bytes:
    """A plain datum, behind `lead`, as fastavro writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(text)), found)
    return lead + out.getvalue()


@pytest.mark.parametrize("form", ["avro", "avro_single_object"])
def test_avro_is_taken_in_once_by_an_application_that_is_killed(place: Place, form: str) -> None:
    """Blind inserts, so that a record that was ingested twice stands twice; a torn value goes aside."""
    texts = WRITERS if form == "avro_single_object" else WRITERS[:1]
    files = [place.folder / f"writer-{number}.avsc" for number in range(len(texts))]
    for path, text in zip(files, texts, strict=True):
        path.write_text(text)
    leads = [b"\xc3\x01" + fingerprint(text) if form == "avro_single_object" else b"" for text in texts]
    topic, aside, table_path = place.topic(form, 2), place.topic(f"{form}-aside", 1), place.create(partition_fields=())
    sent = [row(f"é{n:04d}", "r", n, n + 0.5) for n in range(1000)]
    records = [(None, avro(found, texts[n % len(texts)], leads[n % len(texts)]), n % 2) for n, found in enumerate(sent)]
    torn = (None, records[700][1][:-3], 0)
    place.send(topic, [*records[:700], torn, *records[700:]])
    listed = ",".join(map(str, files))
    settings = {"format": form, "schema_files": listed, "poison": "dead_letter", "dead_letter_topic": aside}
    application = place.application(form, table_path, topic, operation="insert", batch_rows=100, **settings)
    process = application.start()
    table = Table.open(table_path)
    await_records(table, form, 300)
    application.kill(process)
    process = application.start()
    application.await_said("offsets found")
    await_records(table, form, 1001)
    assert application.stop(process) == 0
    expected = [{**found, "amount": found["amount"] if n % len(texts) == 0 else None} for n, found in enumerate(sent)]
    assert contents(table) == [tuple(found.values()) for found in expected]
    assert {letter["value"] for letter in dead_letters(place, aside, 1)} == {torn[1]}


def test_lost_offsets_stop_or_are_passed(place: Place) -> None:
    topic, path = place.topic("short", 1), place.create()
    place.send(topic, ((None, value(f"k{n:03d}", n), 0) for n in range(100)))
    application = place.application("short", path, topic)
    process = application.start()
    table = Table.open(path)
    await_records(table, "short", 100)
    assert application.stop(process) == 0
    place.send(topic, ((None, value(f"k{n:03d}", n), 0) for n in range(100, 200)))
    admin = AdminClient({"bootstrap.servers": place.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 150)]).values():
        future.result(TIMEOUT_S)
    process = application.start()
    process.join(TIMEOUT_S)
    assert process.exitcode == 1
    failed = [line for line in application.lines() if line.get("error") == "OffsetsLost"]
    assert failed[-1]["found"].startswith("short/0 was ingested up to offset 100 (exclusive)")
    assert len(contents(table)) == 100

    application.settings = {**application.settings, "TIDELINE_INGEST__ON_LOST_OFFSETS": "continue"}
    process = application.start()
    await_records(table, "short", 200)
    assert application.stop(process) == 0
    assert [found[0] for found in contents(table)] == [f"k{n:03d}" for n in (*range(100), *range(150, 200))]
    assert application.said("records lost, continuing without them")


def test_partitions_that_appear_later_are_read_from_their_beginning(place: Place) -> None:
    topic, path = place.topic("growing", 1), place.create()
    place.send(topic, [(None, value("old", 1), 0)])
    application = place.application("growing", path, topic, topic_rescan_s=0.3, start_at="latest")
    process = application.start()
    application.await_said("offsets found")
    place.send(topic, [(None, value("first", 1), 0)])
    table = Table.open(path)
    await_records(table, "growing", 2)
    admin = AdminClient({"bootstrap.servers": place.bootstrap_servers})
    for future in admin.create_partitions([NewPartitions(topic, 2)]).values():
        future.result(TIMEOUT_S)
    place.send(topic, [(None, value("second", 1), 1)])
    await_records(table, "growing", 3)
    assert application.stop(process) == 0
    assert [found[0] for found in contents(table)] == ["first", "second"]


def test_records_of_aborted_transactions_are_none(place: Place) -> None:
    topic, path = place.topic("transactional", 1), place.create()
    producer = Producer({"bootstrap.servers": place.bootstrap_servers, "transactional.id": "test"})
    producer.init_transactions(TIMEOUT_S)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, value=value(f"k{number}", 1))
        producer.flush(TIMEOUT_S)
        (producer.commit_transaction if number % 2 else producer.abort_transaction)(TIMEOUT_S)
    application = place.application("transactional", path, topic, operation="insert", batch_rows=2)
    process = application.start()
    table = Table.open(path)
    await_records(table, "transactional", 11)
    application.kill(process)
    process = application.start()
    application.await_said("offsets found")
    place.send(topic, [(None, value("end", 1), 0)])
    await_records(table, "transactional", 13)
    assert application.stop(process) == 0
    assert [found[0] for found in contents(table)] == ["end", "k1", "k3", "k5"]


def test_a_topic_of_the_same_name_is_another_one(place: Place) -> None:
    topic, path = place.topic("renewed", 1), place.create()
    place.send(topic, [(None, value("old", 1), 0)])
    application = place.application("renewed", path, topic)
    process = application.start()
    table = Table.open(path)
    await_records(table, "renewed", 1)
    assert application.stop(process) == 0
    place.renew(topic, 1)
    place.send(topic, ((None, value(f"new{n}", 1), 0) for n in range(3)))
    process = application.start()
    process.join(TIMEOUT_S)
    assert process.exitcode == 1
    assert [line for line in application.lines() if line.get("error") == "OffsetsLost" and "created again" in line["found"]]
    assert [found[0] for found in contents(table)] == ["old"]
