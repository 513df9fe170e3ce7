"""Clustering: rewrite small files of a partition into fewer, larger, sorted files (RFC-19).

The plan names every input slice, the number of output files and the sort columns. Execution leaves no choice and can be repeated,
because output file ids derive from the plan. Each task proves before its commit that it kept the rows: equal counts and key hashes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tideline_table.action.decision import Due, Reason, obstacle
from tideline_table.action.receipt import Prover
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
from tideline_table.errors import CorruptMetadata, SchemaMismatch
from tideline_table.file_group.names import (
    base_file_name,
    new_file_id,
    parse_base_file_name,
    parse_log_file_name,
    write_token,
)
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, SliceVersion, join_path
from tideline_table.hudi.write_stats import NO_PREVIOUS_COMMIT, WriteStat
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
    thresholds apply, too, and no other clustering may be pending. A plan with groups that lost `tideline.clustering.yields` times
    gets priority over writers. Raises `SchemaMismatch` for sort columns that the table does not have.
    """
    forbidden = obstacle(state)
    if forbidden is None and trigger is not None:
        forbidden = _too_early(state, trigger)
    if forbidden is not None:
        return forbidden
    sort_columns = column_list(options[CLUSTERING_SORT_COLUMNS])
    for name in sort_columns:
        if name not in schema.names:
            raise SchemaMismatch(f"sort column {name!r} is not in the schema", expected=f"columns among {', '.join(schema.names)}")
    taken = {*state.groups_under_clustering(), *state.groups_under_compaction()}
    candidates: dict[str, list[FileSlice]] = {}
    for file_slice in state.latest_slices():
        is_free = file_slice.group not in taken and file_slice.group.file_id not in reserved
        if is_free and file_slice.total_bytes < options[CLUSTERING_SMALL_FILE_LIMIT]:
            candidates.setdefault(file_slice.group.partition_path, []).append(file_slice)
    groups: list[list[FileSlice]] = []
    for partition in sorted(candidates, key=lambda p: (-len(candidates[p]), p)):
        slices = candidates[partition]
        if len(slices) >= options[CLUSTERING_MIN_INPUT_FILES]:
            groups += _grouped(slices, options[CLUSTERING_MAX_GROUP_BYTES], options[CLUSTERING_MIN_INPUT_FILES])
    groups = groups[: options[CLUSTERING_MAX_GROUPS]]
    partition, found = max(candidates.items(), key=lambda item: len(item[1]), default=("", []))
    needed = max(options[CLUSTERING_MIN_INPUT_FILES], trigger.min_files if trigger is not None else 0)
    if len(found) < needed:
        return _too_few(state, options, needed)
    if not groups:
        return Reason(f"{CLUSTERING_MAX_GROUP_BYTES.key}={options[CLUSTERING_MAX_GROUP_BYTES]} leaves no group with enough files")
    losses = max(state.clustering_losses.get(s.group, 0) for group in groups for s in group)
    extra = {PRIORITY_KEY: "true"} if losses >= options[CLUSTERING_YIELDS] else {}
    document = {
        "operationType": CLUSTER,
        "clusteringPlan": {
            "inputGroups": [_group_document(group, root, options[CLUSTERING_TARGET_FILE_SIZE]) for group in groups],
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
    return Due(
        ClusteringPlanned(document, read),
        f"{len(found)} small files in partition {partition!r}, {_writes_since_plan(state)} writes since the last plan",
    )


def _too_early(state: TableState, trigger: Trigger) -> Reason | None:
    pending = state.pending_clusterings()
    if pending:
        return Reason(f"clustering {pending[0].instant} is pending")
    commits = _writes_since_plan(state)
    return Reason(f"{commits} of {trigger.min_commits} commits since the last plan") if commits < trigger.min_commits else None


def _writes_since_plan(state: TableState) -> int:
    # Plans that lost or were given up count, too: an immediate retry would meet the same writers.
    since = max((a.started_sequence for a in state.actions.values() if a.is_clustering), default=0)
    return sum(1 for a in state.completed_writes() if a.sequence > since and not a.is_clustering)


def _too_few(state: TableState, options: Options, needed: int) -> Reason:
    limit = CLUSTERING_SMALL_FILE_LIMIT
    reason = f"no partition has {needed} or more files below {limit.key}={options[limit]}"
    pending = ", ".join(a.instant for a in state.pending_clusterings())
    return Reason(f"{reason} besides those of pending plans (pending: {pending})" if pending else reason)


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
        "numOutputFileGroups": max(1, math.ceil(size / target_bytes)),
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

    @property
    def replaces(self) -> tuple[str, ...]:
        """File ids that the output replaces."""
        return tuple(s.group.file_id for s in self.inputs)

    def output(self, number: int) -> tuple[str, str]:
        """Return the file id and the path of the output file with this number, from 0."""
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
) -> list[ClusteringTask]:
    """Return the tasks of a plan. `base_path` is the root of the storage.

    Raises `CorruptMetadata` and `UnsafePath` for a plan that names files outside of the table.
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
    options = Options(task.options)
    proof = Prover.begin("clustering", task.instant, task.number, schema, task.rule.merging.ordering_field, options)
    read = rows = pa.concat_tables([read_slice(storage, file_slice, schema, task.rule) for file_slice in task.inputs])
    if task.sort_columns:
        rows = rows.sort_by([(name, "ascending") for name in task.sort_columns])
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
        size = write_base_file(storage, path, renamed, task.avro_schema, options)
        # Count the rows of the file itself, because the commit publishes the file and not what was meant to be in it.
        written = read_footer(storage, path).rows
        stats.append(WriteStat(file_id, task.partition_path, path, NO_PREVIOUS_COMMIT, written, size))
    return ClusteredGroup(task.number, read.num_rows, tuple(proof.check(storage, read, stats)))
