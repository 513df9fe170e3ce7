"""What Apache Hudi did to a shared table: the steps that its timeline shows and the table log does not have yet.

Which steps those are is decided from a listing and the state alone; `read_step` then reads the files that a step consists of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tideline_table.errors import CorruptMetadata, IllegalTransition, ObjectNotFound, StorageError
from tideline_table.file_group.action import CLUSTER, COMPACT, ActionRecord
from tideline_table.file_group.savepoint import PROGRESS_KEY, progress_json
from tideline_table.file_group.state import TableState
from tideline_table.storage import ObjectStat, Storage
from tideline_table.timeline.commit_avro import read_commit_metadata
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import WRITE_ACTIONS, Action, Instant, State
from tideline_table.timeline.listing import TimelineFolders, TimelineListing, timeline_listing
from tideline_table.timeline.log import Draft
from tideline_table.timeline.plans import decode_document
from tideline_table.timeline.progress import progress_said_by
from tideline_table.timeline.sharing import PEER_WRITER
from tideline_table.transaction.archive import ArchivedInstant, archived_progress
from tideline_table.transaction.peer_rules import read_properties

_ORDER = (State.NONE, State.REQUESTED, State.INFLIGHT, State.COMPLETED)
_BEFORE_COMPLETION = {Action.COMMIT: (Action.COMPACTION,), Action.DELTA_COMMIT: (Action.LOG_COMPACTION,)}
_OPERATIONS = {Action.COMPACTION: COMPACT, Action.CLEAN: "CLEAN", Action.ROLLBACK: "ROLLBACK"}
_PLANNED = frozenset({Action.ROLLBACK, Action.REPLACE_COMMIT, Action.COMPACTION, Action.CLEAN})
LISTINGS = 5
"""How often a timeline is listed anew when its files go while they are read."""
_PUBLISHING = WRITE_ACTIONS | {Action.COMPACTION, Action.LOG_COMPACTION}


@dataclass(frozen=True, slots=True)
class ListedTimeline:
    """A listing of the timeline's folder with the times of its files."""

    timeline: TimelineListing
    modified: Mapping[str, datetime]

    @classmethod
    def read(cls, storage: Storage) -> ListedTimeline:
        """List the timeline (layout 1). One request per 1,000 names."""
        return cls.of(storage.list_folder(TimelineFolders().active).objects)

    @classmethod
    def of(cls, objects: Iterable[ObjectStat]) -> ListedTimeline:
        """The same from a listing that is there."""
        found = {o.path: o.modified for o in objects}
        return cls(timeline_listing(TimelineFolders(), found), found)

    def time_of(self, instant: Instant) -> datetime:
        """When the file of an instant at its state was written."""
        return self.modified[self.timeline.path(instant)]

    @property
    def first_completed(self) -> str:
        """The first completed write: where the timeline begins. Empty without one."""
        return min((i.time for i in self.timeline.instants if i.state is State.COMPLETED and i.action in WRITE_ACTIONS), default="")

    @property
    def last_completion(self) -> datetime | None:
        """The latest time of a completed file (format reference 11.3), None when nothing is completed."""
        return max((self.time_of(i) for i in self.timeline.instants if i.state is State.COMPLETED), default=None)


@dataclass(frozen=True, slots=True)
class Step:
    """One transition that the log lacks."""

    instant: str
    action: Action
    before: State
    after: State


def missing_steps(listed: ListedTimeline, state: TableState) -> list[Step]:
    """What has to be appended so that the log says what the timeline shows, in the order in which it happened.

    Raises `CorruptMetadata` for an instant that is completed and whose rollback the log knows.
    """
    steps: list[Step] = []
    for instant in sorted(listed.timeline.instants, key=lambda i: (listed.time_of(i), i)):
        if instant.action is not Action.SAVEPOINT:  # it shares its instant with the write that it protects
            steps += _steps_of(instant, listed.timeline, state)
    return steps


def vanished(listed: ListedTimeline, state: TableState) -> list[Step]:
    """Pending actions that are on the timeline no more although nobody's rollback is there: whoever made them took them back."""
    there = {i.time for i in listed.timeline.instants}
    # A rollback removes the files of its target before it completes: whoever follows one that died between has to find its target.
    undoing = {a.instant for a in state.pending() if a.action is Action.ROLLBACK and a.instant in there}
    gone = (a for a in state.pending() if a.instant not in there and a.fenced_by not in undoing)
    return [Step(a.instant, a.action, a.state, State.ROLLED_BACK) for a in gone]


def late_files(listed: ListedTimeline, state: TableState) -> list[str]:
    """Files by which writes that were rolled back look pending: of a writer that was stopped between two of them, and saw nothing of it."""
    undone = {a.instant for a in state.actions.values() if a.state is State.ROLLED_BACK and a.action in WRITE_ACTIONS}
    completed = {i.time for i in listed.timeline.instants if i.state is State.COMPLETED}
    late = ((i, path) for i, path in listed.timeline.paths.items() if i.action in WRITE_ACTIONS and i.time in undone - completed)
    return sorted(path for _, path in late)


def has_completed(listed: ListedTimeline, instant: str) -> bool:
    """Whether the timeline shows a write as completed."""
    return any(i.time == instant and i.state is State.COMPLETED and i.action in _PUBLISHING for i in listed.timeline.instants)


def needless_rollbacks(storage: Storage, listed: ListedTimeline, state: TableState) -> list[ActionRecord]:
    """Pending rollbacks that keep nothing from going on: of an attempt at a plan that stays, of what ended by another one, or of what is gone."""
    fencing = {a.fenced_by for a in state.pending()}
    found = [a for a in state.pending() if a.action is Action.ROLLBACK and a.instant not in fencing]
    return [a for a in found if _has_nothing_to_undo(storage, listed, state, a.instant)]


def _has_nothing_to_undo(storage: Storage, listed: ListedTimeline, state: TableState, rollback: str) -> bool:
    plan = _document(storage, listed.timeline, Instant(rollback, Action.ROLLBACK, State.REQUESTED))
    undoes = str((plan.get("instantToRollback") or {}).get("commitTime") or "")
    target = state.actions.get(undoes)
    if target is None:
        # It was begun and undone before anybody of ours looked: its files go before its steps, and only the end of the rollback is missing.
        return undoes not in {i.time for i in listed.timeline.instants}
    return target.state is State.ROLLED_BACK or _is_plan(target)


def may_be_archived(listed: ListedTimeline, state: TableState) -> bool:
    """Whether something that the log knows has left the timeline: then what it does not know may have left, too."""
    there = {i.time for i in listed.timeline.instants}
    published = (a.instant for a in state.completed_writes() if a.instant >= state.archived_before)
    return any(instant not in there for instant in published) or bool(vanished(listed, state))


def missed_writes(archived: Iterable[ArchivedInstant], state: TableState) -> list[str]:
    """Completed writes in the archive whose completion the log does not have."""
    publishing = {action.value for action in _PUBLISHING}
    writes = (a.time for a in archived if a.state is State.COMPLETED and a.action in publishing and a.time >= state.archived_before)
    return [at for at in writes if (known := state.actions.get(at)) is None or known.is_pending]


def peer_savepoints(storage: Storage) -> frozenset[str]:
    """Writes that a savepoint of Apache Hudi protects."""
    return frozenset(i.time for i in ListedTimeline.read(storage).timeline.instants if i.action is Action.SAVEPOINT)


def _steps_of(instant: Instant, timeline: TimelineListing, state: TableState) -> Iterator[Step]:
    known = state.actions.get(instant.time)
    if known is None:
        action = _begun_as(instant, timeline)
        before = State.NONE
        if instant.state is State.COMPLETED:
            yield Step(instant.time, action, before, State.INFLIGHT)
            before = State.INFLIGHT
        yield Step(instant.time, action, before, instant.state)
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
            remedy=f"roll it back with Apache Hudi, or remove .hoodie/{instant.time}.{instant.action}",
        )
    if not known.is_pending or known.fenced_by or _ORDER.index(instant.state) <= _ORDER.index(known.state):
        return  # a file of one that is being rolled back came late
    before = known.state
    if instant.state is State.COMPLETED and before is State.REQUESTED:
        yield Step(instant.time, known.action, before, State.INFLIGHT)
        before = State.INFLIGHT
    yield Step(instant.time, known.action, before, instant.state)


def _begun_as(instant: Instant, timeline: TimelineListing) -> Action:
    if instant.state is State.COMPLETED:
        for action in _BEFORE_COMPLETION.get(instant.action, ()):
            if Instant(instant.time, action, State.REQUESTED) in timeline.paths:
                return action
    return instant.action


def read_step(storage: Storage, step: Step, timeline: TimelineListing, state: TableState) -> Draft:
    """The log entry of a step, with what its timeline files say. Raises `CorruptMetadata` for files that cannot be understood."""
    known = state.actions.get(step.instant)
    body: dict[str, Any] = {}
    operation = known.operation if known is not None else _OPERATIONS.get(step.action, "")
    if step.before is State.NONE:
        body, operation = _planned(storage, step, timeline, state, operation)
    if step.after is State.COMPLETED:
        body, operation = _completed(storage, step, timeline, state, operation)
    return Draft(step.instant, step.action, step.before, step.after, operation, body, PEER_WRITER)


def _planned(
    storage: Storage, step: Step, timeline: TimelineListing, state: TableState, operation: str
) -> tuple[dict[str, Any], str]:
    if step.action not in _PLANNED:
        # Mostly empty; a downgrade of the table leaves there what layout 2 has, which says nothing that is needed.
        return {}, operation
    plan = _document(storage, timeline, Instant(step.instant, step.action, State.REQUESTED))
    if step.action is Action.ROLLBACK:
        target = plan.get("instantToRollback") or {}
        return _of_rollback(str(target.get("commitTime") or ""), str(target.get("action") or ""), timeline, state), operation
    if step.action is Action.REPLACE_COMMIT:
        operation = str(plan.get("operationType") or "")
        return ({"plan": plan} if operation == CLUSTER else {}), operation
    return {"plan": plan}, operation


def _of_rollback(target: str, named_action: str, timeline: TimelineListing, state: TableState) -> dict[str, Any]:
    known = state.actions.get(target)
    # An attempt of a plan is taken back, the plan stays; or its target came and went while nobody looked.
    spares = known is None or (_is_plan(known) and Instant(target, known.action, State.REQUESTED) in timeline.paths)
    body: dict[str, Any] = {"target": target, "target_action": known.action.value if known is not None else named_action}
    return body | ({"spares": True} if spares else {})


def _is_plan(known: ActionRecord) -> bool:
    return known.is_pending and (known.action is Action.COMPACTION or known.is_clustering)


def _completed(
    storage: Storage, step: Step, timeline: TimelineListing, state: TableState, operation: str
) -> tuple[dict[str, Any], str]:
    if step.action in _PUBLISHING:
        completed = {Action.COMPACTION: Action.COMMIT, Action.LOG_COMPACTION: Action.DELTA_COMMIT}.get(step.action, step.action)
        path = timeline.path(Instant(step.instant, completed, State.COMPLETED))
        metadata = read_commit_metadata(storage.read(path), path)
        return {"metadata": metadata.to_json()}, metadata.operation
    document = _document(storage, timeline, Instant(step.instant, step.action, State.COMPLETED))
    if step.action is Action.CLEAN:
        return {"metadata": {"partitionMetadata": {}, "totalFilesDeleted": 0, **document}}, operation
    if step.action is Action.ROLLBACK:
        targets = document.get("commitsRollback") or [""]
        infos = document.get("instantsRollback") or [{}]
        body = _of_rollback(str(targets[0]), str(infos[0].get("action") or ""), timeline, state) | {"metadata": document}
        known = state.actions.get(body["target"])
        if known is not None and known.state is State.COMPLETED:
            body[PROGRESS_KEY] = _progress_without(storage, timeline, state, frozenset({known.instant}))
        return body, operation
    if step.action is Action.RESTORE:
        undone = [str(instant) for instant in document.get("instantsToRollback") or ()]
        return {"undone": undone, PROGRESS_KEY: _progress_without(storage, timeline, state, frozenset(undone))}, operation
    return {}, operation


def _progress_without(
    storage: Storage, timeline: TimelineListing, state: TableState, undone: AbstractSet[str]
) -> dict[str, list[str]]:
    """Where feeders stand once these writes are undone. The archive is read where an earlier value may have left the timeline."""
    paths = {i.time: path for i, path in timeline.paths.items() if i.state is State.COMPLETED and i.action in WRITE_ACTIONS}
    earlier = [a.instant for a in sorted(state.completed_writes(), key=lambda a: -a.sequence) if a.instant not in undone]
    found = progress_said_by(
        state.progress,
        lambda at: at not in undone,
        (at for at in earlier if at in paths),
        lambda at: read_commit_metadata(storage.read(paths[at]), paths[at]).extra,
    )
    if missing := state.progress.keys() - found.keys():
        archived = archived_progress(storage, read_properties(storage), lambda at: at not in undone)
        found |= {key: archived[key] for key in missing & archived.keys()}
    return progress_json(found)


def _document(storage: Storage, timeline: TimelineListing, instant: Instant) -> dict[str, Any]:
    path = timeline.paths.get(instant)
    content = storage.read(path) if path is not None else b""
    return decode_document(content, path or "") if content else {}


def seen_through(
    storage: Storage, state: TableState, now: datetime, check: Callable[[ListedTimeline], None] = lambda _: None
) -> TableState:
    """`state`, or where the timeline shows more a copy of it with the missing steps taken: what a reader sees before anybody adopts them.

    Raises `StorageError` when others kept removing timeline files while they were read, and what `check` raises about a listing.
    """
    for _ in range(LISTINGS):
        listed = ListedTimeline.read(storage)
        check(listed)
        view = state
        try:
            for step in missing_steps(listed, state):
                view = copy_of(state) if view is state else view
                draft = read_step(storage, step, listed.timeline, view)
                with suppress(IllegalTransition):  # a file of one that was rolled back came late
                    view.check(draft)
                    view.apply(draft_entry(draft, view.sequence + 1, now))
        except ObjectNotFound:
            continue
        return view
    raise StorageError("timeline files kept disappearing while they were read", remedy="read the table again")


def copy_of(state: TableState) -> TableState:
    """A state of its own with the same content."""
    return replace(
        state,
        actions=dict(state.actions),
        slices={group: dict(slices) for group, slices in state.slices.items()},
        replaced=dict(state.replaced),
        plans=dict(state.plans),
        clustering_losses=dict(state.clustering_losses),
        progress=dict(state.progress),
        savepoints=dict(state.savepoints),
        excess=set(state.excess),
        _mutex=threading.RLock(),
    )


def draft_entry(draft: Draft, sequence: int, now: datetime) -> Entry:
    """The entry that `draft` would become at that place."""
    return Entry(
        sequence=sequence,
        append_id="",
        recorded=now.isoformat(timespec="microseconds"),
        writer_id=draft.writer_id,
        instant=draft.instant,
        action=draft.action,
        before=draft.before,
        after=draft.after,
        operation=draft.operation,
        body=draft.body,
    )
