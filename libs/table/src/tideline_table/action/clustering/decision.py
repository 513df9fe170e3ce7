"""Whether a clustering is due, whatever the index of the table: the one decision for writers, planner, previews and status."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from tideline_table.action.clustering.buckets import plan_bucket_clustering
from tideline_table.action.clustering.column_ranges import ReadRanges, no_ranges
from tideline_table.action.clustering.plan import plan_clustering
from tideline_table.action.decision import Due, NotDue, Trigger
from tideline_table.config import Options
from tideline_table.coordination.priority import carries_over
from tideline_table.log.state import TableState


def decide_clustering(
    state: TableState,
    root: str,
    options: Options,
    schema: pa.Schema,
    reserved: Collection[str] = (),
    trigger: Trigger | None = None,
    *,
    has_buckets: bool,
    read_ranges: ReadRanges = no_ranges,
    hour: int = 0,
) -> Due | NotDue:
    """Return the plan that is due, or the reason why there is none; arguments and errors as for `plan_clustering`.

    In a table with a bucket index (`has_buckets`) a clustering sorts the rows of each bucket.
    """
    if has_buckets:
        return plan_bucket_clustering(state, root, options, schema, reserved, trigger)
    return plan_clustering(state, root, options, schema, reserved, trigger, read_ranges=read_ranges, hour=hour)


def why_not_carried_over(options: Options, *, is_merge_on_read: bool, is_shared: bool) -> NotDue | None:
    """Return why no clustering with these options is planned for such a table, None without carry-over or if it is possible.

    Raises `InvalidOption` for an unknown update strategy.
    """
    if not carries_over(options):
        return None
    if not is_merge_on_read:
        return NotDue(
            "the update strategy carry-over is for merge-on-read tables only: it copies log files, and a copy-on-write table has "
            "none",
            "the update strategy yield or reject",
        )
    if is_shared:
        return NotDue(
            "the update strategy carry-over is not for tables that Apache Hudi writes, too: its writers may append to a log file "
            "that was copied",
            "the update strategy yield",
        )
    return None
