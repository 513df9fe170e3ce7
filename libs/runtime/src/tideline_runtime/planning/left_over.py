"""File groups that the last plan of a service left over. They become due by time, even if no write completed since. Pure.

Thresholds count the writes since the last plan. A budget, or a bound on input and output, can make a plan smaller, so that it
leaves file groups over. The writes to these groups completed before that plan, so the next count excludes them. If no further
writes follow, no threshold would make the groups due.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tideline_table.action import REWRITES, TableService, service_of
from tideline_table.errors import CorruptMetadata
from tideline_table.file_group import FileGroupId
from tideline_table.hudi import State, time_from_instant
from tideline_table.log import ActionRecord, TableState


@dataclass(frozen=True, slots=True)
class LeftOver:
    """File groups with writes from before the last plan, and the time (UTC) from which a plan with one of these groups is due."""

    groups: frozenset[FileGroupId]
    due_at: datetime


def left_over(service: TableService, state: TableState, interval_s: float) -> LeftOver | None:
    """Return the file groups that the last completed plan of a service left over.

    None if the service has no completed plan, if a plan is pending, and if no group is left over. The next plan must name one
    of these groups: then each plan leaves fewer groups over, and without further writes the plans come to an end.
    """
    records = plans_of(service, state)
    done = [record for record in records if record.state is State.COMPLETED]
    if not done or any(record.is_pending for record in records):
        return None
    last = max(done, key=lambda record: record.started_sequence)
    ended = ended_at(last)
    if ended is None:
        return None
    waiting = (s for s in state.latest_slices() if REWRITES[service].waited(state, s, last.started_sequence))
    groups = frozenset(file_slice.group for file_slice in waiting)
    return LeftOver(groups, ended + timedelta(seconds=interval_s)) if groups else None


def plans_of(service: TableService, state: TableState) -> list[ActionRecord]:
    """Return the actions of a service on the active timeline, in order of instant."""
    return [record for _, record in sorted(state.actions.items()) if service_of(record) is service]


def ended_at(record: ActionRecord) -> datetime | None:
    """Return the time of the last transition of an action.

    Of an action of Apache Hudi, for which it is not recorded, the instant's time.

    None if neither can be parsed.
    """
    try:
        return datetime.fromisoformat(record.since) if record.since else time_from_instant(record.instant)
    except (ValueError, CorruptMetadata):
        return None
