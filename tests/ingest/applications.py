"""`tideline-ingest` in processes of its own, and what topics and tables should hold."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tideline_ingest.ingestion import progress_key
from tideline_ingest.offsets import Offsets
from tideline_table.table import Table, TableRequest, create_table

SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), ("region", pa.string()), ("ts", pa.int64()), ("amount", pa.float64())]
)
TIMEOUT_S = 150
# Forked from a process that has imported everything: starting an application costs milliseconds, and each is killed many times.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tideline_ingest.several_tables", "tideline_runtime.lifecycle"])


def _run(environment: Mapping[str, str], log: str) -> None:
    os.environ.update(environment)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), sys.stderr.fileno())
    from tideline_ingest.settings import IngestSettings  # noqa: PLC0415 - imported already, by the process that was forked
    from tideline_ingest.several_tables import ingest_service  # noqa: PLC0415
    from tideline_runtime.lifecycle import run_service  # noqa: PLC0415

    sys.exit(run_service(ingest_service, IngestSettings, []))


@dataclass
class Application:
    """One application of one table, by its settings; any number of instances of it may run."""

    folder: Path
    settings: Mapping[str, str]
    running: list[Any] = field(default_factory=list)

    def start(self) -> Any:
        number = len(self.running)
        state = self.folder / f"state-{number}"
        environment = {"TIDELINE_STATE_FOLDER": str(state), **self.settings}
        process = _PROCESSES.Process(target=_run, args=(environment, str(self.folder / f"instance-{number}.log")), daemon=True)
        process.start()
        self.running.append(process)
        return process

    def with_settings(self, **settings: object) -> Application:
        """The same application, its next instances with other settings."""
        return replace(self, settings={**self.settings, **_environment(settings)})

    def kill(self, process: Any) -> None:
        """kill -9."""
        os.kill(process.pid, signal.SIGKILL)
        process.join(TIMEOUT_S)

    def stop(self, process: Any) -> int:
        """SIGTERM; the exit code."""
        os.kill(process.pid, signal.SIGTERM)
        process.join(TIMEOUT_S)
        return int(process.exitcode)

    def close(self) -> None:
        for process in self.running:
            if process.is_alive():
                process.kill()
            process.join(TIMEOUT_S)

    def lines(self) -> list[dict[str, Any]]:
        """What all instances logged."""
        texts = [path.read_text() for path in sorted(self.folder.glob("instance-*.log"))]
        return [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{") and line.endswith("}")]

    def await_said(self, event: str) -> None:
        """Until the newest instance logs `event`."""
        newest = self.folder / f"instance-{len(self.running) - 1}.log"
        deadline_s = time.monotonic() + TIMEOUT_S
        while not newest.exists() or f'"event": "{event}"' not in newest.read_text():
            assert time.monotonic() < deadline_s, f"no {event!r}: {newest.read_text() if newest.exists() else 'nothing'}"
            time.sleep(0.01)

    def await_line(self, error: str, times: int = 1) -> None:
        """Until instances logged an error of this kind so often."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while sum(line.get("error") == error for line in self.lines()) < times:
            assert time.monotonic() < deadline_s, f"not {times} times {error}"
            time.sleep(0.05)

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line.get("event") == event]


@dataclass
class Place:
    """A Kafka, a folder for tables, and the applications of one test."""

    bootstrap_servers: str
    folder: Path
    applications: list[Application] = field(default_factory=list)

    def topic(self, name: str, partitions: int = 4) -> str:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(TIMEOUT_S)
        return name

    def renew(self, name: str, partitions: int) -> None:
        """Delete the topic and make another one of its name."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for future in admin.delete_topics([name]).values():
            future.result(TIMEOUT_S)
        while name in admin.list_topics(timeout=TIMEOUT_S).topics:
            time.sleep(0.05)
        self.topic(name, partitions)

    def send(self, topic: str, records: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
        """Key, value, partition."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap_servers, "linger.ms": 20, "enable.idempotence": True, "log_level": 3}
        )
        failures: list[str] = []
        for key, value, partition in records:
            producer.produce(
                topic, value=value, key=key, partition=partition, on_delivery=lambda e, _: failures.append(str(e)) if e else None
            )
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0
        assert not failures

    def create(self, name: str = "t", schema: pa.Schema = SCHEMA, **more: Any) -> str:
        path = str(self.folder / name)
        request = {"key_fields": ("id",), "partition_fields": ("region",), "ordering_field": "ts", **more}
        create_table(path, TableRequest(name, schema, **request))
        return path

    def application(self, name: str, table: str, topic: str, **settings: Any) -> Application:
        folder = self.folder / f"app-{name}"
        folder.mkdir()
        options = {
            "tideline.lock.ttl": "1",
            "tideline.write.conflict.retries": "100",
            **settings.pop("options", {}),
        }
        own = {"application_id": name, "table": table, "brokers": self.bootstrap_servers, "topics": topic, "batch_wait_s": "0.2"}
        given = {**own, "options": json.dumps(options), **settings}
        shared = {"TIDELINE_POLL_INTERVAL_S": "0.5", "TIDELINE_MAX_CONSECUTIVE_FAILURES": "2", "TIDELINE_RETRY_BACKOFF_MAX_S": "1"}
        made = Application(folder, {**shared, **_environment(given)})
        self.applications.append(made)
        return made

    def close(self) -> None:
        for application in self.applications:
            application.close()


def _environment(settings: Mapping[str, object]) -> dict[str, str]:
    return {f"TIDELINE_INGEST__{name.upper()}": str(value) for name, value in settings.items()}


def committed(table: Table, application_id: str) -> Offsets:
    held = table.refresh().progress.get(progress_key(application_id))
    return Offsets.from_text(held.value) if held else Offsets()


def await_records(table: Table, application_id: str, count: int) -> None:
    """Until the table has ingested so many records (by offsets)."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while sum(committed(table, application_id).next.values()) < count:
        assert time.monotonic() < deadline_s, f"stands at {committed(table, application_id)}"
        time.sleep(0.05)


def row(key: str, region: str, ts: int, amount: float) -> dict[str, Any]:
    return {"id": key, "region": region, "ts": ts, "amount": amount}


def contents(table: Table) -> list[tuple[Any, ...]]:
    table.refresh()
    found = table.read(SCHEMA.names).to_pylist()
    return sorted(tuple(r[name] for name in SCHEMA.names) for r in found)
