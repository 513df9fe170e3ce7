"""Topics in memory, and an application that reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tideline_ingest.batch import Batch, Received
from tideline_ingest.ingestion import IngestService, progress_key
from tideline_ingest.offsets import Kept, Offsets, Place
from tideline_ingest.settings import IngestSettings
from tideline_ingest.topic_reader import Limits
from tideline_runtime.contract import ServiceContext
from tideline_runtime.health import Health
from tideline_runtime.metrics import Metrics
from tideline_table.clock import Clock, SystemClock
from tideline_table.storage import Storage
from tideline_table.table import Table, TableRequest, create_table

SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), ("region", pa.string()), ("ts", pa.int64()), ("amount", pa.float64())]
)


class Topics:
    """Partitions as lists; the first records of some may be gone."""

    def __init__(self) -> None:
        self.records: dict[Place, list[Received]] = {}
        self.first: dict[Place, int] = {}
        self.ids: dict[str, str] = {}

    def send(self, place: Place, key: str | None, value: Any) -> None:
        content = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        kept = self.records.setdefault(place, [])
        kept.append(Received(place, len(kept), None if key is None else key.encode(), content))


class MemoryReader:
    """A `TopicReader` of `Topics`: gives out records in turns, a few of each partition."""

    def __init__(self, topics: Topics, partitions: tuple[int, ...] = ()) -> None:
        self._topics = topics
        self._partitions = partitions
        self.next: dict[Place, int] = {}
        self.closed = False

    def places(self) -> set[Place]:
        return {place for place in self._topics.records if not self._partitions or place[1] in self._partitions}

    def topic_ids(self) -> dict[str, str]:
        return self._topics.ids

    def kept(self, places: set[Place]) -> dict[Place, Kept]:
        return {place: Kept(self._topics.first.get(place, 0), len(self._topics.records[place])) for place in places}

    def assign(self, points: Mapping[Place, int]) -> None:
        self.next = dict(points)

    def read(self, limits: Limits, goes_on: Callable[[], bool], patience_s: float) -> Batch | None:
        if not goes_on():
            return None
        found: list[Received] = []
        for place, start in sorted(self.next.items()):
            fresh = self._topics.records[place][start : start + max(1, limits.rows // len(self.next))]
            found += fresh
            self.next[place] = start + len(fresh)
        return Batch(tuple(found), dict(self.next), 0.0) if found else None

    def lag(self, committed: Mapping[Place, int]) -> dict[Place, int]:
        return {place: len(self._topics.records[place]) - offset for place, offset in committed.items()}

    def probe(self) -> None:
        """It always answers."""

    def close(self) -> None:
        self.closed = True


def new_table(storage: Storage, clock: Clock, **more: Any) -> None:
    request = {"key_fields": ("id",), "partition_fields": ("region",), "ordering_field": "ts", **more}
    create_table(storage.root, TableRequest("t", SCHEMA, **request), clock, storage)


def application(
    topics: Topics, storage: Storage, folder: Path, *, clock: Clock | None = None, **given: Any
) -> tuple[IngestService, ServiceContext]:
    """An application that was not started yet."""
    explicit = {
        "application_id": "app",
        "table": storage.root,
        "brokers": "none:1",
        "topics": ("t",),
        "batch_rows": 4,
        "locks": "memory:",
    }
    settings = IngestSettings.load(environment={}, state_folder=folder, **{**explicit, **given})
    clock = clock or SystemClock()
    context = ServiceContext("ingest", clock, Metrics("ingest"), Health(clock, 300))
    return IngestService(settings, context, storage=storage, reader=MemoryReader(topics, settings.partitions)), context


def row(key: str, ts: int = 1, amount: float = 1.0, region: str = "r") -> dict[str, Any]:
    return {"id": key, "region": region, "ts": ts, "amount": amount}


def numbered(count: int) -> Topics:
    """Topics with as many rows in two partitions."""
    topics = Topics()
    for n in range(count):
        topics.send(("t", n % 2), f"k{n}", row(f"k{n}", n))
    return topics


def open_table(storage: Storage) -> Table:
    """The table that is fed, as a reader opens it."""
    return Table.open(storage.root, storage=storage)


def ids(storage: Storage) -> list[str]:
    """The keys that it shows."""
    return sorted(r["id"] for r in open_table(storage).read(["id"]).to_pylist())


def held(storage: Storage, name: str = "app") -> Mapping[Place, int] | None:
    """The offsets that it keeps of an application."""
    found = open_table(storage).state.progress.get(progress_key(name))
    return Offsets.from_text(found.value).next if found else None


def run(service: IngestService, ticks: int) -> None:
    """A life of an application."""
    service.start()
    try:
        for _ in range(ticks):
            assert service.tick() == 0.0
    finally:
        service.stop()
