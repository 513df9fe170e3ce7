"""Actors on a shared table: writers and services of Tideline under Hudi's lock, readers who see both sides, and Apache Hudi's
writer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from tests.simulation import service_actors
from tests.simulation.actors import LISTS, REGISTERS, Cluster, partition_of, pause, read_values, rows_of, turns, write_once
from tests.simulation.hudi_writer import HudiFailed, HudiUnsure, HudiView, HudiWriter
from tests.simulation.oracle import OP_KEY, Op
from tests.simulation.scheduler import Process, SimulatedClock
from tests.simulation.shared_oracle import SharedOracle
from tests.simulation.shared_world import SharedWorld
from tests.simulation.visible_files import GroupId

from tideline_table.coordination.committed import Committed
from tideline_table.errors import CommitUnknown, HistoryUnavailable, ObjectExists, ObjectNotFound, StorageError, TidelineError
from tideline_table.table import Table

OURS = tuple(f"I{number}" for number in range(6))
"""Keys that only writers of Tideline insert: Hudi looks for no keys that others insert at the same time."""


@dataclass(slots=True)
class SharedCluster(Cluster):
    """What actors of one history share."""

    world: SharedWorld
    oracle: SharedOracle

    def open_once(self, process: Process) -> Table:
        """The table as `process` opens it, with the lock that both sides take."""
        table = Table.open(
            self.world.disk.root,
            options=self.options,
            clock=SimulatedClock(self.world.scheduler, process),
            writer_id=process.name,
            storage=self.world.storage(process),
            hudi_lock=self.world.hudi_lock,
        )
        table.reservations = self.world.reservations(process)
        return table

    def hudi_once(self, process: Process) -> HudiWriter:
        """Apache Hudi's writer, as `process` starts it."""
        storage = self.world.storage(process)
        clock = SimulatedClock(self.world.scheduler, process)
        table = Table.open(self.world.disk.root, options=self.options, clock=clock, writer_id=process.name, storage=storage)
        return HudiWriter(self.world, process, storage, table)


# --- ours --------------------------------------------------------------------------------------------------------------------


def writer(cluster: SharedCluster, process: Process) -> None:
    """Appends to lists, sets and deletes registers, inserts keys that other writers of Tideline insert too."""
    for turn in turns(cluster, process):
        cluster.round(turn.table, partial(_one_write, cluster, process, turn.name, turn.choose))
        pause(cluster, turn.choose, turn.choose.choice((0.1, 0.3) if cluster.world.is_crowded else (0.1, 5, 30)))


def _one_write(cluster: SharedCluster, process: Process, name: str, choose: random.Random, table: Table) -> Committed:
    kind = choose.choice(("append", "append", "append", "upsert", "insert", "delete"))
    if kind == "append":
        keys = tuple(sorted(choose.sample(LISTS, choose.choice((1, 1, 2)))))
    elif kind == "upsert":
        keys = tuple(sorted(choose.sample(REGISTERS, choose.choice((1, 2)))))
    else:
        keys = (choose.choice(OURS),)
    op = Op(name, kind, keys, cluster.world.scheduler.steps)
    options: dict[str, object] = {"tideline.write.conflict.retries": choose.choice((0, 3))}
    return acknowledged(cluster, op, lambda t: write_once(cluster, t, process, op, options, choose), table)


def acknowledged(cluster: SharedCluster, op: Op, act: Callable[[Table], Committed], table: Table) -> Committed:
    """Run an operation and note what its actor was told. The timeline decides whether that is true."""
    world, oracle = cluster.world, cluster.oracle
    oracle.ops[op.id] = op
    try:
        committed = act(table)
    except CommitUnknown:
        raise
    except TidelineError as error:
        op.status, op.ended_step = "failed", world.scheduler.steps
        if oracle.committed(op.id):
            oracle.report(f"operation {op.id} was reported as failed ({type(error).__name__}: {error}) and had completed")
        raise
    op.status, op.ended_step = "committed", world.scheduler.steps
    if not oracle.committed(op.id):
        oracle.report(f"operation {op.id} was acknowledged and is not on the timeline")
    return committed


def reader(cluster: SharedCluster, process: Process) -> None:
    """Reads snapshots: each is the table of some moment between its beginning and its end, whichever process wrote that."""
    for turn in turns(cluster, process):
        with suppress(ObjectNotFound, HistoryUnavailable):  # cleaned under a slow reader
            cluster.round(turn.table, partial(read_once, cluster, turn.name))
        pause(cluster, turn.choose, turn.choose.choice((1, 30)))


def read_once(cluster: SharedCluster, name: str, table: Table) -> None:
    """One snapshot."""
    world, oracle = cluster.world, cluster.oracle
    op = Op(name, "read", (), world.scheduler.steps)
    first = len(oracle.moments) - 1
    table.refresh()
    possible = oracle.moments[first:]
    values = read_values(table)
    if all(values != moment.model for moment in possible):
        oracle.report(f"{name} read {values} instead of {possible[-1].model} or one of {len(possible) - 1} states before")
        return
    op.reads[""] = values
    op.status, op.ended_step = "committed", world.scheduler.steps
    op.sequence = first + next(place for place, moment in enumerate(possible) if values == moment.model)
    oracle.ops[name] = op


clusterer = service_actors.clusterer
cleaner = service_actors.cleaner


def mirror(cluster: SharedCluster, process: Process) -> None:
    """Adopts what Apache Hudi's writers did, at each visit."""
    for turn in turns(cluster, process):
        cluster.round(turn.table, lambda table: table.timeline.heal(0.0))
        pause(cluster, turn.choose, turn.choose.choice((0.1, 1)))


def recoverer(cluster: SharedCluster, process: Process) -> None:
    """Looks for the dead often, and takes their clusterings over."""
    service_actors.recoverer(cluster, process)


# --- Apache Hudi's -----------------------------------------------------------------------------------------------------------


def hudi(cluster: SharedCluster, process: Process) -> None:
    """Writes to lists and registers that are there, inserts keys of its own, and cleans up behind the dead now and then."""
    world = cluster.world
    choose = world.chooser(process.name)
    theirs = None
    number = 0
    while not world.is_over():
        number += 1
        try:
            theirs = theirs or cluster.hudi_once(process)
            hudi_write_once(cluster, theirs, f"{process.name}.{number}", choose)
            if choose.random() < 0.4:
                theirs.roll_back_silent()
        except (HudiFailed, StorageError, ObjectNotFound, ObjectExists):
            pass  # the job failed: what it began is left to lazy cleaning
        pause(cluster, choose, choose.choice((0.1, 0.3) if world.is_crowded else (0.1, 5, 30)))


class _Unlocked(HudiWriter):
    """A job that nobody gave the options of sharing."""

    def _lock(self) -> AbstractContextManager[None]:
        return nullcontext()


def unlocked(cluster: SharedCluster, process: Process) -> None:
    """Inserts keys of its own into file groups of its own, and takes no lock: nothing that it writes is in anybody's way."""
    world = cluster.world
    choose = world.chooser(process.name)
    number = 0
    while not world.is_over():
        number += 1
        # It never looks whether it was stopped for long: no rule here could survive that.
        world.peers_in_lock.add(process.name)
        with suppress(HudiFailed, StorageError, ObjectNotFound, ObjectExists):
            _insert_unlocked(cluster, process, f"{process.name}.{number}")
        pause(cluster, choose, choose.choice((0.1, 0.3) if world.is_crowded else (0.1, 2, 5)))


def _insert_unlocked(cluster: SharedCluster, process: Process, name: str) -> None:
    world, oracle = cluster.world, cluster.oracle
    own = cluster.hudi_once(process)
    theirs = _Unlocked(own.world, own.process, own.storage, own.table)
    with theirs.begun() as view:
        key = f"X-{name}"
        op = Op(name, "upsert", (key,), world.scheduler.steps)
        oracle.ops[op.id] = op
        rows: dict[GroupId | str, pa.Table] = {partition_of(key): rows_of({key: op.value(key, None)})}
        try:
            theirs.write(view, rows, {OP_KEY: op.id})
        except HudiUnsure:
            raise
        except HudiFailed:
            op.status, op.ended_step = "failed", world.scheduler.steps
            raise
        op.status, op.ended_step = "committed", world.scheduler.steps


def hudi_write_once(cluster: SharedCluster, theirs: HudiWriter, name: str, choose: random.Random) -> Op:
    """One write, and what its actor was told."""
    world, oracle = cluster.world, cluster.oracle
    with theirs.begun() as view:
        there = theirs.values(view)
        kind = choose.choice(("append", "append", "upsert", "insert"))
        among = [key for key in (LISTS if kind == "append" else REGISTERS) if key in there]
        keys = (
            (f"H-{name}",)
            if kind == "insert" or not among
            else tuple(sorted(choose.sample(among, min(len(among), choose.choice((1, 2))))))
        )
        op = Op(name, "upsert" if keys[0].startswith("H") else kind, keys, world.scheduler.steps)
        oracle.ops[op.id] = op
        before = {key: there[key][0] for key in keys if key in there}
        op.reads[view.instant] = before
        values = {key: op.value(key, before.get(key)) for key in keys}
        try:
            theirs.write(view, _placed(view, there, values, choose), {OP_KEY: op.id})
        except HudiUnsure:
            raise
        except HudiFailed:
            op.status, op.ended_step = "failed", world.scheduler.steps
            if oracle.committed(op.id):
                oracle.report(f"operation {op.id} of Hudi failed and had completed")
            raise
        op.status, op.ended_step = "committed", world.scheduler.steps
        if not oracle.committed(op.id):
            oracle.report(f"operation {op.id} of Hudi was acknowledged and is not on the timeline")
    return op


def _placed(
    view: HudiView, there: Mapping[str, tuple[str, GroupId]], values: Mapping[str, str], choose: random.Random
) -> dict[GroupId | str, pa.Table]:
    """Rows by file group; new keys go to a small one of their partition, or to a new one."""
    placed: dict[GroupId | str, dict[str, str]] = {}
    for key, value in values.items():
        partition = partition_of(key)
        small: list[GroupId | str] = [group for group in sorted(view.groups) if group[0] == partition and group not in view.planned]
        at: GroupId | str = there[key][1] if key in there else choose.choice([*small, partition])
        placed.setdefault(at, {})[key] = value
    return {at: rows_of(rows) for at, rows in placed.items()}
