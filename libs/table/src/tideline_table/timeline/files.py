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


def timeline_path(instant: Instant) -> str:
    """Path of a timeline file below the base path."""
    return f".hoodie/{timeline_file_name(instant)}"


def timeline_files(entry: Entry) -> TimelineFiles:
    """What the timeline has to hold once `entry` is in the log."""
    if entry.action is Action.SAVEPOINT:
        return _savepoint_files(entry)
    if entry.action is Action.RESTORE:
        return _restore_files(entry)
    if entry.action is Action.ARCHIVAL:
        return TimelineFiles(())
    create: list[tuple[str, bytes]] = []
    delete: tuple[str, ...] = ()
    if entry.before is State.NONE:
        create.append((_path(entry, State.REQUESTED), _requested(entry)))
    if entry.after is State.INFLIGHT and entry.before is not State.INFLIGHT:
        create.append((_path(entry, State.INFLIGHT), b""))
    if entry.after is State.COMPLETED:
        create.append((_path(entry, State.COMPLETED), _completed(entry)))
        if entry.action is Action.ROLLBACK:
            action = Action(entry.body["target_action"])
            delete = tuple(timeline_path(Instant(entry.target, action, s)) for s in (State.INFLIGHT, State.REQUESTED))
    return TimelineFiles(tuple(create), delete)


def _savepoint_files(entry: Entry) -> TimelineFiles:
    inflight, completed = _path(entry, State.INFLIGHT), _path(entry, State.COMPLETED)
    if entry.after is State.COMPLETED:
        return TimelineFiles(((inflight, b""), (completed, _completed(entry))))
    return TimelineFiles((), (completed, inflight))


def _restore_files(entry: Entry) -> TimelineFiles:
    content = {State.REQUESTED: _requested, State.COMPLETED: _completed}.get(entry.after, lambda _: b"")
    gone: tuple[str, ...] = ()
    if entry.after is State.INFLIGHT:
        if REWIND_KEY not in entry.body:
            return TimelineFiles(())  # another attempt
        gone = Rewind.from_json(entry.body[REWIND_KEY]).timeline_files()
    return TimelineFiles(((_path(entry, entry.after), content(entry)),), gone)


def _path(entry: Entry, state: State) -> str:
    return timeline_path(Instant(entry.instant, entry.action, state))


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
