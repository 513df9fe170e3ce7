from .archival.run import archive, delete_half_written, delete_late_files, request_archival, run_archival
from .backlog import EARLY, Backlog, Objectives, Pressure, backlog_of
from .clean.plan import CleaningPolicy
from .clean.run import request_clean, run_clean
from .clustering.execute import cluster_group
from .clustering.plan import plan_clustering
from .clustering.preview import ClusteringPreview, preview_clustering
from .clustering.ranges import RangeSplit, ranged_rows, sample_slice, split_ranges, whole_group, write_range
from .clustering.received_rows import Sent
from .clustering.run import cluster_here, request_clustering, run_clustering
from .clustering.task import ClusteredGroup, ClusteringTask, input_bytes, is_split
from .compaction.plan import compact_slice, plan_compaction
from .compaction.run import request_compaction, run_compaction
from .decision import Check, Due, NotDue, TableService, Trigger, action_name, has_logs, service_of, why_stopped, write_of_hudi
from .inline import InlineService, run_inline
from .log_compaction.plan import (
    find_log_compaction_conflict,
    plan_log_compaction,
    planned_slices,
)
from .log_compaction.run import request_log_compaction, run_log_compaction
from .log_compaction.task import merge_log
from .maintenance.cancel import Cancelled, adopt, cancel_plan, withdraw_plans
from .maintenance.document import failure_document, job_document, maintenance_document, status_document, verdict_document
from .maintenance.late_rows import Reappended, reappend_hidden
from .maintenance.leave import leave
from .maintenance.maintain import maintain
from .maintenance.progress import RunProgress, run_progress
from .maintenance.status import Standing, TableStatus, examine, examine_beside, pending_jobs
from .maintenance.verdict import Outcome, Rules, Verdict, decide, judge, judge_all
from .metadata.check import check_table, has_metadata_table
from .metadata.run import METADATA_TYPES, create_metadata, drop_metadata, repair_metadata
from .new_rings import NewRings
from .planned_run import is_run_by_hudi
from .preview import PREVIEWED, Preview, preview_due, preview_plan_of
from .recovery import roll_back_dead
from .restore.run import preview_restore, restore_to_savepoint
from .savepoint.run import create_savepoint, delete_savepoint
from .service import Ran, Rewrite, Step
from .services import REWRITES, SERVICES
from .soundness import pending_bytes, pending_rewrites, plan_bytes, plan_check
from .write.attempt import Contention, OnConflict, hold_back, in_transaction, write_with_retries
from .write.choices import (
    TargetSchema,
    WriteChoices,
    check_index_state,
    check_sort_columns,
    combines_input,
    in_buckets,
    index_state,
    target_schema,
)
from .write.executor import RoutedWrite, ThisProcess
from .write.expiry import expire_partitions, expire_rows, expired_partitions, expired_rows
from .write.live_keys import all_deleted_keys, may_delete
from .write.partition_deletion import delete_partitions
from .write.resize import resize_buckets
from .write.ring_resize import RingResize, SkippedPartition, SkipReason, partitions_of_same_number, resize_rings
from .write.row_change import ChangeSource, RowChange
from .write.row_source import Reads, RowSource, WriteInput
from .write.run import closed_to_inserts, overwrite_of, write_context, write_partition_metafile, write_rows
from .write.transaction import EARLY_CHECK_S, LookUp, WriteTransaction, inserted_hashes
from .write.write_set import MarkerCheck

__all__ = [
    "EARLY",
    "EARLY_CHECK_S",
    "METADATA_TYPES",
    "PREVIEWED",
    "REWRITES",
    "SERVICES",
    "Backlog",
    "Cancelled",
    "ChangeSource",
    "Check",
    "CleaningPolicy",
    "ClusteredGroup",
    "ClusteringPreview",
    "ClusteringTask",
    "Contention",
    "Due",
    "InlineService",
    "LookUp",
    "MarkerCheck",
    "NewRings",
    "NotDue",
    "Objectives",
    "OnConflict",
    "Outcome",
    "Pressure",
    "Preview",
    "Ran",
    "RangeSplit",
    "Reads",
    "Reappended",
    "Rewrite",
    "RingResize",
    "RoutedWrite",
    "RowChange",
    "RowSource",
    "Rules",
    "RunProgress",
    "Sent",
    "SkipReason",
    "SkippedPartition",
    "Standing",
    "Step",
    "TableService",
    "TableStatus",
    "TargetSchema",
    "ThisProcess",
    "Trigger",
    "Verdict",
    "WriteChoices",
    "WriteInput",
    "WriteTransaction",
    "action_name",
    "adopt",
    "all_deleted_keys",
    "archive",
    "backlog_of",
    "cancel_plan",
    "check_index_state",
    "check_sort_columns",
    "check_table",
    "closed_to_inserts",
    "cluster_group",
    "cluster_here",
    "combines_input",
    "compact_slice",
    "create_metadata",
    "create_savepoint",
    "decide",
    "delete_half_written",
    "delete_late_files",
    "delete_partitions",
    "delete_savepoint",
    "drop_metadata",
    "examine",
    "examine_beside",
    "expire_partitions",
    "expire_rows",
    "expired_partitions",
    "expired_rows",
    "failure_document",
    "find_log_compaction_conflict",
    "has_logs",
    "has_metadata_table",
    "hold_back",
    "in_buckets",
    "in_transaction",
    "index_state",
    "input_bytes",
    "inserted_hashes",
    "is_run_by_hudi",
    "is_split",
    "job_document",
    "judge",
    "judge_all",
    "leave",
    "maintain",
    "maintenance_document",
    "may_delete",
    "merge_log",
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
    "reappend_hidden",
    "repair_metadata",
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
    "run_progress",
    "sample_slice",
    "service_of",
    "split_ranges",
    "status_document",
    "target_schema",
    "verdict_document",
    "whole_group",
    "why_stopped",
    "withdraw_plans",
    "write_context",
    "write_of_hudi",
    "write_partition_metafile",
    "write_range",
    "write_rows",
    "write_with_retries",
]
