"""Unscheduling: give the log files of a cancelled compaction back to the slice before it.

Log files written after a compaction plan are named after its instant (format reference 11.2). Without the plan, no reader would
find them. So they are copied behind the log files of the slice before, under names of that slice; one step of the rollback
changes their names in the state of the table; then the old files are deleted, and only then the plan leaves the timeline. Until
it does, readers of Apache Hudi merge a log file twice, in the same order, which has the result of once; so writers may not
append behind the copies in between (`find_conflict`).
"""

from __future__ import annotations

import shutil
from dataclasses import replace

from tideline_table.coordination.timeline import ActiveTimeline
from tideline_table.errors import CorruptMetadata, ObjectNotFound
from tideline_table.file_group.slice import FileGroupId, join_path
from tideline_table.hudi.file_names import parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import Action, State
from tideline_table.log.plan import LogMove, RollbackStep
from tideline_table.log.state import TableState
from tideline_table.log.table_log import Draft
from tideline_table.storage import Storage


class NothingToDo(Exception):
    """The target is completed, rolled back, alive, or being rolled back by a live process."""


def move_logs(timeline: ActiveTimeline, rollback: str, compaction: str) -> tuple[str, ...]:
    """Take the step of `rollback` that moves the log files of the fenced `compaction`. Return the old paths, for deletion.

    Does nothing if an earlier attempt took the step, or if another process has completed the rollback.
    """

    def step(state: TableState) -> RollbackStep:
        planned = state.plans.get(rollback)
        if not isinstance(planned, RollbackStep) or planned.moves is not None:
            raise NothingToDo
        return planned

    def copied(state: TableState) -> tuple[LogMove, ...]:
        step(state)
        moves = planned_moves(state, compaction, timeline.format)
        for move in moves:
            _copy(timeline.storage, move)
        return moves

    def decide(state: TableState, moves: tuple[LogMove, ...]) -> Draft:
        body = replace(step(state), moves=moves)
        return Draft(rollback, Action.ROLLBACK, State.INFLIGHT, State.INFLIGHT, "ROLLBACK", body)

    try:
        timeline.append(decide, copied)
    except NothingToDo:
        pass
    except ObjectNotFound:
        # Another process took the rollback over and deleted what this one was about to copy.
        timeline.refresh()
        planned = timeline.state.plans.get(rollback)
        if isinstance(planned, RollbackStep) and planned.moves is None:
            raise
    done = timeline.state.plans.get(rollback)
    moves = done.moves or () if isinstance(done, RollbackStep) else ()
    return tuple(join_path(move.partition_path, move.old_name) for move in moves)


def planned_moves(state: TableState, compaction: str, form: TableFormat) -> tuple[LogMove, ...]:
    """Return the new names of all log files in slices of the pending `compaction`, in merge order. Reads nothing.

    None where names do not say the slice: without the plan, the slice before is the one that readers find.
    """
    if form.has_completion_times:
        return ()
    return tuple(move for group in state.planned_groups(compaction) for move in _moves_of(state, group, compaction, form))


def _moves_of(state: TableState, group: FileGroupId, compaction: str, form: TableFormat) -> list[LogMove]:
    slices = state.slices.get(group, {})
    above = slices.get(compaction)
    if above is None or not above.log_files:
        return []
    before = max((instant for instant in slices if instant < compaction), default="")
    if not before or above.base_file:
        raise CorruptMetadata(
            f"file group {group.file_id} in {group.partition_path!r} with slices {', '.join(slices)}",
            expected=f"a slice that compaction {compaction} reads, and no base file of it",
            remedy=f"run it instead: tideline run compaction PATH --instant {compaction}",
        )
    version, moves = slices[before].next_log_version, list[LogMove]()
    for log in above.log_files:
        parsed = parse_log_file_name(log.name)
        assert parsed is not None, "the fold takes log files by their names"
        name = form.log_file_name(group.file_id, before, compaction, version + len(moves), parsed.write_token)
        moves.append(LogMove(group.partition_path, log.name, name))
    return moves


def _copy(storage: Storage, move: LogMove) -> None:
    old, new = (join_path(move.partition_path, name) for name in (move.old_name, move.new_name))
    size_bytes = storage.stat(old).size_bytes
    try:
        if storage.stat(new).size_bytes == size_bytes:
            return  # copied before another writer appended to the table log
    except ObjectNotFound:
        pass
    with storage.open_input(old) as source, storage.open_output(new) as sink:
        shutil.copyfileobj(source, sink)
