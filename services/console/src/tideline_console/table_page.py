"""Facts of one table, read from the table itself: files, partitions, slices, columns, properties, policy, what is kept."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from tideline_cli.fleet import Fleet
from tideline_cli.inspection import mode_of
from tideline_cli.policy_program import explained
from tideline_cli.savepoints import savepoint_documents
from tideline_cli.tables import column_documents
from tideline_console.charts import BarChart, bars, quantile, size_histogram
from tideline_console.instants import KEPT_TABLES
from tideline_console.shared import Recent
from tideline_console.text import bytes_text, count_text, policy_text
from tideline_console.timeline import Kept
from tideline_table.config import MAX_FILE_SIZE, SMALL_FILE_LIMIT
from tideline_table.file_group import FileSlice
from tideline_table.hudi import time_from_instant
from tideline_table.schema import arrow_from_avro
from tideline_table.table import Lease, Table, TableView, leases_of

MOST_PARTITIONS = 90
"""Partitions that the chart draws."""
LISTED = 20
"""Rows of the lists of a table's page."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The newest files of one partition."""

    path: str
    file_groups: int
    size_bytes: int
    log_bytes: int


def kept_of(table: Table) -> list[Kept]:
    """Return savepoints and reader leases of a table. Raises `StorageError`."""
    kept = [
        Kept(
            "Savepoints",
            saved["comment"] or f"savepoint by {saved['user'] or 'unknown'}",
            datetime.fromisoformat(saved["created"]).timestamp()
            if saved["created"]
            else time_from_instant(saved["instant"], table.zone).timestamp(),
            None,
            saved["instant"],
        )
        for saved in savepoint_documents(table)
    ]
    leases: list[Lease] = leases_of(table) if table.capabilities.keeps_leases else []
    kept += [
        Kept(
            "Reader leases",
            lease.reads or lease.holder,
            datetime.fromisoformat(lease.since).timestamp(),
            None if lease.expires is None else lease.expires.timestamp(),
            lease.instant,
        )
        for lease in leases
    ]
    return kept


def facts_of(table: Table, fleet: Fleet, kept: KeptFiles) -> dict[str, Any]:
    """Return what the page of a table shows beside its status and timeline. Raises `StorageError`."""
    definition = table.definition
    policy = explained(fleet.policies, fleet.policies.of(table.storage.root, table.uid))
    return {
        "mode": mode_of(table),
        "version": definition.version,
        "type": definition.type.value,
        "key": definition.keygen.key_fields,
        "partitioned_by": definition.keygen.partition_fields,
        "ordering": definition.ordering_field,
        "has_metadata": table.state.metadata is not None,
        **kept.of(table),
        "columns": column_documents(table.schema) if table.schema_json else [],
        "properties": sorted(definition.properties.items()),
        "policy": {**policy, "values": [{**one, "text": policy_text(one["field"], one["value"])} for one in policy["values"]]},
    }


class KeptFiles:
    """What the files of the tables are that pages asked for last: a page of many files asks every two seconds. Thread-safe."""

    def __init__(self) -> None:
        self._kept = Recent[tuple[TableView, dict[str, Any]]](KEPT_TABLES)

    def of(self, table: Table) -> dict[str, Any]:
        """Return what `_files_of` returns, which a table finds once for each state that it opens or refreshes to."""
        view = table.view()  # Kept beside what is made of it, so that no other view gets its id.
        return self._kept.of(table.storage.root, lambda: (view, _files_of(table)), id(view))[1]


def _files_of(table: Table) -> dict[str, Any]:
    """Return the facts that the newest file slices give."""
    # Numbers only: a table with many file groups has few of its slices in memory at a time.
    base_sizes, logs, most_logs = array("q"), Counter[int](), list[FileSlice]()
    sums: dict[str, tuple[int, int, int]] = {}
    files, rows = 0, 0
    for one in table.state.each_latest():
        files += len(one.paths)
        rows = -1 if rows < 0 or one.rows < 0 or one.log_files else rows + one.rows
        if one.base_file:
            base_sizes.append(one.size_bytes)
        logs[len(one.log_files)] += 1
        if one.log_files:
            most_logs = sorted([*most_logs, one], key=lambda s: -len(s.log_files))[:8]
        count, size_bytes, log_bytes = sums.get(one.group.partition_path, (0, 0, 0))
        sums[one.group.partition_path] = count + 1, size_bytes + one.total_bytes, log_bytes + one.total_bytes - one.size_bytes
    partitions = sorted((Partition(path, *held) for path, held in sums.items()), key=lambda one: (-one.size_bytes, one.path))
    limit, target = table.options[SMALL_FILE_LIMIT], table.options[MAX_FILE_SIZE]
    sizes = [one.size_bytes for one in partitions]
    median = quantile(sizes, 0.5) or 0
    return {
        "files": files,
        "rows": rows if rows >= 0 else None,
        "slices": logs.total(),
        "quantiles": [(name, quantile(base_sizes, share)) for name, share in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9))],
        "size_chart": size_histogram(base_sizes, limit),
        "small_limit": limit,
        "target": target,
        "partitions": partitions[:LISTED],
        "partition_count": len(partitions),
        "partitions_drawn": min(len(partitions), MOST_PARTITIONS),
        "skew": sizes[0] / median if median else None,
        "partition_chart": _partition_chart(partitions),
        "partition_sizes": size_histogram(sizes, 0, "partitions"),
        "most_logs": [slice_row(s) for s in most_logs],
        "log_chart": _log_chart(logs),
        "schema_changes": schema_changes(table.state.schemas),
    }


def schema_changes(schemas: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what changed in the columns of a table, the newest change first, from its schemas by the instants that set them.

    Raises `CorruptMetadata`.
    """
    found: list[dict[str, Any]] = []
    before: dict[str, str] = {}
    for instant, text in sorted(schemas.items())[-LISTED - 1 :]:
        columns = {
            one["name"]: one["type"] + ("" if one["nullable"] else ", required") for one in column_documents(arrow_from_avro(text))
        }
        changes = [f"{name} {kind}" for name, kind in columns.items() if name not in before]
        changed = [f"{name} {before[name]} → {kind}" for name, kind in columns.items() if before.get(name, kind) != kind]
        gone = [name for name in before if name not in columns]
        if changes or changed or gone:
            found.append({"instant": instant, "columns": len(columns), "added": changes, "changed": changed, "dropped": gone})
        before = columns
    return found[::-1][:LISTED]


def facts_document(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts as JSON, without charts."""
    named = {name: value for name, value in facts.items() if not isinstance(value, BarChart)}
    return {
        **named,
        "partitions": [asdict(one) for one in named["partitions"]],
        "properties": dict(named["properties"]),
        "quantiles": dict(named["quantiles"]),
    }


def slice_row(one: FileSlice) -> dict[str, Any]:
    """Return the row of a slice with log files."""
    log_bytes = one.total_bytes - one.size_bytes
    return {
        "partition": one.group.partition_path,
        "file_id": one.group.file_id,
        "log_files": len(one.log_files),
        "log_bytes": log_bytes,
        "ratio": log_bytes / one.size_bytes if one.size_bytes else None,
        "base_instant": one.base_instant,
    }


def _partition_chart(partitions: list[Partition]) -> BarChart:
    shown = partitions[:MOST_PARTITIONS]
    titles = [
        f"{one.path or 'no partition'}: {bytes_text(one.size_bytes)}, {count_text(one.file_groups)} file groups" for one in shown
    ]
    return bars([one.size_bytes for one in shown], titles, labels=[(0, "largest")], sizes=True)


def _log_chart(slices: Mapping[int, int]) -> BarChart:
    """Draw how many slices have which number of log files."""
    counts = [0] * (min(max(slices, default=0), 40) + 1)
    for logs, count in slices.items():
        counts[min(logs, len(counts) - 1)] += count
    titles = [f"{count_text(n)} slices with {at}{' or more' if at == 40 else ''} log files" for at, n in enumerate(counts)]
    step = max(1, len(counts) // 6)
    labels = [(at * 100 / len(counts), str(at)) for at in range(0, len(counts), step)]
    return bars(counts, titles, labels=labels)
