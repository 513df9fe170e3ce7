"""Table services that a writer plans, or plans and runs, behind its own commit (Apache Hudi's inline services).

The commit is valid whatever the service does: a conflict or an error is logged, and the writer continues. A plan that failed to run stays
for the launcher or for the next writer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tideline_table.action.clustering.plan import Trigger
from tideline_table.action.clustering.run import RunTasks, cluster_here, request_clustering, run_clustering
from tideline_table.action.compaction.run import RunCompactions, compact_here, request_compaction, run_compaction
from tideline_table.action.decision import Reason, TableService
from tideline_table.action.log_compaction.run import request_log_compaction, run_log_compaction, why_not_log_compacted
from tideline_table.config import (
    CLUSTERING_INLINE,
    CLUSTERING_INLINE_COMMITS,
    CLUSTERING_SCHEDULE_INLINE,
    COMPACT_INLINE,
    COMPACT_SCHEDULE_INLINE,
    LOG_COMPACTION_INLINE,
    Options,
)
from tideline_table.coordination.committed import Committed
from tideline_table.errors import TidelineError
from tideline_table.table.definition import TableType
from tideline_table.table.facade import Table

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InlineService:
    """What a writer did for one table service behind its commit: a plan, whether it ran it, and the error that it logged."""

    service: TableService
    instant: str
    """Instant of the plan; empty if publishing one failed."""
    is_run: bool = False
    error: str = ""


def run_inline(
    table: Table,
    options: Mapping[str, object] | None = None,
    *,
    cluster: RunTasks = cluster_here,
    compact: RunCompactions = compact_here,
) -> tuple[InlineService, ...]:
    """Plan, or plan and run, the services that the options ask writers for, where one is due; call it behind a commit.

    Errors of the services are logged and returned. Where both options of a service are set, the plan is run. Raises `InvalidOption` for
    options that cannot be read, which a write with the same options has refused before its commit.
    """
    chosen = table.options.merged(options or {})
    found = []
    if table.definition.type is TableType.MOR and (chosen[COMPACT_INLINE] or chosen[COMPACT_SCHEDULE_INLINE]):
        found.append(
            _behind_commit(
                TableService.COMPACTION,
                lambda: request_compaction(table, options),
                (lambda at: run_compaction(table, at, options=options, run=compact)) if chosen[COMPACT_INLINE] else None,
            )
        )
    if chosen[LOG_COMPACTION_INLINE] and why_not_log_compacted(table) is None:
        found.append(
            _behind_commit(
                TableService.LOG_COMPACTION,
                lambda: request_log_compaction(table, options),
                lambda at: run_log_compaction(table, at, options=options),
            )
        )
    if table.definition.buckets is None and (chosen[CLUSTERING_INLINE] or chosen[CLUSTERING_SCHEDULE_INLINE]):
        found.append(
            _behind_commit(
                TableService.CLUSTERING,
                lambda: request_clustering(table, options, _trigger(chosen)),
                (lambda at: run_clustering(table, at, options=options, run=cluster)) if chosen[CLUSTERING_INLINE] else None,
            )
        )
    return tuple(done for done in found if done is not None)


def _trigger(options: Options) -> Trigger:
    return Trigger(min_files=1, min_commits=options[CLUSTERING_INLINE_COMMITS], counts_lost=True)


def _behind_commit(
    service: TableService, request: Callable[[], str | Reason], run: Callable[[str], Committed | None] | None
) -> InlineService | None:
    instant = ""
    try:
        answer = request()
        if isinstance(answer, Reason):
            _LOGGER.debug("no inline %s: %s", service, answer.why)
            return None
        instant = answer
        is_run = run is not None and run(instant) is not None
    except TidelineError as error:
        _LOGGER.warning("inline %s %s failed; the commit before it stands: %s", service, instant, error)
        return InlineService(service, instant, error=str(error))
    _LOGGER.info("inline %s %s %s", service, instant, "completed" if is_run else "planned")
    return InlineService(service, instant, is_run)
