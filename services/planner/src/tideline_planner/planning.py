"""The tick of the planner: decide for each changed table, and publish the plans that are due."""

from __future__ import annotations

from collections.abc import Callable

from tideline_events import TIMELINE
from tideline_planner.metrics import PLANNING, PLANS
from tideline_planner.settings import PlannerSettings
from tideline_runtime.contract import ServiceContext
from tideline_runtime.event_link import EventLink
from tideline_runtime.logging import get_logger
from tideline_runtime.open_tables import OpenTables, open_tables
from tideline_runtime.table_settings import TableSettings
from tideline_table.action import (
    Due,
    Reason,
    TableService,
    Trigger,
    plan_clustering,
    plan_compaction,
    request_clustering,
    request_compaction,
)
from tideline_table.config import (
    CLUSTERING_SORT_COLUMNS,
)
from tideline_table.errors import ClockSkew, Recovery, TidelineError
from tideline_table.table import Table, TableType

_log = get_logger(__name__)


class PlannerService:
    """One shard of the planner."""

    def __init__(self, settings: PlannerSettings, context: ServiceContext) -> None:
        self._context = context
        self._tables: OpenTables = open_tables(settings, context, settings.options)
        self._events = EventLink(settings, context, watches=[TIMELINE.name])
        self._per_table = TableSettings(settings, self._tables.own_settings)
        self._decided: dict[str, tuple[int, PlannerSettings]] = {}

    def start(self) -> None:
        """Watch for transitions."""
        self._events.open()

    def tick(self) -> float | None:
        """Decide for every table whose log grew, or whose settings changed, since its last decision."""
        failure = self._tables.visit(self._context, self._plan)
        if failure is not None:
            raise failure
        return None

    def stop(self) -> None:
        """Close what `start` opened."""
        self._events.close()
        self._tables.close()

    def _plan(self, table: Table) -> None:
        basis = (table.state.sequence, self._per_table.of(table.base_path))
        if self._decided.get(table.uid) == basis:
            return
        with self._context.metrics.timed(PLANNING):
            self._plan_clustering(table)
            if table.definition.type is TableType.MOR:
                self._plan_compaction(table)
        self._decided[table.uid] = basis

    def _plan_clustering(self, table: Table) -> None:
        settings = self._per_table.of(table.base_path)
        trigger = Trigger(settings.clustering_min_files, settings.clustering_min_commits)
        own = settings.clustering_sort_columns.get(table.definition.name)
        is_overridden = CLUSTERING_SORT_COLUMNS.key in self._tables.own_options(table.base_path)
        options = {} if own is None or is_overridden else {CLUSTERING_SORT_COLUMNS.key: own}

        def decide() -> Due | Reason:
            if table.definition.buckets is not None:
                return Reason("a table with a bucket index keeps one file group in each bucket")
            merged = table.options.merged(options)
            hour = table.clock.now().hour
            return plan_clustering(table.state, table.storage.root, merged, table.schema, trigger=trigger, hour=hour)

        self._publish(
            table,
            TableService.CLUSTERING,
            decide,
            lambda: request_clustering(table, options, trigger),
        )

    def _plan_compaction(self, table: Table) -> None:
        self._publish(
            table,
            TableService.COMPACTION,
            lambda: plan_compaction(table.state, table.options),
            lambda: request_compaction(table),
        )

    def _publish(
        self, table: Table, service: TableService, decide: Callable[[], Due | Reason], request: Callable[[], str | Reason]
    ) -> None:
        about = {"table": table.uid, "name": table.definition.name, "service": service.value}
        try:
            # Decide on the state in memory first: a request reads file-group reservations and locks a shared table.
            found = decide()
            answer = request() if isinstance(found, Due) else found
        except ClockSkew as error:
            # Clock skew is temporary and a restart does not help. The next transition of the table triggers the next try.
            _log.warning("planning postponed", **about, reason=str(error))
            return
        except TidelineError as error:
            if error.recovery is not Recovery.STOP:
                raise
            # One table with a wrong sort column or a freeze must not stop planning for the other tables.
            _log.error("table cannot be planned", **about, reason=str(error))
            return
        if isinstance(answer, Reason):
            _log.debug("nothing to plan", **about, reason=answer.why)
            return
        self._context.metrics.increment(PLANS, service=service.value)
        _log.info("planned", **about, instant=answer, reason=found.why)
