"""The engine's facade: create or open a table, read it, write it, run its table services."""

from tideline_table.table.archival import Archival, archive, run_archival, schedule_archival, sweep_half_written, sweep_late_files
from tideline_table.table.compaction import run_compaction, schedule_compaction
from tideline_table.table.create import TableRequest, create_table
from tideline_table.table.definition import TableDefinition, TableType
from tideline_table.table.facade import Table
from tideline_table.table.health import TableHealth, TableSummary, summarise
from tideline_table.table.savepoints import create_savepoint, delete_savepoint, preview_restore, restore_to_savepoint
from tideline_table.table.services import (
    is_run_by_peer,
    roll_back_dead,
    run_clean,
    run_clustering,
    schedule_clean,
    schedule_clustering,
)
from tideline_table.table.sharing import share_table
from tideline_table.table.write import delete_partitions, write_rows

__all__ = [
    "Archival",
    "Table",
    "TableDefinition",
    "TableHealth",
    "TableRequest",
    "TableSummary",
    "TableType",
    "archive",
    "create_savepoint",
    "create_table",
    "delete_partitions",
    "delete_savepoint",
    "is_run_by_peer",
    "preview_restore",
    "restore_to_savepoint",
    "roll_back_dead",
    "run_archival",
    "run_clean",
    "run_clustering",
    "run_compaction",
    "schedule_archival",
    "schedule_clean",
    "schedule_clustering",
    "schedule_compaction",
    "share_table",
    "summarise",
    "sweep_half_written",
    "sweep_late_files",
    "write_rows",
]
