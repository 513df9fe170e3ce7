"""From a log entry to the Hudi timeline files that follow from it, derived from the entry alone."""

from __future__ import annotations

from dataclasses import dataclass

from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import Action, Instant, State, timeline_file_name
from tideline_table.timeline.plans import (
    CLEAN_METADATA,
    CLEANER_PLAN,
    COMPACTION_PLAN,
    REQUESTED_REPLACE,
    RESTORE_METADATA,
    RESTORE_PLAN,
    ROLLBACK_METADATA,
    ROLLBACK_PLAN,
    SAVEPOINT_METADATA,
    encode_document,
)
from tideline_table.timeline.rewind import REWIND_KEY, Rewind
from tideline_table.timeline.write_stats import CommitMetadata

EMPTY_REPLACE_REQUEST = {"operationType": None, "clusteringPlan": None, "extraMetadata": None, "version": None}
_PLANS = {
    Action.REPLACE_COMMIT: REQUESTED_REPLACE,
    Action.COMPACTION: COMPACTION_PLAN,
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
    """Files to create (only if absent) and files to delete, as paths below the base path."""

    create: tuple[tuple[str, bytes], ...]
    delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelinePaths:
    """The same without contents: those of commits of many files are large."""

    create: tuple[str, ...]
    delete: tuple[str, ...] = ()


def timeline_path(instant: Instant) -> str:
    """Path of a timeline file below the base path."""
    return f".hoodie/{timeline_file_name(instant)}"


def timeline_files(entry: Entry) -> TimelineFiles:
    """What the timeline has to hold once `entry` is in the log."""
    states, delete = _effect(entry)
    return TimelineFiles(tuple((_path(entry, state), _content(entry, state)) for state in states), delete)


def timeline_paths(entry: Entry) -> TimelinePaths:
    """Which files `timeline_files` creates and deletes, at a fraction of the work."""
    states, delete = _effect(entry)
    return TimelinePaths(tuple(_path(entry, state) for state in states), delete)


def _effect(entry: Entry) -> tuple[tuple[State, ...], tuple[str, ...]]:
    """States of the instant whose files are created, in this order, and paths of the files that go."""
    if entry.action is Action.SAVEPOINT:
        files = (State.INFLIGHT, State.COMPLETED)
        return (files, ()) if entry.after is State.COMPLETED else ((), tuple(_path(entry, s) for s in reversed(files)))
    if entry.action is Action.RESTORE:
        return _restore_effect(entry)
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
        if entry.action is Action.ROLLBACK:
            action = Action(entry.body["target_action"])
            delete = tuple(timeline_path(Instant(entry.target, action, s)) for s in (State.INFLIGHT, State.REQUESTED))
    return tuple(states), delete


def _restore_effect(entry: Entry) -> tuple[tuple[State, ...], tuple[str, ...]]:
    if entry.after is not State.INFLIGHT:
        return (entry.after,), ()
    if REWIND_KEY not in entry.body:
        return (), ()  # another attempt
    return (entry.after,), Rewind.from_json(entry.body[REWIND_KEY]).timeline_files()


def _path(entry: Entry, state: State) -> str:
    return timeline_path(Instant(entry.instant, entry.action, state))


def _content(entry: Entry, state: State) -> bytes:
    if state is State.REQUESTED:
        return _requested(entry)
    return _completed(entry) if state is State.COMPLETED else b""


def _requested(entry: Entry) -> bytes:
    schema = _PLANS.get(entry.action)
    if schema is None:
        return b""
    if "plan" not in entry.body:
        return encode_document(schema, EMPTY_REPLACE_REQUEST)
    return encode_document(schema, entry.body["plan"])


def _completed(entry: Entry) -> bytes:
    schema = _RESULTS.get(entry.action)
    if schema is not None:
        return encode_document(schema, entry.body["metadata"])
    return CommitMetadata.from_json(entry.body["metadata"]).to_bytes()
