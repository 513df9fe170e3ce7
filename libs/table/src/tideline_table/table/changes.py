"""Incremental queries: what was committed after one point of a table's history up to another (format reference 11.5).

In a table that Tideline owns a point is a sequence of the table log, which is the order of completion: a write that began early and
finished late is after the point that a reader kept in between, so nothing is missed, and compaction and clustering, which move rows and
commit none, repeat nothing. In tables of others a point is an instant: of the write (version 6), or of its completion (8 and later).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime

from tideline_table.errors import HistoryRewritten, HistoryUnavailable, InstantNotFound, InvalidOption
from tideline_table.file_group.action import COMPACT, LOG_COMPACT, ActionRecord
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile
from tideline_table.file_group.state import TableState
from tideline_table.reader.read_plan import LogRule
from tideline_table.table.query import CommitTimes, Snapshot
from tideline_table.timeline.instant import Action, State, time_from_instant
from tideline_table.timeline.sharing import PEER_WRITER

_INSTANT = re.compile(r"\d{14}(?:\d{3})?", re.ASCII)
_LAST_INSTANT = "9" * 17
_SEQUENCE = re.compile(r"\d{1,13}", re.ASCII)


def is_sequence(point: str) -> bool:
    """Whether text that names a point is a sequence of the table log; instants have more digits."""
    return _SEQUENCE.fullmatch(point) is not None


class PointKind(enum.Enum):
    """What orders the writes of a table."""

    SEQUENCE = "sequence"
    INSTANT = "instant"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a table's history: the publishing actions that were complete at its start (out) and at its end (in)."""

    before: frozenset[str]
    through: frozenset[str]
    written: frozenset[str]
    """Instants of rows written in between: what moves rows only (clustering, compaction) left out."""
    since: str
    """The start as it was given."""

    @property
    def from_start(self) -> bool:
        """Whether the stretch begins with the table itself."""
        return self.since in ("", "0")


def stretch_of(state: TableState, kind: PointKind, since: str, until: str) -> Stretch:
    """The stretch after `since` (empty: all) up to `until` (empty: now).

    Points are sequences of the table log or instants; for a table that Tideline owns an instant means the completion of that write, or
    for a moment at which none began everything completed by then. Raises `InstantNotFound` for a point that lies ahead,
    `HistoryRewritten` for one behind which writes were taken back since, `InvalidOption` for text that is no point or for an end before the start.
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
    # Apache Hudi's log compactions put their own instant into the rows that they move: those count where one of them was written in the stretch.
    restamped = frozenset(a.instant for a in within if a.operation == LOG_COMPACT and any(i < a.instant for i in written))
    return Stretch(before, through, written | restamped, since)


def _check_rewritten(state: TableState, since: str, until: str) -> None:
    start = _place(state, since)[0] if since else 0
    end = _place(state, until)[0] if until else state.sequence
    for gone in state.rewritten:
        for place, what in ((start, "start"), (end, "end")):
            if gone.first <= place < gone.sequence:
                raise HistoryRewritten(
                    f"the {what} of the changes asked for lies at {place}, behind writes that {gone.instant} took back",
                    expected=f"a point before sequence {gone.first}, or from {gone.sequence} on",
                    remedy="begin again with a snapshot",
                )


def _check_active(state: TableState, since: str, until: str) -> None:
    """Raise `HistoryUnavailable` where writes in the stretch, or in front of its end, were archived: which ones they are is not known any more."""
    last = state.archived_sequence
    for what, point in (("start", since), ("end", until)):
        if point and not (what == "start" and point == "0") and _place(state, point)[0] < last:
            raise HistoryUnavailable(
                f"the {what} of the changes asked for, {point}, lies before entry {last} of the table log: writes up to it were archived",
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
        raise InvalidOption(f"point {point!r} in the history of a table that others write", expected="an instant (14 or 17 digits)")
    if kind is PointKind.INSTANT:
        return [a.instant for a in done if a.instant <= point]
    return [a.instant for a in done if completion_time(a) <= point]


def completion_time(action: ActionRecord) -> str:
    """When a write of a table of version 8 or later completed, as an instant; its own instant where that is not known."""
    return action.since if _INSTANT.fullmatch(action.since) else action.instant


def newest_write(state: TableState) -> int:
    """The sequence of the newest completed write, what only moves rows left out, or of the restore behind it; 0 in a table without one."""
    writes = (a.sequence for a in state.completed_writes() if not _moves_rows(a))
    return max((*writes, *(gone.sequence for gone in state.rewritten)), default=0)


def sequence_of(state: TableState, point: str) -> int:
    """The sequence of the table log that a point of an own table means; errors as `stretch_of`.

    Raises `HistoryUnavailable` for a point in what others wrote before the table had a log: all of that has one sequence.
    """
    last, tie = _place(state, point)
    taken_over = (a for a in state.completed_writes() if a.sequence == last and a.writer_id == PEER_WRITER)
    later = [a.instant for a in taken_over if a.instant > tie]
    if later or (not is_sequence(point) and not last and state.archived_before):
        raise HistoryUnavailable(
            f"point {point}, which lies before the table had a table log",
            expected=f"a sequence, or an instant from {max(later, default=state.archived_before)} on",
            remedy="begin again with a snapshot",
        )
    return last


def _place(state: TableState, point: str) -> tuple[int, str]:
    """The last sequence that a point takes in, and of what has that sequence the last instant."""
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
    completed = ((a.sequence, a.instant) for a in state.completed_writes() if datetime.fromisoformat(a.since) <= moment)
    return max(completed, default=(0, ""))


def _rewritten_places(state: TableState, known: ActionRecord) -> range:
    """Where the stretch lies in which a write that was taken back had completed."""
    found = next((r for r in state.rewritten if r.instant == known.fenced_by), None)
    return range(found.first, found.sequence) if found is not None and known.state is State.ROLLED_BACK else range(0)


def slices_at(state: TableState, known: AbstractSet[str]) -> dict[FileGroupId, FileSlice]:
    """The visible slice of each file group when exactly the actions `known` were complete.

    Instants that the state does not know at all were archived: they count as complete.
    """

    def is_known(instant: str) -> bool:
        return not instant or instant in known or instant not in state.actions

    found: dict[FileGroupId, FileSlice] = {}
    for group, slices in state.slices.items():
        replaced_by = state.replaced.get(group)
        if replaced_by is not None and is_known(replaced_by):
            continue
        logs: list[LogFile] = []
        for instant in sorted(slices, reverse=True):
            at = slices[instant]
            logs[:0] = [log for log in at.log_files if is_known(log.instant)]
            if at.base_file and is_known(instant):
                found[group] = replace(at, log_files=tuple(logs))
                break
        else:
            if logs:
                found[group] = FileSlice(group, min(slices), "", 0, -1, tuple(logs))
    return found


def check_kept(state: TableState, kind: PointKind, stretch: Stretch, *, at_start: bool) -> None:
    """Raise `HistoryUnavailable` when cleaning removed what the state at the start, or at the end, of the stretch reads."""
    if at_start and stretch.from_start:
        return
    known = stretch.before if at_start else stretch.through
    what = f"the {'start' if at_start else 'end'} of the changes asked for"
    later = [a.instant for a in state.completed_writes() if a.instant not in known]
    if later and not known and (kind is not PointKind.SEQUENCE or state.archived_before):
        raise HistoryUnavailable(
            f"{what} lies before the active timeline, which begins with {min(later)}",
            expected="a later point",
            remedy="begin again with a snapshot",
        )
    if later and (min(later) < state.last_clean_retained or min(later) <= state.whole_since):
        raise HistoryUnavailable(
            f"files of {what}, which cleaning removed",
            expected=f"a point from instant {state.last_clean_retained} on",
            remedy="begin again with a snapshot, and raise hoodie.cleaner.commits.retained to look back further",
        )


def changed_rows(state: TableState, kind: PointKind, current: Snapshot, stretch: Stretch) -> Snapshot:
    """What reads the rows written in a stretch that were visible at its end: one per key, its latest version then.

    As Hudi's incremental query: rows that were overwritten or deleted before the end are not in it. `current` gives schema and rule.
    """
    check_kept(state, kind, stretch, at_start=False)
    # A row of the stretch lies in a file of its own write, or of a later action that carried it along.
    slices = [s for s in slices_at(state, stretch.through).values() if stretch.from_start or _is_new(state, s, stretch.before)]
    return replace(
        current,
        slices=tuple(sorted(slices, key=lambda s: s.group)),
        rule=rule_at(current, stretch.through),
        commit_times=None if stretch.from_start else _written_in(state, kind, stretch),
    )


def _written_in(state: TableState, kind: PointKind, stretch: Stretch) -> CommitTimes:
    first = min(state.actions, default="")
    # What was archived is known by its instant only. What Tideline itself writes stays in its state.
    taken_over = bool(state.archived_before) and not state.archived_sequence and not is_sequence(stretch.since)
    by_instant = kind is not PointKind.SEQUENCE or taken_over
    archived = (stretch.since, first) if by_instant and stretch.since < first else None
    return CommitTimes(stretch.written, archived)


def rule_at(current: Snapshot, known: AbstractSet[str]) -> LogRule:
    """The merge rule with only the blocks of `known` instants visible, where blocks tell."""
    visible = current.rule.visible
    if visible is None:
        return current.rule
    return replace(current.rule, visible=replace(visible, completed=visible.completed & known))


def _is_new(state: TableState, file_slice: FileSlice, before: AbstractSet[str]) -> bool:
    instants = [file_slice.base_instant] if file_slice.base_file else []
    instants += [log.instant for log in file_slice.log_files]
    # In a table with a log, what was archived lies before every start that is accepted.
    archived_before = state.archived_before if state.archived_sequence else ""
    return any(i not in before and (i in state.actions or i >= archived_before) for i in instants)
