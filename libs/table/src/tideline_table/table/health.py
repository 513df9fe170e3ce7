"""Table summaries for operators and services: sizes, pending work, health."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tideline_table.table.facade import Table
from tideline_table.table.findings import damage_of, problems_of


@dataclass(frozen=True, slots=True)
class TableHealth:
    """Pending actions of a table, and its `problems`: each names what is stuck and what to do."""

    pending: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class TableSummary:
    """A summary of one table at one sequence."""

    name: str
    uid: str
    base_path: str
    type: str
    version: int
    key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...]
    ordering_field: str
    sequence: int
    last_instant: str
    commits: int
    partitions: int
    file_groups: int
    files: int
    """Base and log files on storage, older slices included."""
    latest_files: int
    """Base and log files of the newest slices."""
    latest_bytes: int
    total_bytes: int
    rows: int
    """-1 if only a query can count them."""
    mean_file_bytes: int
    actions: dict[str, int]
    health: TableHealth


def summarise(table: Table) -> TableSummary:
    """Return the summary of the table's present state. Its health includes damage, by listings of partitions (`damage_of`)."""
    state = table.state
    found, _ = state.totals()
    definition, health = table.definition, health_of(table)
    return TableSummary(
        name=definition.name,
        uid=table.uid,
        base_path=table.base_path,
        type=definition.type.value,
        version=definition.version,
        key_fields=definition.keygen.key_fields,
        partition_fields=definition.keygen.partition_fields,
        ordering_field=definition.ordering_field,
        sequence=state.sequence,
        last_instant=state.last_instant,
        commits=len(state.completed_writes()),
        partitions=found.partitions,
        file_groups=found.groups,
        files=found.all_files,
        latest_files=found.files,
        latest_bytes=found.total_bytes,
        total_bytes=found.all_bytes,
        rows=found.rows,
        mean_file_bytes=found.total_bytes // found.groups if found.groups else 0,
        actions=dict(Counter(f"{a.action} {a.state}" for a in list(state.actions.values()))),
        health=replace(health, problems=(*health.problems, *(finding.text for finding in damage_of(table)))),
    )


def health_of(table: Table) -> TableHealth:
    """Return pending actions, and the problems of the table (`problems_of`)."""
    pending = tuple(f"{record.instant} {record.action} {record.state}" for record in table.state.pending())
    return TableHealth(pending, tuple(finding.text for finding in problems_of(table)))
