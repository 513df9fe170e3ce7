"""Compaction: merge the log files of a slice into a new base file (format reference 6.2, 11.2).

The plan names every file that a task reads, so execution leaves no choice. Once the plan is on the timeline, new log files of its
file groups belong to the slice that the compaction will create. So writers can append while it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tideline_table.action.compaction.strategy import Candidate, candidates, chosen, strategy_of
from tideline_table.action.decision import Due, NotDue, has_logs, obstacle, taken_groups, why_stopped, within, write_of_hudi
from tideline_table.action.receipt import Prover
from tideline_table.action.side_by_side import MemoryBudget
from tideline_table.config import (
    COMPACTION_DELTA_COMMITS,
    COMPACTION_MAX_GROUPS,
    COMPACTION_MAX_WAIT_COMMITS,
    COMPACTION_STRATEGY,
    Options,
)
from tideline_table.errors import CorruptMetadata
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, join_path
from tideline_table.hudi.file_names import base_file_name, parse_base_file_name, parse_log_file_name, write_token
from tideline_table.hudi.instant import Action, State
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.hash_ring import HashRing
from tideline_table.log.plan import CompactionPlanned
from tideline_table.log.state import TableState
from tideline_table.reader.base_file import DICTIONARY, read_footer
from tideline_table.reader.encoded_slice import encoded, encoded_table, repeated
from tideline_table.reader.file_slice import SliceRows, scan_slice
from tideline_table.reader.read_plan import LogRule
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.storage import Storage, checked_path, task_storage
from tideline_table.writer.base_file import write_base_file
from tideline_table.writer.marker import MarkerType, create_marker

_MB = 1024 * 1024
_MEMORY_PER_DECODED = 3
"""Memory of a slice, compared with the values of its base file: dictionaries are expanded, and an encoder holds a row group."""
_MEMORY_PER_LOG = 10
"""Memory of decoded log rows, compared with their compressed size."""


def _delta_commits_since_compaction(state: TableState) -> int:
    """Return the number of delta commits completed since the last compaction was planned."""
    compactions = [
        a.started_sequence for a in state.actions.values() if a.action is Action.COMPACTION and a.state is not State.ROLLED_BACK
    ]
    last = max(compactions, default=0)
    return sum(
        1 for a in state.actions.values() if a.action is Action.DELTA_COMMIT and a.state is State.COMPLETED and a.sequence > last
    )


def plan_compaction(
    state: TableState,
    options: Options,
    reserved: Collection[str] = (),
    now: datetime | None = None,
    *,
    max_bytes: int | None = None,
    min_commits: int | None = None,
) -> Due | NotDue:
    """Decide whether a compaction is due, and plan it (HoodieCompactionPlan).

    None is due while fewer than `min_commits` delta commits completed since the last plan (None: as many as
    `hoodie.compact.inline.max.delta.commits` says), or if no slice has log files. The strategy in `options` chooses and orders
    the groups; `now` is the day for strategies by days. Groups of pending plans are left out, and file ids in `reserved` unless
    the group is overdue. Raises `InvalidOption` for a strategy by days and a partition without a date. Groups with which the
    plan would read more than `max_bytes` are left out.
    """
    came = _delta_commits_since_compaction(state)
    needed = options[COMPACTION_DELTA_COMMITS] if min_commits is None else min_commits
    forbidden, writing = obstacle(state), write_of_hudi(state)
    if forbidden is not None:
        # Without a `behind`, a planner does not look for the end of a write behind which it may not plan either.
        is_all = writing is not None and came >= needed and why_stopped(state) is None
        return replace(forbidden, behind=writing.instant) if writing is not None and is_all else forbidden
    if came < needed:
        return NotDue(
            f"{came} delta commit(s) since the last compaction, {COMPACTION_DELTA_COMMITS.key}={needed}",
            f"{needed - came} more delta commit(s), or a smaller {COMPACTION_DELTA_COMMITS.key}",
        )
    taken = taken_groups(state)
    found = candidates(state, (s for s in state.each_latest(has_logs) if s.log_files and s.group not in taken))
    free = [c for c in found if c.group.file_id not in reserved or _is_overdue(c, options)]
    due = chosen(free, options, (now or datetime.now(UTC)).date())
    picked = list(within(due, max_bytes, lambda c: c.file_slice.total_bytes))[: options[COMPACTION_MAX_GROUPS]]
    if due and not picked:
        return NotDue(f"no slice with log files has {max_bytes} bytes or less")
    if not picked and free:
        why = f"{COMPACTION_STRATEGY.key}={strategy_of(options)} leaves out {len(free)}"
        return NotDue(f"no group is due: {why}", f"more log files, or another {COMPACTION_STRATEGY.key}")
    if not picked:
        return NotDue("no file group outside of pending plans has log files", "an update, or the end of the pending plans")
    left_out = {*taken, *(c.group for c in found)} - {c.group for c in picked}
    document = {
        "operations": [_operation(c.file_slice) for c in picked],
        # In `strategy`, Apache Hudi looks for the class that runs the plan, not for the one that made it.
        "extraMetadata": {COMPACTION_STRATEGY.key: strategy_of(options).value},
        "version": 2,
        "strategy": None,
        "preserveHoodieMetadata": True,
        # Apache Hudi 1.2 plans for what was written since the last compaction and for these partitions, and forgets all others.
        "missingSchedulePartitions": sorted({group.partition_path for group in left_out}) if state.sharing else None,
    }
    overdue = sum(_is_overdue(c, options) for c in picked)
    why = f"{came} delta commits since the last plan; strategy {strategy_of(options)}"
    return Due(CompactionPlanned(document), f"{why}, {overdue} overdue group(s) first" if overdue else why)


def _is_overdue(candidate: Candidate, options: Options) -> bool:
    limit = options[COMPACTION_MAX_WAIT_COMMITS]
    return bool(limit) and candidate.waited >= limit


def _log_bytes(file_slice: FileSlice) -> int:
    return sum(log.size_bytes for log in file_slice.log_files)


def _operation(file_slice: FileSlice) -> dict[str, Any]:
    read, written = file_slice.total_bytes / _MB, file_slice.size_bytes / _MB
    return {
        "baseInstantTime": file_slice.base_instant,
        "deltaFilePaths": [log.name for log in file_slice.log_files],
        "dataFilePath": file_slice.base_file or None,
        "fileId": file_slice.group.file_id,
        "partitionPath": file_slice.group.partition_path,
        "metrics": {
            # Apache Hudi's executor fails on a plan without TOTAL_LOG_FILES_SIZE.
            "TOTAL_LOG_FILES_SIZE": float(_log_bytes(file_slice)),
            "TOTAL_LOG_FILES": float(len(file_slice.log_files)),
            "TOTAL_IO_READ_MB": read,
            "TOTAL_IO_WRITE_MB": written,
            "TOTAL_IO_MB": read + written,
        },
        "bootstrapFilePath": None,
    }


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """One operation of a plan, ready to ship to executors."""

    base_path: str
    instant: str
    number: int
    file_slice: FileSlice
    rule: LogRule
    schema: pa.Schema
    avro_schema: str
    attempt: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    buckets: BucketIndex | None = None
    """The bucket index of the table, if it has one."""
    ring: HashRing | None = None
    """The ring of the partition, if that index is consistent hashing."""

    @property
    def path(self) -> str:
        """The path of the base file that the task writes."""
        group = self.file_slice.group
        name = base_file_name(group.file_id, write_token(self.number, self.attempt), self.instant, self.rule.extension)
        return join_path(group.partition_path, name)


def compaction_tasks(
    base_path: str,
    instant: str,
    plan: Mapping[str, Any],
    rule: LogRule,
    schema: pa.Schema,
    avro_schema: str,
    attempt: int,
    options: Options,
    buckets: BucketIndex | None = None,
    rings: Mapping[str, HashRing] | None = None,
) -> list[CompactionTask]:
    """Return the tasks of a plan.

    `rings`: of its partitions, with consistent hashing. Raises `CorruptMetadata` and `UnsafePath` for a plan that names files
    outside of the table.
    """
    given, found = options.given(), [_planned_slice(o, instant) for o in plan["operations"]]
    ring_of = (rings or {}).get
    return [
        CompactionTask(
            base_path, instant, number, s, rule, schema, avro_schema, attempt, given, buckets, ring_of(s.group.partition_path)
        )
        for number, s in enumerate(found)
    ]


def _planned_slice(operation: Mapping[str, Any], instant: str) -> FileSlice:
    partition = str(operation["partitionPath"] or "")
    group = FileGroupId(partition, str(operation["fileId"]))
    base = str(operation["dataFilePath"] or "").rsplit("/", 1)[-1]
    logs = []
    for path in operation["deltaFilePaths"] or ():
        name = str(path).rsplit("/", 1)[-1]
        parsed = parse_log_file_name(name)
        if parsed is None or parsed.file_id != group.file_id:
            raise CorruptMetadata(f"compaction plan {instant} names {name!r}", expected=f"log files of file group {group.file_id}")
        logs.append(LogFile(checked_path(name), 0, "", parsed.version))
    named = parse_base_file_name(base) if base else None
    if base and (named is None or named.file_id != group.file_id):
        raise CorruptMetadata(f"compaction plan {instant} names {base!r}", expected=f"a base file of file group {group.file_id}")
    checked_path(join_path(partition, base or "x"))
    return FileSlice(group, str(operation["baseInstantTime"]), base, 0, -1, tuple(logs))


def compact_slice(
    task: CompactionTask, storage: Storage | None = None, memory: MemoryBudget | None = None, *, one_thread: bool = True
) -> WriteStat:
    """Merge one slice into a base file of the compaction's instant; the file has no rows if all were deleted.

    Waits for its share of `memory`, if given. `one_thread`: other tasks use the other processors. Raises `UnsupportedTable`,
    before it writes, for a row that belongs to another bucket, and `VerificationFailed` if what it reads back from the file is
    not what it merged.
    """
    storage = storage or task_storage(task.base_path)
    found = task.file_slice
    footers = [read_footer(storage, found.path, with_dictionaries=True, with_pairs=True)] if found.base_file else []
    rule = encoded(replace(task.rule, one_thread=one_thread), with_meta_fields(task.schema), footers)
    pairs = footers[0].pairs if footers else {}
    if memory is None:
        return _compact_slice(task, storage, rule, pairs)
    values_bytes = sum(footer.decoded_bytes for footer in footers)
    stored_bytes = sum(storage.stat(path).size_bytes for path in found.applied.log_paths)
    with memory.hold(_MEMORY_PER_DECODED * values_bytes + _MEMORY_PER_LOG * stored_bytes):
        return _compact_slice(task, storage, rule, pairs)


def _compact_slice(task: CompactionTask, storage: Storage, rule: LogRule, pairs: Mapping[bytes, bytes]) -> WriteStat:
    """Do as `compact_slice`. `pairs`: the key-value metadata of the base file."""
    schema = with_meta_fields(task.schema)
    file_slice = task.file_slice
    group = file_slice.group
    options = Options(task.options)
    proof = Prover.begin(
        "compaction", task.instant, task.number, schema, task.rule.merging.ordering_field, options, one_thread=rule.one_thread
    )
    scan = SliceRows(scan_slice(storage, file_slice, schema, rule))
    rows = encoded_table(scan, schema, rule)
    if task.buckets is not None:
        task.buckets.in_partition(group.partition_path, task.ring).check_members(group.file_id, rows.column(MetaField.RECORD_KEY))
    path = task.path
    name = repeated(path.rsplit("/", 1)[-1], rows.num_rows)
    position = schema.get_field_index(MetaField.FILE_NAME)
    renamed = rows.set_column(position, schema.field(position).with_type(DICTIONARY), name)
    create_marker(storage, task.instant, path, MarkerType.MERGE if file_slice.base_file else MarkerType.CREATE)
    written = write_base_file(storage, path, renamed, task.avro_schema, options, pairs if scan.keeps_keys else None)
    stat = WriteStat(
        file_id=group.file_id,
        partition_path=group.partition_path,
        path=path,
        prev_commit=file_slice.base_instant,
        num_writes=rows.num_rows,
        file_size_bytes=written.size_bytes,
        log_files_compacted=len(file_slice.log_files),
        record=written.record,
        statistics=written.statistics,
    )
    (proven,) = proof.check(storage, rows, [stat])
    return proven
