"""The planner's tick: for each table that changed, decide and publish."""

from __future__ import annotations

from collections.abc import Callable

from tideline_events import TIMELINE
from tideline_planner.metrics import PLANNING, PLANS
from tideline_planner.policy import ClusteringPolicy, clustering_verdict
from tideline_planner.settings import PlannerSettings
from tideline_service.contract import ServiceContext
from tideline_service.event_link import EventLink
from tideline_service.logging import get_logger
from tideline_service.open_tables import OpenTables, open_tables
from tideline_table.config import (
    CLUSTERING_MIN_INPUT_FILES,
    CLUSTERING_SMALL_FILE_LIMIT,
    CLUSTERING_SORT_COLUMNS,
    COMPACTION_DELTA_COMMITS,
)
from tideline_table.errors import Recovery, TidelineError
from tideline_table.service.compaction import delta_commits_since_compaction
from tideline_table.table import Table, TableType, schedule_clustering, schedule_compaction

_log = get_logger(__name__)


class PlannerService:
    """One shard of the planner."""

    def __init__(self, settings: PlannerSettings, context: ServiceContext) -> None:
        self._settings = settings
        self._context = context
        self._tables: OpenTables = open_tables(settings, context, settings.options)
        self._events = EventLink(settings, context, watches=[TIMELINE.name])
        self._decided: dict[str, int] = {}

    def start(self) -> None:
        """Listen for transitions."""
        self._events.open()

    def tick(self) -> float | None:
        """Decide for every table whose log grew since the last decision."""
        failure = self._tables.visit(self._context, self._look)
        if failure is not None:
            raise failure
        return None

    def stop(self) -> None:
        """Close what `start` opened."""
        self._events.close()
        self._tables.close()

    def _look(self, table: Table) -> None:
        if self._decided.get(table.uid) == table.state.sequence:
            return
        with self._context.metrics.timed(PLANNING):
            self._plan(table)
            if table.definition.type is TableType.MOR:
                self._plan_compaction(table)
        self._decided[table.uid] = table.state.sequence

    def _plan(self, table: Table) -> None:
        settings = self._settings
        policy = ClusteringPolicy(
            table.options[CLUSTERING_SMALL_FILE_LIMIT], settings.clustering_min_files, settings.clustering_min_commits
        )
        verdict = clustering_verdict(table.state, policy)
        _log.debug("decided", table=table.uid, service="clustering", due=verdict.is_due, reason=verdict.reason)
        if not verdict.is_due:
            return
        options = {
            CLUSTERING_SORT_COLUMNS.key: settings.clustering_sort_columns.get(table.definition.name, ""),
            CLUSTERING_MIN_INPUT_FILES.key: min(settings.clustering_min_files, 2),
        }
        self._publish(table, "clustering", lambda: schedule_clustering(table, options), verdict.reason)

    def _plan_compaction(self, table: Table) -> None:
        came, needed = delta_commits_since_compaction(table.state), table.options[COMPACTION_DELTA_COMMITS]
        _log.debug("decided", table=table.uid, service="compaction", due=came >= needed, reason=f"{came} of {needed} delta commits")
        if came >= needed:
            self._publish(table, "compaction", lambda: schedule_compaction(table), f"{came} delta commits since the last plan")

    def _publish(self, table: Table, service: str, schedule: Callable[[], str | None], reason: str) -> None:
        try:
            instant = schedule()
        except TidelineError as error:
            if error.recovery is not Recovery.STOP:
                raise
            # One table's wrong sort column or freeze must not stop the planning of the others.
            _log.error("table cannot be planned", table=table.uid, name=table.definition.name, service=service, reason=str(error))
            return
        if instant is not None:
            self._context.metrics.increment(PLANS, service=service)
            _log.info("planned", table=table.uid, name=table.definition.name, service=service, instant=instant, reason=reason)
