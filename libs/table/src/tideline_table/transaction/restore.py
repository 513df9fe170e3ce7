"""Restore: bring a table back to a savepoint, once, in steps that any crash may part.

requested   the fence: nothing else is appended from here on, and what was pending can never complete
inflight    the commit point: the state is that of the savepoint, the timeline files of what is newer go, newest first
deletion    data files of what was undone, announced files of what was fenced; harmless to repeat
completed   writers may begin again

A restore that died is finished by whoever comes by: it was asked for, and there is no way back once the fence stands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tideline_table.errors import TidelineError, WriteConflict
from tideline_table.file_group.savepoint import Savepoint
from tideline_table.file_group.state import TableState
from tideline_table.log_format.key_index import forget_index
from tideline_table.service.restore import OPERATION, plan_restore, restore_metadata
from tideline_table.timeline.entry import Entry
from tideline_table.timeline.instant import Action, State
from tideline_table.timeline.log import Draft
from tideline_table.timeline.rewind import REWIND_KEY, Rewind
from tideline_table.transaction.active_timeline import ActiveTimeline
from tideline_table.transaction.heartbeat import Heartbeat, heartbeat_path, is_dead
from tideline_table.writer.marker import forget_markers, marked_files

_LOGGER = logging.getLogger(__name__)
_DELETES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Restored:
    """A table that was brought back: the instant of the restore, its savepoint, and what is gone, newest first."""

    instant: str
    savepoint: str
    undone: tuple[str, ...]
    fenced: tuple[str, ...]
    savepoints: tuple[str, ...]
    files_deleted: int


class _Over(Exception):
    """Somebody else brought the restore to its end."""


def request_restore(timeline: ActiveTimeline, find: Callable[[TableState], Savepoint]) -> str:
    """Put up the fence and the plan of a restore to the savepoint that `find` finds; returns the instant of the restore.

    Raises what `find` raises, `WriteConflict` while a clean is pending: its files could be neither given up nor kept.
    """

    def decide(state: TableState) -> Draft:
        for clean in (a for a in state.pending() if a.action is Action.CLEAN):
            raise WriteConflict(
                f"clean {clean.instant} is pending",
                with_instant=clean.instant,
                expected="no clean under way",
                remedy="run it, then retry: tideline run clean PATH",
            )
        body = plan_restore(state, find(state)).to_body()
        return Draft(timeline.mint(state), Action.RESTORE, State.NONE, State.REQUESTED, OPERATION, body)

    return timeline.append(decide).instant


def finish_restore(timeline: ActiveTimeline, restore: str, *, force: bool = False) -> Restored | None:
    """Take a requested restore to its end, from wherever it stands; None when somebody else did, or is alive and doing it.

    `force`: it is one's own.
    """
    body = timeline.state.plans.get(restore)

    def begin(state: TableState) -> Draft:
        record = state.actions.get(restore)
        if (
            record is None
            or not record.is_pending
            or (not force and not is_dead(timeline.storage, record, timeline.clock, timeline.options))
        ):
            raise _Over
        # Only the first attempt takes anything back.
        again = {} if record.state is State.INFLIGHT else {REWIND_KEY: state.plans[restore][REWIND_KEY]}
        return Draft(restore, Action.RESTORE, record.state, State.INFLIGHT, OPERATION, again)

    if body is None:
        return None
    back, deleted = Rewind.from_json(body[REWIND_KEY]), dict[str, list[str]]()
    try:
        timeline.append(begin)
        with Heartbeat(timeline.storage, restore, timeline.options):
            started = timeline.clock.monotonic_s()
            deleted = _delete(timeline, back, body["files"])
            duration_ms = int((timeline.clock.monotonic_s() - started) * 1000)
            _complete(timeline, restore, restore_metadata(restore, back, deleted, timeline.storage.root, duration_ms))
    except _Over:
        if not force:
            return None
    return Restored(
        restore,
        back.savepoint,
        tuple(instant for instant, _ in back.undone),
        tuple(instant for instant, _ in back.fenced),
        back.savepoints,
        sum(map(len, deleted.values())),
    )


def _complete(timeline: ActiveTimeline, restore: str, metadata: dict[str, object]) -> Entry:
    def decide(state: TableState) -> Draft:
        if not state.is_pending(restore):
            raise _Over
        return Draft(restore, Action.RESTORE, State.INFLIGHT, State.COMPLETED, OPERATION, {"metadata": metadata})

    return timeline.append(decide)


def _delete(timeline: ActiveTimeline, back: Rewind, files: dict[str, list[str]]) -> dict[str, list[str]]:
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
