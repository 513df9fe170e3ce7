"""Actors that run table services, take writes away on purpose, and put things right again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from tests.plans import schedule_clean, schedule_clustering, schedule_compaction, schedule_log_compaction
from tests.simulation.actors import KEYS, Cluster, acknowledged, on_executor, partition_of, pause, rows_of, turns
from tests.simulation.oracle import OP_KEY, Op
from tests.simulation.scheduler import SECOND, Process

from tideline_table.action import (
    archive,
    create_savepoint,
    delete_partitions,
    delete_savepoint,
    resize_buckets,
    resize_rings,
    restore_to_savepoint,
    roll_back_dead,
    run_clean,
    run_clustering,
    run_compaction,
    run_log_compaction,
    write_rows,
)
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.compaction.plan import CompactionTask, compact_slice
from tideline_table.action.log_compaction.task import merge_log
from tideline_table.coordination.committed import Committed
from tideline_table.errors import InstantNotFound, InvalidOption, ObjectNotFound, SavepointRefused, VerificationFailed
from tideline_table.hudi.instant import Action
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.storage import Storage
from tideline_table.table import Table
from tideline_table.writer import Operation

K = TypeVar("K")
T = TypeVar("T")


def clusterer(cluster: Cluster, process: Process) -> None:
    """Plans and runs clustering when an event says that another process committed, or now and then."""

    def run(cluster: Cluster, table: Table, process: Process, choose: random.Random) -> None:
        committed = cluster_once(cluster, table, process, choose)
        if committed is not None:
            cluster.world.events.publish(process, committed.sequence)

    _serve(cluster, process, schedule_clustering, run, rests_s=(1, 60))


def compactor(cluster: Cluster, process: Process) -> None:
    """Plans and runs compactions; writers append beside a plan that waits."""
    _serve(cluster, process, schedule_compaction, compact_once, rests_s=(0.3, 1, 60), runs=0.7)


def log_compactor(cluster: Cluster, process: Process) -> None:
    """Plans and runs log compactions; writers append beside a plan that waits, and compactions and clusterings overtake it."""
    _serve(cluster, process, schedule_log_compaction, log_compact_once, rests_s=(0.3, 1, 30), runs=0.8)


def _serve(
    cluster: Cluster,
    process: Process,
    schedule: Callable[[Table], object],
    run_once: Callable[[Cluster, Table, Process, random.Random], object],
    *,
    rests_s: Sequence[float],
    runs: float = 1.0,
) -> None:
    events = cluster.world.events
    for turn in turns(cluster, process):
        events.subscribe(process.actor)
        cluster.round(turn.table, lambda t, choose=turn.choose: schedule(t) if choose.random() < 0.8 else None)
        if runs == 1.0 or turn.choose.random() < runs:
            cluster.round(turn.table, lambda t, choose=turn.choose: run_once(cluster, t, process, choose))
        events.wait(process.actor, round(turn.choose.choice(rests_s) * SECOND))


def cluster_once(cluster: Cluster, table: Table, process: Process, choose: random.Random) -> Committed | None:
    """Run the oldest pending clustering, sometimes on executors that outlive this process."""
    each = _wherever(cluster, table, process, choose, cluster_group)
    try:
        return run_clustering(table, run=each)
    except ObjectNotFound:
        return None  # an input was cleaned: the clustering was rolled back
    except VerificationFailed:
        if not cluster.world.is_forgetful:
            raise
        return None  # rolled back too


def compact_once(cluster: Cluster, table: Table, process: Process, choose: random.Random) -> Committed | None:
    """Run the oldest pending compaction, sometimes on executors that outlive this process."""
    each = _wherever(cluster, table, process, choose, compact_slice)
    begun: list[str] = []

    def run(tasks: Sequence[CompactionTask]) -> list[WriteStat]:
        begun.extend(task.instant for task in tasks)
        return each(tasks)

    try:
        return run_compaction(table, run=run)
    except ObjectNotFound as error:
        # The process that took it over may have finished, and cleaning followed. What a pending one reads nobody may take.
        if any(a.instant in begun for a in cluster.oracle.state.pending()):
            cluster.oracle.report(f"{error.path}, which the pending compaction {begun[0]} reads, is gone")
        return None
    except VerificationFailed:
        if not cluster.world.is_forgetful:
            raise
        return None  # it stays pending


def log_compact_once(cluster: Cluster, table: Table, process: Process, choose: random.Random) -> Committed | None:
    """Run the oldest pending log compaction, sometimes on executors that outlive this process."""
    try:
        return run_log_compaction(table, run=_wherever(cluster, table, process, choose, merge_log))
    except VerificationFailed:
        if not cluster.world.is_forgetful:
            raise
        return None  # rolled back


def _wherever(
    cluster: Cluster, table: Table, process: Process, choose: random.Random, work: Callable[[K, Storage], T]
) -> Callable[[Sequence[K]], list[T]]:
    """Each task's work, here or each in a process of its own."""
    is_apart = choose.random() < 0.3

    def each(tasks: Sequence[K]) -> list[T]:
        if not is_apart:
            return [work(task, table.storage) for task in tasks]
        return [on_executor(cluster, process, lambda _, s, task=task: work(task, s), attempts=1) for task in tasks]

    return partial(_heard_of, cluster, choose, each) if cluster.world.is_forgetful else each


def _heard_of(cluster: Cluster, choose: random.Random, each: Callable[[Sequence[K]], list[T]], tasks: Sequence[K]) -> list[T]:
    """Results of which sometimes one is lost, or stands where another should."""
    results = each(tasks)
    if not results or choose.random() >= 0.3:
        return results
    cluster.world.results_lost += 1
    lost = choose.randrange(len(results))
    others = results[:lost] + results[lost + 1 :]
    return [*others, others[0]] if others and choose.random() < 0.5 else others


def cleaner(cluster: Cluster, process: Process) -> None:
    """The cleaner's tick: roll back who died, finish a clean that died, clean."""
    events = cluster.world.events
    for turn in turns(cluster, process):
        table = turn.table
        events.subscribe(process.actor)
        cluster.round(table, roll_back_dead)
        if any(a.action is Action.CLEAN for a in table.state.pending()):
            cluster.round(table, run_clean)
        if cluster.round(table, schedule_clean) is not None:
            cluster.round(table, run_clean)
        events.wait(process.actor, round(turn.choose.choice((1, 20, 70)) * SECOND))


def archiver(cluster: Cluster, process: Process) -> None:
    """The cleaner's tick to its end: what is clean is archived.

    It cleans itself sometimes only: others do so too, or it has to wait.
    """
    for turn in turns(cluster, process):
        cluster.round(turn.table, roll_back_dead)
        if turn.choose.random() < 0.5 and cluster.round(turn.table, schedule_clean) is not None:
            cluster.round(turn.table, run_clean)
        cluster.round(turn.table, archive)
        pause(cluster, turn.choose, turn.choose.choice((5, 30, 70)))


def recoverer(cluster: Cluster, process: Process) -> None:
    """Looks for the dead often, and takes their clusterings and compactions over."""
    for turn in turns(cluster, process):
        cluster.round(turn.table, roll_back_dead)
        if turn.choose.random() < 0.5:
            cluster.round(turn.table, lambda t, choose=turn.choose: cluster_once(cluster, t, process, choose))
            cluster.round(turn.table, lambda t, choose=turn.choose: compact_once(cluster, t, process, choose))
        pause(cluster, turn.choose, 70)


# --- actors that take away -----------------------------------------------------------------------------------------------------


def keeper(cluster: Cluster, process: Process) -> None:
    """Makes savepoints, gives them up, and brings the table back to one."""
    for turn in turns(cluster, process):
        # Nobody wrote yet, it was cleaned, or a restore took our savepoint back.
        with suppress(SavepointRefused, InstantNotFound):
            cluster.round(turn.table, lambda t, choose=turn.choose: _keep(t, choose))
        pause(cluster, turn.choose, turn.choose.choice((30, 90) if cluster.world.keeps_long else (1, 30)))


def _keep(table: Table, choose: random.Random) -> object:
    saved = sorted(table.refresh().savepoints)
    act = choose.random()
    if not saved or act < 0.3:
        return create_savepoint(table, user="keeper")
    if act < 0.4:
        return delete_savepoint(table, saved[0])
    return restore_to_savepoint(table, choose.choice(saved)) if act < 0.75 else None


def resizer(cluster: Cluster, process: Process) -> None:
    """Splits the buckets of hash rings, and merges them again."""
    for turn in turns(cluster, process):
        cluster.round(turn.table, partial(resize_once, turn.choose))
        pause(cluster, turn.choose, turn.choose.choice((0.3, 1, 60)))


def resize_once(choose: random.Random, table: Table) -> None:
    """Resize by the size of some file group: about half are larger."""
    sizes = [s.total_bytes for s in table.state.latest_slices()] or [0]
    middle = max(1024, choose.choice(sizes) // 2)
    splits = choose.random() < 0.6
    options = {"hoodie.parquet.max.file.size": middle, "hoodie.bucket.index.split.threshold": 2.0 if splits else 1_000_000.0}
    limits = {"hoodie.bucket.index.max.num.buckets": 5} if splits else {"hoodie.bucket.index.min.num.buckets": 1}
    merging = {"hoodie.bucket.index.merge.threshold": 0.0 if splits else 3.0}
    resize_rings(table, options={**options, **limits, **merging, "tideline.write.conflict.retries": 1})


def renumberer(cluster: Cluster, process: Process) -> None:
    """Gives the partitions of a bucket index other numbers of buckets."""
    for turn in turns(cluster, process):
        cluster.round(turn.table, partial(renumber_once, turn.choose))
        pause(cluster, turn.choose, turn.choose.choice((0.3, 1, 60)))


def renumber_once(choose: random.Random, table: Table) -> None:
    """Resize to any numbers by partition, so that some partitions stay as they are."""
    rules = choose.choice(("^p$,{};q,{}", "q,{1};^p$,{0}", "[pq],{}")).format(*(choose.choice((1, 2, 3, 4)) for _ in range(2)))
    options = {"tideline.write.conflict.retries": 1}
    resize_buckets(table, choose.choice((None, 2, 3)), partition_buckets=rules, overwrite=True, options=options)


def overwriter(cluster: Cluster, process: Process) -> None:
    """Overwrites partitions, or drops them."""
    for turn in turns(cluster, process):
        choose = turn.choose
        partition = choose.choice("pq")
        everything = tuple(key for key in KEYS if partition_of(key) == partition)
        kept = tuple(sorted(choose.sample(everything, 3))) if choose.random() < 0.7 else ()
        op = Op(turn.name, "overwrite" if kept else "drop", kept, cluster.world.scheduler.steps, everything)
        with suppress(InvalidOption):  # there is no such partition
            cluster.round(turn.table, partial(acknowledged, cluster, op, partial(_overwrite_once, op, partition)))
        pause(cluster, choose, choose.choice((1, 60)))


def _overwrite_once(op: Op, partition: str, table: Table) -> Committed:
    extra, options = {OP_KEY: op.id}, {"tideline.write.conflict.retries": 1}
    if op.kind == "drop":
        return delete_partitions(table, [partition], options=options, extra=extra)
    rows = rows_of(dict.fromkeys(op.keys, op.id))
    return write_rows(table, rows, Operation.INSERT_OVERWRITE, options=options, extra=extra, parallelism=1)
