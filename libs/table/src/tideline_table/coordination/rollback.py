"""Rollback: undo an instant that died or lost, once, under ownership.

The requested or inflight entry of the rollback is the fence. After it the target can never complete, so files that its executors
still write stay invisible for ever. The next recovery takes over a rollback whose process died.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tideline_table.coordination.heartbeat import Heartbeat, heartbeat_path, is_dead
from tideline_table.coordination.reserve import KEPT_BY_ROLLBACKS, fill_reserve
from tideline_table.coordination.timeline import ActiveTimeline
from tideline_table.coordination.unscheduling import NothingToDo, move_logs
from tideline_table.errors import InstantNotFound, TidelineError, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.file_names import parse_base_file_name, parse_log_file_name
from tideline_table.hudi.instant import Action, State
from tideline_table.log.action import ActionRecord
from tideline_table.log.plan import RollbackStep
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.log_format.key_index import forget_index
from tideline_table.storage import hudi_root
from tideline_table.writer.marker import forget_markers, marked_files

_LOGGER = logging.getLogger(__name__)

OPERATION = "ROLLBACK"


def roll_back(timeline: ActiveTimeline, target: str, *, force: bool = False, attempt: int = 0, cancel: bool = False) -> str | None:
    """Roll `target` back. Return the instant of the rollback, None if there was nothing to do.

    Unless `force` (for a transaction of this process), an instant whose writer is alive is left alone. With `attempt`, so is one
    that another process took over since the entry with that sequence. `cancel` is for an operator who ends a plan: also a
    compaction, and a clean or an archival that has not begun. Raises `InstantNotFound`, and `UnsupportedTable` for an
    instant that completed before this call.
    """
    token = uuid.uuid4().hex
    known = timeline.state.actions.get(target)
    was_pending = known is not None and known.is_pending
    paths = _uncommitted(timeline.state, marked_files(timeline.storage, target))

    def undone(state: TableState) -> ActionRecord:
        now = state.actions.get(target)
        if (was_pending or attempt) and (now is None or now.state is State.COMPLETED):
            # Its slow writer, or a process that took it over, completed it first; perhaps it is archived already.
            raise NothingToDo
        record = _target(state, target, cancel=cancel)
        if record.state is State.ROLLED_BACK or (attempt and not record.fenced_by and record.sequence != attempt):
            raise NothingToDo
        return record

    def is_abandoned(state: TableState) -> bool:
        """Return whether the process that runs the target, or its rollback, is dead."""
        record = undone(state)
        if not record.fenced_by:
            return force or is_dead(timeline.storage, record, timeline.clock, timeline.options)
        running = state.actions[record.fenced_by]
        # Recovery completes a restore by other steps.
        return running.action is not Action.RESTORE and is_dead(timeline.storage, running, timeline.clock, timeline.options)

    def decide(state: TableState, is_abandoned: bool) -> Draft:  # noqa: FBT001 - the fact
        record = undone(state)
        if not is_abandoned:
            raise NothingToDo
        if record.fenced_by:
            running = state.actions[record.fenced_by]
            # A rollback adopted from the timeline has no plan in the log, and may not have got further than its request.
            known = state.plans.get(running.instant)
            planned = known if isinstance(known, RollbackStep) else RollbackStep(target, record.action.value)
            body = replace(planned, attempt=token)
            return Draft(running.instant, Action.ROLLBACK, running.state, State.INFLIGHT, OPERATION, body)
        body = RollbackStep(target, record.action.value, plan=_plan(timeline, record, paths), attempt=token, cancels=cancel)
        return Draft(timeline.mint(state), Action.ROLLBACK, State.NONE, State.INFLIGHT, OPERATION, body)

    try:
        entry = timeline.append(decide, is_abandoned, reserve_kept=KEPT_BY_ROLLBACKS)
    except NothingToDo:
        return None
    assert isinstance(entry.body, RollbackStep)
    with Heartbeat(timeline.storage, entry.instant, timeline.options):
        _execute(timeline, entry.instant, target, Action(entry.body.target_action))
    return entry.instant


def forget_late_files(timeline: ActiveTimeline, target: str, staged: Iterable[str]) -> None:
    """Delete files that the writer of `target` wrote after another process rolled it back: `staged`, and files in markers.

    The rollback could not see files written later. Does nothing unless `target` is fenced, because until then it can complete. An
    instant that was archived may have completed: the archive says so. The markers stay, because tasks that cannot be stopped may
    write later still: the orphan-file cleanup before archival learns from the markers where.
    """
    record = timeline.state.actions.get(target)
    forgotten = record is None and target < timeline.state.archived_before
    if forgotten and timeline.format.was_completed(timeline.storage, target):
        return
    if not forgotten and (record is None or not (record.fenced_by or record.state is State.ROLLED_BACK)):
        return
    for path in _uncommitted(timeline.state, {*marked_files(timeline.storage, target), *staged}):
        forget_index(timeline.storage, path)
        timeline.storage.delete(path)
    if forgotten:
        forget_markers(timeline.storage, target)  # no later cleanup looks for it


def _uncommitted(state: TableState, paths: Iterable[str]) -> list[str]:
    """Return the paths that no committed slice has: Hudi may append to an older log file and list it in a marker once more."""
    found = []
    for path in sorted(set(paths)):
        partition, _, name = path.rpartition("/")
        parsed = parse_base_file_name(name) or parse_log_file_name(name)
        slices = state.slices.get(FileGroupId(partition, parsed.file_id), {}) if parsed else {}
        if not any(path in file_slice.paths for file_slice in slices.values()):
            found.append(path)
    return found


def _target(state: TableState, target: str, *, cancel: bool) -> ActionRecord:
    record = state.actions.get(target)
    if record is None and target < state.archived_before:
        raise NothingToDo  # rolled back and since archived
    if record is not None and record.is_pending and not record.fenced_by:
        _check_plan(record, cancel=cancel)
    if record is None:
        raise InstantNotFound(f"no instant {target} to roll back", expected="a pending instant of this table")
    if record.state is State.COMPLETED:
        raise UnsupportedTable(
            f"instant {target} is completed", expected="a pending instant", remedy="restore to a savepoint instead"
        )
    return record


def _check_plan(record: ActionRecord, *, cancel: bool) -> None:
    """Raise `UnsupportedTable` for a plan that must be run again instead of being rolled back."""
    again = f"run it again: tideline run {record.action.value} PATH"
    if record.action is Action.COMPACTION and not cancel:
        # Log files may be named after it by now. Only a cancellation moves them to the slice before.
        cancelling = f"{again}, or cancel it: tideline job cancel PATH {record.instant}"
        raise UnsupportedTable(f"instant {record.instant} is a compaction", expected="a write", remedy=cancelling)
    if record.action in (Action.ARCHIVAL, Action.CLEAN) and not (cancel and record.state is State.REQUESTED):
        found = f"{record.action} {record.instant} is {record.state}"
        began = ", and files that it names may be deleted already" if record.state is State.INFLIGHT else ""
        raise UnsupportedTable(f"{found}{began}", expected="a write, or a plan that has not begun", remedy=again)


def _plan(timeline: ActiveTimeline, record: ActionRecord, paths: Sequence[str]) -> dict[str, object]:
    requests = []
    root = hudi_root(timeline.storage.root).removeprefix("file:")
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
    # A cancelled compaction gives back the log files that were written since its plan.
    moved = move_logs(timeline, rollback, target) if target_action is Action.COMPACTION else ()
    # List the markers again after the fence: a late executor may have added some since the plan was made.
    marked = [*marked_files(timeline.storage, target), *moved]
    paths = _uncommitted(timeline.state, marked)
    root = hudi_root(timeline.storage.root).removeprefix("file:")
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
    done = RollbackStep(target, target_action.value, metadata=metadata)

    def decide(state: TableState) -> Draft:
        # Meanwhile another process may have completed the rollback, and archived it.
        if not state.is_pending(rollback) or state.actions[rollback].fenced_by:
            raise NothingToDo
        planned = state.plans.get(rollback)
        # The metadata table lists the log files by their new names from here on.
        body = replace(done, moves=planned.moves or None) if isinstance(planned, RollbackStep) else done
        return Draft(rollback, Action.ROLLBACK, State.INFLIGHT, State.COMPLETED, OPERATION, body)

    try:
        timeline.append(decide, reserve_kept=KEPT_BY_ROLLBACKS)
    except NothingToDo:
        return
    timeline.forget_markers(target, marked)
    fill_reserve(timeline.storage)
    try:
        timeline.storage.delete(heartbeat_path(target))
    except TidelineError as error:
        _LOGGER.warning("heartbeat of the rolled-back instant %s stays behind: %s", target, error)
