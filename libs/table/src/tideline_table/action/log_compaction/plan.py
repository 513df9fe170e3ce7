"""Plans of log compactions: which slices get one log file in place of many (format reference 10.1). Pure.

The merged file has the version of the last log file that it stands for, and a write token that sorts behind that one's. So it
is read directly behind the files that it merges, and before those that writers append meanwhile: no write conflicts with a log
compaction. Readers that do not know COMPACTED_BLOCK_TIMES apply the same changes twice, in the same order, which has the result
of once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tideline_table.action.decision import Due, NotDue, has_logs, obstacle, within
from tideline_table.config import COMPACTION_MAX_GROUPS, LOG_COMPACTION_FILES, LOG_COMPACTION_MAX_BYTES, Options
from tideline_table.errors import CorruptMetadata, WriteConflict
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, join_path
from tideline_table.hudi.file_names import parse_log_file_name
from tideline_table.hudi.format import TableFormat
from tideline_table.hudi.instant import WRITE_ACTIONS
from tideline_table.log.plan import CompactionPlanned
from tideline_table.log.state import TableState
from tideline_table.storage import checked_path

_MB = 1024 * 1024
_STRATEGY = {
    "compactorClassName": "org.apache.hudi.table.action.compact.LogCompactionExecutionHelper",
    "strategyParams": {},
    "version": 1,
}
"""What Apache Hudi writes into plans of log compactions."""


def plan_log_compaction(state: TableState, options: Options, *, max_bytes: int | None = None) -> Due | NotDue:
    """Decide whether a log compaction is due, and plan it (HoodieCompactionPlan).

    It takes the slices of which a reader opens `hoodie.log.compaction.blocks.threshold` log files or more, of at most
    `tideline.log.compaction.max.bytes` together, those with the most files first. File groups in pending plans are left out, and
    slices with which the plan would read more than `max_bytes`.
    """
    forbidden = obstacle(state)
    if forbidden is not None:
        return forbidden
    files, most_bytes = options[LOG_COMPACTION_FILES], options[LOG_COMPACTION_MAX_BYTES]
    taken = {
        *state.groups_under_clustering(),
        *state.groups_under_compaction(),
        *state.groups_under_log_compaction(),
        *state.groups_in_move(),
    }
    free = [s.applied for s in state.each_latest(has_logs) if s.group not in taken and _is_mergeable(s)]
    many = [s for s in free if len(s.log_files) >= files]
    if not many:
        most = max((len(s.log_files) for s in free), default=0)
        return NotDue(
            f"a reader opens at most {most} log file(s) of a slice that is free, {LOG_COMPACTION_FILES.key}={files}",
            f"{files - most} more delta commit(s) to a slice, or a smaller {LOG_COMPACTION_FILES.key}",
        )
    fitting = [s for s in many if log_bytes(s) <= most_bytes]
    if not fitting:
        return NotDue(
            f"{len(many)} slice(s) with {files} log files or more have more log bytes than "
            f"{LOG_COMPACTION_MAX_BYTES.key}={most_bytes}",
            "tideline plan compaction PATH, which merges them with their base files",
        )
    ordered = sorted(fitting, key=lambda s: (-len(s.log_files), s.group))
    picked = list(within(ordered, max_bytes, log_bytes))[: options[COMPACTION_MAX_GROUPS]]
    if not picked:
        return NotDue(f"no slice with {files} log files or more has {max_bytes} log bytes or less", "a larger budget")
    document = {
        "operations": [_operation(s) for s in picked],
        "extraMetadata": {},
        "version": 2,
        "strategy": _STRATEGY,
        "preserveHoodieMetadata": True,
    }
    return Due(CompactionPlanned(document), f"{len(many)} slice(s) have {files} log files or more")


def _is_mergeable(file_slice: FileSlice) -> bool:
    """Return whether the log files of a slice can be merged into one: none of the slice before, and each by one known write."""
    named = (parse_log_file_name(log.name) for log in file_slice.log_files)
    known = all(name is not None and not name.is_cdc for name in named) and all(log.instant for log in file_slice.log_files)
    return known and not file_slice.earlier_logs


def find_log_compaction_conflict(state: TableState, instant: str, planned: tuple[FileSlice, ...]) -> WriteConflict | None:
    """Return why the log compaction `instant` of the slices `planned` cannot complete in `state`; None if it can.

    It gives way to all other actions: to a compaction, planned or completed, and to whatever replaces a file group. Log files that
    writers appended since are no conflict: they are merged behind the new one.
    """
    writing = next((a for a in state.pending() if a.is_by_hudi and a.action in WRITE_ACTIONS and not a.is_clustering), None)
    if writing is not None:
        # It would find a conflict at its commit, because a log compaction completes as a delta commit.
        return _gives_way(f"write {writing.instant} of Apache Hudi is pending", writing.instant)
    changed = max(list(state.schemas)[1:], default="")  # the first one is no change: that of the creation, or of the sharing
    if changed > instant:
        # Its rows may have the new schema, and queries as of its instant read them in the one before.
        return _gives_way(f"the schema of the table was changed by {changed}", changed)
    compacting, moving = state.groups_under_compaction(), state.groups_in_move()
    for read in planned:
        group = read.group
        where = f"file group {group.file_id} in {group.partition_path!r}"
        by = state.replaced.get(group)
        if by is not None:
            return _gives_way(f"{where} was replaced by {by}", by)
        if group in compacting:
            return _gives_way(f"{where} is under compaction {compacting[group]}", compacting[group])
        if group in moving:
            return _gives_way(f"log files of {where} are moved by rollback {moving[group]}", moving[group])
        found = state.latest_slice(group)
        names = [log.name for log in found.applied.log_files[: len(read.log_files)]] if found is not None else []
        if found is None or found.base_instant != read.base_instant or names != [log.name for log in read.log_files]:
            by = found.base_instant if found is not None else instant
            return _gives_way(f"{where} is at slice {by}, with other log files than log compaction {instant} merged", by)
        between = (log.instant for log in found.applied.log_files[len(read.log_files) :] if log.instant < instant)
        if read.log_files[0].instant and (by := next(between, "")):
            # Names say the writes: readers that do not know merged blocks would take it for older than what was merged.
            return _gives_way(f"{where} has a log file of {by}, which had begun before log compaction {instant}", by)
    return None


def _gives_way(found: str, by: str) -> WriteConflict:
    return WriteConflict(found, with_instant=by, remedy="nothing changed; the next plan takes the slice as it is then")


def planned_slices(plan: Mapping[str, Any], instant: str, form: TableFormat) -> tuple[FileSlice, ...]:
    """Return the slices of a plan in a table of this format, with the log files that a task reads.

    Raises `CorruptMetadata` and `UnsafePath` for files outside of the table.
    """
    return tuple(_planned_slice(operation, instant, form) for operation in plan["operations"])


def _planned_slice(operation: Mapping[str, Any], instant: str, form: TableFormat) -> FileSlice:
    group = FileGroupId(str(operation["partitionPath"] or ""), str(operation["fileId"]))
    base_instant = str(operation["baseInstantTime"])
    logs = []
    for path in operation["deltaFilePaths"] or ():
        name = str(path).rsplit("/", 1)[-1]
        parsed = parse_log_file_name(name)
        writer = form.writer_of(parsed) if parsed is not None else ""
        # A name that says its writer does not say its slice.
        if parsed is None or parsed.file_id != group.file_id or (not writer and parsed.instant != base_instant):
            raise CorruptMetadata(f"log compaction plan {instant} names {name!r}", expected=f"log files of slice {base_instant}")
        logs.append(LogFile(checked_path(name), 0, writer, parsed.version))
    checked_path(join_path(group.partition_path, "x"))
    if not logs:
        raise CorruptMetadata(f"log compaction plan {instant} without log files of {group.file_id}", expected="two or more")
    return FileSlice(group, base_instant, str(operation["dataFilePath"] or ""), 0, -1, tuple(logs))


def log_bytes(file_slice: FileSlice) -> int:
    """Return the bytes of the log files of a slice: without its base file, which no log compaction reads."""
    return sum(log.size_bytes for log in file_slice.log_files)


def _operation(file_slice: FileSlice) -> dict[str, Any]:
    size = log_bytes(file_slice)
    return {
        "baseInstantTime": file_slice.base_instant,
        "deltaFilePaths": [log.name for log in file_slice.log_files],
        "dataFilePath": file_slice.base_file or None,
        "fileId": file_slice.group.file_id,
        "partitionPath": file_slice.group.partition_path,
        "metrics": {
            "TOTAL_LOG_FILES_SIZE": float(size),
            "TOTAL_LOG_FILES": float(len(file_slice.log_files)),
            "TOTAL_IO_READ_MB": size / _MB,
            "TOTAL_IO_WRITE_MB": size / _MB,
            "TOTAL_IO_MB": 2 * size / _MB,
        },
        "bootstrapFilePath": None,
    }
