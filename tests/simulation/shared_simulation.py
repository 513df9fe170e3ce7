"""One history of a table that Apache Hudi's writers share: writers and services of Tideline beside writers that do what Hudi's
do."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from tests.simulation import actors, service_actors, shared_actors
from tests.simulation.determinism import deterministic
from tests.simulation.faults import copy_of
from tests.simulation.history_checker import find_anomalies
from tests.simulation.oracle import OP_KEY, Op
from tests.simulation.scheduler import SECOND, Process, SimulatedClock
from tests.simulation.shared_actors import SharedCluster
from tests.simulation.shared_oracle import SharedOracle
from tests.simulation.shared_world import SHARING, UNLOCKED, SharedWorld, instant_of
from tests.simulation.signs_of_life import INTERVAL_S
from tests.simulation.simulate import LOAD, Outcome, Sabotage, no_sabotage, report_failures, simulate, transaction_of
from tests.simulation.visible_files import is_data_file
from tests.simulation.world import LEAVES_LATE_FILES

from tideline_table.action import roll_back_dead, run_clean, write_rows
from tideline_table.hudi.instant import WRITE_ACTIONS, Action, State
from tideline_table.log.body import Published
from tideline_table.log.sharing import HUDI_WRITER
from tideline_table.table import Table, TableRequest, create_table, share_table
from tideline_table.writer import Operation

EVERY = 12
"""One history in so many is of a shared table."""
LOADED = (*actors.LISTS, *actors.REGISTERS, *shared_actors.OURS)
_TIDELINE = ".hoodie/.tideline"


def history(seed: int) -> Outcome:
    """The history of `seed`, of an exclusive table or of a shared one; every fourth is of an exclusive table of version 9."""
    return simulate_shared(seed) if seed % EVERY == 0 else simulate(seed, version=9 if seed % 4 == 1 else 6)


def simulate_shared(seed: int, sabotage: Sabotage = no_sabotage, *, version: int = 6) -> Outcome:
    """Run the history of `seed` on a shared table of a version."""
    world = SharedWorld(seed, version=version)
    oracle = SharedOracle(world.disk, world.scheduler)
    _lay_out(world, oracle)
    world.disk.watcher = oracle
    cluster = SharedCluster(world, oracle, _options(world))
    with deterministic(seed, world.scheduler), actors.reading_writers(cluster), sabotage(world):
        for name, act in _cast(world):
            # Plans are made between the writes of Apache Hudi: there is time for one before the first of them.
            earliest_s = 5 if act is shared_actors.hudi else 0
            world.start(name, partial(act, cluster), delay_us=world.between(earliest_s, earliest_s + 2))
        world.scheduler.run()
        report_failures(cluster)
        steps = world.scheduler.steps
        if not oracle.problems:
            _recover(cluster)
            report_failures(cluster)
        if not oracle.problems:
            _check(cluster)
    return Outcome(
        seed,
        tuple(oracle.problems),
        tuple(world.trace),
        steps,
        world.faults,
        tuple(oracle.entries),
        Counter(f"{op.kind} {op.status}" for op in oracle.ops.values()),
        _work(oracle),
    )


def _work(oracle: SharedOracle) -> Counter[str]:
    work: Counter[str] = Counter(
        f"{'Apache Hudi' if entry.writer_id == HUDI_WRITER else 'ours'} on shared tables: {entry.action} {entry.operation}"
        for entry in oracle.entries
        if entry.after is State.COMPLETED
    )
    work["shared histories"] += 1
    work["writers of Hudi that were seen with the lock"] += sum(map(bool, (oracle.state.writers or {}).values()))
    return work


@functools.cache
def _first_table(*, is_loaded: bool, awaited: tuple[str, ...] | None, version: int) -> dict[str, tuple[bytes, object]]:
    # The same for every history, as for exclusive tables.
    world = SharedWorld(0, faulty=False, version=version)
    process = Process(LOAD, LOAD)

    def make() -> None:
        clock, storage = SimulatedClock(world.scheduler, process), world.storage(process)
        request = TableRequest("t", actors.SCHEMA, ("id",), ("part",), version=version)
        create_table(world.disk.root, request, clock, world.disk)
        exclusive = Table.open(world.disk.root, clock=clock, writer_id=LOAD, storage=storage)
        shared = share_table(exclusive, SHARING, world.hudi_lock, writers=awaited)
        if is_loaded:
            rows = actors.rows_of(dict.fromkeys(LOADED, LOAD))
            write_rows(shared, rows, Operation.UPSERT, extra={OP_KEY: LOAD}, parallelism=1)

    with deterministic(0, world.scheduler):
        world.scheduler.spawn(LOAD, process, make)
        world.scheduler.run()
    assert not world.scheduler.failures
    return dict(world.disk._objects)


def _lay_out(world: SharedWorld, oracle: SharedOracle) -> None:
    """The table with which the history begins: empty, or with most keys, in one file group per partition."""
    # Hudi takes its instants by the clock alone: it goes on where the table was made.
    world.scheduler.now_us = 60 * SECOND
    world.disk._objects.update(_first_table(is_loaded=world.is_loaded, awaited=world.awaited, version=world.form.version))
    if world.is_loaded:
        oracle.ops[LOAD] = Op(LOAD, "append", LOADED, 0)
    for path in sorted(world.disk._objects):
        oracle.written(path, Process(LOAD, LOAD))
    for op in oracle.ops.values():
        op.status, op.sequence = "committed", oracle.committed(op.id)


def _options(world: SharedWorld) -> dict[str, object]:
    choose = world.choose
    return {
        "tideline.log.retained.entries": 10,
        "hoodie.parquet.small.file.limit": choose.choice((0, 10**8)),
        "hoodie.cleaner.commits.retained": choose.choice((1, 2, 3)),
        "tideline.log.checkpoint.interval": choose.choice((2, 3, 7, 50)),
        "tideline.clustering.yields": choose.choice((0, 1, 3)),
        "tideline.clustering.min.input.files": choose.choice((1, 2)),
        "hoodie.parquet.compression.codec": "none",
        "hoodie.client.heartbeat.interval_in_ms": INTERVAL_S * 1000,
        # Who waits asks again and again: short waits leave the steps to the work.
        "tideline.lock.wait": 5,
        "tideline.write.intent.wait": choose.choice((0, 1)),
        "tideline.write.priority.wait": 10,
    }


def _cast(world: SharedWorld) -> list[tuple[str, Callable[[SharedCluster, Process], None]]]:
    """Three to six actors: writers of Tideline, one or two of Apache Hudi's, and who keeps the table in order."""
    choose = world.choose
    cast: list[tuple[str, Callable[[SharedCluster, Process], None]]] = []
    cast += [(f"writer{n}", shared_actors.writer) for n in range(choose.choice((1, 2, 2)))]
    cast += [(f"hudi{n}", shared_actors.hudi) for n in range(choose.choice((1, 1, 2)))]
    likely = (
        (shared_actors.clusterer, 0.8),
        (shared_actors.cleaner, 0.4),
        (shared_actors.recoverer, 0.5),
        (shared_actors.reader, 0.4),
    )
    others = [act for act, likelihood in likely if choose.random() < likelihood] or [shared_actors.recoverer]
    choose.shuffle(others)
    if world.awaited is not None:
        cast += [("mirror0", shared_actors.mirror)]
    if world.chooser("lock").random() < 0.25:
        cast += [(f"{UNLOCKED}0", shared_actors.unlocked)]
    return cast + [(f"{act.__name__}{n}", act) for n, act in enumerate(others[: 6 - len(cast)])]


# --- afterwards --------------------------------------------------------------------------------------------------------------


def _recover(cluster: SharedCluster) -> None:
    """Twice, by fresh processes, when everybody counts as dead; then both sides write on and a reader closes the history."""
    world = cluster.world
    world.calm()
    lengths: list[int] = []
    for number in range(2):
        _alone(cluster, f"recovery{number}", _recovery, delay_s=3 * 3600)
        lengths.append(len(cluster.oracle.entries))
    if lengths[0] != lengths[1]:
        cluster.oracle.report(f"the second recovery appended {lengths[1] - lengths[0]} entries")
    _alone(cluster, "after", _write_after)
    _alone(cluster, "hudi-after", lambda c, p: shared_actors.hudi_write_once(c, c.hudi_once(p), "hudi-after.1", random.Random(0)))
    _alone(cluster, "last", _look_last)


def _alone(cluster: SharedCluster, name: str, act: Callable[[SharedCluster, Process], object], *, delay_s: int = 0) -> None:
    process = Process(name, name)
    world = cluster.world

    def body() -> None:
        act(cluster, process)
        process.dead = True

    world.scheduler.spawn(name, process, body, delay_us=delay_s * SECOND)
    world.scheduler.run()


def _recovery(cluster: SharedCluster, process: Process) -> None:
    table = cluster.open_once(process)
    table.timeline.heal(0.0)
    roll_back_dead(table)
    for _ in range(10):
        if not any(a.is_clustering for a in table.state.pending()):
            break
        cluster.round(table, lambda t: service_actors.cluster_once(cluster, t, process, random.Random(1)))
    while any(a.action is Action.CLEAN for a in table.state.pending()):
        run_clean(table)


def _write_after(cluster: SharedCluster, process: Process) -> None:
    op = Op("after.1", "upsert", ("R0",), cluster.world.scheduler.steps)
    table = cluster.open_once(process)
    shared_actors.acknowledged(cluster, op, lambda t: actors.write_once(cluster, t, process, op, {}, random.Random(0)), table)


def _look_last(cluster: SharedCluster, process: Process) -> None:
    table = cluster.open_once(process)
    table.timeline.heal(0.0)
    shared_actors.read_once(cluster, "last", table)
    if table.state != cluster.oracle.state:
        cluster.oracle.report("the log's entries say another state than a table that is opened")


def _check(cluster: SharedCluster) -> None:
    world, oracle = cluster.world, cluster.oracle
    disk = world.disk
    for action in oracle.state.pending():
        oracle.report(f"pending after recovery: {action}")
    _check_timeline(cluster)
    _check_unlocked(cluster)
    everything = {o.path for o in disk.list_objects("")}
    known = {path for s in oracle.state.every_slice() for path in s.paths}
    for path in sorted(known - everything):
        oracle.report(f"the committed file {path} is missing")
    if not LEAVES_LATE_FILES & set(world.faults):
        for path in sorted(everything - known):
            if is_data_file(path):
                oracle.report(f"{path} is an orphan")
    copy = copy_of(disk, SimulatedClock(world.scheduler))
    for path in [o.path for o in copy.list_objects(_TIDELINE)]:
        copy.delete(path)
    seen = actors.read_values(Table.open(copy.root, clock=SimulatedClock(world.scheduler), storage=copy))
    if seen != dict(oracle.model):
        oracle.report(f"who knows no log reads {seen} instead of {oracle.model}")
    for op in oracle.ops.values():
        if op.status == "committed" and op.kind != "read" and not oracle.committed(op.id):
            oracle.report(f"operation {op.id} was acknowledged and is not on the timeline")
    for anomaly in find_anomalies([transaction_of(op, oracle) for op in oracle.ops.values()]):
        oracle.report(str(anomaly))


def _check_unlocked(cluster: SharedCluster) -> None:
    """Who takes no lock is named where a process of Tideline saw it, and nobody else is. Faults take locks away unseen."""
    world, oracle = cluster.world, cluster.oracle
    if world.faults:
        return
    published = [entry for entry in oracle.entries if isinstance(entry.body, Published)]
    named = {entry.instant: entry.body.metadata.extra for entry in published if entry.body.unlocked}  # type: ignore[union-attr]
    for instant in sorted(world.proved - named.keys()):
        oracle.report(f"{instant} completed while Tideline had the lock, and its writer is not named")
    for instant, extra in sorted(named.items()):
        if not extra.get(OP_KEY, "").startswith(UNLOCKED):
            oracle.report(f"{instant} is named as written without the lock, which its writer took")


def _check_timeline(cluster: SharedCluster) -> None:
    """The log and the timeline tell of the same writes, and nothing on the timeline waits for anybody."""
    disk, oracle = cluster.world.disk, cluster.oracle
    paths = (o.path for o in disk.list_folder(cluster.world.form.timeline_folder).objects)
    found = {(i.time, i.state) for i in map(instant_of, paths) if i is not None and i.action in WRITE_ACTIONS}
    completed = {instant for instant, state in found if state is State.COMPLETED}
    logged = {a.instant for a in oracle.state.actions.values() if a.state is State.COMPLETED and a.action in WRITE_ACTIONS}
    for instant in sorted(completed ^ logged):
        oracle.report(f"{instant} completed on the {'timeline' if instant in completed else 'log'} alone")
    for instant in sorted({instant for instant, _ in found} - completed):
        oracle.report(f"{instant} is pending on the timeline after recovery")
