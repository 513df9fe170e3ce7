"""Shared tables without Spark: the other side is a writer that leaves its steps on the timeline and nothing in the table log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.unit.table.tables import QUIET, Row, new_table, rows_of, set_properties

from tideline_locks import open_hudi_lock
from tideline_table.action import write_rows
from tideline_table.clock import ManualClock
from tideline_table.coordination import LogReplica, SharedTimeline
from tideline_table.coordination.committed import Committed
from tideline_table.hudi import properties as p
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import State
from tideline_table.hudi.plans import ROLLBACK_METADATA, ROLLBACK_PLAN, encode_document
from tideline_table.hudi.properties import read_properties
from tideline_table.log.entry import Entry
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.log.table_log import Draft
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.table import Table, TableType, share_table
from tideline_table.writer import Operation

SHARING = Sharing(HudiLockKind.STORAGE)


class Unlogged(SharedTimeline):
    """Takes its steps as Apache Hudi does: the timeline files are all that it leaves.

    Only what it begins it finds there at once.
    """

    def _mirror(self, draft: Draft) -> Entry:
        if draft.before is State.NONE:
            self.follower.adopt()
        return draft.entry(self.state.sequence + 1, self.clock.now())


def shared_table(table_type: TableType = TableType.COW, version: int = WRITTEN.version) -> tuple[Table, Storage, ManualClock]:
    """A new table, shared by the lock of object stores."""
    clock = ManualClock()
    exclusive, storage, _ = new_table(clock, MemoryStorage(clock=clock), type=table_type, version=version)
    return share_table(exclusive, SHARING, open_hudi_lock), storage, clock


def opened(storage: Storage, clock: ManualClock, writer: str = "w", **options: Any) -> Table:
    """The table as one more writer of Tideline opens it."""
    chosen = {**QUIET, **options}
    return Table.open(storage.root, options=chosen, clock=clock, writer_id=writer, storage=storage, hudi_lock=open_hudi_lock)


def peer_of(storage: Storage, clock: ManualClock) -> Table:
    """The table in the hands of the other side."""
    table = opened(storage, clock, "peer")
    lock = open_hudi_lock(storage, table.sharing or SHARING, "peer", clock, table.options)
    table.timeline = timeline = Unlogged(LogReplica(storage, clock, "peer", table.options, table.timeline.format), lock)
    assert table.identity is not None
    timeline.replica.uid = table.identity.uid
    timeline.replica.load()
    timeline.refresh_view()
    return table


def put(table: Table, rows: Iterable[Row], operation: Operation = Operation.UPSERT, **options: Any) -> Committed:
    """Write after a second."""
    assert isinstance(table.clock, ManualClock)
    table.clock.advance(1)
    return write_rows(table, rows_of(rows), operation, options=options, parallelism=1)


def roll_back_as_hudi(table: Table, done: Committed) -> str:
    """The files that its rollback of a completed commit leaves, and none of those that it removes; returns its instant."""
    storage, info = table.storage, {"commitTime": done.instant, "action": "commit"}
    rollback = table.timeline.mint(table.refresh())
    plan = {"instantToRollback": info, "RollbackRequests": [], "version": 1}
    metadata = {
        "startRollbackTime": rollback,
        "timeTakenInMillis": 0,
        "totalFilesDeleted": 0,
        "commitsRollback": [done.instant],
        "partitionMetadata": {},
        "version": 1,
        "instantsRollback": [info],
    }
    storage.put(f".hoodie/{rollback}.rollback.requested", encode_document(ROLLBACK_PLAN, plan))
    storage.put(f".hoodie/{rollback}.rollback.inflight", b"")
    for suffix in ("commit.requested", "inflight", "commit"):
        storage.delete(f".hoodie/{done.instant}.{suffix}")
    for stat in done.stats:
        storage.delete(stat.path)
    storage.put(f".hoodie/{rollback}.rollback", encode_document(ROLLBACK_METADATA, metadata))
    return rollback


def upgrade(storage: Storage) -> None:
    """What Apache Hudi's automatic upgrade of an idle table leaves, as far as timeline and properties go."""
    listed = storage.list_folder(".hoodie").objects
    set_properties(storage, {**read_properties(storage), p.VERSION: "9", p.LAYOUT: "2"})
    for path in (found.path for found in listed):
        instant, _, rest = path.removeprefix(".hoodie/").partition(".")
        if instant.isdecimal():
            ends = f"{instant}_{instant}" if rest in ("commit", "deltacommit") else instant
            storage.put(f".hoodie/timeline/{ends}.{rest}", storage.read(path))
            storage.delete(path)


@contextmanager
def before_commit(table: Table, act: Any) -> Iterator[None]:
    """`act()` happens once, after the next write of `table` has staged its files and before it commits."""
    timeline = table.timeline
    original, calls = timeline.append, [0]

    def append(*arguments: Any, **more: Any) -> Entry:
        calls[0] += 1
        if calls[0] == 2:
            act()
        return original(*arguments, **more)

    timeline.append = append  # type: ignore[method-assign]
    try:
        yield
    finally:
        timeline.append = original  # type: ignore[method-assign]
