"""Running table services on one table: publish a plan, execute it, commit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tideline_table.config import CLUSTERING_EXPIRATION_MIN, Options
from tideline_table.errors import (
    CommitUnknown,
    CorruptMetadata,
    InstantNotFound,
    TidelineError,
    TransactionRolledBack,
    UnsupportedTable,
    WriteConflict,
)
from tideline_table.file_group.action import CLUSTER, ActionRecord
from tideline_table.file_group.names import parse_base_file_name
from tideline_table.file_group.savepoint import every_saved_slice
from tideline_table.file_group.slice import FileGroupId, SliceVersion
from tideline_table.file_group.state import TableState
from tideline_table.service.cleaning import OPERATION as CLEAN_OPERATION
from tideline_table.service.cleaning import clean_metadata, execute_clean, plan_clean
from tideline_table.service.clustering import (
    ClusteredGroup,
    ClusteringTask,
    cluster_group,
    clustering_tasks,
    plan_clustering,
    planned_versions,
)
from tideline_table.service.outcome import check_clustered
from tideline_table.table.facade import Table
from tideline_table.timeline.instant import Action, State
from tideline_table.timeline.log import Draft
from tideline_table.timeline.write_stats import SCHEMA_KEY, CommitMetadata, WriteStat
from tideline_table.transaction import Committed, Heartbeat, SharedTimeline, WriteSet, find_conflict, is_dead, roll_back
from tideline_table.transaction.conflict import check_still_own
from tideline_table.transaction.heartbeat import forget_silent, is_given_up
from tideline_table.transaction.intents import reserved_groups
from tideline_table.transaction.restore import finish_restore
from tideline_table.writer.marker import forget_markers, marked_files

RunTasks = Callable[[Sequence[ClusteringTask]], Sequence[ClusteredGroup]]
"""Runs tasks somewhere (here, or on Spark executors) and returns each task's result."""


_GO_ON = frozenset({Action.ROLLBACK, Action.CLEAN, Action.COMPACTION, Action.RESTORE, Action.ARCHIVAL})


class _NoPlan(Exception):
    """There is nothing to do."""


def run_here(tasks: Sequence[ClusteringTask]) -> list[ClusteredGroup]:
    """Run clustering tasks one after the other in this process."""
    return [cluster_group(task) for task in tasks]


def schedule_clustering(table: Table, options: Mapping[str, object] | None = None) -> str | None:
    """Publish a clustering plan on the timeline; returns its instant, None when there is nothing to cluster."""
    chosen = table.options.merged(options or {})
    table.check_writable()

    reserved = reserved_groups(table.intents, table.timeline)

    def decide(state: TableState) -> Draft:
        plan = None if state.restoring else plan_clustering(state, table.storage.root, chosen, table.schema, reserved)
        if plan is None:
            raise _NoPlan
        versions = {s.group: s.version for s in state.latest_slices()}
        named = {(s["partitionPath"], s["fileId"]) for group in plan["clusteringPlan"]["inputGroups"] for s in group["slices"]}
        # Plans name no group under compaction: two fields say it all.
        read = [[*group, v.base_instant, v.log_files] for group, v in versions.items() if tuple(group) in named]
        return Draft(
            table.timeline.mint(state), Action.REPLACE_COMMIT, State.NONE, State.REQUESTED, CLUSTER, {"plan": plan, "read": read}
        )

    try:
        return table.timeline.append(decide).instant
    except _NoPlan:
        return None


@dataclass(frozen=True, slots=True)
class ClusteringRun:
    """A clustering that this process owns: begun, not yet committed."""

    table: Table
    instant: str
    plan: Mapping[str, Any]
    based_on: dict[FileGroupId, SliceVersion]
    tasks: tuple[ClusteringTask, ...]
    attempt: int
    """Sequence of the entry that began it: a later one means that somebody took over."""


def run_clustering(
    table: Table, instant: str = "", *, options: Mapping[str, object] | None = None, run: RunTasks = run_here
) -> Committed | None:
    """Execute a clustering plan (empty: the oldest pending one); None when there is none.

    Takes over from a dead attempt. On a conflict the clustering yields: it is rolled back and `WriteConflict` raised; the planner plans
    again; so it is, and `VerificationFailed` raised, when results do not fit the plan. `TransactionRolledBack` means that somebody else ended it.
    """
    chosen = table.options.merged(options or {})
    table.check_writable()
    record = _pending_clustering(table, instant, chosen)
    if record is None:
        return None
    begun = _begin_clustering(table, record.instant, chosen)
    stats: list[WriteStat] = []
    with Heartbeat(table.storage, begun.instant, chosen):
        try:
            results = run(begun.tasks)
            stats += [stat for result in results for stat in result.stats]
            return _commit_clustering(begun, check_clustered(begun.tasks, results))
        except CommitUnknown:
            raise  # the log has to say how it ended
        except TransactionRolledBack:
            delete_lost_attempt(table, begun.instant, begun.attempt, stats)
            raise  # somebody else ended it or goes on with it
        except TidelineError:
            if roll_back(table.timeline, begun.instant, force=True, attempt=begun.attempt) is None:
                delete_lost_attempt(table, begun.instant, begun.attempt, stats)
            raise


def _pending_clustering(table: Table, instant: str, options: Options) -> ActionRecord | None:
    if not instant:
        return next((a for a in table.state.pending_clusterings() if not is_run_by_peer(table, a, options)), None)
    record = table.state.actions.get(instant)
    if record is None or not record.is_clustering:
        raise InstantNotFound(f"instant {instant}", expected="a clustering plan of this table")
    if record.state is State.COMPLETED:
        raise UnsupportedTable(f"clustering {instant} is completed", expected="a pending plan")
    return record


def _begin_clustering(table: Table, instant: str, options: Options) -> ClusteringRun:
    def decide(state: TableState) -> Draft:
        record = state.actions.get(instant)
        if record is None or not record.is_pending or record.fenced_by:
            ended = record.state if record else "archived"
            raise TransactionRolledBack(f"clustering {instant} is {ended}", expected="a pending plan", remedy="plan again")
        check_not_peers(table, record, options)
        if record.state is State.INFLIGHT and not is_dead(table.storage, record, table.clock, options):
            raise WriteConflict(
                f"clustering {instant} is being run by {record.writer_id}", with_instant=instant, remedy="wait for it"
            )
        return Draft(instant, Action.REPLACE_COMMIT, record.state, State.INFLIGHT, CLUSTER, {})

    entry = table.timeline.append(decide)
    body = table.state.plans[instant]
    read = body.get("read") or planned_versions(body["plan"])
    based_on = {FileGroupId(p, f): SliceVersion(base, *logs or (0,)) for p, f, base, *logs in read}
    tasks = clustering_tasks(
        table.storage.root, instant, body["plan"], table.log_rule(), table.schema, table.footer_schema(), entry.sequence, options
    )
    return ClusteringRun(table, instant, body["plan"], based_on, tuple(tasks), entry.sequence)


def is_run_by_peer(table: Table, record: ActionRecord, options: Options) -> bool:
    """Whether Apache Hudi has begun to run a plan, so that nobody of ours may: two who run it leave files of the same instant behind.

    A compaction that it gave up may be run again: files of both attempts belong to one slice. A clustering may not, each attempt makes file groups
    of its own; `roll_back_dead` takes it back.
    """
    if not record.is_peers or record.state is not State.INFLIGHT:
        return False
    return record.is_clustering or not is_given_up(table.storage, record, table.clock, options)


def check_not_peers(table: Table, record: ActionRecord, options: Options) -> None:
    """Raise `WriteConflict` for a plan that Apache Hudi runs."""
    if is_run_by_peer(table, record, options):
        raise WriteConflict(
            f"{record.action} {record.instant} is being run by Apache Hudi",
            with_instant=record.instant,
            remedy="wait for it; if it died, it is given up after "
            f"{options[CLUSTERING_EXPIRATION_MIN]} minutes without a sign of life ({CLUSTERING_EXPIRATION_MIN.key})",
        )


def _commit_clustering(begun: ClusteringRun, stats: Sequence[WriteStat]) -> Committed:
    table, instant = begun.table, begun.instant
    _delete_earlier_attempts(begun)
    replaced: dict[str, list[str]] = {}
    for task in begun.tasks:
        replaced.setdefault(task.partition_path, []).extend(task.replaces)
    own = WriteSet(instant, begun.based_on, update_strategy=None)

    def decide(state: TableState) -> Draft:
        check_still_own(state, instant)
        if state.actions[instant].sequence != begun.attempt:
            raise TransactionRolledBack(
                f"clustering {instant} was taken over by {state.actions[instant].writer_id}",
                expected=f"attempt {begun.attempt}",
                remedy="its heartbeat had expired; the other one goes on",
            )
        conflict = find_conflict(own, state, ())
        if conflict is not None:
            raise conflict
        # The schema as of now: a writer may have changed it meanwhile.
        metadata = CommitMetadata(CLUSTER, tuple(stats), {SCHEMA_KEY: table.schema_json}, replaced)
        return Draft(instant, Action.REPLACE_COMMIT, State.INFLIGHT, State.COMPLETED, CLUSTER, {"metadata": metadata.to_json()})

    with table.lock.hold(table.timeline.head_sequence):
        entry = table.timeline.append(decide)
    forget_markers(table.storage, instant)
    return Committed(instant, entry.sequence, tuple(stats))


def _delete_earlier_attempts(begun: ClusteringRun) -> None:
    # They carry this instant and would count as committed. Only attempts that were taken over can never complete: files of a later
    # one are not ours to delete, it may be about to commit them.
    for path in marked_files(begun.table.storage, begun.instant):
        if -1 < _attempt_of(path) < begun.attempt:
            begun.table.storage.delete(path)


def delete_lost_attempt(table: Table, instant: str, attempt: int, stats: Sequence[WriteStat]) -> None:
    """Delete what an attempt wrote that was taken over: its files have names of their own, and whoever took over cannot know of late ones.

    What the table has is kept: it was this attempt that completed, so long ago that its instant was archived.
    """
    announced = {path for path in marked_files(table.storage, instant) if _attempt_of(path) == attempt}
    committed = {path for file_slice in table.refresh().every_slice() for path in file_slice.paths}
    for path in sorted({*announced, *(s.path for s in stats)} - committed):
        table.storage.delete(path)


def _attempt_of(path: str) -> int:
    name = parse_base_file_name(path.rsplit("/", 1)[-1])
    return int(name.write_token.rsplit("-", 1)[-1]) if name is not None else -1


def schedule_clean(table: Table, options: Mapping[str, object] | None = None) -> str | None:
    """Publish a clean plan on the timeline; returns its instant, None when nothing can be cleaned or a clean is pending."""
    chosen = table.options.merged(options or {})
    table.check_writable(keyed=False)

    def decide(state: TableState) -> Draft:
        if state.restoring or any(a.action is Action.CLEAN for a in state.pending()):
            raise _NoPlan
        plan = plan_clean(state, table.storage.root, chosen, table.saved())
        if plan is None:
            raise _NoPlan
        return Draft(table.timeline.mint(state), Action.CLEAN, State.NONE, State.REQUESTED, CLEAN_OPERATION, {"plan": plan})

    try:
        return table.timeline.append(decide).instant
    except _NoPlan:
        return None


def run_clean(table: Table, instant: str = "") -> int | None:
    """Execute a pending clean plan (empty: the oldest); returns the number of files deleted, None when there is none.

    Deleting is idempotent: a clean that died is done again by whoever comes next. Raises `CorruptMetadata` for a plan that names what readers need;
    in a shared table it goes, for a restore of Hudi's may have brought back what it names.
    """
    table.check_writable(keyed=False)
    pending = [a for a in table.state.pending() if a.action is Action.CLEAN and (not instant or a.instant == instant)]
    if not pending:
        return None
    chosen = pending[0].instant
    plan = table.state.plans[chosen]["plan"]

    def begin(state: TableState) -> Draft:
        _check_pending(state, chosen)
        return Draft(chosen, Action.CLEAN, state.actions[chosen].state, State.INFLIGHT, CLEAN_OPERATION, {})

    try:
        table.timeline.append(begin)
        started = table.clock.monotonic_s()
        state = table.state
        saved = every_saved_slice(state.slices, state.replaced, table.saved())
        try:
            result = execute_clean(table.storage, plan, [*state.latest_slices(), *saved])
        except CorruptMetadata:
            if isinstance(table.timeline, SharedTimeline):
                # Hudi restored the table since: whoever of the two runs this plan later would delete what readers see.
                table.timeline.take_back([table.state.actions[chosen]])
            raise
        metadata = clean_metadata(chosen, plan, result, int((table.clock.monotonic_s() - started) * 1000))

        def complete(state: TableState) -> Draft:
            _check_pending(state, chosen)
            return Draft(chosen, Action.CLEAN, State.INFLIGHT, State.COMPLETED, CLEAN_OPERATION, {"metadata": metadata})

        table.timeline.append(complete)
    except _NoPlan:
        return None
    return int(metadata["totalFilesDeleted"])


def _check_pending(state: TableState, instant: str) -> None:
    if not state.is_pending(instant):
        raise _NoPlan


def roll_back_dead(table: Table) -> list[str]:
    """Roll back every write whose writer is dead, finish rollbacks and a restore that died; returns the instants undone.

    Clustering and compaction that died are left to their next attempt: the plan can be run again. Only a clustering that Apache Hudi began and
    gave up is rolled back.
    """
    table.check_writable(keyed=False)
    undone: list[str] = []
    if table.is_exclusive and table.state.restoring:
        restored = finish_restore(table.timeline, table.state.restoring)
        if restored is None:
            return undone  # until it is done nothing else may be
        undone += [*restored.undone, *restored.fenced]
    if table.is_shared:
        table.timeline.heal(0.0)  # what the log does not know yet cannot be rolled back
    for record in list(table.timeline.state.pending()):
        if not table.timeline.state.is_pending(record.instant):
            continue  # it ended while the ones before it were rolled back
        unfinished = bool(record.fenced_by)
        if record.action in _GO_ON or (record.is_clustering and not unfinished and not _gave_up(table, record)):
            continue
        if roll_back(table.timeline, record.instant) is not None:
            undone.append(record.instant)
    if isinstance(table.timeline, SharedTimeline):
        table.timeline.take_back_needless_rollbacks()
        forget_silent(table.storage, {a.instant for a in table.timeline.state.pending()}, table.clock, table.options)
    return undone


def _gave_up(table: Table, record: ActionRecord) -> bool:
    begun = record.is_peers and record.state is State.INFLIGHT
    return begun and is_given_up(table.storage, record, table.clock, table.options)
