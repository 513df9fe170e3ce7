"""Tables, settings, clock and event log of one test, all real, in one folder."""

from __future__ import annotations

import os
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from tideline_events import TableDeleted, UnknownEvent, decode, open_event_log
from tideline_runtime.contract import ServiceContext
from tideline_runtime.health import Health
from tideline_runtime.metrics import Metrics
from tideline_table.action import write_rows
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.config import SMALL_FILE_LIMIT
from tideline_table.storage import LocalStorage
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.writer import Operation

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("city", pa.string()), pa.field("fare", pa.float64())])
HEARTBEAT_GONE_S = 130.0
"""More than the default interval times the tolerable misses."""


class ShiftedClock:
    """The machine's clock, which tests may move ahead.

    Times of files that are there stay behind, waiting threads sleep for real.
    """

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._ahead_s)

    def monotonic_s(self) -> float:
        return time.monotonic() + self._ahead_s

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)

    def advance(self, duration_s: float) -> None:
        self._ahead_s += duration_s


def date_files_by(clock, monkeypatch):
    """Heartbeats and the store's time go by the clock that tests move."""
    put = LocalStorage.put

    def dated(storage, path, data):
        put(storage, path, data)
        now_s = clock.now().timestamp()
        os.utime(storage.local_path(path), (now_s, now_s))

    monkeypatch.setattr(LocalStorage, "put", dated)


class Fleet:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ShiftedClock()
        self.event_log = open_event_log(f"sqlite://{folder}/state/events.db", clock=self.clock)
        self.event_log.ensure_topics()
        self._services = []

    def path(self, name):
        return str(self.folder / "tables" / name)

    def create(self, name="trips", **more):
        create_table(self.path(name), TableRequest(name, SCHEMA, ("id",), ("city",), **more), self.clock)
        return self.open(name)

    def open(self, name="trips", options=None):
        return Table.open(self.path(name), clock=self.clock, writer_id="writer", options=options)

    def context(self, name):
        return ServiceContext(name, self.clock, Metrics(name), Health(self.clock, 300))

    def settings(self, kind, **explicit):
        given = {"state_folder": str(self.folder / "state"), "tables": (self.path("*"),), **explicit}
        return kind.load(environment={}, **given)

    def service(self, kind, settings_kind, name, *more, start=True, **explicit):
        """A started service and its context; stopped at the end of the test."""
        context = self.context(name)
        service = kind(self.settings(settings_kind, **explicit), context, *more)
        self._services.append(service)
        if start:
            service.start()
        return service, context

    def stop(self, service):
        self._services.remove(service)
        service.stop()

    def events(self, topic):
        """All events of a topic so far."""
        with closing(self.event_log.subscribe([topic], f"test-{time.monotonic_ns()}")) as subscription:
            found = []
            while records := subscription.poll(0):
                found += [decode(record) for record in records]
        assert not [e for e in found if isinstance(e, UnknownEvent | TableDeleted)]
        return found

    def close(self):
        for service in self._services:
            service.stop()
        self.event_log.close()


def rows(first, count=5, city="oslo"):
    ids = [f"k{n}" for n in range(first, first + count)]
    return pa.table({"id": ids, "city": [city] * count, "fare": [float(n) for n in range(count)]}, SCHEMA)


def write(table, first, city="oslo"):
    """One commit that makes one more small file."""
    options = {SMALL_FILE_LIMIT.key: 0}
    return write_rows(table, rows(first, city=city), Operation.INSERT, options=options, parallelism=1)


def hint(service, table):
    """As if an event of the table arrived."""
    service._events._wake(table.uid)


def known_sequence(service, table):
    """The newest step of a table that a service knows, whether the table is open there or rests."""
    tables, found = service._tables, service._tables.by_uid(table.uid)
    return tables._resting._closed[tables.resting()[table.uid]].sequence if found is None else found.state.sequence


def update(table, first):
    """One commit that writes the rows of `write` again."""
    return write_rows(table, rows(first, city="oslo"), Operation.UPSERT, parallelism=1)


def begin(table):
    """A write that goes on: its instant and what ends it."""
    return WriteTransaction.begin(table.timeline, table.lock, "INSERT")


def die(table):
    """A writer that begins and is never heard of again; its instant."""
    transaction = begin(table)
    transaction.abandon()
    return transaction.instant
