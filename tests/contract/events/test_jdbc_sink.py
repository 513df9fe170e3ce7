"""Debezium's JDBC sink in a worker of Kafka Connect keeps a table of PostgreSQL equal to a table, from its topic unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tenacity
from tests.contract.events.samples import new_uid
from tests.contract.events.test_row_changes import settle
from tests.real.connect import Worker, running_worker
from tests.real.kafka import KafkaNode
from tests.real.postgres import USER, PostgresServer, running_postgres
from tests.unit.changes.conftest import Changes

from tideline_table.action import write_rows
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.real
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("fare", pa.float64()),
        ("open", pa.bool_()),
    ]
)
ROWS = (
    "SELECT json_build_object('id', id, 'city', city, 'day', day, 'at', at, 'zoned', zoned AT TIME ZONE 'UTC', 'price', "
    "price::text, 'raw', encode(raw, 'hex'), 'fare', fare, 'open', open) FROM trips ORDER BY id"
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return f"{new_uid()}."


@pytest.fixture
def fleet(kafka_node: KafkaNode, prefix: str, tmp_path: Path) -> Iterator[Changes]:
    with closing(Changes(tmp_path, f"{kafka_node.url}?prefix={prefix}&partitions=1")) as made:
        yield made


def row(key: int, **more: Any) -> dict[str, Any]:
    at = datetime(2026, 3, 1, 12, 0, 0, 123456)
    values = {"city": f"c{key % 2}", "day": date(1969, 12, 31), "at": at, "zoned": at.replace(tzinfo=UTC)}
    return {"id": key, **values, "price": Decimal("-1.28"), "raw": b"\x00\xff", "fare": key / 4, "open": key % 3 == 0, **more}


def write(table: Table, operation: Operation, *rows: dict[str, Any]) -> None:
    write_rows(table, pa.Table.from_pylist(list(rows), SCHEMA), operation, parallelism=1)


def rows_of(table: Table) -> list[dict[str, Any]]:
    table.refresh()
    found = table.read(SCHEMA.names).sort_by("id").to_pylist()
    return [
        {
            **one,
            "day": one["day"] and one["day"].isoformat(),
            "at": one["at"].isoformat(),
            "zoned": one["zoned"].replace(tzinfo=None).isoformat(),
            "price": str(one["price"]),
            "raw": one["raw"].hex(),
        }
        for one in found
    ]


def await_equal(database: PostgresServer, table: Table, worker: Worker) -> None:
    expected, found = rows_of(table), []
    for attempt in tenacity.Retrying(wait=tenacity.wait_fixed(0.3), stop=tenacity.stop_after_delay(300), reraise=True):
        with attempt:
            worker.check()
            if database.query("SELECT to_regclass('trips')").strip():
                found = [json.loads(line) for line in database.query(ROWS).splitlines()]
            assert found == expected


def test_the_target_equals_the_table(fleet: Changes, kafka_node: KafkaNode, database: PostgresServer, prefix: str, tmp_path: Path):
    create_table(fleet.path("trips"), TableRequest("trips", SCHEMA, ("id",), ("city",), type=TableType.MOR), fleet.clock)
    table = fleet.open()
    write(table, Operation.UPSERT, *(row(n) for n in range(50)))
    service = fleet.run(truncations=False, schemas=True, batch_rows=7)
    settle(service)
    connector = {
        "name": "sink",
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": f"{prefix}changes.trips",
        "connection.url": database.jdbc_url,
        "connection.username": USER,
        "connection.password": USER,
        "collection.name.format": "trips",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.isolation.level": "read_committed",
    }
    converters = {
        f"{part}.converter{option}": value
        for part in ("key", "value")
        for option, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "true"))
    }
    with running_worker(tmp_path / "connect", kafka_node.bootstrap_servers, connector, converters) as worker:
        await_equal(database, table, worker)
        write(table, Operation.UPSERT, *(row(n, price=Decimal("327.68"), fare=None, raw=b"") for n in range(40, 60)))
        write(table, Operation.DELETE, *(row(n) for n in range(0, 45, 3)))
        settle(service)
        await_equal(database, table, worker)
        worker.stop()
        write(table, Operation.UPSERT, *(row(n, open=None, day=None) for n in range(20)))
        write(table, Operation.INSERT_OVERWRITE, row(101), row(103))
        settle(service)
        worker.start()
        await_equal(database, table, worker)
        settle(fleet.run(truncations=False, schemas=True, snapshot=1))
        write(table, Operation.DELETE, row(101))
        settle(fleet.run(truncations=False, schemas=True, snapshot=1))
        await_equal(database, table, worker)
    assert len(rows_of(table)) > 10
