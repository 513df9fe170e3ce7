"""Files of a completed write behind a compaction or clustering that does not read them: acknowledged rows that no reader reads.

Writers of a shared table that do not take the common lock leave them (docs/design/observed-tables.md). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, join_path
from tideline_table.hudi.instant import Action, State
from tideline_table.log.action import ActionRecord
from tideline_table.log.plan import CompactionPlanned
from tideline_table.log.state import TableState


@dataclass(frozen=True, slots=True)
class HiddenFile:
    """A file of the write `instant` that the compaction or clustering `behind` does not read.

    `alone` is a slice of this file and no other.
    """

    instant: str
    behind: str
    alone: FileSlice

    @property
    def path(self) -> str:
        """The path relative to the base path."""
        (path,) = self.alone.paths
        return str(path)


def hidden_files(state: TableState) -> list[HiddenFile]:
    """Return the hidden files in order of write and path, without those of writes whose rows were appended again.

    Those of a pending compaction are hidden if Apache Hudi runs it; Tideline's executor reads them, too (`with_late`).
    """
    if state.sharing is None:
        return []  # the table log refuses a write that began before a compaction of its slice
    pending = state.groups_under_compaction()
    groups = {*state.excess, *pending} - state.replaced.keys()
    found = [hidden for group in groups for hidden in _of_group(state, group, pending.get(group, ""))]
    found += [hidden for group, at in state.replaced.items() for hidden in _of_replaced(state, group, at)]
    done = {write for write, by in state.reappended.items() if by not in state.actions or _is_completed(state, by)}
    return sorted((f for f in found if f.instant not in done), key=lambda hidden: (hidden.instant, hidden.path))


def late_logs(state: TableState, compaction: str) -> frozenset[str]:
    """Return the paths of the log files that a pending compaction has to read although its plan does not name them."""
    return frozenset(hidden.path for hidden in hidden_files(state) if hidden.behind == compaction)


def with_late(state: TableState, planned: FileSlice, late: frozenset[str]) -> FileSlice:
    """Return a slice of a compaction plan with the late log files of its group, in the merge order of a reader."""
    partition = planned.group.partition_path
    own = {log.name: log for log in planned.log_files}
    held = [log for found in state.slices.get(planned.group, {}).values() for log in found.log_files]
    added = {log.name: log for log in held if join_path(partition, log.name) in late}
    if not added:
        return planned
    if any(log.merges_earlier for log in own.values()):
        return replace(planned, log_files=(*planned.log_files, *added.values()))  # a reader skips what is before the merged one
    every = {**own, **added}
    return replace(planned, log_files=tuple(every[log.name] for log in held if log.name in every))


def _is_completed(state: TableState, instant: str, after: int = 0) -> bool:
    """Return whether a write completed, behind entry `after` of the table log."""
    write = state.actions.get(instant)
    return write is not None and write.state is State.COMPLETED and write.sequence > after


def _of_replaced(state: TableState, group: FileGroupId, replacing: str) -> Iterator[HiddenFile]:
    """Yield what was written to a file group that a clustering had read: a clustering moves rows, and drops none."""
    clustering = state.actions.get(replacing)
    if clustering is None or not clustering.is_clustering:
        return
    until = clustering.started_sequence if clustering.is_by_hudi else clustering.sequence
    for at, found in state.slices.get(group, {}).items():
        if found.base_file and at != replacing and _is_completed(state, at, until):
            yield HiddenFile(at, replacing, replace(found, log_files=()))
        for log in found.log_files:
            if _is_completed(state, log.instant, until):
                yield HiddenFile(log.instant, replacing, _only(found, log))


def _only(found: FileSlice, log: LogFile) -> FileSlice:
    return FileSlice(found.group, found.base_instant, "", 0, -1, (log,))


def _of_group(state: TableState, group: FileGroupId, planned: str) -> Iterator[HiddenFile]:
    slices = state.slices.get(group, {})
    for start, following in pairwise(sorted({*slices, planned} - {""})):
        compaction = state.actions.get(following)
        if compaction is None or compaction.action is not Action.COMPACTION or start not in slices:
            continue
        # A writer that puts new rows into a small base file leaves another one below that of the compaction.
        if slices[start].base_file and _is_of_a_late_write(state, start, compaction):
            yield HiddenFile(start, following, replace(slices[start], log_files=()))
        read = _logs_read(state, group, following)
        for log in slices[start].log_files:
            if log.name not in read and _is_completed(state, log.instant, _read_until(compaction)):
                yield HiddenFile(log.instant, following, _only(slices[start], log))


def _is_of_a_late_write(state: TableState, at: str, compaction: ActionRecord) -> bool:
    """Return whether a slice begins with the base file of a write that completed behind the plan of the compaction."""
    write = state.actions.get(at)
    is_write = write is not None and write.action is not Action.COMPACTION and not write.is_clustering
    return is_write and _is_completed(state, at, compaction.started_sequence)


def _read_until(compaction: ActionRecord) -> int:
    """Return the sequence of the table log until which a compaction reads the writes of its slices.

    Apache Hudi's executors read what the plan names; one of Tideline reads all that was completed when it completes.
    """
    reads_late = compaction.state is State.COMPLETED and not compaction.is_by_hudi
    return compaction.sequence if reads_late else compaction.started_sequence


def _logs_read(state: TableState, group: FileGroupId, compaction: str) -> frozenset[str]:
    """Return the names of the log files that a pending compaction reads in a file group."""
    plan = state.plans.get(compaction)
    operations = plan.plan.get("operations") or () if isinstance(plan, CompactionPlanned) else ()
    own = (o for o in operations if (str(o["partitionPath"] or ""), str(o["fileId"])) == (group.partition_path, group.file_id))
    return frozenset(str(path).rpartition("/")[2] for o in own for path in o["deltaFilePaths"] or ())
