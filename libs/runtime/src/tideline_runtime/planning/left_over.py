"""What the last plan of a service left over: it is due by time, although no write came since. Pure.

Thresholds count writes since the last plan. A plan that a budget or a bound on input and output made smaller leaves file groups over, for
which these writes came before it. Where writes end, no threshold would ever make them due.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tideline_table.action import TableService, service_of
from tideline_table.errors import CorruptMetadata
from tideline_table.file_group import FileGroupId, FileSlice
from tideline_table.hudi import State, time_from_instant
from tideline_table.log import ActionRecord, TableState


@dataclass(frozen=True, slots=True)
class LeftOver:
    """File groups that waited already when the last plan was made, and from when on a plan with one of them is due by time."""

    groups: frozenset[FileGroupId]
    due_at: datetime


def left_over(service: TableService, state: TableState, interval_s: float) -> LeftOver | None:
    """Return what the last plan of clustering or compaction left over; None without such a plan, while one is pending, or for nothing.

    A plan that follows must name one of these groups. So each plan leaves fewer of them, and plans end where writes end.
    """
    records = plans_of(service, state)
    done = [record for record in records if record.state is State.COMPLETED]
    if not done or any(record.is_pending for record in records):
        return None
    last = max(done, key=lambda record: record.started_sequence)
    ended = ended_at(last)
    if ended is None:
        return None
    waiting = (s for s in state.latest_slices() if _waited(service, state, s, last.started_sequence))
    groups = frozenset(file_slice.group for file_slice in waiting)
    return LeftOver(groups, ended + timedelta(seconds=interval_s)) if groups else None


def plans_of(service: TableService, state: TableState) -> list[ActionRecord]:
    """Return the actions of a service on the active timeline, in order of instant."""
    return [record for _, record in sorted(state.actions.items()) if service_of(record) is service]


def ended_at(record: ActionRecord) -> datetime | None:
    """Return when the last transition of an action was recorded; of one without this time (Apache Hudi's), the time of its instant."""
    try:
        return datetime.fromisoformat(record.since) if record.since else time_from_instant(record.instant)
    except (ValueError, CorruptMetadata):
        return None


def is_clustered(state: TableState, file_slice: FileSlice) -> bool:
    """Return whether a clustering wrote the slice, and no write changed it since."""
    record = state.actions.get(file_slice.base_instant)
    return record is not None and record.is_clustering and not file_slice.log_files


def _waited(service: TableService, state: TableState, file_slice: FileSlice, sequence: int) -> bool:
    if service is TableService.CLUSTERING:
        return not is_clustered(state, file_slice) and _is_before(state, [file_slice.base_instant], sequence)
    return _is_before(state, (log.instant for log in file_slice.log_files), sequence)


def _is_before(state: TableState, instants: Iterable[str], sequence: int) -> bool:
    """Return whether one of these writes completed before an entry of the log. Writes that are archived did."""
    records = (state.actions.get(instant) for instant in instants)
    return any(record is None or record.sequence < sequence for record in records)
