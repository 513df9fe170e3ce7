"""Actions on tables: writes and the table services, one package for each; no package imports another.

Each package plans, executes and checks its results. Code that two packages share is in the modules here or in
`tideline_table.coordination`. `restore` runs pending cleans and `recovery` completes restores, so these may import the others.
"""

from tideline_table.action.archival.run import (
    Archival,
    archive,
    request_archival,
    run_archival,
    schedule_archival,
    sweep_half_written,
    sweep_late_files,
)
from tideline_table.action.clean.run import request_clean, run_clean, schedule_clean
from tideline_table.action.clustering.plan import Trigger, cluster_group, plan_clustering
from tideline_table.action.clustering.run import request_clustering, run_clustering, schedule_clustering
from tideline_table.action.compaction.plan import compact_slice, plan_compaction
from tideline_table.action.compaction.run import request_compaction, run_compaction, schedule_compaction
from tideline_table.action.decision import Due, Reason, TableService, action_name
from tideline_table.action.inline import InlineService, run_inline
from tideline_table.action.planned_run import is_run_by_hudi
from tideline_table.action.preview import GroupPreview, Preview, preview_due, preview_plan_of
from tideline_table.action.recovery import roll_back_dead
from tideline_table.action.restore.run import preview_restore, restore_to_savepoint
from tideline_table.action.savepoint.run import create_savepoint, delete_savepoint
from tideline_table.action.write.contention import Contention
from tideline_table.action.write.executor import RoutedWrite, ThisProcess
from tideline_table.action.write.live_keys import all_deleted_keys, may_delete
from tideline_table.action.write.partition import write_partition_metafile
from tideline_table.action.write.run import (
    OnConflict,
    check_moves,
    closed_to_inserts,
    combines_input,
    delete_partitions,
    in_transaction,
    overwrite_of,
    write_context,
    write_rows,
    write_with_retries,
)
from tideline_table.action.write.schema_change import TargetSchema, check_sort_columns, target_schema
from tideline_table.action.write.transaction import EARLY_CHECK_S, LookUp, WriteTransaction, inserted_hashes
from tideline_table.action.write.write_set import AnnouncedCheck

__all__ = [
    "EARLY_CHECK_S",
    "AnnouncedCheck",
    "Archival",
    "Contention",
    "Due",
    "GroupPreview",
    "InlineService",
    "LookUp",
    "OnConflict",
    "Preview",
    "Reason",
    "RoutedWrite",
    "TableService",
    "TargetSchema",
    "ThisProcess",
    "Trigger",
    "WriteTransaction",
    "action_name",
    "all_deleted_keys",
    "archive",
    "check_moves",
    "check_sort_columns",
    "closed_to_inserts",
    "cluster_group",
    "combines_input",
    "compact_slice",
    "create_savepoint",
    "delete_partitions",
    "delete_savepoint",
    "in_transaction",
    "inserted_hashes",
    "is_run_by_hudi",
    "may_delete",
    "overwrite_of",
    "plan_clustering",
    "plan_compaction",
    "preview_due",
    "preview_plan_of",
    "preview_restore",
    "request_archival",
    "request_clean",
    "request_clustering",
    "request_compaction",
    "restore_to_savepoint",
    "roll_back_dead",
    "run_archival",
    "run_clean",
    "run_clustering",
    "run_compaction",
    "run_inline",
    "schedule_archival",
    "schedule_clean",
    "schedule_clustering",
    "schedule_compaction",
    "sweep_half_written",
    "sweep_late_files",
    "target_schema",
    "write_context",
    "write_partition_metafile",
    "write_rows",
    "write_with_retries",
]
