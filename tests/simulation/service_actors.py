"""Actors that run table services, take writes away on purpose, and put things right again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from tests.simulation.actors import KEYS, Cluster, acknowledged, on_executor, partition_of, pause, rows_of
from tests.simulation.oracle import OP_KEY, Op
from tests.simulation.scheduler import SECOND, Process

from tideline_table.errors import InstantNotFound, InvalidOption, ObjectNotFound, SavepointRefused
from tideline_table.service.clustering import ClusteringTask, cluster_group
from tideline_table.service.compaction import CompactionTask, compact_slice
from tideline_table.table import (
    Table,
    create_savepoint,
    delete_partitions,
    delete_savepoint,
    restore_to_savepoint,
    roll_back_dead,
    run_clean,
    run_clustering,
    run_compaction,
    schedule_clean,
    schedule_clustering,
    schedule_compaction,
    write_rows,
)
from tideline_table.timeline.instant import Action
from tideline_table.timeline.write_stats import WriteStat
from tideline_table.transaction import Committed
from tideline_table.writer import Operation


def clusterer(cluster: Cluster, process: Process) -> None:
    """Plans and runs clustering when an event says that somebody committed, or now and then."""
    table = cluster.open(process)
    if table is None:
        return
    world = cluster.world
    choose = world.chooser(process.name)
    world.events.subscribe(process.actor)
    while not world.is_over():
        cluster.round(table, lambda t: schedule_clustering(t) if choose.random() < 0.8 else None)
        committed = cluster.round(table, lambda t: cluster_once(cluster, t, process, choose))
        if committed is not None:
            world.events.publish(process, committed.sequence)
        world.events.wait(process.actor, round(choose.choice((1, 60)) * SECOND))


def cluster_once(cluster: Cluster, table: Table, process: Process, choose: random.Random) -> Committed | None:
    """Run the oldest pending clustering, sometimes on executors that outlive this process."""
    on_executors = choose.random() < 0.3

    def run(tasks: Sequence[ClusteringTask]) -> list[list[WriteStat]]:
        if not on_executors:
            return [cluster_group(task, table.storage) for task in tasks]
        return [on_executor(cluster, process, lambda _, s, task=task: cluster_group(task, s), attempts=1) for task in tasks]

    try:
        return run_clustering(table, run=run)
    except ObjectNotFound:
        return None  # an input was cleaned: the clustering was rolled back


def compactor(cluster: Cluster, process: Process) -> None:
    """Plans and runs compactions when an event says that somebody committed, or now and then."""
    table = cluster.open(process)
    if table is None:
        return
    world = cluster.world
    choose = world.chooser(process.name)
    world.events.subscribe(process.actor)
    while not world.is_over():
        cluster.round(table, lambda t: schedule_compaction(t) if choose.random() < 0.8 else None)
        # Writers append beside a plan that waits.
        if choose.random() < 0.7:
            cluster.round(table, lambda t: compact_once(cluster, t, process, choose))
        world.events.wait(process.actor, round(choose.choice((0.3, 1, 60)) * SECOND))


def compact_once(cluster: Cluster, table: Table, process: Process, choose: random.Random) -> Committed | None:
    """Run the oldest pending compaction, sometimes on executors that outlive this process."""
    on_executors = choose.random() < 0.3
    begun: list[str] = []

    def run(tasks: Sequence[CompactionTask]) -> list[WriteStat]:
        begun.extend(task.instant for task in tasks)
        if not on_executors:
            return [compact_slice(task, table.storage) for task in tasks]
        return [on_executor(cluster, process, lambda _, s, task=task: compact_slice(task, s), attempts=1) for task in tasks]

    try:
        return run_compaction(table, run=run)
    except ObjectNotFound as error:
        # Whoever took it over may have finished, and cleaning followed. What a pending one reads nobody may take.
        if any(a.instant in begun for a in cluster.oracle.state.pending()):
            cluster.oracle.report(f"{error.path}, which the pending compaction {begun[0]} reads, is gone")
        return None


def cleaner(cluster: Cluster, process: Process) -> None:
    """The cleaner's tick: roll back who died, finish a clean that died, clean."""
    table = cluster.open(process)
    if table is None:
        return
    world = cluster.world
    choose = world.chooser(process.name)
    world.events.subscribe(process.actor)
    while not world.is_over():
        cluster.round(table, roll_back_dead)
        if any(a.action is Action.CLEAN for a in table.state.pending()):
            cluster.round(table, run_clean)
        if cluster.round(table, schedule_clean) is not None:
            cluster.round(table, run_clean)
        world.events.wait(process.actor, round(choose.choice((1, 20, 70)) * SECOND))


def recoverer(cluster: Cluster, process: Process) -> None:
    """Looks for the dead often, and takes their clusterings and compactions over."""
    table = cluster.open(process)
    if table is None:
        return
    choose = cluster.world.chooser(process.name)
    while not cluster.world.is_over():
        cluster.round(table, roll_back_dead)
        if choose.random() < 0.5:
            cluster.round(table, lambda t: cluster_once(cluster, t, process, choose))
            cluster.round(table, lambda t: compact_once(cluster, t, process, choose))
        pause(cluster, choose, 70)


# --- those who take away -----------------------------------------------------------------------------------------------------


def keeper(cluster: Cluster, process: Process) -> None:
    """Makes savepoints, gives them up, and brings the table back to one."""
    table = cluster.open(process)
    if table is None:
        return
    choose = cluster.world.chooser(process.name)
    while not cluster.world.is_over():
        # Nobody wrote yet, it was cleaned, or a restore took our savepoint back.
        with suppress(SavepointRefused, InstantNotFound):
            cluster.round(table, lambda t: _keep(t, choose))
        pause(cluster, choose, choose.choice((1, 30)))


def _keep(table: Table, choose: random.Random) -> object:
    saved = sorted(table.refresh().savepoints)
    act = choose.random()
    if not saved or act < 0.3:
        return create_savepoint(table, user="keeper")
    if act < 0.4:
        return delete_savepoint(table, saved[0])
    return restore_to_savepoint(table, choose.choice(saved)) if act < 0.75 else None


def overwriter(cluster: Cluster, process: Process) -> None:
    """Overwrites partitions, or drops them."""
    table = cluster.open(process)
    if table is None:
        return
    choose = cluster.world.chooser(process.name)
    number = 0
    while not cluster.world.is_over():
        number += 1
        partition = choose.choice("pq")
        everything = tuple(key for key in KEYS if partition_of(key) == partition)
        kept = tuple(sorted(choose.sample(everything, 3))) if choose.random() < 0.7 else ()
        op = Op(f"{process.name}.{number}", "overwrite" if kept else "drop", kept, cluster.world.scheduler.steps, everything)
        with suppress(InvalidOption):  # there is no such partition
            cluster.round(table, partial(acknowledged, cluster, op, partial(_overwrite_once, op, partition)))
        pause(cluster, choose, choose.choice((1, 60)))


def _overwrite_once(op: Op, partition: str, table: Table) -> Committed:
    extra, options = {OP_KEY: op.id}, {"tideline.write.conflict.retries": 1}
    if op.kind == "drop":
        return delete_partitions(table, [partition], options=options, extra=extra)
    rows = rows_of(dict.fromkeys(op.keys, op.id))
    return write_rows(table, rows, Operation.INSERT_OVERWRITE, options=options, extra=extra, parallelism=1)
