"""Checks that an exclusive table has no writers except Tideline's, by a listing of the table's own folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

from tideline_table.coordination.timeline import ActiveTimeline
from tideline_table.errors import ObjectNotFound, TableFrozen, TableIncomplete
from tideline_table.hudi import properties as p
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.formats import UPGRADED
from tideline_table.hudi.instant import Action, Instant, State, completed_as, instant_from_time
from tideline_table.hudi.listing import TimelineListing, list_timeline, timeline_listing
from tideline_table.log.action import ActionRecord
from tideline_table.log.checkpoint import RESTORE_LOG
from tideline_table.log.entry import entry_path
from tideline_table.log.state import TableState
from tideline_table.log.timeline_files import timeline_files
from tideline_table.storage import Folder, ObjectStat, Storage, exists

LONG_TIMELINE = 256
"""From so many names on, a look for other writers lists all of them only now and then."""
WHOLE_LOOK_S = 600.0
RECENT = timedelta(minutes=5)
"""How far another writer's clock may be behind, for it to be found at once on a long timeline."""
_UPGRADED = "the table was upgraded and its timeline moved away"


def properties_in(folder: Folder) -> ObjectStat | None:
    """Return the listing entry of `hoodie.properties`: a new size or time means new content. None while it is being replaced."""
    return next((found for found in folder.objects if found.path == p.PROPERTIES_PATH), None)


def check_not_upgraded(properties: Mapping[str, str], form: TableFormat) -> None:
    """Raise `TableFrozen` unless an exclusive table still has the format in which Tideline writes it."""
    if changed := form.changed_in(properties):
        raise TableFrozen(
            f"{changed}: {_UPGRADED}",
            expected=f"{form.version_text}: all writers of an exclusive table are Tideline's",
            remedy=_downgrade(form),
        )


def _downgrade(form: TableFormat) -> str:
    return (
        f"downgrade it to version {form.version} with Apache Hudi's command line and keep its writers away from it, or share it "
        "with them as it is: tideline leave PATH, then tideline share PATH"
    )


def list_hoodie(timeline: ActiveTimeline) -> tuple[Folder, str]:
    """Return the listing of `.hoodie` for `check_no_other_writer`, and the instant from which on it has names: empty for all.

    All names of a long timeline are listed every `WHOLE_LOOK_S`, and first by each process. A look between is for writers that
    begin now: they name their files by the time in UTC, as the properties of an exclusive table say. And for completions of what is
    pending here, whose names begin with an older instant.
    """
    storage, (at_s, names), newest = timeline.storage, timeline.whole_look, timeline.newest_settled
    if names >= LONG_TIMELINE and newest and 0 <= timeline.clock.monotonic_s() - at_s < WHOLE_LOOK_S:
        # From the newest known names on: they are gone if an upgrade moved the timeline.
        pending = [record.instant for record in timeline.state.pending()]
        since = min(instant_from_time(timeline.clock.now() - RECENT), newest, *pending)
        if timeline.format.timeline_folder != p.PROPERTIES_FOLDER:
            return storage.list_folder(p.PROPERTIES_FOLDER), since
        folder = storage.list_folder(p.PROPERTIES_FOLDER, f"{p.PROPERTIES_FOLDER}/{since}")
        if any(found.path in timeline.settled for found in folder.objects):
            return folder, since
    return storage.list_folder(p.PROPERTIES_FOLDER), ""


def check_no_other_writer(timeline: ActiveTimeline, folder: Folder, since: str = "", *, repairs: bool = True) -> None:
    """Raise `TableFrozen` for an instant in the listing `folder` of `.hoodie` that is not in the table log. Refreshes the state.

    Looks at names from the instant `since` on (`list_hoodie`).

    Raises `TableIncomplete` for one that is completed there and pending in the table log, whose newest entries were lost.

    The folder of an upgraded timeline, if it exists, is listed too. Without `repairs`, the check only reads.

    Otherwise it repairs what slow writers left. It deletes timeline files of an instant that was rolled back or undone, even if
    archived since, and creates savepoint files that a slow process deleted as files of an earlier, deleted savepoint.
    """
    _check_not_moved(timeline.storage, timeline.format, folder)
    listing = _listing(timeline, folder, timeline.settled, since)
    unknown = _unknown_instant(timeline, listing, repairs=repairs, is_whole=not since)
    _check_ends(timeline, listing)
    for each, path in listing.paths.items():
        if each.action is not Action.SAVEPOINT and _is_ended(timeline.state, each):
            timeline.settled[path] = each.time
            timeline.newest_settled = max(timeline.newest_settled, each.time)
    if not since:
        timeline.whole_look = timeline.clock.monotonic_s(), len(timeline.settled)
        timeline.newest_settled = max(timeline.settled.values(), default="")
    if len(timeline.settled) > 4 * len(timeline.state.actions):  # an archival took most of them
        timeline.settled = {path: at for path, at in timeline.settled.items() if at in timeline.state.actions}
    if unknown is not None:
        raise TableFrozen(
            f"instant {unknown.time} ({unknown.action}, {unknown.state}) that no Tideline writer made",
            expected="an exclusive table: all writers are Tideline's",
            remedy="stop the other writer; then keep its rows by tideline leave PATH and tideline share PATH, or remove its "
            f"instant; if Tideline made the instant, entries of the table log were lost: {RESTORE_LOG}",
        )


def first_unlogged(timeline: ActiveTimeline) -> Instant | None:
    """Return a completed instant on the timeline that the table log lacks or holds as pending; None if there is none.

    Another writer made it, or the newest entries of the log were lost: either way the log says less than the table holds.
    Only reads: one listing, and refreshes the state if the listing has what the state has not.
    """
    listing = _listing(timeline, None)
    ends = [each for each in listing.instants if each.state is State.COMPLETED and each.action is not Action.SAVEPOINT]
    ends = [each for each in ends if not _is_ended(timeline.state, each)]
    if not ends:
        return None
    # A completed file is created after its entry, so a state that is read after the listing has the entry.
    timeline.refresh()
    if timeline.is_outdated:
        return None  # Apache Hudi's writers joined in this moment; the first use of the table says so.
    return next((each for each in ends if not _ended_in_log(timeline, each, listing)), None)


def _is_ended(state: TableState, instant: Instant) -> bool:
    record = state.actions.get(instant.time)
    return (
        record is not None
        and instant.action in (record.action, completed_as(record.action))
        and record.state not in (State.REQUESTED, State.INFLIGHT)
    )


def _ended_in_log(timeline: ActiveTimeline, instant: Instant, listing: TimelineListing) -> bool:
    """Return whether a completed instant is one of the log's, was archived, or was deleted since the listing."""
    if instant.time in timeline.state.actions:
        logged = _is_ended(timeline.state, instant)
    else:
        logged = _is_known(timeline, instant, listing, repairs=False)
    return logged or not exists(timeline.storage, listing.paths[instant])


def check_log_ends(timeline: ActiveTimeline) -> None:
    """Raise `TableIncomplete` if the timeline shows that the newest entries of the table log were lost. Refreshes the state."""
    listing = _listing(timeline, None)
    timeline.refresh()
    _check_ends(timeline, listing)


def _check_ends(timeline: ActiveTimeline, listing: TimelineListing) -> None:
    # A completed file is created after its entry, so a state that is read after the listing has the entry.
    for instant in listing.instants:
        record = timeline.state.actions.get(instant.time)
        if record is None or not (instant.state is State.COMPLETED and record.state in (State.REQUESTED, State.INFLIGHT)):
            continue
        if instant.action in (record.action, completed_as(record.action)) and exists(timeline.storage, listing.paths[instant]):
            raise TableIncomplete(
                f"instant {instant.time} ({instant.action}) is completed on the timeline and {record.state} in the table log",
                expected=f"{entry_path(timeline.state.sequence + 1)} or a later entry, which completed it: the log says what the "
                "table holds",
                remedy=f"{RESTORE_LOG}; if another writer completed the instant, stop that writer first",
            )


def _check_not_moved(storage: Storage, form: TableFormat, folder: Folder) -> None:
    """Raise `TableFrozen` if an upgrade moved the timeline; the properties change later. A downgrade leaves an empty folder."""
    if form.timeline_folder == UPGRADED.timeline_folder or UPGRADED.timeline_folder.rpartition("/")[2] not in folder.folders:
        return
    moved = list_timeline(storage, UPGRADED).instants
    if moved:
        raise TableFrozen(
            f"instant {moved[-1].time} ({moved[-1].action}, {moved[-1].state}) in {UPGRADED.timeline_folder}: {_UPGRADED}",
            expected="an exclusive table: all writers are Tideline's",
            remedy=_downgrade(form),
        )


def _listing(
    timeline: ActiveTimeline, folder: Folder | None, settled: Mapping[str, str] = MappingProxyType({}), since: str = ""
) -> TimelineListing:
    """Return the instants in the timeline's folder: `folder` is the listing of `.hoodie`, if there is one already.

    Files that are `settled` and whose instants are still completed are left out: most of a long timeline.
    """
    form, actions = timeline.format, timeline.state.actions
    if folder is None or form.timeline_folder != p.PROPERTIES_FOLDER:
        place = form.timeline_folder
        folder = timeline.storage.list_folder(place, f"{place}/{since}") if since else timeline.storage.list_folder(place)
    return timeline_listing(
        form,
        [
            found.path
            for found in folder.objects
            if (record := actions.get(settled.get(found.path, ""))) is None or record.state is not State.COMPLETED
        ],
    )


def _unknown_instant(timeline: ActiveTimeline, listing: TimelineListing, *, repairs: bool, is_whole: bool) -> Instant | None:
    timeline.refresh()
    if repairs and is_whole:
        _create_savepoint_files(timeline, listing)
    unknown = (instant for instant in listing.instants if not _is_known(timeline, instant, listing, repairs=repairs))
    # A listing that lags may show files that archival or a rollback has deleted since.
    return next((instant for instant in unknown if exists(timeline.storage, listing.paths[instant])), None)


def _create_savepoint_files(timeline: ActiveTimeline, listing: TimelineListing) -> None:
    for savepoint in list(timeline.state.savepoints.values()):
        if any(Instant(savepoint.instant, Action.SAVEPOINT, at) not in listing.paths for at in (State.INFLIGHT, State.COMPLETED)):
            made = timeline.log.read(savepoint.sequence)
            if made is not None and (made.action, made.instant) == (Action.SAVEPOINT, savepoint.instant):
                timeline.log.materialise(made)


def _is_known(timeline: ActiveTimeline, instant: Instant, listing: TimelineListing, *, repairs: bool) -> bool:
    state, storage = timeline.state, timeline.storage
    if instant.action is Action.SAVEPOINT:
        return instant.time in state.savepoints or _was_left_behind(timeline, instant, listing.paths, repairs=repairs)
    record = state.actions.get(instant.time)
    if record is None and instant.time < state.archived_before:
        if _began_and_ended(timeline, instant, repairs=repairs):
            return True
        # A slow writer created a file of an archived instant again; the next archival deletes it.
        return timeline.format.is_archived(storage, instant.time)
    if record is None or instant.action not in (record.action, completed_as(record.action)):
        return False
    if record.state is State.ROLLED_BACK and repairs:
        _forget_files(timeline, record)
    return True


def _began_and_ended(timeline: ActiveTimeline, instant: Instant, *, repairs: bool) -> bool:
    """Return whether a Tideline writer may have created the requested and inflight files of an instant before the archived ones.

    Deletes them if so and if it `repairs`. A paused writer may create these files late and die before it deletes them. A
    requested file of another writer looks the same: that writer misses its file, and the check finds whatever it still
    completes here.
    """
    if instant.state is State.COMPLETED:
        return False
    begun = [timeline.format.timeline_path(replace(instant, state=state)) for state in (State.INFLIGHT, State.REQUESTED)]
    try:
        if timeline.storage.read(begun[0]):
            return False  # Tideline's are empty
    except ObjectNotFound:
        pass  # requested only
    for path in begun if repairs else ():
        timeline.storage.delete(path)
    return True


def _was_left_behind(timeline: ActiveTimeline, instant: Instant, paths: Mapping[Instant, str], *, repairs: bool) -> bool:
    """Return whether a savepoint file is Tideline's or protects nothing; a check that `repairs` deletes one of a deleted savepoint.

    An inflight file of a known write protects nothing; any other file must be one that the table log created. A savepoint of
    another writer is found when it completes. One that Tideline made again meanwhile gets its files back at the next check.
    """
    record, storage = timeline.state.actions.get(instant.time), timeline.storage
    path = paths[instant]
    if record is None or instant.state is State.COMPLETED:
        try:
            # Read before the log: a Tideline writer appends to the log before it creates the file.
            found = storage.read(path)
        except ObjectNotFound:
            return True  # another check deleted it
        since = max(record.sequence if record else 0, timeline.log.trimmed_to())
        steps = [e for e in timeline.log.after(since) if (e.action, e.instant) == (Action.SAVEPOINT, instant.time)]
        if steps and steps[-1].after is State.COMPLETED:
            return True  # made during this check
        if not any((path, found) in timeline_files(step, timeline.format).create for step in steps):
            return False
    for state in (State.COMPLETED, State.INFLIGHT) if repairs else ():
        if (left := paths.get(replace(instant, state=state))) is not None:
            storage.delete(left)
    return True


def _forget_files(timeline: ActiveTimeline, record: ActionRecord) -> None:
    for at in (State.COMPLETED, State.INFLIGHT, State.REQUESTED):
        timeline.storage.delete(timeline.format.timeline_path(record.at(at), record.completion))
