"""A PostgreSQL, a running Debezium in a worker of Kafka Connect, a Kafka and `tideline-ingest`: the table equals the database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tenacity
from tests.ingest.applications import Application, Place
from tests.real.connect import Worker, running_worker
from tests.real.kafka import running_kafka
from tests.real.postgres import USER, PostgresServer, running_postgres

from tideline_table.table import Table

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("region", pa.string()),
        ("day", pa.date32()),
        ("clock", pa.time64("us")),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(12, 3)),
        ("any", pa.decimal128(20, 5)),
        ("ratio", pa.float64()),
        ("open", pa.bool_()),
        ("note", pa.string()),
        ("doc", pa.string()),
        ("uid", pa.string()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("lsn", pa.int64()),
    ]
)
TABLE = """
CREATE TABLE orders (id bigint PRIMARY KEY, region text, day date, clock time, at timestamptz, local timestamp,
  price numeric(12, 3),
  "any" numeric, ratio double precision, open boolean, note text, doc jsonb, uid uuid, raw bytea, tags text[]);
ALTER TABLE orders REPLICA IDENTITY FULL;
"""
ROW = """
INSERT INTO orders SELECT n, 'r' || n % 3, date '1969-12-30' + n, time '00:00:01.000002' + n * interval '1 minute',
  timestamptz '1955-03-04 05:06:07.000008+02' + n * interval '1 day',
  timestamp '2026-01-02 03:04:05.000006' + n * interval '1 hour',
  n - 100.125, n / 8.0 - 3, sqrt(n), n % 2 = 0, CASE WHEN n % 5 = 0 THEN repeat('x', 9000) || n END, jsonb_build_object('n', n),
  ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, decode(lpad(to_hex(n), 8, '0'), 'hex'), ARRAY['t' || n, NULL]
FROM generate_series({first}, {last}) n
"""
READ = """
SELECT json_build_object('id', id, 'region', region, 'day', day, 'clock', clock::text, 'at', extract(epoch FROM at) * 1000000,
  'local', extract(epoch FROM local) * 1000000, 'price', price::text, 'any', round("any", 5)::text, 'ratio', ratio, 'open', open,
  'note', note, 'doc', doc::text, 'uid', uid, 'raw', encode(raw, 'hex'), 'tags', tags{more}) FROM orders ORDER BY id
"""


def rows_of(path: str) -> list[dict[str, Any]]:
    """The rows of the table as `READ` writes those of the database."""
    table = Table.open(path)
    found = table.read([name for name in table.schema.names if name != "lsn"]).sort_by("id")
    numbers = {"at": pa.int64(), "local": pa.int64(), "price": pa.string(), "any": pa.string()}
    columns = {name: found[name].cast(numbers.get(name, found[name].type)) for name in found.column_names}
    return [
        {
            **row,
            "day": row["day"] and row["day"].isoformat(),
            "clock": row["clock"] and row["clock"].isoformat(),
            "raw": row["raw"] and row["raw"].hex(),
        }
        for row in pa.table(columns).to_pylist()
    ]


def await_equal(database: PostgresServer, path: str, worker: Worker, application: Application, more: str = "") -> None:
    expected = [json.loads(line) for line in database.query(READ.format(more=more)).splitlines()]
    for attempt in tenacity.Retrying(wait=tenacity.wait_fixed(0.5), stop=tenacity.stop_after_delay(400), reraise=True):
        with attempt:
            worker.check()
            assert not [line for line in application.lines() if line.get("error")]
            found = rows_of(path)
            assert found == expected


@pytest.fixture
def database(tmp_path: Path) -> Iterator[PostgresServer]:
    with running_postgres(tmp_path / "postgres", "wal_level=logical") as server:
        yield server


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with running_kafka(tmp_path / "kafka") as node, closing(Place(node.bootstrap_servers, tmp_path)) as made:
        yield made


def source(database: PostgresServer) -> dict[str, str]:
    return {
        "name": "source",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": "127.0.0.1",
        "database.port": str(database.port),
        "database.user": USER,
        "database.password": USER,
        "database.dbname": "postgres",
        "topic.prefix": "shop",
        "plugin.name": "pgoutput",
        "table.include.list": "public.orders",
        "publication.autocreate.mode": "filtered",
        # By default, Debezium tells no truncation.
        "skipped.operations": "none",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
    }


def test_the_table_equals_the_database(database: PostgresServer, place: Place, tmp_path: Path) -> None:
    """A snapshot, changes, changed keys and partitions, both programs stopped and killed, a new column; a truncation is poison."""
    database.query(TABLE)
    database.query(ROW.format(first=1, last=200))
    path = place.create("orders", SCHEMA, ordering_field="lsn")
    application = place.application(
        "shop",
        path,
        "^shop[.]public[.]orders$",
        envelope="debezium",
        envelope_columns=json.dumps({"lsn": "source.lsn"}),
        unknown_fields="evolve",
        topic_rescan_s="1",
    )
    converters = {
        f"{part}.converter{option}": value
        for part in ("key", "value")
        for option, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "true"))
    }
    with running_worker(tmp_path / "connect", place.bootstrap_servers, source(database), converters, "postgres") as worker:
        process = application.start()
        await_equal(database, path, worker, application)

        database.query("UPDATE orders SET price = price + 1, open = NOT open WHERE id % 4 = 0")
        database.query("UPDATE orders SET region = 'moved', note = NULL, tags = NULL, at = NULL WHERE id % 7 = 0")
        database.query("UPDATE orders SET id = id + 1000 WHERE id % 11 = 0")
        database.query("DELETE FROM orders WHERE id % 13 = 0")
        database.query(f"BEGIN; {ROW.format(first=300, last=320)}; DELETE FROM orders WHERE id = 301; COMMIT")
        database.query(f"DELETE FROM orders WHERE id = 5; {ROW.format(first=5, last=5)}")
        await_equal(database, path, worker, application)

        worker.stop()
        application.kill(process)
        database.query("UPDATE orders SET ratio = ratio * 2, uid = NULL, raw = NULL, doc = NULL, day = NULL WHERE id < 100")
        database.query("DELETE FROM orders WHERE id BETWEEN 50 AND 60")
        worker.start()
        process = application.start()
        await_equal(database, path, worker, application)

        database.query("ALTER TABLE orders ADD COLUMN extra integer; UPDATE orders SET extra = 7 WHERE id = 1")
        database.query("INSERT INTO orders (id, region, extra) VALUES (5000, 'new', 8)")
        await_equal(database, path, worker, application, ", 'extra', extra")

        database.query("TRUNCATE orders")
        application.await_line("PoisonRecord")
        assert "'t'" in str([line for line in application.lines() if line.get("error")][-1])
