"""Steps in a shared table that its timeline shows and the table log lacks, above all those of Apache Hudi.

A listing and the state decide which steps these are; `read_step` then reads the files of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tideline_table.errors import CorruptMetadata, IllegalTransition, ObjectNotFound, StorageError, UnsupportedTable, WriteConflict
from tideline_table.hudi.avro_container import decode_document
from tideline_table.hudi.format import ArchivedInstant, TableFormat
from tideline_table.hudi.formats import format_of
from tideline_table.hudi.instant import CLUSTER, WRITE_ACTIONS, Action, Instant, State
from tideline_table.hudi.listing import ListedTimeline, TimelineListing
from tideline_table.hudi.properties import read_properties
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.hudi.writer_traces import name_of
from tideline_table.log.action import COMPACT, LOG_COMPACT, ActionRecord
from tideline_table.log.body import Bare, Body, Cleaned, Published, Restored
from tideline_table.log.plan import ClusteringPlanned, RollbackStep, parse_plan
from tideline_table.log.progress import Progress, archived_progress, progress_said_by
from tideline_table.log.sharing import HUDI_WRITER
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.storage import Storage

_ORDER = (State.NONE, State.REQUESTED, State.INFLIGHT, State.COMPLETED)
_BEFORE_COMPLETION = {Action.COMMIT: (Action.COMPACTION,), Action.DELTA_COMMIT: (Action.LOG_COMPACTION,)}
_OPERATIONS = {Action.COMPACTION: COMPACT, Action.CLEAN: "CLEAN", Action.ROLLBACK: "ROLLBACK"}
_SERVICES = frozenset({CLUSTER, COMPACT, LOG_COMPACT})
_PLANNED = frozenset({Action.ROLLBACK, Action.REPLACE_COMMIT, Action.COMPACTION, Action.CLEAN})
"""Also log compactions where names say completion times."""
LISTINGS = 5
"""How often a timeline is listed again if its files disappear while they are read."""
_PUBLISHING = WRITE_ACTIONS | {Action.COMPACTION, Action.LOG_COMPACTION}
_CLUSTERING = "clustering"
"""What Apache Hudi calls a pending clustering in the rollback plans of tables of version 8 and later."""


def is_of_a_job(action: Action, operation: str) -> bool:
    """Return whether a completed action is a write of rows, and no table service."""
    return action in WRITE_ACTIONS and operation.upper() not in _SERVICES


@dataclass(frozen=True, slots=True)
class Step:
    """A transition that the log lacks."""

    instant: str
    action: Action
    before: State
    after: State
    completion: str = ""
    """The completion time that the name of its completed file says, if names say one."""


def missing_steps(listed: ListedTimeline, state: TableState) -> list[Step]:
    """Return the steps to append so that the log says what the timeline shows, in the order in which they happened.

    Where names say completion times, that order is known exactly: what a compaction, planned and completed since the last look,
    found completed in its plan comes before its beginning, and what completed later behind it. Otherwise file times tell.

    An action whose completed file has no content yet is still inflight, because what it did is not known; a plan without content
    is not there yet.

    Raises `CorruptMetadata` for an instant that completed although the log knows its rollback.
    """
    steps: list[Step] = []
    for instant in sorted(listed.timeline.instants, key=lambda i: (listed.time_of(i), i)):
        if instant.action is Action.SAVEPOINT:  # it shares its instant with the write that it protects
            continue
        if instant.time not in listed.unwritten:
            steps += _steps_of(instant, listed.timeline, state)
        elif instant.state is State.COMPLETED:
            steps += _steps_of(
                replace(instant, action=_begun_as(instant, listed.timeline), state=State.INFLIGHT), listed.timeline, state
            )
    return sorted(steps, key=lambda s: s.completion or s.instant) if listed.timeline.names_completions else steps


def vanished(listed: ListedTimeline, state: TableState) -> list[Step]:
    """Return a rolled-back step for each pending action that left the timeline without a rollback: its own engine removed it."""
    there = {i.time for i in listed.timeline.instants}
    # A rollback removes the files of its target before it completes. If its process dies in between, a successor needs the target.
    undoing = {a.instant for a in state.pending() if a.action is Action.ROLLBACK and a.instant in there}
    gone = (a for a in state.pending() if a.instant not in there and a.fenced_by not in undoing)
    return [Step(a.instant, a.action, a.state, State.ROLLED_BACK) for a in gone]


def late_files(listed: ListedTimeline, state: TableState) -> list[str]:
    """Return files that make rolled-back writes look pending: a stopped writer created them without noticing the rollback."""
    undone = {a.instant for a in state.actions.values() if a.state is State.ROLLED_BACK and a.action in WRITE_ACTIONS}
    completed = {i.time for i in listed.timeline.instants if i.state is State.COMPLETED}
    late = ((i, path) for i, path in listed.timeline.paths.items() if i.action in WRITE_ACTIONS and i.time in undone - completed)
    return sorted(path for _, path in late)


def check_followed(listed: ListedTimeline) -> None:
    """Raise `UnsupportedTable` or `CorruptMetadata` for what is not followed where names say completion times.

    That is an instant that two processes completed: each of them published files. And a completed file without a completion time:
    that of its storage, by which readers go, changes when it is copied.
    """
    if listed.timeline.untimed:
        raise UnsupportedTable(
            f"the completed file {min(listed.timeline.untimed)} has no completion time in its name",
            expected="<instant>_<completion time>.<action>: an upgrade by Apache Hudi that died leaves such names",
            remedy="with all writers stopped, rename it so, with the time at which it was last modified, in UTC",
        )
    if listed.timeline.twice:
        raise CorruptMetadata(
            f"two completed files of one instant, {' and '.join(listed.timeline.twice)}",
            expected="one: a process that lost the lock while it was suspended completed it once more",
            remedy="with all writers stopped, remove the later one and the data files that only it names",
        )


def check_written(listed: ListedTimeline, found: TableState) -> None:
    """Raise `WriteConflict` for an action of Apache Hudi whose timeline file may have had no content when `found` was read.

    `listed` was read before. The caller holds the lock, so that writer does not take it, or it died. A log that begins with `found`
    would never say what the action did.
    """
    written = {(i.time, i.state) for i in listed.timeline.instants if i.time not in listed.unwritten}
    late = sorted(a.instant for a in found.actions.values() if (a.instant, a.state) not in written)
    if late:
        raise WriteConflict(
            f"the timeline file of {late[0]} of Apache Hudi is empty, or was written just now",
            with_instant=late[0],
            expected="timeline files with their content",
            remedy="retry; if the file stays empty, its job died: restore the file or remove it",
        )


def has_completed(listed: ListedTimeline, instant: str) -> bool:
    """Return whether the timeline shows a write as completed."""
    return any(i.time == instant and i.state is State.COMPLETED and i.action in _PUBLISHING for i in listed.timeline.instants)


def needless_rollbacks(storage: Storage, listed: ListedTimeline, state: TableState) -> list[ActionRecord]:
    """Return pending rollbacks that fence no action, because their target is gone, ended, or an attempt at a plan that stays."""
    fencing = {a.fenced_by for a in state.pending()}
    found = [a for a in state.pending() if a.action is Action.ROLLBACK and a.instant not in fencing]
    return [a for a in found if _has_nothing_to_undo(storage, listed, state, a.instant)]


def _has_nothing_to_undo(storage: Storage, listed: ListedTimeline, state: TableState, rollback: str) -> bool:
    plan = _document(storage, listed.timeline, Instant(rollback, Action.ROLLBACK, State.REQUESTED))
    undoes = str((plan.get("instantToRollback") or {}).get("commitTime") or "")
    target = state.actions.get(undoes)
    if target is None:
        # The target began and was undone before the log adopted it. Without its timeline files, only the rollback's end is missing.
        return undoes not in {i.time for i in listed.timeline.instants}
    return target.state is State.ROLLED_BACK or _is_plan(target)


def may_be_archived(listed: ListedTimeline, state: TableState) -> bool:
    """Return whether an action that the log knows has left the timeline; then an unknown one may have left it, too."""
    there = {i.time for i in listed.timeline.instants}
    published = (a.instant for a in state.completed_writes() if a.instant >= state.archived_before)
    return any(instant not in there for instant in published) or bool(vanished(listed, state))


def missed_writes(archived: Iterable[ArchivedInstant], state: TableState) -> list[str]:
    """Return the completed writes in the archive whose completion the log lacks."""
    publishing = {action.value for action in _PUBLISHING}
    writes = (a.time for a in archived if a.state is State.COMPLETED and a.action in publishing and a.time >= state.archived_before)
    return [at for at in writes if (known := state.actions.get(at)) is None or known.is_pending]


def _steps_of(instant: Instant, timeline: TimelineListing, state: TableState) -> Iterator[Step]:
    known = state.actions.get(instant.time)
    ended = timeline.named_completion(instant.time) if instant.state is State.COMPLETED else ""
    if known is None:
        action = _begun_as(instant, timeline)
        before = State.NONE
        if instant.state is State.COMPLETED:
            yield Step(instant.time, action, before, State.INFLIGHT)
            before = State.INFLIGHT
        yield Step(instant.time, action, before, instant.state, ended)
        return
    if (
        (known.state is State.ROLLED_BACK or known.fenced_by)
        and instant.state is State.COMPLETED
        and instant.action in _PUBLISHING
        and known.state is not State.COMPLETED
    ):
        raise CorruptMetadata(
            f"{instant.action} {instant.time} completed after its rollback had begun",
            expected="a writer that finds its instant gone and gives up",
            remedy=f"roll it back with Apache Hudi, or remove {timeline.path(instant)}",
        )
    if not known.is_pending or known.fenced_by or _ORDER.index(instant.state) <= _ORDER.index(known.state):
        return  # nothing new, or a late file of an action that is being rolled back
    before = known.state
    if instant.state is State.COMPLETED and before is State.REQUESTED:
        yield Step(instant.time, known.action, before, State.INFLIGHT)
        before = State.INFLIGHT
    yield Step(instant.time, known.action, before, instant.state, ended)


def _begun_as(instant: Instant, timeline: TimelineListing) -> Action:
    if instant.state is State.COMPLETED:
        for action in _BEFORE_COMPLETION.get(instant.action, ()):
            if Instant(instant.time, action, State.REQUESTED) in timeline.paths:
                return action
    return instant.action


def read_step(storage: Storage, step: Step, timeline: TimelineListing, state: TableState) -> Draft:
    """Return the log entry of a step, with the contents of its timeline files. Raises `CorruptMetadata` for unreadable files."""
    try:
        return _read_step(storage, step, timeline, state)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise CorruptMetadata(
            f"the timeline files of {step.action} {step.instant} cannot be understood ({type(error).__name__}: {error})",
            expected="the documents of its action",
            remedy="restore the file; nothing was changed",
        ) from None


def _read_step(storage: Storage, step: Step, timeline: TimelineListing, state: TableState) -> Draft:
    known = state.actions.get(step.instant)
    body: Body = Bare()
    operation = known.operation if known is not None else _OPERATIONS.get(step.action, "")
    if step.before is State.NONE:
        body, operation = _planned(storage, step, timeline, state, operation)
    if step.after is State.COMPLETED:
        body, operation = _completed(storage, step, timeline, state, operation)
    return Draft(step.instant, step.action, step.before, step.after, operation, body, HUDI_WRITER, step.completion)


def _planned(storage: Storage, step: Step, timeline: TimelineListing, state: TableState, operation: str) -> tuple[Body, str]:
    if step.action not in _PLANNED and not (step.action is Action.LOG_COMPACTION and timeline.names_completions):
        # Mostly empty. In a downgraded table it has the content of layout 2, which is not needed.
        return Bare(), operation
    plan = _document(storage, timeline, Instant(step.instant, step.action, State.REQUESTED))
    if step.action is Action.ROLLBACK:
        target = plan.get("instantToRollback") or {}
        return _of_rollback(str(target.get("commitTime") or ""), str(target.get("action") or ""), timeline, state), operation
    if step.action is Action.REPLACE_COMMIT:
        operation = str(plan.get("operationType") or "")
        return (ClusteringPlanned(plan) if operation == CLUSTER else Bare()), operation
    return parse_plan(step.action, {"plan": plan}), operation


def _of_rollback(target: str, named_action: str, timeline: TimelineListing, state: TableState) -> RollbackStep:
    known = state.actions.get(target)
    # The rollback of an attempt keeps the plan; or the target began and ended before the log adopted it.
    spares = known is None or (_is_plan(known) and Instant(target, known.action, State.REQUESTED) in timeline.paths)
    if named_action == _CLUSTERING:
        named_action = Action.REPLACE_COMMIT.value
    return RollbackStep(target, known.action.value if known is not None else named_action, spares=spares)


def _is_plan(known: ActionRecord) -> bool:
    return known.is_pending and (known.action is Action.COMPACTION or known.is_clustering)


def _completed(storage: Storage, step: Step, timeline: TimelineListing, state: TableState, operation: str) -> tuple[Body, str]:
    if step.action in _PUBLISHING:
        completed = {Action.COMPACTION: Action.COMMIT, Action.LOG_COMPACTION: Action.DELTA_COMMIT}.get(step.action, step.action)
        path = timeline.path(Instant(step.instant, completed, State.COMPLETED))
        content = storage.read(path)
        metadata = CommitMetadata.from_bytes(content, path)
        metadata.require_hudi_names(path)
        is_asked = state.writers is not None and is_of_a_job(step.action, metadata.operation)
        return Published(metadata, writer=name_of(metadata.extra, content) if is_asked else ""), metadata.operation
    document = _document(storage, timeline, Instant(step.instant, step.action, State.COMPLETED))
    if step.action is Action.CLEAN:
        return Cleaned({"partitionMetadata": {}, "totalFilesDeleted": 0, **document}), operation
    if step.action is Action.ROLLBACK:
        targets = document.get("commitsRollback") or [""]
        infos = document.get("instantsRollback") or [{}]
        step_body = _of_rollback(str(targets[0]), str(infos[0].get("action") or ""), timeline, state)
        known = state.actions.get(step_body.target)
        progress = None
        if known is not None and known.state is State.COMPLETED:
            progress = _progress_without(storage, timeline, state, frozenset({known.instant}))
        return replace(step_body, metadata=document, progress=progress), operation
    if step.action is Action.RESTORE:
        undone = tuple(str(instant) for instant in document.get("instantsToRollback") or ())
        return Restored(undone=undone, progress=_progress_without(storage, timeline, state, frozenset(undone))), operation
    return Bare(), operation


def _progress_without(
    storage: Storage, timeline: TimelineListing, state: TableState, undone: AbstractSet[str]
) -> dict[str, Progress]:
    """Return the progress of feeders without these writes. Reads the archive if an earlier value may have left the timeline."""
    paths = {i.time: path for i, path in timeline.paths.items() if i.state is State.COMPLETED and i.action in WRITE_ACTIONS}
    earlier = [a.instant for a in sorted(state.completed_writes(), key=lambda a: -a.sequence) if a.instant not in undone]
    found = progress_said_by(
        state.progress,
        lambda at: at not in undone,
        (at for at in earlier if at in paths),
        lambda at: CommitMetadata.from_bytes(storage.read(paths[at]), paths[at]).extra,
    )
    if missing := state.progress.keys() - found.keys():
        archived = archived_progress(format_of(read_properties(storage)).archived_extra(storage), lambda at: at not in undone)
        found |= {key: archived[key] for key in missing & archived.keys()}
    return found


def _document(storage: Storage, timeline: TimelineListing, instant: Instant) -> dict[str, Any]:
    path = timeline.paths.get(instant)
    content = storage.read(path) if path is not None else b""
    return decode_document(content, path or "") if content else {}


def seen_through(
    storage: Storage, form: TableFormat, state: TableState, now: datetime, check: Callable[[ListedTimeline], None] = lambda _: None
) -> TableState:
    """Return `state`, or a copy with the timeline's missing steps applied: what a reader sees before a writer adopts them.

    Raises `StorageError` if timeline files kept disappearing while they were read, and what `check` raises about a listing.
    """
    for _ in range(LISTINGS):
        listed = ListedTimeline.read(storage, form)
        check(listed)
        view = state
        try:
            for step in missing_steps(listed, state):
                view = state.copy() if view is state else view
                draft = read_step(storage, step, listed.timeline, view)
                with suppress(IllegalTransition):  # a late file of a rolled-back action
                    view.check(draft)
                    view.apply(draft.entry(view.sequence + 1, now))
        except ObjectNotFound:
            continue
        return view
    raise StorageError("timeline files kept disappearing while they were read", remedy="read the table again")
