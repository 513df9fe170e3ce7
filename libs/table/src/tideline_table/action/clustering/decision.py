"""Whether a clustering is due, whatever the index of the table: the one decision for writers, planner, previews and status.

With a bucket index, a clustering sorts the rows of a bucket. A row never leaves its bucket, so each group is one file slice.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from tideline_table.action.clustering.column_ranges import ReadRanges, no_ranges
from tideline_table.action.clustering.plan import (
    busy_partitions,
    checked_order,
    due_plan,
    free_slices,
    not_now,
    not_quiet,
    plan_clustering,
)
from tideline_table.action.decision import Due, NotDue, Trigger, within
from tideline_table.config import CLUSTERING_MAX_GROUP_BYTES, CLUSTERING_MAX_GROUPS, CLUSTERING_QUIET_S, CLUSTERING_SORT_COLUMNS
from tideline_table.coordination.priority import carries_over
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.file_names import is_ring_file_id
from tideline_table.hudi.instant import instant_from_time
from tideline_table.log.state import TableState
from tideline_table.table.definition import TableView


def plan_bucket_clustering(
    view: TableView,
    reserved: Collection[str] = (),
    trigger: Trigger | None = None,
    quiet_since: str = "",
) -> Due | NotDue:
    """Decide whether a clustering is due in a table with a bucket index, and plan it.

    One group in, one group of the same bucket out.

    Candidates are slices that changed since a clustering wrote them, the largest first, up to
    `hoodie.clustering.plan.strategy.max.bytes.per.group` each. With consistent hashing, partitions of a pending clustering are
    left out. Without sort columns there is nothing to gain. Of a `trigger`, the number of writes and the bound apply. Raises
    `SchemaMismatch` for sort columns that the table does not have.
    """
    state, root, options, schema = view.state, view.root, view.options, view.schema
    if (forbidden := not_now(state, trigger)) is not None:
        return forbidden
    order = checked_order(options, schema)
    if not order.columns:
        return NotDue(
            f"a table with a bucket index keeps one file group in each bucket, and {CLUSTERING_SORT_COLUMNS.key} names no "
            "columns to sort by"
        )
    # One after the other: of a table with many file groups, those that changed are held only.
    has_rings, held, where = False, set[str](), ""

    def seen(file_slice: FileSlice) -> FileSlice:
        nonlocal has_rings
        has_rings |= is_ring_file_id(file_slice.group.file_id)
        if file_slice.group.file_id in reserved:
            held.add(file_slice.group.partition_path)
        return file_slice

    changed = [s for s in free_slices(state, reserved, map(seen, state.each_latest())) if not _is_clustered(state, s)]
    if has_rings:
        if not view.capabilities.changes_buckets:
            return NotDue(
                "a shared table with consistent hashing is not clustered: a writer of Apache Hudi would go on with the ring that "
                "it has read"
            )
        # A later plan that is executed first would make a ring that is newer than that of the earlier one. A new ring also stops a
        # writer that has reserved other groups of the partition.
        planned = {group.partition_path for group in state.groups_under_clustering()}
        changed = [s for s in changed if s.group.partition_path not in planned | held]
        where = " in partitions without a pending clustering" if planned else ""
    busy = busy_partitions(state, {s.group.partition_path for s in changed}, quiet_since)
    if busy and busy >= {s.group.partition_path for s in changed}:
        return not_quiet(busy, options)
    changed = [s for s in changed if s.group.partition_path not in busy]
    fitting = [s for s in changed if s.total_bytes <= options[CLUSTERING_MAX_GROUP_BYTES]]
    if not fitting:
        return NotDue(
            f"no bucket changed since the last clustering{where}, besides {len(changed)} above {CLUSTERING_MAX_GROUP_BYTES.key}"
            if changed
            else f"no bucket changed since the last clustering{where}"
        )
    limit = trigger.max_bytes if trigger is not None else None
    ordered = sorted(fitting, key=lambda s: (-s.total_bytes, s.group))
    chosen = list(within(ordered, limit, lambda s: s.total_bytes))[: options[CLUSTERING_MAX_GROUPS]]
    if not chosen:
        return NotDue(f"no changed bucket has {limit} bytes or less", "a larger budget")
    why = f"{len(changed)} bucket(s) changed since the last clustering"
    return due_plan(state, root, options, [[s] for s in chosen], why, order, splits=False)


def _is_clustered(state: TableState, file_slice: FileSlice) -> bool:
    record = state.actions.get(file_slice.base_instant)
    # A resize calls itself a clustering, and sorts nothing.
    at = file_slice.base_instant
    is_resized = at in state.bucket_numbers or (is_ring_file_id(file_slice.group.file_id) and at not in state.ring_clusterings)
    return not file_slice.log_files and record is not None and record.is_clustering and not is_resized


def decide_clustering(
    view: TableView,
    reserved: Collection[str] = (),
    trigger: Trigger | None = None,
    *,
    read_ranges: ReadRanges = no_ranges,
    now: datetime,
) -> Due | NotDue:
    """Return the plan that is due, or the reason why there is none; arguments and errors as for `plan_clustering`.

    In a table with a bucket index a clustering sorts the rows of each bucket. A clustering with a `trigger` leaves out partitions
    of shared tables that were written of late (`tideline.clustering.quiet`).
    """
    quiet_s, hour = view.options[CLUSTERING_QUIET_S], now.hour
    since = instant_from_time(now - timedelta(seconds=quiet_s)) if trigger and quiet_s and view.state.sharing else ""
    if view.definition.buckets is not None:
        return plan_bucket_clustering(view, reserved, trigger, since)
    state, root, options, schema = view.state, view.root, view.options, view.schema
    return plan_clustering(state, root, options, schema, reserved, trigger, read_ranges=read_ranges, hour=hour, quiet_since=since)


def why_not_carried_over(view: TableView) -> NotDue | None:
    """Return why no clustering of this table is planned, None if its options ask for no carry-over or it is possible.

    Raises `InvalidOption` for an unknown update strategy.
    """
    if not carries_over(view.options):
        return None
    if not view.definition.has_logs:
        return NotDue(
            "the update strategy carry-over is for merge-on-read tables only: it copies log files, and a copy-on-write table has "
            "none",
            "the update strategy yield or reject",
        )
    if view.capabilities.has_hudi_files:
        return NotDue(
            "the update strategy carry-over is not for tables that Apache Hudi writes, too: its writers may append to a log file "
            "that was copied",
            "the update strategy yield",
        )
    return None
