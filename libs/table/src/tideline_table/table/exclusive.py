"""Exclusive tables have no writers but Tideline's: a look at the timeline says whether that holds."""

from __future__ import annotations

from tideline_table.errors import TableFrozen
from tideline_table.file_group.state import ActionRecord, TableState
from tideline_table.storage import Storage
from tideline_table.table.foreign import is_archived, timeline_instants
from tideline_table.timeline.files import timeline_path
from tideline_table.timeline.instant import Action, Instant, State, completed_as
from tideline_table.transaction import ActiveTimeline
from tideline_table.transaction.peer_rules import read_properties


def check_no_intruder(storage: Storage, timeline: ActiveTimeline) -> None:
    """Raise `TableFrozen` for an instant on the timeline that the table log does not know. One listing, and it refreshes the state.

    Files of an instant that was rolled back or undone are removed: a writer that was slow to create them brought them back.
    """
    unknown = _unknown_instant(storage, timeline)
    if unknown is not None and unknown.action is Action.SAVEPOINT:
        # One that was deleted, by somebody who has not come to its files yet.
        timeline.heal(0.0)
        unknown = _unknown_instant(storage, timeline)
    if unknown is not None:
        raise TableFrozen(
            f"instant {unknown.time} ({unknown.action}, {unknown.state}) that no Tideline writer made",
            expected="an exclusive table: all writers are Tideline's",
            remedy="stop the other writer and remove its instant, or stop using Tideline's writers here",
        )


def _unknown_instant(storage: Storage, timeline: ActiveTimeline) -> Instant | None:
    on_disk = timeline_instants(storage)
    timeline.refresh()
    return next((instant for instant in on_disk if not _is_known(storage, timeline.state, instant)), None)


def _is_known(storage: Storage, state: TableState, instant: Instant) -> bool:
    if instant.action is Action.SAVEPOINT:
        return instant.time in state.savepoints or _was_left_behind(storage, state, instant)
    record = state.actions.get(instant.time)
    if record is None and instant.time < state.archived_before:
        # Somebody slow brought a file of an archived instant back; the next archival removes it.
        return is_archived(storage, read_properties(storage), instant.time)
    if record is None or instant.action not in (record.action, completed_as(record.action)):
        return False
    if record.state is State.ROLLED_BACK:
        _forget_files(storage, record)
    return True


def _was_left_behind(storage: Storage, state: TableState, instant: Instant) -> bool:
    """Whether all that is there of a savepoint is its beginning, which protects nothing: the put of one who died came behind its deletion.

    It goes. Whoever else makes a savepoint here is found out when it completes.
    """
    if instant.state is State.COMPLETED or instant.time not in state.actions:
        return False
    storage.delete(timeline_path(instant))
    return True


def _forget_files(storage: Storage, record: ActionRecord) -> None:
    for at in (State.COMPLETED, State.INFLIGHT, State.REQUESTED):
        storage.delete(timeline_path(Instant(record.instant, record.action, at)))
