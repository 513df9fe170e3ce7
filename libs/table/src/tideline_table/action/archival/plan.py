"""Archival: choose the instants that leave the active timeline, and format the archive file (format reference 7).

Readers take an instant older than the active timeline for completed (11.1). So an instant that did not complete stays until no file
of it can exist: pending work, and rolled-back instants while a task that cannot be stopped may still write their files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta

from tideline_table.action.decision import Due, NotDue, obstacle
from tideline_table.config import (
    ARCHIVAL_MIN_AGE_S,
    CLEANER_COMMITS_RETAINED,
    COMPACTION_DELTA_COMMITS,
    KEEP_MAX_COMMITS,
    KEEP_MIN_COMMITS,
    Options,
)
from tideline_table.coordination.leases import Lease
from tideline_table.errors import InvalidOption
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import WRITE_ACTIONS, Action, Instant, State, instant_from_time
from tideline_table.log.action import ActionRecord
from tideline_table.log.plan import ArchivalPlanned, ArchivedInstants
from tideline_table.log.state import TableState

OPERATION = "ARCHIVE"
_APART = 10
_SERVICES = (Action.CLEAN, Action.ROLLBACK)
_ENDED_SERVICES = frozenset({Action.CLEAN, Action.ROLLBACK, Action.RESTORE})
_PASSABLE = frozenset({Action.CLEAN, Action.ROLLBACK, Action.ARCHIVAL, Action.SAVEPOINT})
"""Actions that may be pending before the first instant of the timeline, because they add no rows."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """An instant that the active timeline must begin before, and why."""

    instant: str
    reason: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """The minimum number of completed writes that archival leaves, and the maximum number that does not start it."""

    least: int
    most: int


def bounds(options: Options) -> Bounds:
    """Return the bounds in `options`, or defaults based on what cleaning retains. Raises `InvalidOption` if they do not fit.

    As in Apache Hudi, cleaning must be done with an instant before archival removes it.
    """
    given, retained = options.given(), options[CLEANER_COMMITS_RETAINED]
    least, most = options[KEEP_MIN_COMMITS], options[KEEP_MAX_COMMITS]
    if KEEP_MIN_COMMITS.key not in given:
        least = max(least, retained + _APART)
    if KEEP_MAX_COMMITS.key not in given:
        most = max(most, least + _APART)
    if not retained < least <= most:
        raise InvalidOption(
            f"{KEEP_MIN_COMMITS.key}={least}, {KEEP_MAX_COMMITS.key}={most}",
            expected=f"{CLEANER_COMMITS_RETAINED.key}={retained} < {KEEP_MIN_COMMITS.key} <= {KEEP_MAX_COMMITS.key}",
            remedy="raise them: cleaning has to be done with what archival takes away",
        )
    return Bounds(least, most)


def archivable(
    state: TableState,
    options: Options,
    now: datetime,
    saved: AbstractSet[str] = frozenset(),
    cleaned_up: AbstractSet[str] = frozenset(),
    leases: Sequence[Lease] = (),
) -> ArchivedInstants | None:
    """Return the instants that may leave the timeline, None if there are none.

    Completed writes: all but the newest `hoodie.keep.min.commits`, if there are more than `hoodie.keep.max.commits`, up to the
    first that must stay (`held_back`). Completed cleans and rollbacks: by the same numbers for each kind, up to the first write
    that stays; where names have completion times, all before it. `saved`: writes that savepoints need. `cleaned_up`: rolled-back
    instants without remaining files. `leases`: live reader leases. Raises `InvalidOption`.
    """
    limits = bounds(options)
    writes = state.completed_writes()
    leaving: list[ActionRecord] = []
    end = ""
    if len(writes) > limits.most:
        end = held_back(state, options, now, saved, cleaned_up, leases).instant
        leaving = [a for a in writes[: len(writes) - limits.least] if not end or a.instant < end]
    if len(leaving) == len(writes):
        return None
    before = writes[len(leaving)].instant
    if _goes_by_completion(state):
        services = [a for a in _completed_services(state) if leaving and a.instant < min(before, end or before)]
    else:
        services = [a for action in _SERVICES for a in _superfluous(state, action, options, before, now)]
    if not leaving and not services:
        return None
    left = {
        a.instant
        for a in state.actions.values()
        if a.state is State.ROLLED_BACK and (a.instant in cleaned_up or not _may_leave_files(a))
    }
    forgotten = [state.actions[i] for i in left if i < before]
    gone = {a.instant for a in forgotten}
    # A later cleanup reads the rollback to learn where files of its target may be.
    needed = {a.fenced_by for a in state.actions.values() if a.state is State.ROLLED_BACK and a.instant not in gone}
    chosen = [*leaving, *forgotten, *(a for a in services if a.instant not in needed)]
    if not any(a.state is State.COMPLETED for a in chosen):
        return None
    return ArchivedInstants(tuple(sorted(a.instant for a in chosen)), before)


def plan_archival(
    state: TableState,
    options: Options,
    now: datetime,
    saved: AbstractSet[str] = frozenset(),
    cleaned_up: AbstractSet[str] = frozenset(),
    leases: Sequence[Lease] = (),
) -> Due | NotDue:
    """Decide whether instants may leave the timeline, and plan it; arguments and errors as for `archivable`."""
    forbidden = obstacle(state, Action.ARCHIVAL)
    if forbidden is not None:
        return forbidden
    found, most = archivable(state, options, now, saved, cleaned_up, leases), bounds(options).most
    completed = len(state.completed_writes())
    if found is not None:
        return Due(ArchivalPlanned(found), f"{completed} completed writes, {KEEP_MAX_COMMITS.key}={most}")
    if completed <= most:
        return NotDue(
            f"{KEEP_MAX_COMMITS.key}={most} keeps all {completed} completed writes on the timeline",
            f"{most + 1 - completed} more write(s), or a smaller {KEEP_MAX_COMMITS.key}",
        )
    barrier = held_back(state, options, now, saved, cleaned_up, leases)
    return NotDue(
        f"the timeline cannot begin later than it does: {barrier.reason}", f"the end of this for instant {barrier.instant}"
    )


def held_back(
    state: TableState,
    options: Options,
    now: datetime,
    saved: AbstractSet[str] = frozenset(),
    cleaned_up: AbstractSet[str] = frozenset(),
    leases: Sequence[Lease] = (),
) -> Barrier:
    """Return the first instant that must stay on the timeline whatever the numbers say, and why; an empty instant: none."""
    writes = state.completed_writes()
    stays = [Barrier(min(saved), "a savepoint needs it")] if saved else []
    stays += [Barrier(lease.instant, lease.text) for lease in leases]
    if state.replaced:
        stays.append(Barrier(min(state.replaced.values()), "files that it replaced are not cleaned yet"))
    young = next((a.instant for a in writes if _is_young(a, options, now)), "")
    if young:
        stays.append(Barrier(young, f"it ended less than {options[ARCHIVAL_MIN_AGE_S]:g} s ago"))
    counted = _first_counted(state, options)
    if counted:
        stays.append(Barrier(counted, "compactions count the delta commits since it"))
    if _goes_by_completion(state):
        # Readers take a write behind the first instant of the timeline, whatever that is, for pending if it is not there.
        kept = min((a for a in state.actions.values() if _stays(a, options, now)), key=lambda a: a.instant, default=None)
        stays += [Barrier(kept.instant, f"{kept.action} {kept.instant} stays on the timeline")] if kept is not None else []
    for barrier in barriers(state, cleaned_up)[:1]:
        # The timeline begins before the barrier, so the write before it stays.
        last = max((a.instant for a in writes if a.instant < barrier.instant), default="")
        stays.append(Barrier(last or "0", barrier.reason))
    return min(stays, key=lambda barrier: barrier.instant, default=Barrier("", ""))


def barriers(state: TableState, cleaned_up: AbstractSet[str] = frozenset()) -> list[Barrier]:
    """Return the instants before which the timeline must begin, oldest first: pending ones, rolled-back ones not `cleaned_up`."""
    found = []
    for record in state.actions.values():
        if record.is_pending and record.action not in _PASSABLE:
            found.append(Barrier(record.instant, f"{record.action} {record.instant} is {record.state}"))
        elif record.state is State.ROLLED_BACK and _may_leave_files(record) and record.instant not in cleaned_up:
            found.append(Barrier(record.instant, f"files of {record.instant}, which was rolled back, may still come"))
    return sorted(found, key=lambda barrier: barrier.instant)


def to_clean_up(state: TableState) -> list[ActionRecord]:
    """Return rolled-back instants that may have late files, oldest first."""
    return sorted(
        (a for a in state.actions.values() if a.state is State.ROLLED_BACK and _may_leave_files(a)), key=lambda a: a.instant
    )


def _may_leave_files(record: ActionRecord) -> bool:
    return record.action in WRITE_ACTIONS or record.action in (Action.COMPACTION, Action.LOG_COMPACTION)


def _goes_by_completion(state: TableState) -> bool:
    return any(a.completion for a in state.completed_writes()[:1])


def _completed_services(state: TableState) -> list[ActionRecord]:
    return [a for a in state.actions.values() if a.action in _ENDED_SERVICES and a.state is State.COMPLETED]


def _stays(record: ActionRecord, options: Options, now: datetime) -> bool:
    if record.action is Action.ARCHIVAL or record.state is State.ROLLED_BACK:
        return False  # neither has a file on the timeline
    return record.state is not State.COMPLETED or _is_young(record, options, now)


def _superfluous(state: TableState, action: Action, options: Options, before: str, now: datetime) -> list[ActionRecord]:
    done = sorted((a for a in state.actions.values() if a.action is action and a.state is State.COMPLETED), key=lambda a: a.instant)
    limits = bounds(options)
    if len(done) <= limits.most:
        return []
    return [a for a in done[: len(done) - limits.least] if a.instant < before and not _is_young(a, options, now)]


def _is_young(record: ActionRecord, options: Options, now: datetime) -> bool:
    limit = now - timedelta(seconds=options[ARCHIVAL_MIN_AGE_S])
    ended = datetime.fromisoformat(record.since) if record.since else now
    return ended > limit or record.instant > instant_from_time(limit)


def _first_counted(state: TableState, options: Options) -> str:
    """Return the first instant needed on the timeline to count the delta commits since the last compaction."""
    writes = state.completed_writes()
    last = max((a.started_sequence for a in writes if a.action is Action.COMPACTION), default=0)
    since = [a.instant for a in writes if a.action is Action.DELTA_COMMIT and a.sequence > last]
    if not since:
        return ""
    if len(since) >= options[COMPACTION_DELTA_COMMITS]:
        return since[len(since) - options[COMPACTION_DELTA_COMMITS]]
    return next((a.instant for a in writes if a.action is Action.COMPACTION and a.started_sequence == last), since[0])


# --- the file ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateFile:
    """A timeline file of an archived instant."""

    instant: Instant
    path: str


def state_files(state: TableState, form: TableFormat, archived: ArchivedInstants) -> list[StateFile]:
    """Return the timeline files of the completed instants, by instant and state. Rolled-back instants have none."""
    known = (state.actions[i] for i in archived.instants if i in state.actions)
    return [
        StateFile(instant, form.timeline_path(instant, record.completion))
        for record in known
        if record.state is State.COMPLETED
        for instant in map(record.at, (State.REQUESTED, State.INFLIGHT, State.COMPLETED))
    ]


def removal_order(files: Iterable[StateFile]) -> list[str]:
    """Return the paths in order of deletion: completion files last, because an action without one looks pending.

    Completions are deleted oldest first, so that every instant already removed is older than the beginning of the timeline.
    """
    return [f.path for f in sorted(files, key=lambda f: (f.instant.state is State.COMPLETED, f.instant.time))]
