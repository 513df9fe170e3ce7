"""Table summaries for operators and services: sizes, pending work, health."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from tideline_table.config import CLUSTERING_PRIORITY_LAPSE_S, INSTANT_SKEW_S
from tideline_table.coordination import is_alive
from tideline_table.hudi.instant import Action, State, instant_from_time, time_from_instant
from tideline_table.log.action import ActionRecord
from tideline_table.table.facade import Table


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
    latest_bytes: int
    total_bytes: int
    rows: int
    """-1 if only a query can count them."""
    mean_file_bytes: int
    actions: dict[str, int]
    health: TableHealth


def summarise(table: Table) -> TableSummary:
    """Return the summary of the table's present state."""
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
        health=health_of(table),
    )


def health_of(table: Table) -> TableHealth:
    """Return pending actions and, as problems, actions that no process continues and instants ahead of the clock."""
    state = table.state
    pending, problems = [], []
    for record in state.pending():
        pending.append(f"{record.instant} {record.action} {record.state}")
        # From its request on, a restore blocks all writers, and a clustering with priority blocks updates of its file groups.
        goes_first = record.is_clustering and not record.fenced_by and state.has_priority(record.instant)
        driven = record.state is State.INFLIGHT or record.action is Action.RESTORE
        if not (driven or goes_first) or is_alive(table.storage, record, table.clock, table.options):
            continue
        found = f"{record.action} {record.instant} is {record.state} and "
        found += (
            f"its writer {record.writer_id or 'unknown'} shows no heartbeat"
            if driven
            else f"no executor ran it since {record.since}"
        )
        if goes_first:
            groups, lapse_s = len(state.planned_groups(record.instant)), table.options[CLUSTERING_PRIORITY_LAPSE_S]
            found += f"; it has priority: updates of its {groups} file group(s) wait for it, for {lapse_s:g} s"
        problems.append(f"{found}; run: tideline run {_repair(record)} PATH")
    problems += _skew(table)
    return TableHealth(tuple(pending), tuple(problems))


def _skew(table: Table) -> list[str]:
    """Return the problem of a last instant ahead of this machine's clock; store times show whose clock is wrong. Writes nothing."""
    state, now = table.state, table.clock.now()
    allowed = timedelta(seconds=table.options[INSTANT_SKEW_S])
    present = instant_from_time(now + allowed)
    first = min(
        (a for a in state.actions.values() if a.instant > present), key=lambda a: (a.started_sequence, a.instant), default=None
    )
    if first is None:
        return []
    ahead = time_from_instant(state.last_instant) - now
    found = f"the last instant {state.last_instant} lies {ahead.total_seconds():.0f} s ahead of this machine's clock"
    # Later instants only add milliseconds to this one. Its first entry names the writer, and the store knows when it was written.
    entry = table.timeline.log.read(first.started_sequence) if table.has_log else None
    writer = "Apache Hudi" if first.is_peers or not table.has_log else entry.writer_id if entry else first.writer_id
    brought = f"writer {writer} brought it with {first.instant}"
    if entry is not None:
        at = table.storage.stat(entry.path).modified
        skew = time_from_instant(first.instant) - at
        if skew <= allowed + timedelta(seconds=1):
            behind_s = (at - now).total_seconds()
            return [f"{found}, which lies {behind_s:.0f} s or more behind the time of the store; set it by NTP"]
        brought += f", {skew.total_seconds():.0f} s ahead of the time of the store"
    waits = "writes wait" if table.is_shared else "writes go on above it, compactions wait"
    return [f"{found}: {brought}; set the clock of that writer by NTP, {waits} until that time has come"]


def _repair(record: ActionRecord) -> str:
    """Return the service that ends the action: plans are run again, all other actions are rolled back (`roll_back_dead`)."""
    if record.is_clustering and not record.fenced_by and not record.is_peers:
        return "clustering"
    return {Action.ARCHIVAL: "archival", Action.COMPACTION: "compaction", Action.CLEAN: "clean"}.get(record.action, "rollback")
