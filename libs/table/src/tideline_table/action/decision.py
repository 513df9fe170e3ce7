"""The names of table services, and the result of deciding about one: a plan, or the reason why there is none."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TypeVar

from tideline_table.config import CLUSTERING_SMALL_FILE_LIMIT, CLUSTERING_TARGET_FILE_SIZE, Options
from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.instant import CLUSTER, WRITE_ACTIONS, Action, State, time_from_instant
from tideline_table.log.action import ActionRecord
from tideline_table.log.part_summary import PartSummary
from tideline_table.log.plan import Plan
from tideline_table.log.state import TableState

T = TypeVar("T")


class TableService(enum.StrEnum):
    """The table services, by the names used in commands, events, metrics and applications."""

    CLUSTERING = "clustering"
    COMPACTION = "compaction"
    LOG_COMPACTION = "logcompaction"
    CLEAN = "clean"
    ARCHIVAL = "archival"
    ROLLBACK = "rollback"


def action_name(action: Action, operation: str) -> str:
    """Return the name of an action in events: a clustering is named after its table service, not after its replace commit."""
    return TableService.CLUSTERING if action is Action.REPLACE_COMMIT and operation == CLUSTER else action.value


def service_of(record: ActionRecord) -> TableService | None:
    """Return the table service that made an action, None for a write or a restore."""
    if record.is_clustering:
        return TableService.CLUSTERING
    return _BY_ACTION.get(record.action)


_BY_ACTION = {
    Action.COMPACTION: TableService.COMPACTION,
    Action.LOG_COMPACTION: TableService.LOG_COMPACTION,
    Action.CLEAN: TableService.CLEAN,
    Action.ARCHIVAL: TableService.ARCHIVAL,
    Action.ROLLBACK: TableService.ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class Trigger:
    """Planner thresholds for a clustering that no user requested."""

    min_files: int
    """Minimum number of candidates in at least one partition."""
    min_commits: int
    """Minimum number of writes completed since the last plan."""
    max_bytes: int | None = None
    """Most input of the plan, in bytes; None: as much as the options allow."""
    counts_lost: bool = False
    """Whether a clustering that was rolled back counts as the last plan. For a planner without a back-off: at once, it would meet
    the same writers again."""


@dataclass(frozen=True, slots=True)
class Due:
    """A plan to publish on the timeline, and one line that says why it is due."""

    body: Plan
    reason: str


@dataclass(frozen=True, slots=True)
class NotDue:
    """One line that says why there is nothing to plan, and one that says what would change it (empty: only the table's kind)."""

    reason: str
    until: str = ""
    behind: str = ""
    """The instant of the pending write of Apache Hudi whose end alone a plan that is due waits for."""


Check = Callable[[TableState, Due], NotDue | None]
"""A last look at a plan, on the state on which it is published: the reason against it, or None."""


def within(found: Iterable[T], max_bytes: int | None, size_of: Callable[[T], int]) -> Iterator[T]:
    """Yield the items, in their order, that together have at most `max_bytes` (None: all). One that does not fit is passed over."""
    left = max_bytes
    for item in found:
        if left is not None:
            if size_of(item) > left:
                continue
            left -= size_of(item)
        yield item


def taken_groups(state: TableState) -> dict[FileGroupId, str]:
    """Return file group → instant of the pending plan for which a new clustering or compaction leaves the group out.

    A log compaction counts while it runs, because such a plan would end it. One that has not begun gives way: it has written
    nothing, and a compaction must not wait for a plan that no process runs. One of Apache Hudi counts where completion times
    say the slices: it looks for no conflict, and its rows would come behind the base file that has newer ones. In version 6 the
    state knows no file groups of it.
    """
    running = {a.instant for a in state.pending_log_compactions() if a.state is State.INFLIGHT or a.is_by_hudi}
    merging = {group: at for group, at in state.groups_under_log_compaction().items() if at in running}
    return {**merging, **state.groups_under_clustering(), **state.groups_under_compaction()}


def obstacle(state: TableState, alone: Action | None = None) -> NotDue | None:
    """Return the reason that forbids any plan: a restore, or a pending plan of `alone`, an action with at most one pending plan."""
    if state.restoring:
        return NotDue(
            f"restore {state.restoring} is under way; if its process died: tideline run rollback PATH", "the end of the restore"
        )
    cancelled = next((a.instant for a in state.pending() if a.action is Action.COMPACTION and a.fenced_by), None)
    if cancelled is not None:
        # Until its timeline files are gone, Apache Hudi finds its file groups in a pending plan.
        end = "the end of its cancellation; if its process died: tideline run rollback PATH"
        return NotDue(f"compaction {cancelled} is being cancelled", end)
    if alone is None and (writing := write_of_hudi(state)) is not None:
        found = f"{writing.action} {writing.instant} of Apache Hudi is {writing.state}: plans are made between its writes"
        return NotDue(found, "the end of that write; if its process died: tideline run rollback PATH")
    if alone is not Action.ARCHIVAL and (unlocked := why_stopped(state)) is not None:
        return unlocked
    pending = next((a.instant for a in state.pending() if a.action is alone), None)
    return NotDue(f"{alone} {pending} is pending already; run it first", f"the end of {alone} {pending}") if pending else None


def why_stopped(state: TableState) -> NotDue | None:
    """Return why services stop on a shared table: a writer that does not take the lock loses rows where they plan or clean.

    So they do on probation, while a writer was not yet seen with the lock.
    """
    if not state.unlocked:
        return NotDue(state.probation, state.sharing.probation_ends) if state.sharing and state.probation else None
    instant, writer = list(state.unlocked.items())[-1]
    found = f"write {instant} of Apache Hudi completed without the lock of the table ({writer})"
    return NotDue(found, "its job takes the lock, and then: tideline share PATH --resume")


def write_of_hudi(state: TableState) -> ActionRecord | None:
    """Return a pending write of Apache Hudi in a shared table, whose rows a plan would lose or whose job it would end.

    A writer appends to the slices that it saw when it began, so rewrites are planned between two writes. Which file groups a writer
    touches is not known before it ends, and a writer without the options of sharing has no heartbeat.
    """
    if state.sharing is None:
        return None
    return next((a for a in state.pending() if a.is_by_hudi and a.action in WRITE_ACTIONS and not a.is_clustering), None)


def has_logs(part: PartSummary, _crowd: int) -> bool:
    """Return whether a slice of a part has log files (`TableState.each_latest`)."""
    return part.log_files > 0


def small_file_limit(options: Options) -> int:
    """Return the size below which a slice is small.

    It is held below the target size: outputs of clustering are no candidates again.
    """
    return min(options[CLUSTERING_SMALL_FILE_LIMIT], options[CLUSTERING_TARGET_FILE_SIZE])


def oldest_of(instants: Iterable[str], zone: tzinfo = UTC) -> datetime | None:
    """Return the time of the oldest of these instants in `zone`, None without one."""
    first = min((instant for instant in instants if instant), default="")
    try:
        return time_from_instant(first, zone) if first else None
    except CorruptMetadata:
        return None
