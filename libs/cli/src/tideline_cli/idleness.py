"""Why a table service has nothing to do: the conditions of the planners, told to people."""

from __future__ import annotations

from tideline_cli.report import size_text
from tideline_table.config import (
    CLEANER_COMMITS_RETAINED,
    CLUSTERING_MIN_INPUT_FILES,
    CLUSTERING_SMALL_FILE_LIMIT,
    COMPACTION_DELTA_COMMITS,
    KEEP_MAX_COMMITS,
    Options,
)
from tideline_table.file_group.savepoint import needed_writes
from tideline_table.file_group.state import TableState
from tideline_table.service.archival import bounds, held_back
from tideline_table.service.compaction import delta_commits_since_compaction
from tideline_table.table import Table
from tideline_table.timeline.instant import Action


def _restoring(state: TableState) -> str:
    return f"restore {state.restoring} is under way; if its process died: tideline run rollback PATH"


def why_no_clustering_plan(state: TableState, options: Options) -> str:
    """The reason for which `schedule_clustering` published nothing."""
    if state.restoring:
        return _restoring(state)
    pending = state.pending_clusterings()
    needed, limit = options[CLUSTERING_MIN_INPUT_FILES], options[CLUSTERING_SMALL_FILE_LIMIT]
    rest = " besides those of pending plans" if pending else ""
    reason = f"no partition has {needed} or more files below {size_text(limit)}{rest}"
    return f"{reason} (pending: {', '.join(a.instant for a in pending)})" if pending else reason


def why_no_compaction_plan(state: TableState, options: Options) -> str:
    """The reason for which `schedule_compaction` published nothing."""
    if state.restoring:
        return _restoring(state)
    needed, came = options[COMPACTION_DELTA_COMMITS], delta_commits_since_compaction(state)
    if came < needed:
        return f"{came} delta commit(s) since the last compaction, {COMPACTION_DELTA_COMMITS.key}={needed}"
    return "no file group outside of pending plans has log files"


def why_no_clean_plan(state: TableState, options: Options) -> str:
    """The reason for which `schedule_clean` published nothing."""
    if state.restoring:
        return _restoring(state)
    pending = [a.instant for a in state.pending() if a.action is Action.CLEAN]
    if pending:
        return f"clean {pending[0]} is pending already; run it first"
    retained, completed = options[CLEANER_COMMITS_RETAINED], len(state.completed_writes())
    if completed <= retained:
        return f"{CLEANER_COMMITS_RETAINED.key}={retained} keeps all {completed} completed writes readable"
    return f"every file is still read by a query of the last {retained} writes, by a pending plan, or by a write under way"


def why_no_archival_plan(table: Table, swept: frozenset[str], state: TableState, options: Options) -> str:
    """The reason for which `schedule_archival` published nothing."""
    pending = [a.instant for a in state.pending() if a.action is Action.ARCHIVAL]
    if pending:
        return f"archival {pending[0]} is pending already; run it first"
    most, completed = bounds(options).most, len(state.completed_writes())
    if completed <= most:
        return f"{KEEP_MAX_COMMITS.key}={most} keeps all {completed} completed writes on the timeline"
    barrier = held_back(state, options, table.clock.now(), needed_writes(table.saved()), swept)
    return f"the timeline cannot begin later than it does: {barrier.reason}"


def why_nothing_to_run(service: str, base_path: str) -> str:
    """The reason for which a run found no plan."""
    return f"no {service} plan is pending; publish one: tideline plan {service} {base_path}"
