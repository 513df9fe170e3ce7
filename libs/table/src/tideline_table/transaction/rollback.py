"""Rollback: undo an instant that died or lost, once, under ownership.

`rollback requested` is the fence: from there on the target can never complete, so files that its executors still write stay
invisible for ever. A crash inside a rollback is taken over by the next one who comes by.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence

from tideline_table.errors import InstantNotFound, TidelineError, UnsupportedTable
from tideline_table.file_group.action import ActionRecord
from tideline_table.file_group.names import parse_base_file_name, parse_log_file_name
from tideline_table.file_group.slice import FileGroupId
from tideline_table.file_group.state import TableState
from tideline_table.log_format.key_index import forget_index
from tideline_table.timeline.instant import Action, State
from tideline_table.timeline.log import Draft
from tideline_table.transaction.active_timeline import ActiveTimeline
from tideline_table.transaction.archive import was_completed
from tideline_table.transaction.heartbeat import Heartbeat, heartbeat_path, is_dead
from tideline_table.writer.marker import forget_marked, forget_markers, marked_files

_LOGGER = logging.getLogger(__name__)

OPERATION = "ROLLBACK"


def roll_back(timeline: ActiveTimeline, target: str, *, force: bool = False, attempt: int = 0) -> str | None:
    """Roll `target` back; returns the rollback's instant, None when there was nothing to do.

    Without `force` (for one's own transaction) an instant whose writer is alive is left alone; with `attempt` one that somebody took over since
    the entry of that sequence: it is no longer one's own. Raises `InstantNotFound`, and
    `UnsupportedTable` for an instant that had completed before this call.
    """
    token = uuid.uuid4().hex
    known = timeline.state.actions.get(target)
    was_pending = known is not None and known.is_pending
    paths = _uncommitted(timeline.state, marked_files(timeline.storage, target))

    def decide(state: TableState) -> Draft:
        now = state.actions.get(target)
        if (was_pending or attempt) and (now is None or now.state is State.COMPLETED):
            # Its writer was only slow, or somebody took it over: it got there first, perhaps so long ago that it was archived.
            raise _NothingToDo
        record = _target(state, target)
        if record.state is State.ROLLED_BACK or (
            not force and not record.fenced_by and not is_dead(timeline.storage, record, timeline.clock, timeline.options)
        ):
            raise _NothingToDo
        if attempt and not record.fenced_by and record.sequence != attempt:
            raise _NothingToDo
        if record.fenced_by:
            running = state.actions[record.fenced_by]
            if running.action is Action.RESTORE or not is_dead(timeline.storage, running, timeline.clock, timeline.options):
                raise _NothingToDo
            # One that was adopted from the timeline has no plan in the log, and may not have got further than its request.
            known_plan = state.plans.get(running.instant, {"target": target, "target_action": record.action.value})
            body = {**known_plan, "attempt": token}
            return Draft(running.instant, Action.ROLLBACK, running.state, State.INFLIGHT, OPERATION, body)
        body = {"target": target, "target_action": record.action.value, "plan": _plan(timeline, record, paths), "attempt": token}
        return Draft(timeline.mint(state), Action.ROLLBACK, State.NONE, State.INFLIGHT, OPERATION, body)

    try:
        entry = timeline.append(decide)
    except _NothingToDo:
        return None
    with Heartbeat(timeline.storage, entry.instant, timeline.options):
        _execute(timeline, entry.instant, target, Action(str(entry.body["target_action"])))
    return entry.instant


def forget_late_files(timeline: ActiveTimeline, target: str, staged: Iterable[str]) -> None:
    """Delete what the writer of `target` wrote behind its rollback by somebody else: `staged`, and what it announced since.

    Whoever rolled it back could not see files that came later. Does nothing unless `target` is fenced: until then it could complete. One that
    nobody knows any more may have completed, too, long ago: the archive says so. What was
    announced stays announced: tasks that cannot be stopped may be behind this, and the sweep before archival looks where they may write.
    """
    record = timeline.state.actions.get(target)
    forgotten = record is None and target < timeline.state.archived_before
    if forgotten and was_completed(timeline.storage, target):
        return
    if not forgotten and (record is None or not (record.fenced_by or record.state is State.ROLLED_BACK)):
        return
    for path in _uncommitted(timeline.state, {*marked_files(timeline.storage, target), *staged}):
        forget_index(timeline.storage, path)
        timeline.storage.delete(path)
    if forgotten:
        forget_markers(timeline.storage, target)  # no sweep comes any more


class _NothingToDo(Exception):
    """The target is completed, rolled back, alive, or being rolled back by somebody alive."""


def _uncommitted(state: TableState, paths: Iterable[str]) -> list[str]:
    """Those that no committed slice has: where files can be appended to, Hudi announces the file of an earlier write once more."""
    found = []
    for path in sorted(set(paths)):
        partition, _, name = path.rpartition("/")
        parsed = parse_base_file_name(name) or parse_log_file_name(name)
        slices = state.slices.get(FileGroupId(partition, parsed.file_id), {}) if parsed else {}
        if not any(path in file_slice.paths for file_slice in slices.values()):
            found.append(path)
    return found


def _target(state: TableState, target: str) -> ActionRecord:
    record = state.actions.get(target)
    if record is None and target < state.archived_before:
        raise _NothingToDo  # rolled back so long ago that nobody keeps it any more
    if record is not None and record.action is Action.COMPACTION:
        # Log files may be named after it by now: without its base files other readers would never find them.
        raise UnsupportedTable(
            f"instant {target} is a compaction", expected="a write", remedy="run it again: tideline run compaction PATH"
        )
    if record is not None and record.action is Action.ARCHIVAL:
        raise UnsupportedTable(
            f"instant {target} is an archival", expected="a write", remedy="run it again: tideline run archival PATH"
        )
    if record is None:
        raise InstantNotFound(f"no instant {target} to roll back", expected="a pending instant of this table")
    if record.state is State.COMPLETED:
        raise UnsupportedTable(
            f"instant {target} is completed", expected="a pending instant", remedy="restore to a savepoint instead"
        )
    return record


def _plan(timeline: ActiveTimeline, record: ActionRecord, paths: Sequence[str]) -> dict[str, object]:
    requests = []
    root = timeline.storage.root.removeprefix("file:")
    for path in paths:
        partition, _, name = path.rpartition("/")
        parsed = parse_base_file_name(name) or parse_log_file_name(name)
        requests.append(
            {
                "partitionPath": partition,
                "fileId": parsed.file_id if parsed else "",
                "latestBaseInstant": record.instant,
                "filesToBeDeleted": [f"{root}/{path}"],
                "logBlocksToBeDeleted": {},
            }
        )
    return {
        "instantToRollback": {"commitTime": record.instant, "action": record.action.value},
        "RollbackRequests": requests,
        "version": 1,
    }


def _execute(timeline: ActiveTimeline, rollback: str, target: str, target_action: Action) -> None:
    started = timeline.clock.monotonic_s()
    # Listed again behind the fence: a late executor may have announced more since the plan was made.
    announced = list(marked_files(timeline.storage, target))
    paths = _uncommitted(timeline.state, announced)
    root = timeline.storage.root.removeprefix("file:")
    partitions: dict[str, dict[str, object]] = {}
    for path in paths:
        forget_index(timeline.storage, path)
        timeline.storage.delete(path)
        partition = path.rpartition("/")[0]
        entry = partitions.setdefault(
            partition,
            {
                "partitionPath": partition,
                "successDeleteFiles": [],
                "failedDeleteFiles": [],
                "rollbackLogFiles": {},
                "logFilesFromFailedCommit": {},
            },
        )
        deleted = entry["successDeleteFiles"]
        assert isinstance(deleted, list)
        deleted.append(f"{root}/{path}")
    info = {"commitTime": target, "action": target_action.value}
    metadata = {
        "startRollbackTime": rollback,
        "timeTakenInMillis": int((timeline.clock.monotonic_s() - started) * 1000),
        "totalFilesDeleted": len(paths),
        "commitsRollback": [target],
        "partitionMetadata": partitions,
        "version": 1,
        "instantsRollback": [info],
    }
    body = {"target": target, "target_action": target_action.value, "metadata": metadata}

    def decide(state: TableState) -> Draft:
        # While we slept others may have finished it, and archived it.
        if not state.is_pending(rollback) or state.actions[rollback].fenced_by:
            raise _NothingToDo
        return Draft(rollback, Action.ROLLBACK, State.INFLIGHT, State.COMPLETED, OPERATION, body)

    try:
        timeline.append(decide)
    except _NothingToDo:
        return
    if timeline.state.sharing is None:
        # What came later stays announced until the sweep before archival.
        forget_marked(timeline.storage, target, announced)
    else:
        forget_markers(timeline.storage, target)
    try:
        timeline.storage.delete(heartbeat_path(target))
    except TidelineError as error:
        _LOGGER.warning("heartbeat of the rolled-back instant %s stays behind: %s", target, error)
