"""Incremental queries: the writes completed after one point of a table's history, up to another point (format reference 11.5).

In a table with a Tideline log, a point is a sequence of the log, that is, a place in completion order. A reader that continues from
a sequence misses no write that began earlier and finished later, and reads no row twice because of compaction or clustering, which
only move rows. In other tables, a point is an instant: of the write (version 6) or of its completion (version 8 and later).

A completion time (version 8 and later) is the point behind its write in all tables, as in Apache Hudi.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tideline_table.errors import HistoryRewritten, HistoryUnavailable, InstantNotFound, InvalidOption
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.hudi.format import ArchivedInstant
from tideline_table.hudi.instant import Action, State, instant_from_time, time_from_instant
from tideline_table.hudi.point import is_sequence
from tideline_table.log.action import COMPACT, LOG_COMPACT, ActionRecord
from tideline_table.log.sharing import HUDI_WRITER
from tideline_table.log.state import TableState
from tideline_table.reader.read_plan import LogRule
from tideline_table.table.query import CommitTimes, Snapshot

_INSTANT = re.compile(r"\d{14}(?:\d{3})?", re.ASCII)
_LAST_INSTANT = "9" * 17
_WITHOUT_ROWS = frozenset({Action.CLEAN, Action.ROLLBACK, Action.RESTORE, Action.SAVEPOINT, Action.INDEXING})


class PointKind(enum.Enum):
    """The kind of points by which the writes of a table are ordered."""

    SEQUENCE = "sequence"
    INSTANT = "instant"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class InstantRange:
    """A range of a table's history: the publishing actions completed by its start (exclusive) and by its end (inclusive)."""

    before: frozenset[str]
    through: frozenset[str]
    written: frozenset[str]
    """Commit times of rows written in the range, not of actions that only move rows, except log compactions after such a write."""
    since: str
    """The start as the caller gave it."""
    is_whole: bool = False
    """Whether no write of the table was archived, as far as the caller has looked."""
    late_at_start: frozenset[str] = frozenset()
    """Archived writes that completed after the start, of those that `with_archived` looks at."""
    late_at_end: frozenset[str] = frozenset()
    """Likewise after the end."""

    @property
    def from_start(self) -> bool:
        """Whether the range starts at the creation of the table."""
        return self.since in ("", "0") or (self.is_whole and not self.before)

    @property
    def ends_before_writes(self) -> bool:
        """Whether an end lies before all writes that are known: then it depends on the archive whether the table was empty."""
        return not self.through or (not self.before and not self.from_start)


def range_of(state: TableState, kind: PointKind, since: str, until: str) -> InstantRange:
    """Return the range after `since` (empty: all) up to `until` (empty: now).

    In a table with a log, an instant means the completion of that write, or, if no write has it, all writes completed by that time.
    Raises `InstantNotFound` for a sequence ahead of the log or an instant not completed, `HistoryRewritten` for a point between
    undone writes and their undo, `HistoryUnavailable` for one before archived writes, `InvalidOption` for a wrong point or order.
    """
    if kind is PointKind.SEQUENCE:
        _check_active(state, since, until)
    done = [a for a in state.completed_writes() if a.state is State.COMPLETED]
    if kind is PointKind.SEQUENCE:
        _check_rewritten(state, since, until)
    before = frozenset(_through(state, kind, done, since)) if since else frozenset()
    through = frozenset(_through(state, kind, done, until)) if until else frozenset(a.instant for a in done)
    if not before <= through:
        raise InvalidOption(f"changes since {since} until {until}", expected="an end that is not before the start")
    within = [a for a in done if a.instant in through - before]
    written = frozenset(a.instant for a in within if not _moves_rows(a))
    # Apache Hudi's log compactions, delta commits in its listings, write their own instant into the rows that they move. It counts
    # after a write of the range. Tideline's keep the instants of the rows.
    restamped = frozenset(
        a.instant
        for a in within
        if a.operation == LOG_COMPACT
        and (a.is_by_hudi or a.action is not Action.LOG_COMPACTION)
        and any(i < a.instant for i in written)
    )
    return InstantRange(before, through, written | restamped, since)


def with_archived(
    instants: InstantRange, state: TableState, until: str, read: Callable[[str, str], Iterable[ArchivedInstant]]
) -> InstantRange:
    """Return a range of completion times with the archived writes that completed after its start, and those after its end.

    `read` returns what was archived from one instant to another. It is asked only if a write that was under way at the start or at
    the end may be archived.
    """
    begins = _begins(state)

    def completed_after(point: str, known: AbstractSet[str]) -> frozenset[str]:
        oldest = _oldest_beside(point)
        if oldest >= begins:
            return frozenset()
        # Archived writes that began after the point are older than what is known at it only if a savepoint kept that.
        found = read(oldest, begins if known else min(point, begins))
        writes = (a for a in found if a.state is State.COMPLETED and a.action not in _WITHOUT_ROWS and a.time not in state.actions)
        return frozenset(a.time for a in writes if a.completion > point)

    at_start = completed_after(instants.since, instants.before) if not instants.from_start else frozenset[str]()
    at_end = completed_after(until, instants.through) if until else frozenset[str]()
    written = instants.written | (at_start - at_end)
    return replace(instants, written=written, late_at_start=at_start, late_at_end=at_end)


def _begins(state: TableState) -> str:
    """Return the instant that archived writes are older than; savepoints keep single older ones on the timeline."""
    return state.archived_before or min(state.actions, default="")


def _oldest_beside(point: str) -> str:
    """Return the oldest instant of a write that may complete after a point: as for Apache Hudi, none takes a day."""
    try:
        return instant_from_time(time_from_instant(point) - timedelta(days=1))
    except OverflowError:  # the first day of the calendar
        return ""


def _check_rewritten(state: TableState, since: str, until: str) -> None:
    start = _place(state, since)[0] if since else 0
    end = _place(state, until)[0] if until else state.sequence
    for gone in state.rewritten:
        for place, what in ((start, "start"), (end, "end")):
            if gone.first <= place < gone.sequence:
                raise HistoryRewritten(
                    f"the {what} of the requested changes is sequence {place}, among writes that restore {gone.instant} undid",
                    expected=f"a point before sequence {gone.first}, or from {gone.sequence} on",
                    remedy="begin again with a snapshot",
                )


def _check_active(state: TableState, since: str, until: str) -> None:
    """Raise `HistoryUnavailable` for a point before the last archived write: the log no longer contains which writes precede it."""
    last = state.archived_sequence
    for what, point in (("start", since), ("end", until)):
        if point and not (what == "start" and point == "0") and _place(state, point)[0] < last:
            raise HistoryUnavailable(
                f"the {what} of the requested changes, {point}, is before entry {last} of the table log: writes up to it were "
                "archived",
                expected=f"a sequence from {last} on, or the instant of a write from {state.archived_before} on",
                remedy="begin again with a snapshot, and raise hoodie.keep.min.commits to look back further",
            )


def _moves_rows(action: ActionRecord) -> bool:
    return action.is_clustering or action.action is Action.COMPACTION or action.operation in (COMPACT, LOG_COMPACT)


def _through(state: TableState, kind: PointKind, done: Iterable[ActionRecord], point: str) -> list[str]:
    if kind is PointKind.SEQUENCE:
        last, tie = _place(state, point)
        return [a.instant for a in done if a.sequence < last or (a.sequence == last and a.instant <= tie)]
    if not _INSTANT.fullmatch(point):
        raise InvalidOption(
            f"point {point!r} in the history of a table that only Apache Hudi writes", expected="an instant (14 or 17 digits)"
        )
    if kind is PointKind.INSTANT:
        return [a.instant for a in done if a.instant <= point]
    return [a.instant for a in done if completion_time(a) <= point]


def completion_time(action: ActionRecord) -> str:
    """Return the completion time of a write as an instant (version 8 and later), or its own instant if that time is unknown."""
    return action.completion or action.instant


def newest_point(state: TableState, kind: PointKind) -> str:
    """Return the point from which a reader that has read everything continues; empty if there is neither a log nor a write."""
    if kind is PointKind.SEQUENCE:
        return str(state.sequence)
    done = (a for a in state.completed_writes() if a.state is State.COMPLETED)
    return max((a.instant if kind is PointKind.INSTANT else completion_time(a) for a in done), default="")


def newest_write(state: TableState) -> int:
    """Return the sequence of the newest completed write that does not only move rows, or of a newer undo of writes, else 0."""
    writes = (a.sequence for a in state.completed_writes() if not _moves_rows(a))
    return max((*writes, *(gone.sequence for gone in state.rewritten)), default=0)


def writes_after(state: TableState, sequence: int) -> list[ActionRecord]:
    """Return the completed writes after a sequence that do not only move rows, in order of completion.

    Raises `HistoryUnavailable` if the log no longer contains all of them.
    """
    if sequence < state.archived_sequence:
        raise HistoryUnavailable(
            f"writes after sequence {sequence}: those up to entry {state.archived_sequence} of the table log were archived",
            expected=f"a sequence from {state.archived_sequence} on",
            remedy="begin again with a snapshot",
        )
    found = [a for a in state.completed_writes() if a.state is State.COMPLETED and a.sequence > sequence and not _moves_rows(a)]
    return sorted(found, key=lambda a: (a.sequence, a.instant))


def sequence_of(state: TableState, point: str) -> int:
    """Return the table log sequence of a point in a table with a log; errors as `range_of`.

    Raises `HistoryUnavailable` for a point among the writes that were adopted from Apache Hudi: they all have one sequence.
    """
    last, tie = _place(state, point)
    taken_over = (a for a in state.completed_writes() if a.sequence == last and a.writer_id == HUDI_WRITER)
    later = [a.instant for a in taken_over if a.instant > tie]
    if later or (not is_sequence(point) and not last and state.archived_before):
        raise HistoryUnavailable(
            f"point {point}, which lies before the table had a table log",
            expected=f"a sequence, or an instant from {max(later, default=state.archived_before)} on",
            remedy="begin again with a snapshot",
        )
    return last


def _place(state: TableState, point: str) -> tuple[int, str]:
    """Return the last sequence that a point includes, and the last instant that it includes among the writes with that sequence."""
    if is_sequence(point):
        if int(point) > state.sequence:
            raise InstantNotFound(f"sequence {point}", expected=f"at most {state.sequence}, the newest entry of the table log")
        return int(point), _LAST_INSTANT
    if not _INSTANT.fullmatch(point):
        raise InvalidOption(f"point {point!r} in the history of the table", expected="a sequence of the table log or an instant")
    known = state.actions.get(point)
    if known is not None:
        if known.state is not State.COMPLETED and known.sequence not in _rewritten_places(state, known):
            raise InstantNotFound(f"instant {point}, which is {known.state}", expected="a completed instant, or a sequence")
        return known.sequence, point
    moment = time_from_instant(point)
    completed = ((a.sequence, a.instant) for a in state.completed_writes() if _ended(a) <= moment)
    return max(completed, default=(0, ""))


def _ended(action: ActionRecord) -> datetime:
    """Return when a write completed: its completion time, which is in the order of the log, or when its entry was recorded."""
    return time_from_instant(action.completion) if action.completion else datetime.fromisoformat(action.since)


def _rewritten_places(state: TableState, known: ActionRecord) -> range:
    """Return the sequences from the first write undone together with `known` up to the undo; empty if `known` was not undone."""
    found = next((r for r in state.rewritten if r.instant == known.fenced_by), None)
    return range(found.first, found.sequence) if found is not None and known.state is State.ROLLED_BACK else range(0)


def holds_archived_files(state: TableState) -> bool:
    """Return whether files of a write are there that the active timeline does not have."""
    every = (i for s in state.every_slice() for i in (s.base_instant, *(log.instant for log in s.log_files)))
    return any(i and i not in state.actions for i in every)


def slices_at(state: TableState, known: AbstractSet[str], late: AbstractSet[str] = frozenset()) -> dict[FileGroupId, FileSlice]:
    """Return the visible slice of each file group as if exactly the actions `known` were complete.

    Instants that are not in the state were archived and count as complete, except those that are `late`.
    """

    def is_known(instant: str) -> bool:
        return not instant or instant in known or (instant not in state.actions and instant not in late)

    found: dict[FileGroupId, FileSlice] = {}
    for group, slices in state.slices.items():
        replaced_by = state.replaced.get(group)
        if replaced_by is not None and is_known(replaced_by):
            continue
        logs: list[LogFile] = []
        for instant in sorted(slices, reverse=True):
            at = slices[instant]
            if at.base_file and not is_known(instant) and instant == min(slices):
                continue  # The group is not there yet; a clustering may have carried log files of earlier writes into it.
            logs[:0] = [log for log in at.log_files if is_known(log.instant)]
            if at.base_file and is_known(instant):
                found[group] = replace(at, log_files=tuple(logs))
                break
        else:
            if logs:
                found[group] = FileSlice(group, min(slices), "", 0, -1, tuple(logs))
    return found


def check_kept(state: TableState, kind: PointKind, instants: InstantRange, *, at_start: bool) -> None:
    """Raise `HistoryUnavailable` if cleaning or archival removed what the state at the start or at the end of the range needs."""
    known = instants.before if at_start else instants.through
    if (at_start and instants.from_start) or (instants.is_whole and not known):
        return
    what = f"the {'start' if at_start else 'end'} of the requested changes"
    after = [a for a in state.completed_writes() if a.instant not in known]
    later = [*(a.instant for a in after), *(instants.late_at_start if at_start else instants.late_at_end)]
    if later and not known and (kind is not PointKind.SEQUENCE or state.archived_before):
        first = min((completion_time(a) if kind is PointKind.COMPLETION else a.instant for a in after), default=_begins(state))
        raise HistoryUnavailable(
            f"{what} is before the active timeline, which begins with {_begins(state)}: earlier writes were archived",
            expected="a later point",
            remedy=f"begin again with a snapshot, or look back to {first} at most",
        )
    if later and (min(later) < state.last_clean_retained or min(later) <= state.whole_since):
        raise HistoryUnavailable(
            f"cleaning removed files that {what} needs",
            expected=f"a point from instant {state.last_clean_retained} on",
            remedy="begin again with a snapshot, and raise hoodie.cleaner.commits.retained to look back further",
        )


def changed_rows(state: TableState, kind: PointKind, current: Snapshot, instants: InstantRange) -> Snapshot:
    """Return a snapshot that reads the rows written in a range and visible at its end: the latest version of each key.

    As in Hudi's incremental query, rows overwritten or deleted before the end are left out. `current` gives schema and merge rule.
    """
    check_kept(state, kind, instants, at_start=False)
    # A row written in the range is in a file of its own write, or of a later action that copied the row.
    found = slices_at(state, instants.through, instants.late_at_end).values()
    slices = [s for s in found if instants.from_start or _is_new(state, s, instants.before)]
    return replace(
        current,
        slices=tuple(sorted(slices, key=lambda s: s.group)),
        rule=rule_at(current, instants.through, instants.late_at_end),
        commit_times=None if instants.from_start else _written_in(state, kind, instants),
    )


def _written_in(state: TableState, kind: PointKind, instants: InstantRange) -> CommitTimes:
    first = _begins(state) if kind is PointKind.COMPLETION else min(state.actions, default="")
    # Writes that Apache Hudi archived are selected by their instants. Writes after a sequence are all in the state.
    taken_over = bool(state.archived_before) and not state.archived_sequence and not is_sequence(instants.since)
    by_instant = kind is not PointKind.SEQUENCE or taken_over
    archived = (instants.since, first) if by_instant and instants.since < first else None
    return CommitTimes(instants.written, archived, instants.late_at_end)


def rule_at(current: Snapshot, known: AbstractSet[str], late: AbstractSet[str] = frozenset()) -> LogRule:
    """Return the merge rule for the state that `slices_at` returns: which log blocks it sees, if it decides visibility by block."""
    visible = current.rule.visible
    if visible is None:
        return current.rule
    return replace(current.rule, visible=replace(visible, completed=visible.completed & known, pending=visible.pending | late))


def _is_new(state: TableState, file_slice: FileSlice, before: AbstractSet[str]) -> bool:
    instants = [file_slice.base_instant] if file_slice.base_file else []
    instants += [log.instant for log in file_slice.log_files]
    # In a table with a log, every accepted start lies after the archived writes.
    archived_before = state.archived_before if state.archived_sequence else ""
    return any(i not in before and (i in state.actions or i >= archived_before) for i in instants)
