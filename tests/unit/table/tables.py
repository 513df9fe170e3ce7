"""Small tables and table logs for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.plans import schedule_compaction

from tideline_table.action import run_clustering, run_compaction, write_rows
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.clustering.task import ClusteredGroup, ClusteringTask
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import Clock, ManualClock
from tideline_table.coordination.committed import Committed
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.instant import CLUSTER, Action, State
from tideline_table.hudi.properties import PROPERTIES_PATH, change_properties, format_properties, read_properties
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, CommitMetadata, WriteStat
from tideline_table.log.entry import Entry
from tideline_table.log.state import TableState
from tideline_table.storage import LocalStorage, MemoryStorage, Storage
from tideline_table.table import IDENTITY_PATH, Table, TableRequest, create_table
from tideline_table.table.identity import create_identity
from tideline_table.writer import Operation

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("part", pa.string()),
        pa.field("ts", pa.int64()),
        pa.field("v", pa.string()),
    ]
)
HEARTBEAT = timedelta(hours=1)
"""Far longer than any test: heartbeat threads never wake up."""
QUIET = {"hoodie.client.heartbeat.interval_in_ms": int(HEARTBEAT.total_seconds() * 1000), "hoodie.parquet.small.file.limit": 0}
DEATH_S = 3 * HEARTBEAT.total_seconds()
"""After this much time every silent writer counts as dead."""

Row = tuple[str, str, int, str]


def rows_of(rows: Iterable[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def create(storage: Storage, clock: Clock, *, ordering: str = "ts", partitions: tuple[str, ...] = ("part",), **more: Any) -> None:
    create_table(storage.root, TableRequest("t1", SCHEMA, ("id",), partitions, ordering, **more), clock, storage)


def set_properties(storage: Storage, properties: Mapping[str, str]) -> None:
    """Replace `hoodie.properties`, whatever they are now."""
    change_properties(storage, lambda _: properties)


def open_table(storage: Storage, clock: Clock, writer: str = "w", **options: Any) -> Table:
    return Table.open(storage.root, options={**QUIET, **options}, clock=clock, writer_id=writer, storage=storage)


def new_table(clock: ManualClock | None = None, storage: Storage | None = None, **more: Any) -> tuple[Table, Storage, ManualClock]:
    clock = clock or ManualClock()
    storage = storage or MemoryStorage(clock=clock)
    create(storage, clock, **more)
    return open_table(storage, clock), storage, clock


def write(table: Table, rows: Iterable[Row], operation: Operation = Operation.UPSERT, **options: Any) -> Committed:
    if isinstance(table.clock, ManualClock):
        table.clock.advance(1)
    return write_rows(table, rows_of(rows), operation, options=options, parallelism=1)


def cluster(table: Table, instant: str = "") -> Committed | None:
    def run(tasks: Sequence[ClusteringTask]) -> list[ClusteredGroup]:
        return [cluster_group(task, table.storage) for task in tasks]

    return run_clustering(table, instant, run=run)


def compact(table: Table) -> Committed | None:
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    return run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])


def beside(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let `act` happen once, just before the next commit."""
    commit, acted = WriteTransaction.commit, []

    def after(self: WriteTransaction, *args: Any, **more: Any) -> Any:
        if not acted:
            acted.append(True)
            act()
        return commit(self, *args, **more)

    monkeypatch.setattr(WriteTransaction, "commit", after)


def contents(table: Table, as_of: str = "") -> list[Row]:
    """All rows, sorted; a key that stands twice stands here twice."""
    found = table.read(["id", "part", "ts", "v"], as_of=as_of).to_pylist()
    return sorted(((r["id"], r["part"], r["ts"], r["v"]) for r in found), key=repr)


def listing(storage: Storage) -> dict[str, bytes]:
    """Every object with its bytes."""
    return {found.path: storage.read(found.path) for found in storage.list_objects("")}


def local_listing(storage: LocalStorage) -> set[str]:
    return {found.path for found in storage.list_objects("")}


def instant(number: int) -> str:
    return f"2026010100{number // 60000:02d}{number // 1000 % 60:02d}{number % 1000:03d}"


def base_stat(file_id: str, at: str, partition: str = "p", size: int = 100, rows: int = 10, inserts: int = 0) -> WriteStat:
    name = f"{file_id}_0-0-0_{at}.parquet"
    return WriteStat(file_id, partition, f"{partition}/{name}" if partition else name, NO_PREVIOUS_COMMIT, rows, size, inserts)


def log_stat(file_id: str, base: str, version: int = 1, partition: str = "p", size: int = 10) -> WriteStat:
    name = f".{file_id}_{base}.log.{version}_0-0-0"
    path = f"{partition}/{name}" if partition else name
    return WriteStat(file_id, partition, path, base, 1, size, num_updates=1, log_version=version)


class History:
    """A table log written entry by entry, and its fold."""

    def __init__(self) -> None:
        self.state = TableState()
        self.entries: list[Entry] = []

    def step(
        self, at: str, action: Action, before: State, after: State, body: Mapping[str, Any] | None = None, operation: str = "UPSERT"
    ) -> Entry:
        entry = self.entry(at, action, before, after, body, operation)
        self.state.apply(entry)
        self.entries.append(entry)
        return entry

    def entry(
        self, at: str, action: Action, before: State, after: State, body: Mapping[str, Any] | None = None, operation: str = "UPSERT"
    ) -> Entry:
        number = self.state.sequence + 1
        return Entry(number, f"a{number}", "2026-01-01T00:00:00+00:00", "w", at, action, before, after, operation).with_body(
            body or {}
        )

    def begin(self, at: str, action: Action = Action.COMMIT) -> None:
        self.step(at, action, State.NONE, State.INFLIGHT)

    def complete(self, at: str, *stats: WriteStat, replaced: Mapping[str, Sequence[str]] | None = None, schema: str = "") -> None:
        action = self.state.actions[at].action
        operation = self.state.actions[at].operation
        metadata = CommitMetadata(operation, stats, {"schema": schema} if schema else {}, replaced)
        self.step(at, action, State.INFLIGHT, State.COMPLETED, {"metadata": metadata.to_json()}, operation)

    def commit(self, at: str, *stats: WriteStat) -> None:
        self.begin(at)
        self.complete(at, *stats)

    def plan_clustering(self, at: str, *groups: Sequence[FileGroupId], priority: bool = False) -> None:
        plan = {
            "operationType": CLUSTER,
            "clusteringPlan": {
                "inputGroups": [{"slices": [{"partitionPath": p, "fileId": f} for p, f in group]} for group in groups],
                "extraMetadata": {"tideline.priority": "true"} if priority else {},
            },
        }
        self.step(at, Action.REPLACE_COMMIT, State.NONE, State.REQUESTED, {"plan": plan, "read": []}, CLUSTER)

    def plan_compaction(self, at: str, groups: Sequence[FileGroupId]) -> None:
        plan = {"operations": [{"partitionPath": p, "fileId": f} for p, f in groups]}
        self.step(at, Action.COMPACTION, State.NONE, State.REQUESTED, {"plan": plan}, "COMPACT")

    def run_compaction(self, at: str, *stats: WriteStat) -> None:
        self.step(at, Action.COMPACTION, State.REQUESTED, State.INFLIGHT, {}, "COMPACT")
        self.complete(at, *stats)

    def start_clustering(self, at: str) -> None:
        self.step(at, Action.REPLACE_COMMIT, State.REQUESTED, State.INFLIGHT, {}, CLUSTER)

    def fence(self, at: str, target: str) -> None:
        action = self.state.actions[target].action
        body = {"target": target, "target_action": action.value, "plan": {}}
        self.step(at, Action.ROLLBACK, State.NONE, State.INFLIGHT, body, "ROLLBACK")

    def finish_rollback(self, at: str, target: str) -> None:
        action = self.state.actions[target].action
        body = {"target": target, "target_action": action.value, "metadata": {}}
        self.step(at, Action.ROLLBACK, State.INFLIGHT, State.COMPLETED, body, "ROLLBACK")

    def clean(self, at: str, plan: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        self.step(at, Action.CLEAN, State.NONE, State.REQUESTED, {"plan": plan}, "CLEAN")
        self.step(at, Action.CLEAN, State.REQUESTED, State.INFLIGHT, {}, "CLEAN")
        self.step(at, Action.CLEAN, State.INFLIGHT, State.COMPLETED, {"metadata": metadata}, "CLEAN")


def declare(storage: Storage, **changes: str) -> None:
    """Make the table one that was created with other properties (`__` for a dot), which no request asks for."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    storage.put(PROPERTIES_PATH, format_properties({**read_properties(storage), **named}, "by hand"))
    storage.delete(IDENTITY_PATH)
    create_identity(storage, ManualClock())
