"""Tables that a service keeps open: found by the registry, known by base path and by uid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tideline_service.contract import ServiceContext
from tideline_service.logging import get_logger
from tideline_service.registry import TableRegistry
from tideline_service.settings import ServiceSettings
from tideline_service.table_lock import open_table_lock
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError
from tideline_table.table import Table

_log = get_logger(__name__)


def open_tables(settings: ServiceSettings, context: ServiceContext, options: Mapping[str, object] | None = None) -> OpenTables:
    """The tables of a service by its settings."""
    registry = TableRegistry(
        settings.tables,
        context.clock,
        rescan_s=settings.tables_rescan_s,
        shard_index=settings.shard_index,
        shard_count=settings.shard_count,
        metrics=context.metrics,
    )
    writer_id = f"{context.name}-{settings.shard_index}"
    return OpenTables(registry, context.clock, writer_id, settings.locks, options)


class OpenTables:
    """The exclusive tables of this shard. A table that cannot be opened is logged once per reason and tried again later."""

    def __init__(self, registry: TableRegistry, clock: Clock, writer_id: str, locks: str, options: Mapping[str, object] | None = None) -> None:
        self._registry = registry
        self._clock = clock
        self._writer_id = writer_id
        self._locks = locks
        self._options = dict(options or {})
        self._open: dict[str, Table] = {}
        self._refused: dict[str, str] = {}

    def each(self) -> Iterator[Table]:
        """All tables, refreshed, in order of base path; one that fails is left out."""
        wanted = self._registry.tables()
        for base_path in [b for b in self._open if b not in wanted]:
            del self._open[base_path]
        for base_path in wanted:
            table = self._table(base_path)
            if table is not None:
                yield table

    def by_uid(self, uid: str) -> Table | None:
        """The table with this uid, None when this shard does not know it."""
        return next((t for t in self._open.values() if t.uid == uid), None)

    def _table(self, base_path: str) -> Table | None:
        try:
            table = self._open.get(base_path)
            if table is None:
                table = Table.open(base_path, clock=self._clock, writer_id=self._writer_id, options=self._options)
                if not table.is_exclusive:
                    self._refuse(base_path, "a table that others write")
                    return None
                table.lock = open_table_lock(self._locks, base_path, table.uid, self._writer_id, self._clock)
                self._open[base_path] = table
            table.refresh()
        except TidelineError as error:
            self._refuse(base_path, str(error))
            return None
        self._refused.pop(base_path, None)
        return table

    def _refuse(self, base_path: str, reason: str) -> None:
        self._open.pop(base_path, None)
        if self._refused.get(base_path) != reason:
            self._refused[base_path] = reason
            _log.warning("table left alone", base_path=base_path, reason=reason)
