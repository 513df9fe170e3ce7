"""Log files that a completed write left below a compaction that does not read them: rows that were acknowledged and nobody sees.

Writers of a shared table that do not take the common lock leave them (docs/design/observed-tables.md). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tideline_table.file_group.slice import FileGroupId, join_path
from tideline_table.hudi.instant import Action, State
from tideline_table.log.plan import CompactionPlanned
from tideline_table.log.state import TableState


@dataclass(frozen=True, slots=True)
class HiddenLog:
    """A log file that the compaction after it does not read."""

    path: str
    instant: str
    """The write that was acknowledged."""
    compaction: str


def hidden_logs(state: TableState) -> list[HiddenLog]:
    """Return the hidden log files in order of write and path. Those of a pending compaction are hidden as soon as it completes."""
    if state.sharing is None:
        return []  # the table log refuses a write that began before a compaction of its slice
    pending = state.groups_under_compaction()
    groups = {*state.excess, *pending} - state.replaced.keys()
    found = [hidden for group in groups for hidden in _of_group(state, group, pending.get(group, ""))]
    return sorted(found, key=lambda hidden: (hidden.instant, hidden.path))


def _of_group(state: TableState, group: FileGroupId, planned: str) -> Iterator[HiddenLog]:
    slices = state.slices.get(group, {})
    for start, following in pairwise(sorted({*slices, planned} - {""})):
        compaction = state.actions.get(following)
        if compaction is None or compaction.action is not Action.COMPACTION or start not in slices:
            continue
        read = _logs_read(state, group, following)
        for log in slices[start].log_files:
            write = state.actions.get(log.instant)
            is_late = write is not None and write.state is State.COMPLETED and write.sequence > compaction.started_sequence
            if is_late and log.name not in read:
                yield HiddenLog(join_path(group.partition_path, log.name), log.instant, following)


def _logs_read(state: TableState, group: FileGroupId, compaction: str) -> frozenset[str]:
    """Return the names of the log files that a pending compaction reads in a file group."""
    plan = state.plans.get(compaction)
    operations = plan.plan.get("operations") or () if isinstance(plan, CompactionPlanned) else ()
    own = (o for o in operations if (str(o["partitionPath"] or ""), str(o["fileId"])) == (group.partition_path, group.file_id))
    return frozenset(str(path).rpartition("/")[2] for o in own for path in o["deltaFilePaths"] or ())
