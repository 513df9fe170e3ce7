"""Clustering as a table service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tideline_table.action.clustering.decision import decide_clustering
from tideline_table.action.clustering.execute import cluster_group
from tideline_table.action.clustering.run import cluster_here, refused_clustering, request_clustering, run_clustering
from tideline_table.action.clustering.task import ClusteredGroup, ClusteringTask
from tideline_table.action.decision import Check, Due, Reason, TableService, Trigger
from tideline_table.action.service import Inline, Ran, Rewrite, RunTasks, Settings
from tideline_table.config import CLUSTERING_INLINE, CLUSTERING_INLINE_COMMITS, CLUSTERING_SCHEDULE_INLINE, Options
from tideline_table.coordination.committed import Committed
from tideline_table.log.plan import ClusteringPlanned, Plan, path_named
from tideline_table.table.facade import Table


class Clustering(Rewrite):
    """Rewrites small files as fewer, sorted ones."""

    name = TableService.CLUSTERING
    splits_tasks = True

    def inline(self, table: Table, options: Options) -> Inline | None:
        """See `Service.inline`. Not for tables with buckets, whose files do not become fewer."""
        if table.definition.buckets is not None or not (options[CLUSTERING_INLINE] or options[CLUSTERING_SCHEDULE_INLINE]):
            return None
        trigger = Trigger(min_files=1, min_commits=options[CLUSTERING_INLINE_COMMITS], counts_lost=True)
        return Inline(options[CLUSTERING_INLINE], trigger)

    def decide(self, table: Table, options: Options, trigger: Trigger | None) -> Due | Reason:
        """See `Service.decide`."""
        refused = refused_clustering(table, options)
        if refused is not None:
            return refused
        has_buckets, hour = table.definition.buckets is not None, table.clock.now().hour
        return decide_clustering(
            table.state, table.storage.root, options, table.schema, trigger=trigger, has_buckets=has_buckets, hour=hour
        )

    def plan(
        self, table: Table, options: Settings = None, trigger: Trigger | None = None, check: Check | None = None
    ) -> str | Reason:
        """See `Service.plan`."""
        return request_clustering(table, options, trigger, check=check)

    @property
    def work(self) -> Callable[[ClusteringTask], ClusteredGroup]:
        """See `Rewrite.work`."""
        return cluster_group

    def here(self, tasks: Sequence[ClusteringTask], on_done: Callable[[], None] = lambda: None) -> list[ClusteredGroup]:
        """See `Rewrite.here`."""
        return cluster_here(tasks, on_done)

    def ran(self, committed: Committed) -> Ran:
        """See `Rewrite.ran`."""
        rows, files = sum(stat.num_writes for stat in committed.stats), len(committed.stats)
        text = f"clustering {committed.instant} completed: {rows} rows in {files} new files"
        return Ran(self.name, (committed.instant,), text, files, rows, {"rows_rewritten": rows}, committed)

    def preview(self, plan: Plan) -> list[tuple[str, list[str]]] | None:
        """See `Service.preview`."""
        assert isinstance(plan, ClusteringPlanned)
        return [_group(list(group["slices"])) for group in plan.plan["clusteringPlan"]["inputGroups"]]

    def _execute(self, table: Table, instant: str, options: Settings, run: RunTasks) -> Committed | None:
        return run_clustering(table, instant, options=options, run=run)

    def _planned(self, table: Table, options: Settings, trigger: Trigger | None, why: str) -> str | Reason:
        # Plans that are pending are run also where no new one is made.
        return refused_clustering(table, table.options.merged(options or {})) or super()._planned(table, options, trigger, why)


def _group(slices: list[dict[str, Any]]) -> tuple[str, list[str]]:
    uris = [uri for s in slices for uri in (s["dataFilePath"], *(s["deltaFilePaths"] or ())) if uri]
    partition = str(slices[0]["partitionPath"] or "")
    return partition, [path_named(partition, uri) for uri in uris]
