"""`tideline up` as a person runs it: all services as processes, on embedded defaults and on a real Kafka and Redis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import pyarrow as pa
import pytest
from tests.platform.processes import processes_that_name
from tests.real.kafka import running_kafka
from tests.real.redis import running_redis

from tideline_events import EventConsumer, EventLog, open_event_log
from tideline_locks.table_lock import attach_lock
from tideline_runtime.running import Running, read_running
from tideline_table.action import write_rows
from tideline_table.hudi.instant import State
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.writer import Operation

pytestmark = pytest.mark.spark
SERVICES = ("mirror", "planner", "launcher", "cleaner")
SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), ("part", pa.string()), ("n", pa.int64())])
DEADLINE_S = 120.0
Found = TypeVar("Found")


@dataclass(frozen=True)
class Parts:
    event_log: str
    locks: str


@pytest.fixture
def embedded(tmp_path: Path) -> Parts:
    return Parts(f"sqlite://{tmp_path / 'state' / 'events.db'}", "storage:")


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Parts]:
    with running_kafka(tmp_path / "kafka") as kafka, running_redis() as redis:
        yield Parts(kafka.url, redis.url)


@pytest.mark.timeout(240)
def test_up_on_embedded_defaults(tmp_path: Path, embedded: Parts) -> None:
    check_platform(tmp_path, embedded)


@pytest.mark.real
@pytest.mark.timeout(300)
def test_up_on_kafka_and_redis(tmp_path: Path, real: Parts) -> None:
    check_platform(tmp_path, real)


def check_platform(folder: Path, parts: Parts) -> None:
    state, base = folder / "state", folder / "tables" / "trips"
    # Redis serves leases by itself; locks in the tables' folders are served by the lock service.
    services = (*SERVICES, "lock_service") if parts.locks == "storage:" else SERVICES
    settings = folder / "settings.toml"
    settings.write_text(
        f"""
state_folder = "{state}"
tables = ["{folder / "tables"}/*"]
event_log = "{parts.event_log}"
locks = "{parts.locks}"
poll_interval_s = 0.5
tables_rescan_s = 1.0
[planner]
clustering_min_files = 6
clustering_min_commits = 6
clustering_sort_columns = {{trips = "n"}}
[cleaner]
clean_min_commits = 2
options = {{"hoodie.cleaner.commits.retained" = "1"}}
"""
    )
    create_table(str(base), TableRequest("trips", SCHEMA, ("id",), ("part",), "n"))
    table = Table.open(str(base), options={"hoodie.parquet.small.file.limit": 0})
    attach_lock(table, parts.locks)
    process = subprocess.Popen(
        [sys.executable, "-m", "tideline_cli.main", "up", "--settings", str(settings)], start_new_session=True
    )
    try:
        running = {name: wait_for(lambda name=name: read_running(state / f"{name}.json"), process) for name in services}
        for number in range(8):
            write_rows(table, rows(number), Operation.UPSERT)
        wait_for(lambda: has_clustered(table), process)
        write_rows(table, rows(0), Operation.UPSERT)
        write_rows(table, rows(1), Operation.UPSERT)
        wait_for(lambda: has_cleaned(table), process)
        assert sorted(r["id"] for r in table.read().to_pylist()) == sorted(f"k{n:03}" for n in range(80))
        with_events = open_event_log(parts.event_log)
        check_events(with_events, table, process)
        with_events.close()
        for service in running.values():
            check_endpoints(service)
    finally:
        os.kill(process.pid, signal.SIGTERM)
        code = process.wait(240)
    assert code == 0
    assert not [name for name in services if (state / f"{name}.json").exists()]
    assert processes_that_name(str(folder)) == []
    assert (state / "logs" / "lock_service.log").exists() == (parts.locks == "storage:")
    for name in services:
        lines = (state / "logs" / f"{name}.log").read_text().splitlines()
        assert lines
        assert all(json.loads(line)["service"] == name for line in lines if line.startswith("{"))


def rows(batch: int) -> pa.Table:
    numbers = range(batch * 10, batch * 10 + 10)
    return pa.table([[f"k{n:03}" for n in numbers], ["p"] * 10, list(numbers)], schema=SCHEMA)


def wait_for(probe: Callable[[], Found | None], process: subprocess.Popen[bytes]) -> Found:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the platform ended by itself"
        found = probe()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"nothing within {DEADLINE_S:g} s")


def has_clustered(table: Table) -> bool:
    return any(a.is_clustering and a.state is State.COMPLETED for a in table.refresh().actions.values())


def has_cleaned(table: Table) -> bool:
    return any(a.operation == "CLEAN" and a.state is State.COMPLETED for a in table.refresh().actions.values())


def check_events(event_log: EventLog, table: Table, process: subprocess.Popen[bytes]) -> None:
    head = table.refresh().sequence
    consumer = EventConsumer(event_log, "test-consumer", seen=lambda: {table.uid: 0})
    sequences: list[int] = []

    def is_complete() -> bool:
        sequences.extend(t.sequence for t in consumer.poll(0.5))
        return bool(sequences) and sequences[-1] >= head

    wait_for(is_complete, process)
    assert sequences == list(range(1, len(sequences) + 1))
    consumer.close()


def check_endpoints(running: Running) -> None:
    for route, expected in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200)):
        reply = httpx.get(f"{running.url}{route}", timeout=60)
        assert reply.status_code == expected, (running.service, route, reply.text)
    assert "tideline_runtime_ready 1.0" in httpx.get(f"{running.url}/metrics", timeout=60).text
