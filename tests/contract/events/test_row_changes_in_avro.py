"""Row changes in Avro, read by Confluent's deserializer from a real Kafka and a real schema registry, while the table evolves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.contract.events.samples import new_uid
from tests.contract.events.test_row_changes import settle
from tests.real.kafka import KafkaNode
from tests.real.schema_registry import RegistryServer
from tests.unit.changes.conftest import Changes, records_of

from tideline_events import REGISTERED, Record
from tideline_table.action import write_rows
from tideline_table.config import SCHEMA_EVOLUTION
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.real
TOPIC = "tideline.changes.trips"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("fare", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("size", pa.struct([("width", pa.int32()), ("inner", pa.struct([("ratio", pa.float32())]))])),
    ]
)


@pytest.fixture
def prefix() -> str:
    return f"{new_uid()}."


@pytest.fixture
def fleet(kafka_node: KafkaNode, registry: RegistryServer, prefix: str, tmp_path: Path) -> Iterator[Changes]:
    url = f"{kafka_node.url}?prefix={prefix}&partitions=2&registry={registry.url}"
    with closing(Changes(tmp_path, url)) as made:
        yield made


def row(key: int, **more: Any) -> dict[str, Any]:
    return {
        "id": key,
        "city": "oslo",
        "day": date(1969, 12, 31),
        "price": Decimal("-1.28"),
        "raw": b"\x00\xff",
        "fare": float("inf"),
        "tags": ["a", None],
        "counts": {"x": 1, "y": None},
        "size": {"width": key, "inner": {"ratio": 0.5}},
        **more,
    }


def write(table: Table, operation: Operation, *rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> None:
    given = [{**one, "counts": list(one["counts"].items())} for one in rows]
    options = {SCHEMA_EVOLUTION.key: "evolve"}
    write_rows(table, pa.Table.from_pylist(given, schema), operation, options=options, parallelism=1)


class Reader:
    """A program that knows nothing but the registry."""

    def __init__(self, client: SchemaRegistryClient, prefix: str) -> None:
        self._read = AvroDeserializer(client)
        self._topic = f"{prefix}changes.trips"

    def pairs(self, records: list[Record]) -> list[tuple[Any, Any]]:
        assert {record.header("content-type") for record in records if record.value} == {REGISTERED}
        of_key, of_value = (SerializationContext(self._topic, part) for part in (MessageField.KEY, MessageField.VALUE))
        return [(self._read(record.key, of_key), self._read(record.value, of_value)) for record in records]


def test_a_table_evolves_with_the_schemas_of_its_topic(fleet: Changes, registry: RegistryServer, prefix: str) -> None:
    create_table(fleet.path("trips"), TableRequest("trips", SCHEMA, ("id",), ("city",), type=TableType.MOR), fleet.clock)
    write(fleet.open(), Operation.UPSERT, row(1), row(2))
    service = fleet.run(format="avro")
    settle(service)
    wider = SCHEMA.append(pa.field("note", pa.string()))
    write(fleet.open(), Operation.UPSERT, row(2, note="n", tags=None, fare=1.5), schema=wider)
    write(fleet.open(), Operation.DELETE, row(1, note=None), schema=wider)
    settle(service)
    with closing(SchemaRegistryClient({"url": registry.url})) as client:
        pairs = Reader(client, prefix).pairs(records_of(fleet.event_log, TOPIC))
        subject = f"{prefix}changes.trips"
        versions = {part: client.get_versions(f"{subject}-{part}") for part in ("key", "value")}
        newest = json.loads(client.get_latest_version(f"{subject}-value").schema.schema_str)
    assert {part: len(found) for part, found in versions.items()} == {"key": 1, "value": 2}
    assert (newest["namespace"], newest["name"]) == (TOPIC, "Envelope")
    assert [value and value["op"] for _, value in pairs] == ["t", "r", "r", "u", "d", None]
    truncated, *changed = pairs
    assert truncated[0] is None
    assert [key for key, _ in changed] == [{"id": n, "city": "oslo"} for n in (1, 2, 2, 1, 1)]
    first = changed[0][1]
    # A date is the number of days, whose meaning Kafka Connect's name says; Avro's own types are those of Python.
    assert first["before"] is None
    assert first["after"] == row(1, day=-1)
    assert first["source"]["connector"] == "tideline"
    assert first["source"]["sequence"] > 0
    update, deletion = changed[2][1], changed[3][1]
    assert (update["before"], update["after"]) == (
        row(2, day=-1, note=None),
        row(2, day=-1, note="n", tags=None, fare=1.5),
    )
    assert (deletion["before"], deletion["after"]) == (row(1, day=-1, note=None), None)


def test_another_format_makes_a_new_snapshot(fleet: Changes) -> None:
    """The keys of records in both formats are not equal: compaction would keep rows that were deleted since."""
    create_table(fleet.path("trips"), TableRequest("trips", SCHEMA, ("id",), ("city",)), fleet.clock)
    write(fleet.open(), Operation.UPSERT, row(1))
    settle(fleet.run())
    settle(fleet.run(format="avro"))
    records = records_of(fleet.event_log, TOPIC)
    assert [record.header("content-type") for record in records] == ["application/json"] * 2 + [REGISTERED] * 2
    assert json.loads(records[0].value or b"")["op"] == "t"
    assert records[2].key is None


def test_a_registry_that_is_away_holds_only_tables_in_avro(fleet: Changes, registry: RegistryServer) -> None:
    for name in ("trips", "visits"):
        create_table(fleet.path(name), TableRequest(name, SCHEMA, ("id",), ("city",)), fleet.clock)
        write(fleet.open(name), Operation.UPSERT, row(1))
    policy = fleet.folder / "policy.json"
    rule = {"name": "a", "match": {"tables": [fleet.path("trips")]}, "settings": {"changes": {"format": "avro"}}}
    policy.write_text(json.dumps({"version": 1, "rules": [rule]}))
    service = fleet.run(policy_file=policy)
    registry.stop()
    try:
        settle(service)
        assert len(records_of(fleet.event_log, "tideline.changes.visits")) == 2
        assert records_of(fleet.event_log, TOPIC) == []
    finally:
        registry.start()
    settle(service)
    assert len(records_of(fleet.event_log, TOPIC)) == 2
