"""Actions on tables: writes and the table services, one package for each; no package imports another.

Each package plans, executes and checks its results. Code that two packages share is in the modules here or in
`tideline_table.coordination`. `restore` runs pending cleans and `recovery` completes restores, so these may import the others.
"""

from tideline_table.action.archival.run import (
    Archival,
    archive,
    delete_half_written,
    delete_late_files,
    request_archival,
    run_archival,
    schedule_archival,
)
from tideline_table.action.clean.plan import CleaningPolicy
from tideline_table.action.clean.run import request_clean, run_clean, schedule_clean
from tideline_table.action.clustering.decision import decide_clustering, why_not_carried_over
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.clustering.plan import Trigger, plan_clustering
from tideline_table.action.clustering.preview import ClusteringPreview, preview_clustering
from tideline_table.action.clustering.ranges import (
    ClusteredRange,
    RangeSplit,
    ranged_rows,
    sample_slice,
    split_ranges,
    whole_group,
    write_range,
)
from tideline_table.action.clustering.received_rows import Sent
from tideline_table.action.clustering.run import cluster_here, request_clustering, run_clustering, schedule_clustering
from tideline_table.action.clustering.task import ClusteredGroup, ClusteringTask, input_bytes, is_split
from tideline_table.action.compaction.plan import compact_slice, plan_compaction
from tideline_table.action.compaction.run import compact_here, request_compaction, run_compaction, schedule_compaction
from tideline_table.action.decision import Check, Due, Reason, TableService, action_name
from tideline_table.action.index.check import check_index, has_metadata_table
from tideline_table.action.index.run import INDEX_TYPES, create_index, drop_index, repair_index
from tideline_table.action.inline import InlineService, run_inline
from tideline_table.action.log_compaction.plan import (
    find_log_compaction_conflict,
    is_mergeable,
    plan_log_compaction,
    planned_slices,
)
from tideline_table.action.log_compaction.run import (
    log_compact_here,
    request_log_compaction,
    run_log_compaction,
    schedule_log_compaction,
    why_not_log_compacted,
)
from tideline_table.action.log_compaction.task import merge_log
from tideline_table.action.maintenance.backlog import Backlog, Objectives, backlog_of, oldest_of
from tideline_table.action.maintenance.cancel import Adopted, Cancelled, adopt, cancel_plan
from tideline_table.action.maintenance.document import (
    failure_document,
    finding_document,
    job_document,
    maintenance_document,
    status_document,
    verdict_document,
)
from tideline_table.action.maintenance.maintain import Step, maintain
from tideline_table.action.maintenance.status import SERVICES, PendingJob, TableStatus, examine, examine_beside, pending_jobs
from tideline_table.action.maintenance.verdict import (
    DEFAULT_TRIGGER,
    Outcome,
    Rules,
    Verdict,
    dead_writers,
    decide,
    judge,
    judge_all,
    service_of,
)
from tideline_table.action.new_rings import NewRings
from tideline_table.action.planned_run import is_run_by_hudi
from tideline_table.action.preview import PREVIEWED, GroupPreview, Preview, preview_due, preview_plan_of
from tideline_table.action.recovery import roll_back_dead
from tideline_table.action.restore.run import preview_restore, restore_to_savepoint
from tideline_table.action.savepoint.run import create_savepoint, delete_savepoint
from tideline_table.action.soundness import pending_bytes, pending_rewrites, plan_bytes, plan_check
from tideline_table.action.write.attempt import OnConflict, in_transaction, write_with_retries
from tideline_table.action.write.backlog import hold_back
from tideline_table.action.write.choices import (
    WriteChoices,
    check_index_state,
    check_moves,
    combines_input,
    in_buckets,
    index_state,
)
from tideline_table.action.write.contention import Contention
from tideline_table.action.write.executor import RoutedWrite, ThisProcess
from tideline_table.action.write.live_keys import all_deleted_keys, may_delete
from tideline_table.action.write.partition import write_partition_metafile
from tideline_table.action.write.partition_deletion import delete_partitions
from tideline_table.action.write.resize import resize_buckets
from tideline_table.action.write.ring_resize import RingResize, resize_rings
from tideline_table.action.write.run import closed_to_inserts, overwrite_of, write_context, write_rows
from tideline_table.action.write.schema_change import TargetSchema, check_sort_columns, target_schema
from tideline_table.action.write.skipped_partition import SkippedPartition, SkipReason, partitions_of_same_number
from tideline_table.action.write.transaction import EARLY_CHECK_S, LookUp, WriteTransaction, inserted_hashes
from tideline_table.action.write.write_set import MarkerCheck

__all__ = [
    "DEFAULT_TRIGGER",
    "EARLY_CHECK_S",
    "INDEX_TYPES",
    "PREVIEWED",
    "SERVICES",
    "Adopted",
    "Archival",
    "Backlog",
    "Cancelled",
    "Check",
    "CleaningPolicy",
    "ClusteredGroup",
    "ClusteredRange",
    "ClusteringPreview",
    "ClusteringTask",
    "Contention",
    "Due",
    "GroupPreview",
    "InlineService",
    "LookUp",
    "MarkerCheck",
    "NewRings",
    "Objectives",
    "OnConflict",
    "Outcome",
    "PendingJob",
    "Preview",
    "RangeSplit",
    "Reason",
    "RingResize",
    "RoutedWrite",
    "Rules",
    "Sent",
    "SkipReason",
    "SkippedPartition",
    "Step",
    "TableService",
    "TableStatus",
    "TargetSchema",
    "ThisProcess",
    "Trigger",
    "Verdict",
    "WriteChoices",
    "WriteTransaction",
    "action_name",
    "adopt",
    "all_deleted_keys",
    "archive",
    "backlog_of",
    "cancel_plan",
    "check_index",
    "check_index_state",
    "check_moves",
    "check_sort_columns",
    "closed_to_inserts",
    "cluster_group",
    "cluster_here",
    "combines_input",
    "compact_here",
    "compact_slice",
    "create_index",
    "create_savepoint",
    "dead_writers",
    "decide",
    "decide_clustering",
    "delete_half_written",
    "delete_late_files",
    "delete_partitions",
    "delete_savepoint",
    "drop_index",
    "examine",
    "examine_beside",
    "failure_document",
    "find_log_compaction_conflict",
    "finding_document",
    "has_metadata_table",
    "hold_back",
    "in_buckets",
    "in_transaction",
    "index_state",
    "input_bytes",
    "inserted_hashes",
    "is_mergeable",
    "is_run_by_hudi",
    "is_split",
    "job_document",
    "judge",
    "judge_all",
    "log_compact_here",
    "maintain",
    "maintenance_document",
    "may_delete",
    "merge_log",
    "oldest_of",
    "overwrite_of",
    "partitions_of_same_number",
    "pending_bytes",
    "pending_jobs",
    "pending_rewrites",
    "plan_bytes",
    "plan_check",
    "plan_clustering",
    "plan_compaction",
    "plan_log_compaction",
    "planned_slices",
    "preview_clustering",
    "preview_due",
    "preview_plan_of",
    "preview_restore",
    "ranged_rows",
    "repair_index",
    "request_archival",
    "request_clean",
    "request_clustering",
    "request_compaction",
    "request_log_compaction",
    "resize_buckets",
    "resize_rings",
    "restore_to_savepoint",
    "roll_back_dead",
    "run_archival",
    "run_clean",
    "run_clustering",
    "run_compaction",
    "run_inline",
    "run_log_compaction",
    "sample_slice",
    "schedule_archival",
    "schedule_clean",
    "schedule_clustering",
    "schedule_compaction",
    "schedule_log_compaction",
    "service_of",
    "split_ranges",
    "status_document",
    "target_schema",
    "verdict_document",
    "whole_group",
    "why_not_carried_over",
    "why_not_log_compacted",
    "write_context",
    "write_partition_metafile",
    "write_range",
    "write_rows",
    "write_with_retries",
]
