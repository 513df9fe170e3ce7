"""Derive the Hudi timeline files of a log entry from the entry alone."""

from __future__ import annotations

from dataclasses import dataclass

from tideline_table.errors import MALFORMED, InvalidRecord
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, Instant, State
from tideline_table.hudi.plans import (
    CLEAN_METADATA,
    CLEANER_PLAN,
    COMPACTION_PLAN,
    INDEX_METADATA,
    INDEX_PLAN,
    REQUESTED_REPLACE,
    RESTORE_METADATA,
    RESTORE_PLAN,
    ROLLBACK_METADATA,
    ROLLBACK_PLAN,
    SAVEPOINT_METADATA,
    encode_document,
)
from tideline_table.log.body import Bare, Cleaned, Indexed, Published, RestoreBegun, Restored, SavepointMade
from tideline_table.log.entry import Entry
from tideline_table.log.plan import HUDI_PLANS, CleanPlanned, RollbackStep

EMPTY_REPLACE_REQUEST = {"operationType": None, "clusteringPlan": None, "extraMetadata": None, "version": None}
_PLANS = {
    Action.REPLACE_COMMIT: REQUESTED_REPLACE,
    Action.COMPACTION: COMPACTION_PLAN,
    Action.LOG_COMPACTION: COMPACTION_PLAN,
    Action.CLEAN: CLEANER_PLAN,
    Action.ROLLBACK: ROLLBACK_PLAN,
    Action.RESTORE: RESTORE_PLAN,
}
_RESULTS = {
    Action.CLEAN: CLEAN_METADATA,
    Action.ROLLBACK: ROLLBACK_METADATA,
    Action.RESTORE: RESTORE_METADATA,
    Action.SAVEPOINT: SAVEPOINT_METADATA,
}


@dataclass(frozen=True, slots=True)
class TimelineFiles:
    """Timeline files to create (only if absent) and to delete, as paths below the base path."""

    create: tuple[tuple[str, bytes], ...]
    delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelinePaths:
    """The paths of `TimelineFiles` without contents, because the contents of large commits are large."""

    create: tuple[str, ...]
    delete: tuple[str, ...] = ()


def timeline_files(entry: Entry, form: TableFormat) -> TimelineFiles:
    """Return the timeline files that `entry` creates and deletes in a table of this format."""
    states, delete = _effect(entry, form)
    return TimelineFiles(tuple((_path(entry, state, form), _content(entry, state, form)) for state in states), delete)


ENCODABLE = Bare, Published
"""Bodies that need no `check_encodable`: an empty one holds nothing, the metadata of a commit has the shape of the entry itself."""


def check_encodable(entry: Entry, form: TableFormat) -> None:
    """Raise `InvalidRecord` for an entry with a plan or document that Hudi's formats cannot hold: its timeline files follow it."""
    try:
        timeline_files(entry, form)
    except MALFORMED as error:
        raise InvalidRecord(
            f"a {entry.action} that its timeline file cannot hold ({error})", expected="texts and numbers of Hudi's formats"
        ) from None


def timeline_paths(entry: Entry, form: TableFormat) -> TimelinePaths:
    """Return the paths of `timeline_files` without encoding the contents."""
    states, delete = _effect(entry, form)
    return TimelinePaths(tuple(_path(entry, state, form) for state in states), delete)


def _effect(entry: Entry, form: TableFormat) -> tuple[tuple[State, ...], tuple[str, ...]]:
    """Return the states of the instant whose files are created, in this order, and the paths of the files to delete."""
    if entry.action is Action.SAVEPOINT:
        files = (State.INFLIGHT, State.COMPLETED)
        return (files, ()) if entry.after is State.COMPLETED else ((), tuple(_path(entry, s, form) for s in reversed(files)))
    if entry.action is Action.INDEXING:
        every = (State.REQUESTED, State.INFLIGHT, State.COMPLETED)
        return (every, ()) if entry.after is State.COMPLETED else ((), tuple(_path(entry, s, form) for s in reversed(every)))
    if entry.action is Action.RESTORE:
        return _restore_effect(entry, form)
    if entry.action is Action.ARCHIVAL:
        return (), ()
    states: list[State] = []
    delete: tuple[str, ...] = ()
    if entry.before is State.NONE:
        states.append(State.REQUESTED)
    if entry.after is State.INFLIGHT and entry.before is not State.INFLIGHT:
        states.append(State.INFLIGHT)
    if entry.after is State.COMPLETED:
        states.append(State.COMPLETED)
        if isinstance(entry.body, RollbackStep):
            action = Action(entry.body.target_action)
            gone = (Instant(entry.target, action, s) for s in (State.INFLIGHT, State.REQUESTED))
            delete = tuple(path for instant in gone for path in form.possible_paths(instant))
    return tuple(states), delete


def _restore_effect(entry: Entry, form: TableFormat) -> tuple[tuple[State, ...], tuple[str, ...]]:
    if entry.after is not State.INFLIGHT:
        return (entry.after,), ()
    if not isinstance(entry.body, RestoreBegun):
        return (), ()  # a later attempt
    return (entry.after,), entry.body.rewind.timeline_files(form)


def _path(entry: Entry, state: State, form: TableFormat) -> str:
    return form.timeline_path(entry.at(state), entry.completion)


def _content(entry: Entry, state: State, form: TableFormat) -> bytes:
    # The archiver of Apache Hudi 0.15 reads the plan of a clean in its inflight file, too, and fails its job on an empty one.
    if state is State.REQUESTED or (state is State.INFLIGHT and isinstance(entry.body, CleanPlanned)):
        return _requested(entry)
    return _completed(entry, form) if state is State.COMPLETED else b""


def _requested(entry: Entry) -> bytes:
    schema, body = _PLANS.get(entry.action), entry.body
    if isinstance(body, Indexed):
        return encode_document(INDEX_PLAN, body.document())
    if schema is None:
        return b""
    plan = body.plan if isinstance(body, HUDI_PLANS) else None
    return encode_document(schema, EMPTY_REPLACE_REQUEST if plan is None else plan)


def _completed(entry: Entry, form: TableFormat) -> bytes:
    body = entry.body
    if isinstance(body, Published):
        return form.commit_content(body.metadata)
    if isinstance(body, Indexed):
        return encode_document(INDEX_METADATA, body.document(operation=entry.operation))
    assert isinstance(body, Cleaned | RollbackStep | Restored | SavepointMade)
    assert body.metadata is not None
    return encode_document(_RESULTS[entry.action], body.metadata)
