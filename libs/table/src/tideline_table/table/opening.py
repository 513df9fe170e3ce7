"""The timeline of a table, by who writes it."""

from __future__ import annotations

from dataclasses import replace

from tideline_table.coordination import (
    ActiveTimeline,
    ExclusiveTimeline,
    HudiTimeline,
    LogReplica,
    OpenHudiTableLock,
    SharedTimeline,
)
from tideline_table.coordination.other_writers import first_unlogged
from tideline_table.errors import UnsupportedTable
from tideline_table.hudi.formats import WRITTEN, created_format, has_version
from tideline_table.merge import Merging
from tideline_table.reader.read_plan import LogRule
from tideline_table.table.definition import TableDefinition
from tideline_table.table.identity import TableIdentity
from tideline_table.table.remains import check_identity_stands, check_log_stands


def open_timeline(
    definition: TableDefinition,
    identity: TableIdentity | None,
    replica: LogReplica,
    hudi_lock: OpenHudiTableLock | None,
    *,
    by_log: bool = False,
) -> tuple[TableIdentity | None, ActiveTimeline]:
    """Return the identity and the timeline of a table, loaded. The identity is None if the table has no log that can be used.

    An exclusive table that Apache Hudi upgraded or wrote is read by its timeline only: since then, the log lacks writes. One
    that was not upgraded is read `by_log` by services, which follow the log. Raises `CorruptMetadata` for an exclusive table whose
    properties differ from those of its creation (`TableIdentity.check_declared`), `UnsupportedTable` for one whose properties
    say another version without the timeline of it, and `TableIncomplete` if the log, the identity or the timeline was lost.
    """
    if identity is None:
        check_identity_stands(replica)
        return None, HudiTimeline(replica, definition.properties)
    replica.uid = identity.uid
    replica.load()
    check_log_stands(replica)
    sharing = replica.state.sharing
    created = created_format(identity.declared)
    if not has_version(definition.version, created):
        if sharing is None and created == WRITTEN and definition.format.timeline_folder == created.timeline_folder:
            raise UnsupportedTable(
                f"table {definition.name!r} is Tideline's, yet has version {definition.version}",
                expected=f"version {WRITTEN.version}: an upgrade would have changed the layout of the timeline, too",
                remedy="restore hoodie.properties",
            )
        return None, HudiTimeline(replica, definition.properties, created)
    if sharing is None:
        identity.check_declared(definition.properties)
        alone = ExclusiveTimeline(replica, _rule_of(definition))
        if not by_log and first_unlogged(alone) is not None:
            return None, HudiTimeline(replica, definition.properties, created)
        return identity, alone
    opened = hudi_lock(replica.storage, sharing, replica.log.writer_id, replica.clock, replica.options) if hudi_lock else None
    shared = SharedTimeline(replica, opened)
    if (rule := _rule_of(definition)) is not None:
        shared.rule = replace(rule, merging=replace(rule.merging, forgets_deletions=False))
    shared.refresh_view()
    return identity, shared


def _rule_of(definition: TableDefinition) -> LogRule | None:
    """Return the rule that merges the log files of an exclusive table, whatever its state; None if Tideline cannot merge them."""
    try:
        return LogRule(
            merging=replace(definition.merging, forgets_deletions=True)
            if definition.has_logs
            else Merging(ordering_field=definition.ordering_field),
            keygen=None if definition.has_meta_fields else definition.keygen,
            path_columns=definition.path_columns,
            extension=definition.extension,
        )
    except UnsupportedTable:
        # Reads and writes of rows raise this error themselves. Without rows, the table can be opened and shown.
        return None
