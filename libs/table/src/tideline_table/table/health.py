"""What people and services ask of a table: sizes, pending work, health."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tideline_table.config import CLUSTERING_PRIORITY_LAPSE_S
from tideline_table.file_group.action import ActionRecord
from tideline_table.table.facade import Table
from tideline_table.timeline.instant import Action, State
from tideline_table.transaction import is_alive


@dataclass(frozen=True, slots=True)
class TableHealth:
    """Whether something stands still. `problems` say what and what to do."""

    pending: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def is_healthy(self) -> bool:
        """No problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class TableSummary:
    """One table at one sequence."""

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
    latest_bytes: int
    total_bytes: int
    rows: int
    """-1 where only a query would know."""
    mean_file_bytes: int
    actions: dict[str, int]
    health: TableHealth


def summarise(table: Table) -> TableSummary:
    """The summary of the table's present state."""
    state = table.state
    latest = state.latest_slices()
    every = state.every_slice()
    latest_bytes = sum(s.total_bytes for s in latest)
    definition = table.definition
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
        partitions=len({s.group.partition_path for s in latest}),
        file_groups=len(latest),
        files=sum(len(s.paths) for s in every),
        latest_bytes=latest_bytes,
        total_bytes=sum(s.total_bytes for s in every),
        rows=-1 if any(s.rows < 0 or s.log_files for s in latest) else sum(s.rows for s in latest),
        mean_file_bytes=latest_bytes // len(latest) if latest else 0,
        actions=dict(Counter(f"{a.action} {a.state}" for a in list(state.actions.values()))),
        health=health(table),
    )


def health(table: Table) -> TableHealth:
    """Pending actions, and those that nobody drives forward."""
    state = table.state
    pending, problems = [], []
    for record in state.pending():
        pending.append(f"{record.instant} {record.action} {record.state}")
        # A restore keeps everybody out from its request on, a clustering with priority whoever would update its file groups.
        goes_first = record.is_clustering and not record.fenced_by and state.has_priority(record.instant)
        driven = record.state is State.INFLIGHT or record.action is Action.RESTORE
        if not (driven or goes_first) or is_alive(table.storage, record, table.clock, table.options):
            continue
        found = f"{record.action} {record.instant} is {record.state} and "
        found += (
            f"its writer {record.writer_id or 'unknown'} shows no heartbeat" if driven else f"nobody ran it since {record.since}"
        )
        if goes_first:
            groups, lapse_s = len(state.planned_groups(record.instant)), table.options[CLUSTERING_PRIORITY_LAPSE_S]
            found += f"; it has priority: updates of its {groups} file group(s) wait for it, for {lapse_s:g} s"
        problems.append(f"{found}; run: tideline run {_repair(record)} PATH")
    return TableHealth(tuple(pending), tuple(problems))


def _repair(record: ActionRecord) -> str:
    """The service that ends it: plans are run again, everything else is rolled back (`roll_back_dead`)."""
    if record.is_clustering and not record.fenced_by and not record.is_peers:
        return "clustering"
    return {Action.ARCHIVAL: "archival", Action.COMPACTION: "compaction", Action.CLEAN: "clean"}.get(record.action, "rollback")
