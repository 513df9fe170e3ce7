"""The record of a table in `tideline.tables`."""

from __future__ import annotations

from datetime import datetime

from tideline_events import PendingPlan, TableIdentity, TableRecord
from tideline_mirror.changes import sharing_text
from tideline_table.action import action_name
from tideline_table.table import Table, health_of


def record_of(
    table: Table, identity: TableIdentity, sequence: int, known: TableRecord | None, now: datetime, fleet: str
) -> TableRecord:
    """Return the record of a refreshed table behind the step `sequence`. `known`: its last record."""
    health, (totals, _) = health_of(table), table.state.totals()
    pending = tuple(PendingPlan(a.instant, action_name(a.action, a.operation), a.state.value) for a in table.state.pending())
    return TableRecord(
        table=identity,
        sequence=sequence,
        time=now,
        last_instant=table.state.last_instant or None,
        pending_plans=pending,
        file_count=totals.files,
        size_bytes=totals.total_bytes,
        log_file_count=totals.log_files,
        log_size_bytes=totals.log_bytes,
        health="healthy" if health.is_healthy else "stuck",
        health_reason="; ".join(health.problems) or None,
        former_uid=table.identity.former_uid if table.identity is not None else None,
        quiet_since=known.quiet_since if known is not None else None,
        sharing=sharing_text(table),
        fleet=fleet,
    )
