"""Changes of tables themselves: decided from the last published record of a table and its present state, without I/O."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from tideline_events import TableChange, TableIdentity, TableRecord
from tideline_table.table import Table

UNMANAGED = "unmanaged"
"""Health of a table that the mirror knew and no longer reads."""


OBSERVED = "observed"
"""`TableRecord.sharing` of a table that only Apache Hudi writes."""


def sharing_text(table: Table) -> str:
    """Return `TableRecord.sharing`."""
    if not table.capabilities.keeps_log:
        return OBSERVED
    return "exclusive" if table.sharing is None else "shared"


def is_changed(known: TableRecord | None, identity: TableIdentity, sharing: str) -> bool:
    """Return whether a table differs from its last record, or has none."""
    return known is None or known.table != identity or known.health == UNMANAGED or known.sharing not in (None, sharing)


def changes_between(known: TableRecord | None, found: TableRecord, *, moved_from: str | None) -> list[TableChange]:
    """Return what happened to a table between its last record and the present one.

    `moved_from` is the former base path of a table without a record that was adopted after a move; None for a copy.
    """
    first = TableChange(found.table, "created", found.time, found.sequence, former_uid=found.former_uid, fleet=found.fleet or "")
    if known is None:
        return [first if moved_from is None else replace(first, kind="moved", previous=moved_from)]
    before, now = known.table, found.table
    kinds: list[tuple[str, str | None]] = []
    if known.health == UNMANAGED:
        kinds.append(("managed", None))
    if before.base_path != now.base_path:
        kinds.append(("moved", before.base_path))
    if (before.database, before.name) != (now.database, now.name):
        kinds.append(("renamed", f"{before.database}.{before.name}" if before.database else before.name))
    if before.version != now.version:
        kinds.append(("upgraded" if now.version > before.version else "downgraded", str(before.version)))
    if known.sharing not in (None, found.sharing):
        kinds.append(("shared" if found.sharing == "shared" else "unshared", None))
    return [replace(first, kind=kind, previous=previous, former_uid=None) for kind, previous in kinds]


def lost(record: TableRecord, kind: str, time: datetime, reason: str, fleet: str) -> tuple[TableChange, TableRecord]:
    """Return the change that says that a table is dropped or unmanaged, and its record from then on."""
    change = TableChange(record.table, kind, time, record.sequence, reason=reason, fleet=fleet)
    return change, replace(record, time=time, health=UNMANAGED, health_reason=reason)
