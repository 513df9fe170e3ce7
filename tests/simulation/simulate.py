"""One history: a cluster from a seed, run to its end, recovered, and checked."""

from __future__ import annotations

import functools
import hashlib
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from tests.simulation import actors, ingest_actors, mirror_actors, service_actors
from tests.simulation.actors import Cluster
from tests.simulation.casting import cast_of, options_of
from tests.simulation.determinism import deterministic
from tests.simulation.disk import LOG
from tests.simulation.faults import copy_of
from tests.simulation.feed import Feed
from tests.simulation.history_checker import Transaction, find_anomalies
from tests.simulation.mirror_actors import Topics
from tests.simulation.oracle import OP_KEY, Op, Oracle
from tests.simulation.recovery import timeline_of, timeline_on_disk
from tests.simulation.scheduler import SECOND, Process, SimulatedClock
from tests.simulation.service_lives import services_in
from tests.simulation.strangers import completed_on_timeline
from tests.simulation.visible_files import is_data_file
from tests.simulation.world import LEAVES_LATE_FILES, Step, World

from tideline_events import Record
from tideline_table.action import archive, roll_back_dead, run_clean, write_rows
from tideline_table.coordination.shared.partition_numbers import newest_rules
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import bucket_of_file_id
from tideline_table.hudi.formats import WRITTEN, format_of
from tideline_table.hudi.instant import WRITE_ACTIONS, Action, State
from tideline_table.hudi.listing import list_timeline
from tideline_table.hudi.properties import read_properties
from tideline_table.index.bucket import RESIZING, BucketIndex, Engine
from tideline_table.index.bucket_properties import bucket_index
from tideline_table.log.entry import Entry
from tideline_table.log_format.key_index import index_path
from tideline_table.table import BucketIndex as NewBuckets
from tideline_table.table import Table, TableRequest, create_table
from tideline_table.table.definition import TableType
from tideline_table.writer import Operation

LOAD = "load"
"""The operation that filled a table before its history."""
BUCKETS = 2
RULES = "^p$,3;q,1"
"""Numbers of buckets of two partitions, in every other history with a bucket index of the simple engine."""
LOG_INDEX = ".hoodie/.tideline/log_index/"

Sabotage = Callable[[World], AbstractContextManager[object]]
"""Switches one protection of production code off for one history."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one history."""

    seed: int
    problems: tuple[str, ...]
    trace: tuple[Step, ...]
    steps: int
    faults: Counter[str]
    entries: tuple[Entry, ...]
    ops: Counter[str]
    work: Counter[str]
    """Histories and completed actions by kind."""
    topic: tuple[Record, ...] = ()
    """What the event log held at the end."""

    @property
    def digest(self) -> str:
        """Of everything that happened: equal for two runs of one seed."""
        told = [*map(str, self.trace), *map(repr, self.entries), *map(repr, self.topic)]
        return hashlib.sha256("\n".join(told).encode()).hexdigest()


def no_sabotage(world: World) -> AbstractContextManager[object]:
    """Production code as it is."""
    return nullcontext(world)


def simulate(seed: int, sabotage: Sabotage = no_sabotage, focus: str = "", *, version: int = WRITTEN.version) -> Outcome:
    """Run the history of `seed` on a table of a version; see `World` for `focus`."""
    world = World(seed, focus=focus)
    oracle = Oracle(world.disk, world.scheduler)
    _lay_out(world, oracle, version)
    world.disk.watcher = oracle
    oracle.lock_holder = world.lock_holder
    oracle.judges_the_living = lambda: "clock_jump" not in world.faults
    cluster = Cluster(world, oracle, options_of(world))
    if world.is_mirrored:
        cluster.topics = Topics(world, oracle)
    if world.is_fed:
        cluster.feed = Feed(world, oracle)
    with deterministic(seed, world.scheduler), actors.reading_writers(cluster), services_in(cluster), sabotage(world):
        for name, act in cast_of(world):
            world.start(name, partial(act, cluster), delay_us=world.between(0, 2))
        world.scheduler.run()
        report_failures(cluster)
        steps = world.scheduler.steps
        if not oracle.problems:
            _recover(cluster)
            if world.is_fed:
                ingest_actors.finish(cluster)
            if world.is_mirrored:
                mirror_actors.finish(cluster)
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
        _work(cluster),
        tuple(cluster.topics.broker.records.values()) if cluster.topics else (),
    )


def _work(cluster: Cluster) -> Counter[str]:
    world, oracle = cluster.world, cluster.oracle
    work = Counter(f"{e.action} {e.operation}" for e in oracle.entries if e.after is State.COMPLETED)
    work["archival beside others"] = sum(
        e.after is State.COMPLETED and e.action is Action.ARCHIVAL and e.writer_id.startswith(service_actors.archiver.__name__)
        for e in oracle.entries
    )
    work["results lost"] = world.results_lost
    if cluster.topics is not None:
        work += cluster.topics.ledger.work
    if cluster.feed is not None:
        work += cluster.feed.work
    work["histories of a global index"] += world.is_global
    work["merge-on-read histories" if world.is_merge_on_read else "copy-on-write histories"] += 1
    return work


@functools.cache
def _first_table(kind: TableType, *, is_loaded: bool, index: NewBuckets | None, version: int) -> dict[str, tuple[bytes, object]]:
    # The same for every history: making it is not what is looked at here.
    world = World(0, faulty=False)
    process = Process(LOAD, LOAD)

    def make() -> None:
        clock = SimulatedClock(world.scheduler, process)
        request = TableRequest(
            "t",
            actors.SCHEMA,
            ("id",),
            ("part",),
            type=kind,
            index=index,
            version=version,
        )
        create_table(world.disk.root, request, clock, world.disk)
        if is_loaded:
            table = Table.open(world.disk.root, clock=clock, writer_id=LOAD, storage=world.disk)
            rows = actors.rows_of(dict.fromkeys(actors.KEYS, LOAD))
            write_rows(table, rows, Operation.UPSERT, extra={OP_KEY: LOAD}, parallelism=1)

    with deterministic(0, world.scheduler):
        world.scheduler.spawn(LOAD, process, make)
        world.scheduler.run()
    assert not world.scheduler.failures
    return dict(world.disk._objects)


def _lay_out(world: World, oracle: Oracle, version: int) -> None:
    """The table with which the history begins: empty, or with every key, in one file group per partition."""
    kind = TableType.MOR if world.is_merge_on_read else TableType.COW
    rules = RULES if world.seed % 2 and not world.is_ringed else ""
    index = NewBuckets(BUCKETS, (), rules, world.is_ringed, world.has_several) if world.is_bucketed else None
    world.disk._objects.update(_first_table(kind, is_loaded=world.is_loaded, index=index, version=version))
    if world.is_loaded:
        oracle.ops[LOAD] = Op(LOAD, "append", actors.KEYS, 0)
    for path in sorted(world.disk._objects):
        oracle.written(path, Process(LOAD, LOAD))
    for op in oracle.ops.values():
        op.status, op.sequence = "committed", oracle.committed(op.id)


def report_failures(cluster: Cluster) -> None:
    for name, error in cluster.world.scheduler.failures:
        where = traceback.extract_tb(error.__traceback__)[-1]
        cluster.oracle.report(
            f"{name} ended with {type(error).__name__}: {error} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
        )
    cluster.world.scheduler.failures.clear()


# --- afterwards --------------------------------------------------------------------------------------------------------------


def _recover(cluster: Cluster) -> None:
    """Twice, by fresh processes, when everybody counts as dead: the second one must find nothing to do."""
    world = cluster.world
    world.calm()
    lengths: list[int] = []
    for number in range(2):
        process = Process(f"recovery{number}", "recovery")
        world.scheduler.spawn(process.name, process, partial(_recovery, cluster, process), delay_us=3 * 3600 * SECOND)
        world.scheduler.run()
        # What the first one rolled back may be archived by the second.
        lengths.append(sum(entry.action is not Action.ARCHIVAL for entry in cluster.oracle.entries))
    if lengths[0] != lengths[1]:
        cluster.oracle.report(f"the second recovery appended {lengths[1] - lengths[0]} entries")
    process = Process("after", "after")

    def write(process: Process) -> None:
        table = cluster.open_once(process)
        actors.write_once(cluster, table, process, op, {}, random.Random(0))
        op.status, op.ended_step = "committed", world.scheduler.steps
        # The head's timeline files are its writer's; a reader of all keys closes the history.
        actors.read_once(cluster, "last", random.Random(0), table)

    op = Op("after.1", "upsert", ("R0",), world.scheduler.steps)
    cluster.oracle.ops[op.id] = op
    world.scheduler.spawn("after", process, partial(write, process))
    world.scheduler.run()


def _recovery(cluster: Cluster, process: Process) -> None:
    table = cluster.open_once(process)
    roll_back_dead(table)
    for _ in range(10):
        plans = (Action.COMPACTION, Action.LOG_COMPACTION)
        if not any(a.is_clustering or a.action in plans for a in table.state.pending()):
            break
        if cluster.world.is_merged:
            cluster.round(table, lambda t: service_actors.log_compact_once(cluster, t, process, random.Random(1)))
        cluster.round(table, lambda t: service_actors.compact_once(cluster, t, process, random.Random(1)))
        if cluster.world.is_ringed or not cluster.world.is_bucketed:
            cluster.round(table, lambda t: service_actors.cluster_once(cluster, t, process, random.Random(1)))
    while any(a.action is Action.CLEAN for a in table.state.pending()):
        run_clean(table)
    for _ in range(3 if cluster.world.is_archived else 0):
        archive(table)  # cleans up orphans first: what it deletes holds back until the next time


def _check(cluster: Cluster) -> None:
    world, oracle = cluster.world, cluster.oracle
    disk = world.disk
    pending = list(oracle.state.pending())
    if pending:
        oracle.report(f"pending after recovery: {pending[0]}")
    numbers = [int(o.path[len(LOG) : -5]) for o in disk.list_objects(LOG.rstrip("/"))]
    if [n for n in numbers if n > oracle.trimmed] != list(range(oracle.trimmed + 1, len(oracle.entries) + 1)):
        oracle.report(f"the log has entries {numbers}")
    _check_timeline(cluster)
    _check_archive(cluster)
    _check_by_timeline(cluster)
    _check_times(cluster)
    if world.is_ringed:
        _check_rings(cluster)
    elif world.is_bucketed:
        _check_buckets(cluster)
    everything = [o.path for o in disk.list_objects("")]
    known = {path for s in oracle.state.every_slice() for path in s.paths}
    for path in sorted(known.difference(everything)):
        oracle.report(f"the committed file {path} is missing")
    if not LEAVES_LATE_FILES & set(world.faults):
        known |= {index_path(path) for path in known}
        for path in everything:
            if (is_data_file(path) or path.startswith(LOG_INDEX)) and path not in known:
                oracle.report(f"{path} is an orphan")
    for op in oracle.ops.values():
        if op.status == "committed" and op.kind != "read" and not oracle.committed(op.id):
            oracle.report(f"operation {op.id} was acknowledged and is not in the log")
    if oracle.loses_writes:
        return  # the checker of histories knows lists that only grow; the model above has followed each commit
    for anomaly in find_anomalies([transaction_of(op, oracle) for op in oracle.ops.values()]):
        oracle.report(str(anomaly))


def _check_buckets(cluster: Cluster) -> None:
    """Each bucket of a partition has one file group, unless it may have several, and each row is in its bucket."""
    oracle = cluster.oracle
    groups = [(s.group.partition_path, bucket_of_file_id(s.group.file_id)) for s in oracle.state.latest_slices()]
    for partition, bucket in sorted(key for key, count in Counter(groups).items() if count > 1 and not cluster.world.has_several):
        oracle.report(f"bucket {bucket} of partition {partition!r} has more than one file group")
    table = Table.open(cluster.world.disk.root, storage=cluster.world.disk, writer_id="checker")
    rows, index = table.read(), table.definition.buckets
    assert index is not None
    if cluster.world.is_resized:
        _check_numbers(cluster, table, index)
    for partition, key, name in zip(*(rows[n].to_pylist() for n in ("part", "id", "_hoodie_file_name")), strict=True):
        number = {"p": 3, "q": 1}.get(partition, BUCKETS) if cluster.world.seed % 2 else BUCKETS
        if cluster.world.is_resized:
            number = index.in_partition(partition).number
        (bucket,) = bucket_index(number, ["id"], ["id"]).buckets(pa.array([key])).tolist()
        if bucket_of_file_id(name.split("_")[0]) != bucket:
            oracle.report(f"key {key} of bucket {bucket} is in {name}")


def _check_numbers(cluster: Cluster, table: Table, index: BucketIndex) -> None:
    """What Apache Hudi reads says the numbers of the log: no resize that died is left over."""
    properties, found = read_properties(table.storage), newest_rules(table.storage, table.timeline.format)
    if RESIZING in properties or not index.properties.items() <= properties.items():
        cluster.oracle.report(f"hoodie.properties do not say {index.text}")
    if index.rules and (not found or (found[0].rules, found[0].number) != (index.rules, index.number)):
        cluster.oracle.report(f"the newest file of partition rules does not say {index.text}")


def _check_rings(cluster: Cluster) -> None:
    """Each file group is that of a node, and each row is in that of its node."""
    oracle, disk = cluster.oracle, cluster.world.disk
    table = Table.open(disk.root, storage=disk, writer_id="checker")
    index = bucket_index(BUCKETS, ["id"], ["id"], Engine.CONSISTENT)
    rings = table.rings().of({s.group.partition_path for s in table.slices()})
    known = {(partition, file_id) for partition, ring in rings.items() for file_id in ring.file_ids}
    for group in sorted(s.group for s in table.slices() if s.group not in known):
        oracle.report(f"file group {group.file_id} of {group.partition_path!r} is of no node")
    rows = table.read()
    keys, files = rows["_hoodie_record_key"], rows["_hoodie_file_name"].to_pylist()
    for at, (partition, name) in enumerate(zip(rows["_hoodie_partition_path"].to_pylist(), files, strict=True)):
        (node,) = index.in_partition("", rings[partition]).buckets(keys.slice(at, 1))
        if name.removeprefix(".").split("_")[0] != rings[partition].file_ids[node]:
            oracle.report(f"key {keys[at]} of node {node} is in {name}")


def _check_timeline(cluster: Cluster) -> None:
    disk, oracle = cluster.world.disk, cluster.oracle
    expected = timeline_of(oracle.entries, format_of(read_properties(disk)))
    found = timeline_on_disk(disk)
    for path in sorted(expected.keys() - found.keys()):
        oracle.report(f"timeline file {path} is missing")
    for path in sorted(found.keys() - expected.keys()):
        oracle.report(f"timeline file {path} should not be there")
    for path in sorted(expected.keys() & found.keys()):
        if expected[path] != found[path]:
            oracle.report(f"timeline file {path} is not what its entry says")


def _check_archive(cluster: Cluster) -> None:
    """What completed is told of in one place."""
    world, oracle = cluster.world, cluster.oracle
    if not world.is_archived:
        return
    form = format_of(read_properties(world.disk))
    archived = {i.time for i in form.archived_instants(world.disk) if i.state is State.COMPLETED}
    active = completed_on_timeline(world.disk._objects)
    for instant in sorted(oracle.committed_instants - archived - active):
        oracle.report(f"{instant} completed, and neither the timeline nor the archive tells of it")
    for instant in sorted(archived & active):
        oracle.report(f"{instant} was archived and is on the timeline")


def _check_by_timeline(cluster: Cluster) -> None:
    """A reader who knows nothing but the timeline and file names finds every row, and the slices of the log."""
    world, oracle = cluster.world, cluster.oracle
    if LEAVES_LATE_FILES & set(world.faults):
        return  # of an attempt that was not the one that counted: names alone do not tell them apart
    copy = copy_of(world.disk, SimulatedClock(world.scheduler))
    for path in [o.path for o in copy.list_objects(".hoodie/.tideline")]:
        copy.delete(path)
    if not any(a.action in WRITE_ACTIONS for a in oracle.state.actions.values()):
        return
    table = Table.open(copy.root, clock=SimulatedClock(world.scheduler), storage=copy)
    seen, expected = actors.read_values(table), dict(oracle.model_at(len(oracle.entries)))
    if seen != expected:
        oracle.report(f"who knows no log reads {seen} instead of {expected}")
    if table.timeline.format.has_completion_times:
        by_names, by_log = (_names_of(state.latest_slices()) for state in (table.state, oracle.state))
        for wrong in sorted(by_names ^ by_log):
            oracle.report(f"who knows no log {'finds' if wrong in by_names else 'does not find'} the slice {wrong}")


def _names_of(slices: Iterable[FileSlice]) -> set[tuple[str, ...]]:
    return {(*s.group, s.base_instant, s.base_file, *(log.name for log in s.log_files)) for s in slices}


def _check_times(cluster: Cluster) -> None:
    """Where names say completion times, each is later than all times of the log before it, and the names are those of the log."""
    oracle, disk = cluster.oracle, cluster.world.disk
    form = format_of(read_properties(disk))
    if not form.has_completion_times:
        return
    last, of_log = "", dict[str, str]()
    for entry in oracle.entries:
        if entry.after is State.COMPLETED and entry.completion and entry.action is not Action.ARCHIVAL:
            if entry.completion <= max(last, entry.instant):
                oracle.report(f"{entry.action} {entry.instant} completed at {entry.completion}, behind {last}")
            if entry.action is not Action.SAVEPOINT:  # which shares the instant of the write that it protects
                of_log[entry.instant] = entry.completion
        last = max(last, entry.instant, entry.completion)
    listed = list_timeline(disk, form)
    named = {a.time: a.completion for a in form.archived_instants(disk)}
    named |= {i.time: listed.named_completion(i.time) for i in listed.instants if i.state is State.COMPLETED}
    for instant in sorted(named):
        if of_log.get(instant) != named[instant]:
            oracle.report(f"{instant} completed at {named[instant]} by its name, at {of_log.get(instant)} by the log")


def transaction_of(op: Op, oracle: Oracle) -> Transaction:
    """An operation as the history checker sees it: lists only."""
    committed = oracle.committed(op.id) if op.kind != "read" else op.sequence
    values = op.reads.get(op.instant if op.kind != "read" else "", {})
    reads = {k: tuple(values.get(k, "").split()) for k in (actors.LISTS if op.kind == "read" else op.keys) if k in actors.LISTS}
    status = op.status if op.status != "running" else "committed" if committed else "failed"
    return Transaction(
        op.id,
        status == "committed",
        reads if op.kind in ("read", "append") and values is not None else {},
        {k: (op.id,) for k in op.keys if op.kind == "append" and k in actors.LISTS},
        op.began_step,
        op.ended_step if op.status == "committed" else None,
    )


def story(outcome: Outcome, *, last: int = 0) -> str:
    """A failing history for a person: what went wrong, each step, and how to see it again."""
    log = {e.path: f"entry {e.sequence}: {e.action} {e.instant} {e.before} → {e.after}" for e in outcome.entries}
    lines = [f"seed {outcome.seed}: {problem}" for problem in outcome.problems]
    lines.append(f"faults: {', '.join(f'{k} x{n}' for k, n in sorted(outcome.faults.items())) or 'none'}")
    for step in outcome.trace[-last:]:
        is_append = step.call == "put_if_absent" and step.path in log
        lines.append(f"{step}{'   ' + log[step.path] if is_append else ''}")
    lines.append(f"again: python -m tests.simulation.run --seeds 1 --seed-start {outcome.seed}")
    return "\n".join(lines)
