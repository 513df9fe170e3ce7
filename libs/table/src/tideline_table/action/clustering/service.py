"""Clustering as a table service."""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tideline_table.action.backlog import Backlog, Objectives, Pressure
from tideline_table.action.clustering.decision import decide_clustering, why_not_carried_over
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.clustering.run import cluster_here, request_clustering, run_clustering
from tideline_table.action.decision import Check, Due, NotDue, TableService, Trigger, oldest_of
from tideline_table.action.service import Gain, Inline, Ran, Rewrite, RunTasks, Settings, any_before, logs_applied
from tideline_table.config import (
    CLUSTERING_INLINE,
    CLUSTERING_INLINE_COMMITS,
    CLUSTERING_SCHEDULE_INLINE,
    CLUSTERING_SORT_COLUMNS,
    Options,
)
from tideline_table.coordination.committed import Committed
from tideline_table.file_group.slice import FileSlice
from tideline_table.hudi.instant import CLUSTER, Action, State
from tideline_table.log.plan import ClusteringPlanned, Plan, path_named
from tideline_table.log.state import TableState
from tideline_table.table.definition import TableView
from tideline_table.table.facade import Table

_LOGGER = logging.getLogger(__name__)


class Clustering(Rewrite):
    """Rewrites small files as fewer, sorted ones."""

    name = TableService.CLUSTERING
    action, operation = Action.REPLACE_COMMIT, CLUSTER
    work, here = staticmethod(cluster_group), staticmethod(cluster_here)
    splits_tasks = True
    cancels_where_shared = True

    def inline(self, table: Table, options: Options) -> Inline | None:
        """See `Service.inline`. The files of tables with buckets are sorted, they do not become fewer."""
        if not (options[CLUSTERING_INLINE] or options[CLUSTERING_SCHEDULE_INLINE]):
            return None
        if table.definition.buckets is not None and not options[CLUSTERING_SORT_COLUMNS]:
            _LOGGER.warning(
                "no inline clustering of %s: a table with a bucket index keeps one file group in each bucket, and %s names no "
                "columns to sort by",
                table.definition.name,
                CLUSTERING_SORT_COLUMNS.key,
            )
            return None
        trigger = Trigger(min_files=1, min_commits=options[CLUSTERING_INLINE_COMMITS], counts_lost=True)
        return Inline(options[CLUSTERING_INLINE], trigger)

    def decide(self, table: Table, options: Options, trigger: Trigger | None) -> Due | NotDue:
        view = table.view(options)
        return why_not_carried_over(view) or self.due(view, trigger, table.clock.now())

    def why_not_planned(self, view: TableView) -> NotDue | None:
        return why_not_carried_over(view)

    def pressure(self, objectives: Objectives, found: Backlog, now: datetime) -> Pressure:
        del now
        bound = objectives.small_files
        if bound is None:
            return Pressure()
        return Pressure(found.small_files / bound, f"{found.small_files} small files, objective {bound}")

    def thresholds(self, view: TableView, usual: Trigger, *, is_urgent: bool) -> Trigger:
        del view
        return Trigger(2, 0, usual.max_bytes) if is_urgent else usual

    def due(self, view: TableView, trigger: Trigger | None, now: datetime) -> Due | NotDue:
        return decide_clustering(view, trigger=trigger, now=now)

    def gain(self, view: TableView, slices: Sequence[FileSlice], due: Due) -> Gain:
        """See `Rewrite.gain`.

        A table waits for a clustering since its oldest base file or, if that is later, the last clustering.
        """
        assert isinstance(due.body, ClusteringPlanned)
        written = sum(int(group["numOutputFileGroups"]) for group in due.body.plan["clusteringPlan"]["inputGroups"])
        unsorted = (
            sum(s.total_bytes for s in slices if not is_clustered(view.state, s)) if view.options[CLUSTERING_SORT_COLUMNS] else 0
        )
        times = (oldest_of(s.base_instant for s in slices), _last_clustering(view.state))
        since = max((time for time in times if time is not None), default=None)
        return Gain(sum(len(s.paths) for s in slices), written, logs_applied(slices), unsorted, since)

    def waited(self, state: TableState, found: FileSlice, sequence: int) -> bool:
        return not is_clustered(state, found) and any_before(state, [found.base_instant], sequence)

    def plan(
        self, table: Table, options: Settings = None, trigger: Trigger | None = None, check: Check | None = None
    ) -> str | NotDue:
        return request_clustering(table, options, trigger, check=check)

    def ran(self, committed: Committed) -> Ran:
        rows, files = sum(stat.num_writes for stat in committed.stats), len(committed.stats)
        text = f"clustering {committed.instant} completed: {rows} rows in {files} new files"
        return Ran(self.name, (committed.instant,), text, files, rows, {"rows_rewritten": rows}, committed)

    def preview(self, plan: Plan) -> list[tuple[str, list[str]]] | None:
        assert isinstance(plan, ClusteringPlanned)
        return [_group(list(group["slices"])) for group in plan.plan["clusteringPlan"]["inputGroups"]]

    def _execute(self, table: Table, instant: str, options: Settings, run: RunTasks) -> Committed | None:
        return run_clustering(table, instant, options=options, run=run)

    def _planned(self, table: Table, options: Settings, trigger: Trigger | None, why: str) -> str | NotDue:
        # Plans that are pending are run also where no new one is made.
        return why_not_carried_over(table.view(options)) or super()._planned(table, options, trigger, why)


def is_clustered(state: TableState, found: FileSlice) -> bool:
    """Return whether a clustering wrote the slice, and no write changed it since."""
    record = state.actions.get(found.base_instant)
    return record is not None and record.is_clustering and not found.log_files


def _last_clustering(state: TableState) -> datetime | None:
    ended = [a.since for a in state.actions.values() if a.is_clustering and a.state is State.COMPLETED and a.since]
    return datetime.fromisoformat(max(ended)) if ended else None


def _group(slices: list[dict[str, Any]]) -> tuple[str, list[str]]:
    uris = [uri for s in slices for uri in (s["dataFilePath"], *(s["deltaFilePaths"] or ())) if uri]
    partition = str(slices[0]["partitionPath"] or "")
    return partition, [path_named(partition, uri) for uri in uris]
