"""Clustering: rewrite small files of a partition into fewer, larger, sorted files (RFC-19).

The plan names every input slice, the number of output files and the sort columns. Execution leaves no choice and can be repeated,
because output file ids derive from the plan. Each task proves before its commit that it kept the rows: equal counts and key hashes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from tideline_table.action.decision import Due, Reason, obstacle, within
from tideline_table.config import (
    CLUSTERING_MAX_GROUP_BYTES,
    CLUSTERING_MAX_GROUPS,
    CLUSTERING_MIN_INPUT_FILES,
    CLUSTERING_SMALL_FILE_LIMIT,
    CLUSTERING_SORT_COLUMNS,
    CLUSTERING_TARGET_FILE_SIZE,
    CLUSTERING_YIELDS,
    Options,
    column_list,
)
from tideline_table.errors import CorruptMetadata, SchemaMismatch, UnsupportedTable, VerificationFailed
from tideline_table.file_group.names import (
    base_file_name,
    bucket_of_file_id,
    new_bucket_file_id,
    new_file_id,
    parse_base_file_name,
    parse_log_file_name,
    write_token,
)
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, SliceVersion, join_path
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, WriteStat
from tideline_table.index.bucket import BucketIndex
from tideline_table.log.action import CLUSTER
from tideline_table.log.plan import PRIORITY_KEY, ClusteringPlanned
from tideline_table.log.state import TableState
from tideline_table.reader.base_file import read_footer
from tideline_table.reader.file_slice import read_slice
from tideline_table.reader.read_plan import LogRule
from tideline_table.schema.meta_fields import MetaField, with_meta_fields
from tideline_table.storage import Storage, checked_path, open_storage
from tideline_table.writer.base_file import write_base_file
from tideline_table.writer.marker import MarkerType, create_marker

EXECUTION_STRATEGY = "org.apache.hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy"
_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Trigger:
    """Planner thresholds for a clustering that no user requested."""

    min_files: int
    """Minimum number of candidates in at least one partition."""
    min_commits: int
    """Minimum number of writes completed since the last plan."""
    max_bytes: int | None = None
    """Most input of the plan, in bytes; None: as much as the options allow."""


def plan_clustering(
    state: TableState,
    root: str,
    options: Options,
    schema: pa.Schema,
    reserved: Collection[str] = (),
    trigger: Trigger | None = None,
) -> Due | Reason:
    """Decide whether a clustering is due, and plan it (HoodieRequestedReplaceMetadata).

    Candidates are file slices whose base file and log files together are small. File groups under another pending plan and file ids
    in `reserved` are left out. Without a `trigger`, a plan is due as soon as a partition has enough candidates. With one, its
    thresholds and its bound apply, too, and no other clustering may be pending. A plan with groups that lost `tideline.clustering.yields` times
    gets priority over writers. Raises `SchemaMismatch` for sort columns that the table does not have.
    """
    forbidden = obstacle(state)
    if forbidden is None and trigger is not None:
        forbidden = _too_early(state, trigger)
    if forbidden is not None:
        return forbidden
    checked_sort_columns(options, schema)
    candidates: dict[str, list[FileSlice]] = {}
    for file_slice in free_slices(state, reserved):
        if file_slice.total_bytes < options[CLUSTERING_SMALL_FILE_LIMIT]:
            candidates.setdefault(file_slice.group.partition_path, []).append(file_slice)
    limit = trigger.max_bytes if trigger is not None else None
    group_bytes = options[CLUSTERING_MAX_GROUP_BYTES] if limit is None else min(limit, options[CLUSTERING_MAX_GROUP_BYTES])
    groups: list[list[FileSlice]] = []
    for partition in sorted(candidates, key=lambda p: (-len(candidates[p]), p)):
        slices = candidates[partition]
        if len(slices) >= options[CLUSTERING_MIN_INPUT_FILES]:
            groups += _grouped(slices, group_bytes, options[CLUSTERING_MIN_INPUT_FILES])
    groups = list(within(groups, limit, lambda group: sum(s.total_bytes for s in group)))[: options[CLUSTERING_MAX_GROUPS]]
    partition, found = max(candidates.items(), key=lambda item: len(item[1]), default=("", []))
    needed = max(options[CLUSTERING_MIN_INPUT_FILES], trigger.min_files if trigger is not None else 0)
    if len(found) < needed:
        return _too_few(state, options, needed, partition, len(found))
    if not groups and limit is not None:
        return Reason(f"no group with enough files has {limit} bytes or less", "a larger budget")
    if not groups:
        return Reason(
            f"{CLUSTERING_MAX_GROUP_BYTES.key}={options[CLUSTERING_MAX_GROUP_BYTES]} leaves no group with enough files",
            f"a larger {CLUSTERING_MAX_GROUP_BYTES.key}",
        )
    why = f"{len(found)} small files in partition {partition!r}, {_writes_since_plan(state)} writes since the last plan"
    return due_plan(state, root, options, groups, why)


def checked_sort_columns(options: Options, schema: pa.Schema) -> tuple[str, ...]:
    """Return the sort columns of the options. Raises `SchemaMismatch` for one that the table does not have."""
    sort_columns = column_list(options[CLUSTERING_SORT_COLUMNS])
    for name in sort_columns:
        if name not in schema.names:
            raise SchemaMismatch(f"sort column {name!r} is not in the schema", expected=f"columns among {', '.join(schema.names)}")
    return sort_columns


def free_slices(state: TableState, reserved: Collection[str]) -> list[FileSlice]:
    """Return the visible slices that no pending plan names and that no writer has reserved."""
    taken = {*state.groups_under_clustering(), *state.groups_under_compaction()}
    return [s for s in state.latest_slices() if s.group not in taken and s.group.file_id not in reserved]


def due_plan(
    state: TableState, root: str, options: Options, groups: Sequence[Sequence[FileSlice]], why: str, *, splits: bool = True
) -> Due:
    """Return the plan that clusters these groups of slices, each into files of its own, for the reason `why`.

    Without `splits`, each group becomes one file, whatever its size.
    """
    target_bytes = options[CLUSTERING_TARGET_FILE_SIZE] if splits else 0
    sort_columns = column_list(options[CLUSTERING_SORT_COLUMNS])
    losses = max(state.clustering_losses.get(s.group, 0) for group in groups for s in group)
    extra = {PRIORITY_KEY: "true"} if losses >= options[CLUSTERING_YIELDS] else {}
    document = {
        "operationType": CLUSTER,
        "clusteringPlan": {
            "inputGroups": [_group_document(group, root, target_bytes) for group in groups],
            "strategy": {
                "strategyClassName": EXECUTION_STRATEGY,
                # Apache Hudi would look for a column with an empty name.
                "strategyParams": {CLUSTERING_SORT_COLUMNS.key: ",".join(sort_columns)} if sort_columns else {},
                "version": 1,
            },
            "extraMetadata": extra,
            "version": 1,
            "preserveHoodieMetadata": True,
        },
        "extraMetadata": {},
        "version": 1,
    }
    # Plans name no group under compaction, so two fields describe the version.
    read = {s.group: SliceVersion(s.version.base_instant, s.version.log_files) for group in groups for s in group}
    return Due(ClusteringPlanned(document, read), why)


def _too_early(state: TableState, trigger: Trigger) -> Reason | None:
    pending = state.pending_clusterings()
    if pending:
        return Reason(f"clustering {pending[0].instant} is pending", f"the end of clustering {pending[0].instant}")
    commits = _writes_since_plan(state)
    if commits >= trigger.min_commits:
        return None
    return Reason(
        f"{commits} of {trigger.min_commits} commits since the last plan",
        f"{trigger.min_commits - commits} more write(s), or a smaller planner setting clustering_min_commits",
    )


def _writes_since_plan(state: TableState) -> int:
    # Plans that lost or were given up count, too: an immediate retry would meet the same writers.
    since = max((a.started_sequence for a in state.actions.values() if a.is_clustering), default=0)
    return sum(1 for a in state.completed_writes() if a.sequence > since and not a.is_clustering)


def _too_few(state: TableState, options: Options, needed: int, partition: str, most: int) -> Reason:
    limit = CLUSTERING_SMALL_FILE_LIMIT
    reason = f"no partition has {needed} or more files below {limit.key}={options[limit]}"
    pending = ", ".join(a.instant for a in state.pending_clusterings())
    until = f"{needed - most} more small file(s) in partition {partition!r}" if most else f"{needed} small files in one partition"
    until += f", or a smaller planner setting clustering_min_files, or a larger {limit.key}"
    return Reason(f"{reason} besides those of pending plans (pending: {pending})" if pending else reason, until)


def _grouped(slices: Sequence[FileSlice], max_bytes: int, min_files: int) -> list[list[FileSlice]]:
    """Return groups of consecutive slices, oldest first, of up to `max_bytes`; groups with too few slices wait for a later plan."""
    groups: list[list[FileSlice]] = []
    current: list[FileSlice] = []
    size = 0
    for file_slice in sorted(slices, key=lambda s: (s.base_instant, s.group)):
        if current and size + file_slice.total_bytes > max_bytes:
            groups.append(current)
            current, size = [], 0
        current.append(file_slice)
        size += file_slice.total_bytes
    groups.append(current)
    return [g for g in groups if len(g) >= min_files]


def _group_document(group: Sequence[FileSlice], root: str, target_bytes: int) -> dict[str, Any]:
    size = sum(s.total_bytes for s in group)
    logs = [log for s in group for log in s.log_files]
    megabytes = float(max(1, round(size / _MB)))
    return {
        "slices": [
            {
                "dataFilePath": f"{root}/{s.path}" if s.base_file else "",
                "deltaFilePaths": [f"{root}/{path}" for path in s.log_paths],
                "fileId": s.group.file_id,
                "partitionPath": s.group.partition_path,
                "bootstrapFilePath": "",
                "version": 1,
            }
            for s in group
        ],
        "metrics": {
            "TOTAL_LOG_FILES": float(len(logs)),
            "TOTAL_LOG_FILES_SIZE": float(sum(log.size_bytes for log in logs)),
            "TOTAL_IO_READ_MB": megabytes,
            "TOTAL_IO_WRITE_MB": megabytes,
            "TOTAL_IO_MB": 2 * megabytes,
        },
        "numOutputFileGroups": max(1, math.ceil(size / target_bytes)) if target_bytes else 1,
        "extraMetadata": None,
        "version": 1,
    }


@dataclass(frozen=True, slots=True)
class ClusteringTask:
    """One input group of a plan, ready to ship to executors."""

    base_path: str
    instant: str
    number: int
    partition_path: str
    inputs: tuple[FileSlice, ...]
    rule: LogRule
    output_files: int
    sort_columns: tuple[str, ...]
    schema: pa.Schema
    avro_schema: str
    attempt: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    buckets: BucketIndex | None = None
    """The bucket index of the table, if it has one: then the task has one input and one output, of one bucket."""

    @property
    def replaces(self) -> tuple[str, ...]:
        """File ids that the output replaces."""
        return tuple(s.group.file_id for s in self.inputs)

    def output(self, number: int) -> tuple[str, str]:
        """Return the file id and the path of the output file with this number, from 0."""
        bucket = bucket_of_file_id(self.inputs[0].group.file_id) if self.buckets is not None else None
        if bucket is not None:
            file_id = new_bucket_file_id(self.instant, self.partition_path, bucket)
        else:
            file_id = new_file_id(self.instant, str(self.number), number)
        name = base_file_name(file_id, write_token(self.number, self.attempt), self.instant)
        return file_id, join_path(self.partition_path, name)


@dataclass(frozen=True, slots=True)
class ClusteredGroup:
    """The result of the task with this number: the row count of its inputs, and the files that now hold these rows."""

    number: int
    rows_read: int
    stats: tuple[WriteStat, ...]


def clustering_tasks(
    base_path: str,
    instant: str,
    plan: Mapping[str, Any],
    rule: LogRule,
    schema: pa.Schema,
    avro_schema: str,
    attempt: int,
    options: Options,
    buckets: BucketIndex | None = None,
) -> list[ClusteringTask]:
    """Return the tasks of a plan. `base_path` is the root of the storage.

    Raises `CorruptMetadata` and `UnsafePath` for a plan that names files outside of the table; `UnsupportedTable` for a plan that takes
    rows out of their buckets.
    """
    clustering = plan["clusteringPlan"]
    params = clustering["strategy"]["strategyParams"] or {}
    sort_columns = column_list(params.get(CLUSTERING_SORT_COLUMNS.key, ""))
    tasks = []
    for number, group in enumerate(clustering["inputGroups"]):
        slices = group["slices"]
        partitions = {s["partitionPath"] for s in slices}
        if len(partitions) != 1:
            raise CorruptMetadata(
                f"clustering plan {instant} with a group over {len(partitions)} partitions", expected="one partition per group"
            )
        if buckets is not None and (len(slices) > 1 or group["numOutputFileGroups"] != 1):
            raise UnsupportedTable(
                f"clustering plan {instant} makes {group['numOutputFileGroups']} file group(s) of {len(slices)}, in a table with {buckets.text}",
                expected="one of one: rows stay in their bucket",
                remedy="roll the plan back: tideline run rollback PATH",
            )
        tasks.append(
            ClusteringTask(
                base_path=base_path,
                instant=instant,
                number=number,
                partition_path=partitions.pop(),
                inputs=tuple(_planned_slice(base_path, s, instant) for s in slices),
                rule=rule,
                output_files=group["numOutputFileGroups"],
                sort_columns=sort_columns,
                schema=schema,
                avro_schema=avro_schema,
                attempt=attempt,
                options=options.given(),
                buckets=buckets,
            )
        )
    return tasks


def planned_versions(plan: Mapping[str, Any]) -> dict[FileGroupId, SliceVersion]:
    """Return the version of each slice that a plan of Apache Hudi reads."""
    found = {}
    for group in plan["clusteringPlan"]["inputGroups"] or ():
        for document in group["slices"]:
            base = parse_base_file_name(str(document["dataFilePath"] or "").rsplit("/", 1)[-1])
            logs = list(document.get("deltaFilePaths") or ())
            first = parse_log_file_name(str(logs[0]).rsplit("/", 1)[-1]) if logs else None
            instant = base.instant if base is not None else first.base_instant if first is not None else ""
            found[FileGroupId(str(document["partitionPath"] or ""), str(document["fileId"]))] = SliceVersion(instant, len(logs))
    return found


def _planned_slice(root: str, document: Mapping[str, Any], instant: str) -> FileSlice:
    group = FileGroupId(document["partitionPath"], document["fileId"])
    logs = []
    for uri in document.get("deltaFilePaths") or ():
        name = _name_in(group, root, uri, instant)
        parsed = parse_log_file_name(name)
        if parsed is None:
            raise CorruptMetadata(f"clustering plan {instant} names {name!r}", expected="a log file")
        logs.append(LogFile(name, 0, "", parsed.version))
    base = _name_in(group, root, document["dataFilePath"], instant) if document["dataFilePath"] else ""
    parsed_base = parse_base_file_name(base)
    if base and parsed_base is None:
        raise CorruptMetadata(f"clustering plan {instant} names {base!r}", expected="a base file")
    return FileSlice(group, parsed_base.instant if parsed_base else "", base, 0, -1, tuple(logs))


def _name_in(group: FileGroupId, root: str, uri: str, instant: str) -> str:
    if not uri.startswith(f"{root}/"):
        raise CorruptMetadata(f"clustering plan {instant} names {uri!r}", expected=f"files below {root}")
    folder, _, name = checked_path(uri[len(root) + 1 :]).rpartition("/")
    if folder != group.partition_path:
        raise CorruptMetadata(f"clustering plan {instant} names {uri!r}", expected=f"a file of partition {group.partition_path!r}")
    return name


def cluster_group(task: ClusteringTask, storage: Storage | None = None) -> ClusteredGroup:
    """Read the inputs of one group, sort them and write the outputs; prove that no row was added, dropped or given another key."""
    storage = storage or open_storage(task.base_path)
    schema = with_meta_fields(task.schema)
    rows = pa.concat_tables([read_slice(storage, file_slice, schema, task.rule) for file_slice in task.inputs])
    before = _key_digest(rows)
    if task.buckets is not None:
        task.buckets.check_members(task.inputs[0].group.file_id, rows.column(MetaField.RECORD_KEY))
    if task.sort_columns:
        rows = rows.sort_by([(name, "ascending") for name in task.sort_columns])
    if _key_digest(rows) != before:
        raise VerificationFailed(
            f"clustering {task.instant} group {task.number}: rows changed", expected="equal counts and key hashes"
        )
    stats = []
    per_file = max(1, math.ceil(rows.num_rows / task.output_files))
    position = rows.schema.get_field_index(MetaField.FILE_NAME)
    for number in range(task.output_files):
        part = rows.slice(number * per_file, per_file)
        if number and not part.num_rows:
            break
        file_id, path = task.output(number)
        name = pa.scalar(path.rsplit("/", 1)[-1])
        renamed = part.set_column(position, schema.field(position), pa.repeat(name, part.num_rows))
        create_marker(storage, task.instant, path, MarkerType.CREATE)
        size = write_base_file(storage, path, renamed, task.avro_schema, Options(task.options))
        # Count the rows of the file itself, because the commit publishes the file and not what was meant to be in it.
        written = read_footer(storage, path).rows
        stats.append(WriteStat(file_id, task.partition_path, path, NO_PREVIOUS_COMMIT, written, size))
    if sum(s.num_writes for s in stats) != before[0]:
        raise VerificationFailed(
            f"clustering {task.instant} group {task.number} wrote {sum(s.num_writes for s in stats)} rows", expected=f"{before[0]}"
        )
    return ClusteredGroup(task.number, before[0], tuple(stats))


def _key_digest(rows: pa.Table) -> tuple[int, int]:
    """Return the row count and the order-independent sum of key hashes."""
    keys = rows.column(MetaField.RECORD_KEY).to_pylist()
    hashes = np.fromiter((xxhash.xxh3_64_intdigest(k.encode()) for k in keys), dtype=np.uint64, count=len(keys))
    return rows.num_rows, int(hashes.sum(dtype=np.uint64))
