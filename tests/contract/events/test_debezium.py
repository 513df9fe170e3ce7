"""Kafka Connect's JSON converter and Debezium's `ExtractNewRecordState` read row changes, as every Debezium-aware sink has them."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.artifacts import ensure_artifacts, java_command
from tests.real.kafka import JARS
from tests.unit.changes.conftest import Changes, records_of, settle

from tideline_table.action import write_rows
from tideline_table.table import TableRequest, TableType, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.real

PROGRAM = Path(__file__).with_name("ConnectSink.java")
CONNECT_JARS = Path(__file__).with_name("connect_jars.json")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("city", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("size", pa.struct([("width", pa.int32()), ("ratio", pa.float32())])),
    ]
)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Changes]:
    with closing(Changes(tmp_path)) as made:
        yield made


def row(key: int, price: str) -> dict[str, Any]:
    at = datetime(2026, 3, 1, 12, 0, 0, 123456)
    return {
        "id": key,
        "city": "oslo",
        "day": date(1969, 12, 31),
        "at": at,
        "zoned": at.replace(tzinfo=UTC),
        "price": Decimal(price),
        "raw": b"\x00\xff",
        "tags": ["a", None],
        "size": {"width": key, "ratio": 0.5},
    }


def through_connect(records: list[tuple[bytes | None, bytes | None]]) -> list[tuple[Any, Any]]:
    jars = ensure_artifacts({**json.loads(JARS.read_text()), **json.loads(CONNECT_JARS.read_text())})
    lines = [" ".join("-" if part is None else base64.b64encode(part).decode() for part in record) for record in records]
    command = [*java_command(), "-cp", ":".join(map(str, jars)), str(PROGRAM)]
    answer = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False, timeout=300)
    assert answer.returncode == 0, answer.stderr
    return [(json.loads(key), json.loads(value)) for key, value in (line.split("\t") for line in answer.stdout.splitlines())]


def test_a_sink_gets_the_rows(fleet: Changes) -> None:
    create_table(fleet.path("trips"), TableRequest("trips", SCHEMA, ("id",), ("city",), type=TableType.MOR), fleet.clock)

    def write(operation: Operation, *given: dict[str, Any]) -> None:
        write_rows(fleet.open(), pa.Table.from_pylist(list(given), SCHEMA), operation, parallelism=1)

    write(Operation.UPSERT, row(1, "1.25"), row(2, "-1.28"), row(3, "0.00"))
    service = fleet.run(schemas=True)
    settle(service)
    write(Operation.UPSERT, {**row(2, "327.68"), "tags": None, "size": {"width": None, "ratio": float("nan")}}, row(4, "2.00"))
    write(Operation.DELETE, row(3, "0.00"))
    settle(service)
    records = records_of(fleet.event_log, "tideline.changes.trips")
    got = through_connect([(record.key, record.value) for record in records])
    sink: dict[int, Any] = {}
    ops = []
    for key, value in got:
        assert key.keys() == {"id", "city"}
        if value is None:
            del sink[key["id"]]
            ops.append("d")
        else:
            ops.append(value.pop("__op"))
            assert value.pop("__source_sequence") > 0
            sink[key["id"]] = value
    assert ops == ["r", "r", "r", "u", "c", "d"]
    assert sink.keys() == {1, 2, 4}
    same = {"city": "oslo", "day": -1, "at": 1772366400123456, "zoned": "2026-03-01T12:00:00.123456Z", "raw": "AP8="}
    assert sink[1] == {"id": 1, **same, "price": 1.25, "tags": ["a", None], "size": {"width": 1, "ratio": 0.5}}
    assert sink[2] == {"id": 2, **same, "price": 327.68, "tags": None, "size": {"width": None, "ratio": None}}
