"""Actors of a simulated cluster: each runs production code on a table of its own, again and again until the history ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

import pyarrow as pa
from tests.simulation.oracle import OP_KEY, Op, Oracle
from tests.simulation.scheduler import SECOND, Process, SimulatedClock
from tests.simulation.world import World

from tideline_locks.errors import LockTimeout, LockUnreachable
from tideline_table.action import write_rows
from tideline_table.action.write import executor as write_executor
from tideline_table.action.write import run as table_write
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.config import Options
from tideline_table.coordination.committed import Committed
from tideline_table.errors import (
    ClockSkew,
    CommitUnknown,
    HistoryUnavailable,
    InstantNotFound,
    ObjectNotFound,
    StorageError,
    TidelineError,
    TransactionRolledBack,
    WriteConflict,
)
from tideline_table.hudi.instant import Action, State
from tideline_table.log.action import ActionRecord
from tideline_table.log.progress import ProgressStep
from tideline_table.log.state import TableState
from tideline_table.storage import Storage
from tideline_table.table import Table
from tideline_table.writer import FileGroupResult, FileGroupTask, Operation, WriteContext, prepare_input

T = TypeVar("T")

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("part", pa.string()), pa.field("v", pa.string())])
EXPECTED = (
    StorageError,
    WriteConflict,
    TransactionRolledBack,
    CommitUnknown,
    ClockSkew,
    LockTimeout,
    LockUnreachable,
)
"""What production code may answer when things go wrong around it. Any other error is a finding."""
LISTS = ("L0", "L1", "L2")
REGISTERS = ("R0", "R1", "R2")
INSERTED = tuple(f"I{number}" for number in range(12))
KEYS = (*LISTS, *REGISTERS, *INSERTED)


def rows_of(values: dict[str, str], parts: Mapping[str, str] | None = None) -> pa.Table:
    """Rows as writers hand them over. A key always has the same partition, unless `parts` says where it goes."""
    columns = [list(values), [parts[k] if parts else partition_of(k) for k in values], list(values.values())]
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def partition_of(key: str) -> str:
    """The partition of a key."""
    return "pq"[key[-1] in "13579"]


@dataclass(slots=True)
class Cluster:
    """What actors of one history share."""

    world: World
    oracle: Oracle
    options: dict[str, object]
    topics: Any = None
    """The event log of a mirrored history (`mirror_actors.Topics`)."""
    feed: Any = None
    """The topic of a history that is fed (`feed.Feed`)."""

    def open(self, process: Process) -> Table | None:
        """The table as `process` opens it; None when the history ends before that works."""
        while not self.world.is_over():
            try:
                return self.open_once(process)
            except StorageError:
                self.world.scheduler.sleep(SECOND)
        return None

    def open_once(self, process: Process) -> Table:
        """The table as `process` opens it."""
        table = Table.open(
            self.world.disk.root,
            options=self.options,
            clock=SimulatedClock(self.world.scheduler, process),
            writer_id=process.name,
            storage=self.world.storage(process),
            lock=self.world.lock(process),
        )
        table.reservations = self.world.reservations(process)
        return table

    def round(self, table: Table, act: Callable[[Table], T]) -> T | None:
        """One piece of work. Errors that the caller has to live with end it; others are findings of the scheduler."""
        try:
            return act(table)
        except ClockSkew:
            # Its remedy: set the clock, retry; in a shared table and for compactions: wait until the last instant has come.
            assert isinstance(table.clock, SimulatedClock)
            table.clock.set_right()
            self.world.scheduler.sleep(self.world.between(60, 1800))
        except EXPECTED:
            pass
        return None


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of an actor's work: its table, its own random numbers, and a name that no other turn has."""

    table: Table
    choose: random.Random
    name: str


def turns(cluster: Cluster, process: Process) -> Iterator[Turn]:
    """Round after round until the history ends; none when it ends before the table can be opened."""
    table = cluster.open(process)
    choose = cluster.world.chooser(process.name)
    number = 0
    while table is not None and not cluster.world.is_over():
        number += 1
        yield Turn(table, choose, f"{process.name}.{number}")


def pause(cluster: Cluster, choose: random.Random, longest_s: float) -> None:
    cluster.world.scheduler.sleep(round(choose.uniform(0, longest_s) * SECOND))


# --- writers -----------------------------------------------------------------------------------------------------------------


def writer(cluster: Cluster, process: Process) -> None:
    """Appends to lists, sets and deletes registers, inserts keys that others insert too."""
    for turn in turns(cluster, process):
        choose = turn.choose
        committed = cluster.round(turn.table, partial(_one_write, cluster, process, turn.name, choose))
        if committed is not None:
            cluster.world.events.publish(process, committed.sequence)
        rests_s = (0.1, 0.3) if cluster.world.is_crowded else (0.1, 5, 30)
        if cluster.world.is_archived:
            rests_s = (20, 60)
        pause(cluster, choose, choose.choice(rests_s) if choose.random() < 0.95 else 900)


def _one_write(cluster: Cluster, process: Process, name: str, choose: random.Random, table: Table) -> Committed:
    kind = choose.choice(("append", "append", "append", "upsert", "insert", "delete"))
    if kind == "append":
        keys = tuple(sorted(choose.sample(LISTS, choose.choice((1, 1, 2)))))
    elif kind == "upsert":
        keys = tuple(sorted(choose.sample(REGISTERS, choose.choice((1, 2)))))
    elif kind == "insert":
        keys = (choose.choice(INSERTED),)
    else:
        keys = (choose.choice(REGISTERS if choose.random() < 0.5 else INSERTED),)
    op = Op(name, kind, keys, cluster.world.scheduler.steps)
    options = {"tideline.write.conflict.retries": choose.choice((0, 3))}
    return acknowledged(cluster, op, lambda t: write_once(cluster, t, process, op, options, choose), table)


def acknowledged(cluster: Cluster, op: Op, act: Callable[[Table], Committed], table: Table) -> Committed:
    """Run an operation and note what its actor was told."""
    world, oracle = cluster.world, cluster.oracle
    oracle.ops[op.id] = op
    try:
        committed = act(table)
    except CommitUnknown:
        raise
    except TidelineError:
        op.status, op.ended_step = "failed", world.scheduler.steps
        if oracle.committed(op.id):
            oracle.report(f"operation {op.id} was reported as failed and had completed at {oracle.committed(op.id)}")
        raise
    op.status, op.ended_step, op.sequence = "committed", world.scheduler.steps, committed.sequence
    if oracle.committed(op.id) != committed.sequence:
        oracle.report(f"operation {op.id} was acknowledged at {committed.sequence}, the log has it at {oracle.committed(op.id)}")
    return committed


def write_once(
    cluster: Cluster, table: Table, process: Process, op: Op, options: dict[str, object], choose: random.Random
) -> Committed:
    """The write that `op` describes, by production code."""
    operation = {"insert": Operation.INSERT, "delete": Operation.DELETE}.get(op.kind, Operation.UPSERT)
    if op.kind == "insert":
        options = {**options, "hoodie.datasource.insert.dup.policy": "drop"}
    parts = {key: choose.choice("pqr") for key in op.keys} if cluster.world.is_global else None
    rows = rows_of(dict.fromkeys(op.keys, op.id), parts)
    process.on_executors = choose.random() < 0.3

    def appended(transaction: WriteTransaction) -> pa.Table:
        try:
            before = read_values(table, op.keys)
        except HistoryUnavailable as error:
            raise WriteConflict(error.found, with_instant="") from error  # cleaned since the begin: another process wrote over it
        op.reads[transaction.instant] = before
        return rows_of({k: op.value(k, before.get(k)) for k in op.keys}, parts)

    process.rows_at_begin = appended if op.kind == "append" else None
    try:
        return write_rows(table, rows, operation, options=options, extra={OP_KEY: op.id}, parallelism=1)
    finally:
        process.rows_at_begin, process.on_executors = None, False


class _ReadingAttempt(table_write._Attempt):
    """Makes its rows of what it reads, again whenever it looks at the table anew: who waited for others routes its rows by a
    later state."""

    def _route(self, transaction: WriteTransaction) -> Any:
        table, definition = self.table, self.table.definition
        process = table.storage.process
        prepared = prepare_input(
            process.rows_at_begin(transaction),
            table.schema,
            definition.keygen,
            definition.merging,
            self.choices.operation,
            combine=True,
            scope=self.prepared.scope,
        )
        object.__setattr__(self, "prepared", prepared)
        return table_write._Attempt._route(self, transaction)


@contextmanager
def reading_writers(cluster: Cluster) -> Iterator[None]:
    """Writes that read what they change: their rows are made between the begin of the transaction and their routing.

    And writes whose tasks run in other processes, as on Spark.
    """
    world = cluster.world
    begin, write_group = table_write.in_transaction, write_executor.write_file_group

    def in_transaction(
        table: Table, operation: Operation, options: Options, stage: Any, progress: ProgressStep | None = None
    ) -> Committed:
        if world.scheduler.process.rows_at_begin is None:
            return begin(table, operation, options, stage, progress)

        attempt = stage.__self__
        fields = {f.name: getattr(attempt, f.name) for f in dataclass_fields(attempt)}
        return begin(table, operation, options, _ReadingAttempt(**fields)._stage, progress)

    def write_file_group(context: WriteContext, task: FileGroupTask, incoming: pa.Table, storage: Storage) -> FileGroupResult:
        process = world.scheduler.process
        if not process.on_executors:
            return write_group(context, task, incoming, storage)
        return on_executor(
            cluster, process, lambda number, s: write_group(context, replace(task, attempt=number), incoming, s), attempts=3
        )

    with (
        patch.object(table_write, "in_transaction", in_transaction),
        patch.object(write_executor, "write_file_group", write_file_group),
    ):
        yield


def on_executor(cluster: Cluster, driver: Process, work: Callable[[int, Storage], T], *, attempts: int) -> T:
    """Run `work(attempt, storage)` in a process of its own, which outlives a driver that dies, and again when it fails."""
    world = cluster.world
    for number in range(attempts):
        done: list[T] = []

        def main(executor: Process, number: int = number, done: list[T] = done) -> None:
            try:
                done.append(work(number, world.storage(executor)))
            except (StorageError, ObjectNotFound):
                return

        executor = world.start(f"{driver.actor}-task", main, restarts=False)
        world.scheduler.wait_for(lambda executor=executor: executor.dead, None)
        if done:
            return done[0]
    raise StorageError("a task failed")


# --- readers -----------------------------------------------------------------------------------------------------------------


def read_values(table: Table, keys: Sequence[str] | None = None) -> dict[str, str]:
    """Values by key in the table's present state."""
    found = table.read(["id", "v"])
    values = dict(zip(found.column("id").to_pylist(), found.column("v").to_pylist(), strict=True))
    if len(values) < found.num_rows:
        raise AssertionError(f"a snapshot with a key twice: {found.to_pydict()}")
    return values if keys is None else {k: values[k] for k in keys if k in values}


def reader(cluster: Cluster, process: Process) -> None:
    """Reads snapshots, reads each again later from the same files, and looks back at instants."""
    looked_back: dict[str, Seen] = {}
    for turn in turns(cluster, process):
        try:
            cluster.round(turn.table, partial(read_once, cluster, turn.name, turn.choose))
            if turn.choose.random() < 0.4:
                cluster.round(turn.table, partial(_look_back, cluster, turn.choose, looked_back))
        except (ObjectNotFound, InstantNotFound, HistoryUnavailable):
            pass  # cleaned under a reader slower than the commits that cleaning retains
        pause(cluster, turn.choose, turn.choose.choice((1, 30)))


def read_once(cluster: Cluster, name: str, choose: random.Random, table: Table) -> None:
    """One snapshot, compared with the model, sometimes read again from the same files."""
    world, oracle = cluster.world, cluster.oracle
    op = Op(name, "read", (), world.scheduler.steps)
    table.refresh()
    sequence = table.state.sequence
    held = table.snapshot()
    values = read_values(table)
    if values != dict(oracle.model_at(sequence)):
        oracle.report(f"{name} read {values} at {sequence} instead of {dict(oracle.model_at(sequence))}")
    op.reads[""] = values
    op.status, op.ended_step, op.sequence = "committed", world.scheduler.steps, sequence
    oracle.ops[name] = op
    if choose.random() < 0.3:
        pause(cluster, choose, 5)
        columns = held.read(["id", "v"]).columns
        again = dict(zip(*(c.to_pylist() for c in columns), strict=True))
        if again != values:
            oracle.report(f"{name} read {again} at {sequence}, {values} before")


Seen = tuple[frozenset[str], dict[str, str]]
"""What a reader saw as of an instant: the writes up to it that restores had taken back by then, and the values."""


def _look_back(cluster: Cluster, choose: random.Random, seen: dict[str, Seen], table: Table) -> None:
    # Only instants that nobody may still complete before, and no restore took back: the others change until then.
    state = table.state
    kept = {a.instant for a in state.completed_writes()}
    if not cluster.world.is_saved:
        # Of what was archived they still tell, as long as cleaning leaves the files.
        kept |= {instant for instant in seen if instant < state.archived_before}
    for instant in seen.keys() - kept:
        del seen[instant]
    pending = min((a.instant for a in state.pending()), default="9")
    settled = [a.instant for a in state.completed_writes() if a.instant < pending]
    if not settled:
        return
    instant = choose.choice(sorted({*settled[-2:], *seen}))
    # A restore also takes back older writes: those that completed behind its savepoint.
    taken_back = frozenset(a.instant for a in state.actions.values() if a.instant <= instant and _is_undone(state, a))
    found = table.read(["id", "v"], as_of=instant)
    values = dict(zip(found.column("id").to_pylist(), found.column("v").to_pylist(), strict=True))
    before = seen.get(instant)
    if before is not None and before[0] == taken_back and before[1] != values:
        cluster.oracle.report(f"as of {instant}: {values}, {before[1]} before")
    seen[instant] = (taken_back, values)


def _is_undone(state: TableState, action: ActionRecord) -> bool:
    by = state.actions.get(action.fenced_by)
    return action.state is State.ROLLED_BACK and by is not None and by.action is Action.RESTORE


def follower(cluster: Cluster, process: Process) -> None:
    """Reads the log as it grows, woken by events: gapless, and the same entries that were written."""
    table = cluster.open(process)
    if table is None:
        return
    world, oracle = cluster.world, cluster.oracle
    world.events.subscribe(process.actor)
    while not world.is_over():
        before = table.state.sequence
        for entry in cluster.round(table, lambda t: t.timeline.refresh()) or ():
            if entry.sequence != before + 1 and entry.sequence > oracle.trimmed + 1:
                oracle.report(f"{process.name} got entry {entry.sequence} after {before}")
            if oracle.entries[entry.sequence - 1].append_id != entry.append_id:
                oracle.report(f"{process.name} read another entry {entry.sequence}")
            before = entry.sequence
        if table.state != oracle.state_at(table.state.sequence):
            oracle.report(f"{process.name} has another state at {table.state.sequence} than the log says")
        world.events.wait(process.actor, 30 * SECOND)
