"""Tasks of a clustering: the input groups of its plan, checked and ready to ship to executors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tideline_table.action.clustering.execution_strategy import STRATEGIES, OrderedBy
from tideline_table.action.clustering.plan_document import strategy_params
from tideline_table.config import (
    CLUSTERING_EXECUTION_STRATEGY,
    CLUSTERING_SORT_COLUMNS,
    CLUSTERING_SPLIT_GROUP_BYTES,
    LAYOUT_STRATEGY,
    Options,
    column_list,
)
from tideline_table.errors import CorruptMetadata, UnsupportedTable
from tideline_table.file_group.slice import FileGroupId, FileSlice, LogFile, SliceVersion, join_path
from tideline_table.hudi.file_names import (
    base_file_name,
    new_file_id,
    parse_base_file_name,
    parse_log_file_name,
    write_token,
)
from tideline_table.hudi.write_stats import WriteStat
from tideline_table.index.bucket import BucketIndex
from tideline_table.index.hash_ring import HashRing
from tideline_table.reader.read_plan import LogRule
from tideline_table.storage import checked_path, root_spellings

_MIB = 1024 * 1024


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
    order: OrderedBy
    schema: pa.Schema
    avro_schema: str
    attempt: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    buckets: BucketIndex | None = None
    """The bucket index of the table, if it has one: then the task has one input and one output, of one bucket."""
    input_bytes: int = 0
    """Size of the input files by the plan; 0: unknown."""
    ring: HashRing | None = None
    """The ring of the partition, if that index is consistent hashing. The output is the file group of the same node in the next
    ring."""

    @property
    def replaces(self) -> tuple[str, ...]:
        """File ids that the output replaces."""
        return tuple(s.group.file_id for s in self.inputs)

    def output(self, number: int) -> tuple[str, str]:
        """Return the file id and the path of the output file with this number, from 0."""
        if self.buckets is None:
            file_id = new_file_id(self.instant, str(self.number), number)
        else:
            own, moved = self.buckets.in_partition(self.partition_path, self.ring), self.inputs[0].group.file_id
            file_id = own.moved_file_id(moved, self.instant, self.partition_path, self.number)
        name = base_file_name(file_id, write_token(self.number, self.attempt), self.instant, self.rule.extension)
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
    rings: Mapping[str, HashRing] | None = None,
) -> list[ClusteringTask]:
    """Return the tasks of a plan. `base_path` is the root of the storage. `rings`: of its partitions, with consistent hashing.

    Raises `CorruptMetadata` and `UnsafePath` for a plan that names files outside of the table, `InvalidOption` for a plan that
    names an execution strategy that is not installed here, `UnsupportedTable` for a plan that takes rows out of their buckets.
    """
    clustering = plan["clusteringPlan"]
    order = planned_order(clustering["strategy"] or {}, options)
    ring_of = (rings or {}).get
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
                f"clustering plan {instant} makes {group['numOutputFileGroups']} file group(s) of {len(slices)}, in a table with "
                f"{buckets.text}",
                expected="one of one: rows stay in their bucket",
                remedy=f"cancel it: tideline job cancel PATH {instant}",
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
                order=order,
                schema=schema,
                avro_schema=avro_schema,
                attempt=attempt,
                options=options.given(),
                buckets=buckets,
                input_bytes=input_bytes(group),
                ring=ring_of(slices[0]["partitionPath"]),
            )
        )
    return tasks


def input_bytes(group: Mapping[str, Any]) -> int:
    """Return the bytes that a group of a plan reads, by its metrics, which count in mebibytes; 0 if the plan does not say."""
    metrics = group.get("metrics")
    found = metrics.get("TOTAL_IO_READ_MB") if isinstance(metrics, Mapping) else None
    return int(found * _MIB) if isinstance(found, int | float) and 0 <= found < math.inf else 0


def is_split(size_bytes: int, output_files: int, options: Options) -> bool:
    """Return whether Spark runs a group of this size as several tasks; a file is always written by one task."""
    return output_files > 1 and size_bytes >= options[CLUSTERING_SPLIT_GROUP_BYTES]


def planned_order(strategy: Mapping[str, Any], options: Options) -> OrderedBy:
    """Return the order of rows that a plan asks for. Apache Hudi's plans name no layout; as in Apache Hudi, the executor's counts.

    Raises `InvalidOption` for an execution strategy that is not installed here.
    """
    params = strategy.get("strategyParams") or {}
    layout = str(params.get(LAYOUT_STRATEGY.key) or options[LAYOUT_STRATEGY])
    name = STRATEGIES.name_of(str(strategy.get("strategyClassName") or "sort-and-size"))
    STRATEGIES.load(name)
    return OrderedBy(
        name, tuple(dict.fromkeys(column_list(params.get(CLUSTERING_SORT_COLUMNS.key, "")))), LAYOUT_STRATEGY.parse(layout)
    )


def executed_strategy(plan: Mapping[str, Any], tasks: Sequence[ClusteringTask]) -> dict[str, str]:
    """Return the execution strategy for the commit.

    The class that the plan names, the sort columns and the layout that was applied.
    """
    named = str((plan["clusteringPlan"]["strategy"] or {}).get("strategyClassName") or "")
    order = tasks[0].order if tasks else OrderedBy()
    return {CLUSTERING_EXECUTION_STRATEGY.key: named, **strategy_params(order)}


def planned_versions(plan: Mapping[str, Any]) -> dict[FileGroupId, SliceVersion]:
    """Return the version of each slice that a plan of Apache Hudi reads."""
    found = {}
    for group in plan["clusteringPlan"]["inputGroups"] or ():
        for document in group["slices"]:
            base = parse_base_file_name(str(document["dataFilePath"] or "").rsplit("/", 1)[-1])
            logs = list(document.get("deltaFilePaths") or ())
            first = parse_log_file_name(str(logs[0]).rsplit("/", 1)[-1]) if logs else None
            instant = base.instant if base is not None else first.instant if first is not None else ""
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
    spelling = next((place for place in root_spellings(root) if uri.startswith(f"{place}/")), None)
    if spelling is None:
        raise CorruptMetadata(f"clustering plan {instant} names {uri!r}", expected=f"files below {root}")
    folder, _, name = checked_path(uri[len(spelling) + 1 :]).rpartition("/")
    if folder != group.partition_path:
        raise CorruptMetadata(f"clustering plan {instant} names {uri!r}", expected=f"a file of partition {group.partition_path!r}")
    return name
