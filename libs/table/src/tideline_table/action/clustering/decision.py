"""Whether a clustering is due, whatever the index of the table: the one decision for writers, planner, previews and status."""

from __future__ import annotations

from collections.abc import Collection

from tideline_table.action.clustering.buckets import plan_bucket_clustering
from tideline_table.action.clustering.column_ranges import ReadRanges, no_ranges
from tideline_table.action.clustering.plan import plan_clustering
from tideline_table.action.decision import Due, NotDue, Trigger
from tideline_table.coordination.priority import carries_over
from tideline_table.table.view import TableView


def decide_clustering(
    view: TableView,
    reserved: Collection[str] = (),
    trigger: Trigger | None = None,
    *,
    read_ranges: ReadRanges = no_ranges,
    hour: int = 0,
) -> Due | NotDue:
    """Return the plan that is due, or the reason why there is none; arguments and errors as for `plan_clustering`.

    In a table with a bucket index a clustering sorts the rows of each bucket.
    """
    if view.definition.buckets is not None:
        return plan_bucket_clustering(view, reserved, trigger)
    state, root, options, schema = view.state, view.root, view.options, view.schema
    return plan_clustering(state, root, options, schema, reserved, trigger, read_ranges=read_ranges, hour=hour)


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
