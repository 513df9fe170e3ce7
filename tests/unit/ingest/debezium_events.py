"""Change events as Debezium's connectors write them, in JSON and Avro."""

from __future__ import annotations

import base64
import io
import json
from decimal import Decimal
from typing import Any

import fastavro

SOURCES = {
    "mysql": {"connector": "mysql", "db": "shop", "table": "orders", "file": "mysql-bin.000003", "pos": 154, "gtid": None},
    "postgresql": {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders", "lsn": 24023128, "xmin": None},
    "sqlserver": {"connector": "sqlserver", "db": "shop", "schema": "dbo", "change_lsn": "00000027:00000758:0003"},
}


def event(op: str, before: Any, after: Any, *, connector: str = "postgresql", **source: Any) -> dict[str, Any]:
    """An envelope without a schema."""
    whole = {"version": "3.0.0.Final", "name": "shop", "ts_ms": 1_700_000_000_000, "snapshot": "false", **SOURCES[connector]}
    return {
        "before": before,
        "after": after,
        "source": {**whole, **source},
        "transaction": None,
        "op": op,
        "ts_ms": 1_700_000_000_123,
    }


def with_schema(payload: Any, *fields: dict[str, Any], images: bool = True) -> dict[str, Any]:
    """The same beside Kafka Connect's schema of its rows (or of a key)."""
    shape = [{"optional": True, **f} for f in fields]
    if not images:
        return {"schema": {"type": "struct", "fields": shape, "optional": False, "name": "Key"}, "payload": payload}
    rows = [{"type": "struct", "fields": shape, "optional": True, "name": "Value", "field": name} for name in ("before", "after")]
    declared = {"type": "struct", "fields": [*rows, {"type": "string", "optional": False, "field": "op"}], "name": "Envelope"}
    return {"schema": declared, "payload": payload}


def field(name: str, kind: str, semantic: str | None = None, **parameters: str) -> dict[str, Any]:
    """A field of Kafka Connect's schema."""
    more = {"name": semantic, "version": 1} if semantic else {}
    return {"field": name, "type": kind, **more, **({"parameters": parameters} if parameters else {})}


def decimal_base64(text: str, scale: int) -> str:
    """A decimal as Kafka Connect's JSON converter writes it."""
    number = int(Decimal(text).scaleb(scale))
    return base64.b64encode(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)).decode()


def avro_envelope(*fields: tuple[str, Any]) -> dict[str, Any]:
    """The Avro schema of an envelope, as Confluent's converter derives it."""
    row = {"type": "record", "name": "Value", "fields": [{"name": n, "type": ["null", t], "default": None} for n, t in fields]}
    source = {
        "type": "record",
        "name": "Source",
        "namespace": "io.debezium.connector.postgresql",
        "fields": [
            {"name": "connector", "type": "string"},
            {"name": "ts_ms", "type": "long"},
            {"name": "snapshot", "type": [{"type": "string", "connect.default": "false"}, "null"], "default": "false"},
            {"name": "lsn", "type": ["null", "long"], "default": None},
        ],
    }
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.orders",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "transaction", "type": ["null", {"type": "record", "name": "block", "fields": []}], "default": None},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
        "connect.version": 2,
        "connect.name": "shop.public.orders.Envelope",
    }


def connect(kind: str, semantic: str, **more: Any) -> dict[str, Any]:
    """An Avro type with the name of its meaning."""
    return {"type": kind, "connect.version": 1, "connect.name": semantic, **more}


def avro_event(schema: dict[str, Any], op: str, before: Any, after: Any, lsn: int = 1) -> bytes:
    """The datum of an event."""
    source = {"connector": "postgresql", "ts_ms": 1_700_000_000_000, "snapshot": "false", "lsn": lsn}
    found = {"before": before, "after": after, "source": source, "transaction": None, "op": op, "ts_ms": 1_700_000_000_123}
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), found)
    return sink.getvalue()


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()
