"""The cleaner's tick: finish what died, then clean what nobody reads."""

from __future__ import annotations

from tideline_cleaner.metrics import FILES_DELETED, ROLLBACKS
from tideline_cleaner.settings import CleanerSettings
from tideline_service.contract import ServiceContext
from tideline_service.logging import get_logger
from tideline_service.open_tables import OpenTables, open_tables
from tideline_table.errors import Recovery, TidelineError
from tideline_table.table import Table, roll_back_dead, run_clean, schedule_clean

_log = get_logger(__name__)


class CleanerService:
    """One shard of the cleaner. It needs no events: what it does is never urgent."""

    def __init__(self, settings: CleanerSettings, context: ServiceContext) -> None:
        self._settings = settings
        self._context = context
        self._tables: OpenTables = open_tables(settings, context, settings.options)
        self._commits: dict[str, int] = {}

    def start(self) -> None:
        """Nothing to get: tables are opened by the ticks."""

    def tick(self) -> float | None:
        """Look at every table of the shard."""
        for table in self._tables.each():
            if self._context.stopping.is_set():
                break
            self._context.health.beat()
            try:
                self._maintain(table)
            except TidelineError as error:
                if error.recovery is not Recovery.STOP:
                    raise
                _log.error("table cannot be maintained", table=table.uid, name=table.definition.name, reason=str(error))
        return None

    def stop(self) -> None:
        """Nothing was opened."""

    def _maintain(self, table: Table) -> None:
        # Deciding whether somebody died needs no listing; only then is the table touched.
        if next(table.state.pending(), None) is not None:
            for instant in roll_back_dead(table):
                self._context.metrics.increment(ROLLBACKS, table=table.uid)
                _log.info("rolled back", table=table.uid, name=table.definition.name, instant=instant)
            self._clean(table)  # one that died before it was complete
        commits = len(table.state.completed_writes())
        if commits - self._commits.get(table.uid, 0) < self._settings.clean_min_commits:
            return
        self._commits[table.uid] = commits
        if schedule_clean(table) is not None:
            self._clean(table)

    def _clean(self, table: Table) -> None:
        deleted = run_clean(table)
        if deleted is not None:
            self._context.metrics.increment(FILES_DELETED, deleted, table=table.uid)
            _log.info("cleaned", table=table.uid, name=table.definition.name, files=deleted)
