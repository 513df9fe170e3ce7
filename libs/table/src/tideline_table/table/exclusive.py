"""Exclusive tables have no writers but Tideline's: a look at the table's own folder says whether that holds."""

from __future__ import annotations

from tideline_table.errors import ObjectNotFound, TableFrozen
from tideline_table.file_group.action import ActionRecord
from tideline_table.storage import Folder, ObjectStat, Storage, exists
from tideline_table.table.definition import WRITABLE_VERSION, TableDefinition
from tideline_table.table.foreign import is_archived
from tideline_table.timeline import properties as p
from tideline_table.timeline.files import timeline_files, timeline_path
from tideline_table.timeline.instant import Action, Instant, State, completed_as
from tideline_table.timeline.listing import TimelineFolders, list_timeline, timeline_listing
from tideline_table.transaction import ActiveTimeline
from tideline_table.transaction.peer_rules import read_properties

_MOVED_TO = TimelineFolders.from_properties({p.LAYOUT: "2"})
_UPGRADED = "the table was upgraded and its timeline moved away"
_DOWNGRADE = (
    f"downgrade it to version {WRITABLE_VERSION} with Apache Hudi's command line and keep its writers away from it, or stop using "
    "Tideline's writers here"
)


def properties_in(folder: Folder) -> ObjectStat | None:
    """What a listing of `.hoodie` says of `hoodie.properties`: another size or time, another content. None while somebody changes it."""
    return next((found for found in folder.objects if found.path == p.PROPERTIES_PATH), None)


def check_not_upgraded(definition: TableDefinition) -> None:
    """Raise `TableFrozen` unless the table that a writer of ours has open still has its version, and its timeline layout 1."""
    layout = definition.properties.get(p.LAYOUT, "1")
    if definition.version != WRITABLE_VERSION or layout != "1":
        raise TableFrozen(
            f"version {definition.version} with timeline layout {layout}: {_UPGRADED}",
            expected=f"version {WRITABLE_VERSION} with layout 1: all writers of an exclusive table are Tideline's",
            remedy=_DOWNGRADE,
        )


def check_no_intruder(storage: Storage, timeline: ActiveTimeline, folder: Folder) -> None:
    """Raise `TableFrozen` for an instant in the listing `folder` of `.hoodie` that the table log does not know. Refreshes the state.

    The timeline of an upgraded table lies in a folder of its own: with it there, one more listing.

    Files of an instant that was rolled back or undone are removed, also when archival forgot it since: a writer that was slow to create them brought
    them back. Files that a savepoint lacks are made: somebody slow took them for those of an earlier one that was deleted.
    """
    _check_not_moved(storage, folder)
    unknown = _unknown_instant(storage, timeline, folder)
    if unknown is not None:
        raise TableFrozen(
            f"instant {unknown.time} ({unknown.action}, {unknown.state}) that no Tideline writer made",
            expected="an exclusive table: all writers are Tideline's",
            remedy="stop the other writer and remove its instant, or stop using Tideline's writers here",
        )


def _check_not_moved(storage: Storage, folder: Folder) -> None:
    """An upgrade moves the timeline before it says so in the properties. A folder without instants is what a downgrade leaves."""
    if _MOVED_TO.active.rpartition("/")[2] not in folder.folders:
        return
    moved = list_timeline(storage, _MOVED_TO).instants
    if moved:
        raise TableFrozen(
            f"instant {moved[-1].time} ({moved[-1].action}, {moved[-1].state}) in {_MOVED_TO.active}: {_UPGRADED}",
            expected="an exclusive table: all writers are Tideline's",
            remedy=_DOWNGRADE,
        )


def _unknown_instant(storage: Storage, timeline: ActiveTimeline, folder: Folder) -> Instant | None:
    listing = timeline_listing(TimelineFolders(), (found.path for found in folder.objects))
    timeline.refresh()
    for savepoint in list(timeline.state.savepoints.values()):
        if any(Instant(savepoint.instant, Action.SAVEPOINT, at) not in listing.paths for at in (State.INFLIGHT, State.COMPLETED)):
            made = timeline.log.read(savepoint.sequence)
            if made is not None and (made.action, made.instant) == (Action.SAVEPOINT, savepoint.instant):
                timeline.log.materialise(made)
    unknown = (instant for instant in listing.instants if not _is_known(storage, timeline, instant))
    # A listing that lags shows what archival or a rollback has removed since.
    return next((instant for instant in unknown if exists(storage, listing.paths[instant])), None)


def _is_known(storage: Storage, timeline: ActiveTimeline, instant: Instant) -> bool:
    state = timeline.state
    if instant.action is Action.SAVEPOINT:
        return instant.time in state.savepoints or _was_left_behind(storage, timeline, instant)
    record = state.actions.get(instant.time)
    if record is None and instant.time < state.archived_before:
        if _began_and_ended(storage, instant):
            return True
        # Somebody slow brought a file of an archived instant back; the next archival removes it.
        return is_archived(storage, read_properties(storage), instant.time)
    if record is None or instant.action not in (record.action, completed_as(record.action)):
        return False
    if record.state is State.ROLLED_BACK:
        _forget_files(storage, record)
    return True


def _began_and_ended(storage: Storage, instant: Instant) -> bool:
    """Whether what is there of an instant below the archived ones may be the beginning of one of ours, which ended before it was forgotten. It goes.

    A writer that slept before it made these files may die before it takes them away. Another's beginning cannot be told from ours as long as it
    is only requested; its writer finds it gone, and whatever it completes here all the same is found out.
    """
    if instant.state is State.COMPLETED:
        return False
    begun = [timeline_path(Instant(instant.time, instant.action, state)) for state in (State.INFLIGHT, State.REQUESTED)]
    try:
        if storage.read(begun[0]):
            return False  # ours are empty
    except ObjectNotFound:
        pass  # requested only
    for path in begun:
        storage.delete(path)
    return True


def _was_left_behind(storage: Storage, timeline: ActiveTimeline, instant: Instant) -> bool:
    """Whether what is there of a savepoint came behind its deletion: its beginning alone, which protects nothing, or a file of ours.

    It goes. Whoever else makes a savepoint here is found out when it completes; one of ours that was made again meanwhile gets its files back
    from the next who looks.
    """
    record = timeline.state.actions.get(instant.time)
    path = timeline_path(instant)
    if record is None or instant.state is State.COMPLETED:
        try:
            # Before the log: whoever of ours made what is there was in the log first.
            found = storage.read(path)
        except ObjectNotFound:
            return True  # another one who looked took it away
        since = max(record.sequence if record else 0, timeline.log.trimmed_to())
        steps = [e for e in timeline.log.after(since) if (e.action, e.instant) == (Action.SAVEPOINT, instant.time)]
        if steps and steps[-1].after is State.COMPLETED:
            return True  # made while we looked
        if not any((path, found) in timeline_files(step).create for step in steps):
            return False
    for state in (State.COMPLETED, State.INFLIGHT):
        storage.delete(timeline_path(Instant(instant.time, Action.SAVEPOINT, state)))
    return True


def _forget_files(storage: Storage, record: ActionRecord) -> None:
    for at in (State.COMPLETED, State.INFLIGHT, State.REQUESTED):
        storage.delete(timeline_path(Instant(record.instant, record.action, at)))
