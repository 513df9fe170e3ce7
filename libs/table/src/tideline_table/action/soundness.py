"""The last look at a plan of clustering, compaction or log compaction before it is published: does it fit the state? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tideline_table.action.decision import Check, Due, NotDue, TableService
from tideline_table.action.service import Rewrite
from tideline_table.action.services import REWRITES
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.hudi.instant import Action
from tideline_table.log.action import ActionRecord
from tideline_table.log.plan import ClusteringPlanned, CompactionPlanned
from tideline_table.log.state import TableState


def plan_bytes(state: TableState, groups: Sequence[FileGroupId], service: TableService) -> int:
    """Return the bytes that a plan of these file groups reads from their latest slices."""
    slices = (found for group in groups if (found := state.latest_slice(group)) is not None)
    return sum(map(REWRITES[service].cost, slices))


def pending_rewrites(state: TableState) -> list[tuple[TableService, ActionRecord]]:
    """Return the pending clusterings, compactions and log compactions.

    The list leaves out log compactions that Apache Hudi planned.
    """
    found = ((name, record) for name, rewrite in REWRITES.items() for record in rewrite.pending(state))
    return [(name, record) for name, record in found if not (record.is_by_hudi and record.action is Action.LOG_COMPACTION)]


def pending_bytes(state: TableState) -> int:
    """Return the bytes that the pending plans of `pending_rewrites` read."""
    return sum(plan_bytes(state, state.planned_groups(record.instant), service) for service, record in pending_rewrites(state))


def plan_check(service: TableService, max_bytes: int | None = None) -> Check:
    """Return the check of a plan of clustering, compaction or log compaction that may read at most `max_bytes` (None: any).

    A plan is refused if it names a file group twice, one that another pending plan takes, one that does not exist or was replaced,
    or files that are not those of the group's latest slice; and a compaction of a slice without log files.
    """
    rewrite = REWRITES[service]

    def check(state: TableState, due: Due) -> NotDue | None:
        if not isinstance(due.body, ClusteringPlanned | CompactionPlanned):
            return None
        groups = due.body.groups
        twice = [group.file_id for group, count in Counter(groups).items() if count > 1]
        taken = rewrite.taken(state)
        met = next((group for group in groups if group in taken), None)
        if not groups or twice:
            return NotDue(f"the plan is not sound: it names {f'file group {twice[0]} twice' if twice else 'no file group'}")
        if met is not None:
            return NotDue(f"the plan overlaps plan {taken[met]}: both name file group {met.file_id}")
        for group, named in zip(groups, _named_files(due.body), strict=True):
            wrong = _misfit(rewrite, state.latest_slice(group), named)
            if wrong:
                return NotDue(f"the plan does not fit the table: file group {group.file_id} {wrong}")
        size = plan_bytes(state, groups, service)
        if max_bytes is not None and size > max_bytes:
            return NotDue(f"the plan reads {size} bytes, of {max_bytes} that are left")
        return None

    return check


def _misfit(rewrite: Rewrite, found: FileSlice | None, named: frozenset[str]) -> str:
    if found is None:
        return "does not exist or was replaced"
    if rewrite.is_for_logs and not found.log_files:
        return "has no log files"
    read = rewrite.reads(found)
    names = {read.base_file} if read.base_file else set()
    return "" if named == names | {log.name for log in read.log_files} else "has other files than the plan names"


def _named_files(plan: ClusteringPlanned | CompactionPlanned) -> list[frozenset[str]]:
    """Return the names of the files that the plan reads, for each of its groups in order."""
    if isinstance(plan, CompactionPlanned):
        found: list[Mapping[str, Any]] = list(plan.plan.get("operations") or ())
    else:
        found = [s for group in plan.plan["clusteringPlan"]["inputGroups"] for s in group["slices"]]
    return [
        frozenset(str(path).rsplit("/", 1)[-1] for path in (one.get("dataFilePath"), *(one.get("deltaFilePaths") or ())) if path)
        for one in found
    ]
