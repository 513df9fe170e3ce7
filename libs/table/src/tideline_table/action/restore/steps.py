"""Restore: bring a table back to a savepoint, once, in steps that survive a crash at any point.

requested   the fence: nothing else is appended from here on, and pending actions that the plan fences can never complete
inflight    the commit point: the state is that of the savepoint; timeline files of newer instants are deleted, newest first
deletion    delete data files of undone writes, and files listed in markers of fenced writes; harmless to repeat
completed   writers may begin again

The next recovery run completes a restore whose process died: after the fence there is no way back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tideline_table.action.restore.plan import OPERATION, plan_restore, restore_metadata
from tideline_table.coordination.heartbeat import Heartbeat, heartbeat_path, is_dead
from tideline_table.coordination.timeline import ActiveTimeline
from tideline_table.errors import TidelineError, WriteConflict
from tideline_table.hudi.instant import Action, State
from tideline_table.log.action import ActionRecord
from tideline_table.log.body import Bare, RestoreBegun, Restored
from tideline_table.log.entry import Entry
from tideline_table.log.plan import RestorePlanned
from tideline_table.log.rewind import Rewind
from tideline_table.log.savepoint import Savepoint
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.log_format.key_index import forget_index
from tideline_table.storage import exists
from tideline_table.writer.marker import forget_markers, marked_files

_LOGGER = logging.getLogger(__name__)
_DELETES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class RestoreDone:
    """A completed restore: its instant, its savepoint, and what it undid, newest first."""

    instant: str
    savepoint: str
    undone: tuple[str, ...]
    fenced: tuple[str, ...]
    savepoints: tuple[str, ...]
    files_deleted: int


class _Over(Exception):
    """Another process completed the restore, or is alive and executing it."""


def request_restore(timeline: ActiveTimeline, find: Callable[[TableState], Savepoint], *, with_changes: bool = False) -> str:
    """Append the fence and the plan of a restore to the savepoint that `find` returns. Return the instant of the restore.

    `with_changes`: base files may have change files; the plan names those that are there.

    Raises what `find` raises, and `WriteConflict` while a clean is pending, whose files could be neither given up nor kept, or
    while a plan is being cancelled.
    """

    def changes(state: TableState) -> frozenset[str]:
        if not with_changes:
            return frozenset()
        undone = plan_restore(state, find(state)).rewind.undone_instants
        named = (path for one in state.every_slice() if one.base_instant in undone for path in one.change_paths)
        return frozenset(path for path in named if exists(timeline.storage, path))

    def decide(state: TableState, changes: frozenset[str]) -> Draft:
        for plan in (a for a in state.pending() if a.action in (Action.CLEAN, Action.COMPACTION) and a.fenced_by):
            # Its log files may be in two places until the cancellation has ended.
            raise WriteConflict(
                f"{plan.action} {plan.instant} is being cancelled",
                with_instant=plan.fenced_by,
                expected="no cancellation under way",
                remedy="retry; if its process died: tideline run rollback PATH",
            )
        for clean in (a for a in state.pending() if a.action is Action.CLEAN):
            raise WriteConflict(
                f"clean {clean.instant} is pending",
                with_instant=clean.instant,
                expected="no clean under way",
                remedy="run it, then retry: tideline run clean PATH",
            )
        body = plan_restore(state, find(state), changes).to_body()
        return Draft(timeline.mint(state), Action.RESTORE, State.NONE, State.REQUESTED, OPERATION, body)

    return timeline.append(decide, changes).instant


def finish_restore(timeline: ActiveTimeline, restore: str, *, force: bool = False) -> RestoreDone | None:
    """Complete a requested restore from its current step; None if another process completed it, or is alive and executing it.

    `force`: this process requested the restore.
    """
    plan = timeline.state.plans.get(restore)
    if not isinstance(plan, RestorePlanned):
        return None

    def pending(state: TableState) -> ActionRecord:
        record = state.actions.get(restore)
        if record is None or not record.is_pending:
            raise _Over
        return record

    def is_abandoned(state: TableState) -> bool:
        return force or is_dead(timeline.storage, pending(state), timeline.clock, timeline.options)

    def begin(state: TableState, is_abandoned: bool) -> Draft:  # noqa: FBT001 - the fact
        record = pending(state)
        if not is_abandoned:
            raise _Over
        # Only the first attempt rewinds the state.
        body = Bare() if record.state is State.INFLIGHT else RestoreBegun(plan.rewind)
        return Draft(restore, Action.RESTORE, record.state, State.INFLIGHT, OPERATION, body)

    back, deleted = plan.rewind, dict[str, list[str]]()
    try:
        timeline.append(begin, is_abandoned)
        with Heartbeat(timeline.storage, restore, timeline.options):
            started = timeline.clock.monotonic_s()
            deleted = _delete(timeline, back, plan.files)
            duration_ms = int((timeline.clock.monotonic_s() - started) * 1000)
            metadata = restore_metadata(restore, back, deleted, timeline.storage.root, duration_ms)
            _complete(timeline, restore, Restored(metadata, unreplaced=plan.unreplaced))
    except _Over:
        if not force:
            return None
    return RestoreDone(
        restore,
        back.savepoint,
        tuple(instant for instant, _ in back.undone),
        tuple(instant for instant, _ in back.fenced),
        back.savepoints,
        sum(map(len, deleted.values())),
    )


def _complete(timeline: ActiveTimeline, restore: str, body: Restored) -> Entry:
    def decide(state: TableState) -> Draft:
        if not state.is_pending(restore):
            raise _Over
        return Draft(restore, Action.RESTORE, State.INFLIGHT, State.COMPLETED, OPERATION, body)

    return timeline.append(decide)


def _delete(timeline: ActiveTimeline, back: Rewind, files: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    # A wrong plan must not cost rows of the savepoint.
    kept = {path for file_slice in timeline.state.every_slice() for path in file_slice.paths}
    deleted = {instant: [path for path in files.get(instant, ()) if path not in kept] for instant, _ in back.undone}
    _delete_all(timeline, [path for paths in deleted.values() for path in paths])
    for instant, action in back.fenced:
        if action is Action.ROLLBACK:
            continue
        _delete_all(timeline, [path for path in sorted(set(marked_files(timeline.storage, instant))) if path not in kept])
        forget_markers(timeline.storage, instant)
    for instant, _ in back.fenced:
        _forget_heartbeat(timeline, instant)
    return deleted


def _delete_all(timeline: ActiveTimeline, paths: Iterable[str]) -> None:
    def delete(path: str) -> None:
        forget_index(timeline.storage, path)
        timeline.storage.delete(path)

    chosen = list(paths)
    if len(chosen) <= _DELETES_AT_ONCE:
        for path in chosen:
            delete(path)
        return
    with ThreadPoolExecutor(_DELETES_AT_ONCE, thread_name_prefix="restore") as pool:
        list(pool.map(delete, chosen))


def _forget_heartbeat(timeline: ActiveTimeline, instant: str) -> None:
    try:
        timeline.storage.delete(heartbeat_path(instant))
    except TidelineError as error:
        _LOGGER.warning("heartbeat of the undone instant %s stays behind: %s", instant, error)
