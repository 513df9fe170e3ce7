"""Tables that a service keeps open: found by the registry, known by base path and by uid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tideline_locks import OnUnreachable, open_peer_lock
from tideline_locks.table_lock import LockProviders, check_unreachable
from tideline_service.contract import ServiceContext
from tideline_service.logging import get_logger
from tideline_service.registry import TableRegistry
from tideline_service.settings import ServiceSettings
from tideline_table.clock import Clock
from tideline_table.config import LOCK_UNREACHABLE, Options
from tideline_table.errors import Recovery, TidelineError, UnsupportedTable
from tideline_table.storage import open_storage
from tideline_table.table import Table
from tideline_table.table.identity import read_identity
from tideline_table.transaction import SharedTimeline

_log = get_logger(__name__)


def open_tables(settings: ServiceSettings, context: ServiceContext, options: Mapping[str, object] | None = None) -> OpenTables:
    """The tables of a service by its settings. Raises `InvalidOption` for options that are wrong for every table."""
    check_unreachable(settings.locks, OnUnreachable(Options(options)[LOCK_UNREACHABLE]))
    registry = TableRegistry(
        settings.tables,
        context.clock,
        rescan_s=settings.tables_rescan_s,
        shard_index=settings.shard_index,
        shard_count=settings.shard_count,
        metrics=context.metrics,
    )
    writer_id = f"{context.name}-{settings.shard_index}"
    return OpenTables(registry, context.clock, writer_id, LockProviders(settings.locks, context.clock), options)


class OpenTables:
    """The tables of this shard that Tideline writes, shared ones included. Used by one thread.

    A table that cannot be opened, that others write, or that is a copy of another one (same uid, another place) is left alone: logged
    once per reason and tried again later.
    """

    def __init__(
        self,
        registry: TableRegistry,
        clock: Clock,
        writer_id: str,
        lock_providers: LockProviders,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._writer_id = writer_id
        self.lock_providers = lock_providers
        self._options = dict(options or {})
        self._open: dict[str, Table] = {}
        self._refused: dict[str, str] = {}
        self._troubled: dict[str, str] = {}

    def each(self) -> Iterator[Table]:
        """All tables, refreshed, in order of base path; one that fails is left out."""
        looks_again = self._registry.next_scan_in_s() <= 0
        wanted = self._registry.tables()
        for known in (self._open, self._refused, self._troubled):
            for base_path in known.keys() - set(wanted):
                del known[base_path]
        for base_path in wanted:
            table = self._table(base_path, looks_again=looks_again)
            if table is not None:
                yield table

    def visit(
        self, context: ServiceContext, look: Callable[[Table], None], *, ends_on: tuple[type[TidelineError], ...] = ()
    ) -> TidelineError | None:
        """`look` at each table until the service stops, with a sign of life before each. A table in trouble never starves the others.

        An error that no retry cures is logged once per reason. Of those that a retry may cure the first is returned: for the caller to
        raise when its tick is done. Errors of a kind in `ends_on` concern all tables and are raised at once.
        """
        curable: TidelineError | None = None
        for table in self.each():
            if context.stopping.is_set():
                break
            context.health.beat()
            try:
                look(table)
            except ends_on:
                raise
            except TidelineError as error:
                self._report(table, error)
                if error.recovery is not Recovery.STOP:
                    curable = curable or error
            else:
                self._troubled.pop(table.base_path, None)
        return curable

    def by_uid(self, uid: str) -> Table | None:
        """The table with this uid, None when this shard does not know it."""
        return next((t for t in self._open.values() if t.uid == uid), None)

    def close(self) -> None:
        """Close the lock providers."""
        self.lock_providers.close()

    def _table(self, base_path: str, *, looks_again: bool) -> Table | None:
        try:
            table = self._open.get(base_path)
            if table is not None and looks_again and read_identity(table.storage) != table.identity:
                # Dropped and created again at the same place: a new table, of which nothing is known yet.
                table = None
            if table is not None and table.is_shared and not isinstance(table.timeline, SharedTimeline):
                # Shared since it was opened: from now on every step takes another lock.
                table = None
            if table is None:
                table = self._open[base_path] = self._opened(base_path)
            table.refresh()
        except TidelineError as error:
            self._open.pop(base_path, None)
            if self._refused.get(base_path) != str(error):
                self._refused[base_path] = str(error)
                _log.warning("table left alone", base_path=base_path, reason=str(error))
            return None
        self._refused.pop(base_path, None)
        return table

    def _opened(self, base_path: str) -> Table:
        storage = open_storage(base_path)
        identity = read_identity(storage)
        if identity is None:
            # Asked before opening, which lists a table that others write.
            raise UnsupportedTable("a table that others write", expected="a table that Tideline created")
        identity.check_place(storage.root)
        table = Table.open(
            base_path,
            clock=self._clock,
            writer_id=self._writer_id,
            options=self._options,
            storage=storage,
            peer_lock=open_peer_lock,
        )
        if not table.has_log:
            table.check_writable(keyed=False)  # which says what became of its log
        self.lock_providers.attach(table)
        return table

    def _report(self, table: Table, error: TidelineError) -> None:
        if self._troubled.get(table.base_path) != str(error):
            self._troubled[table.base_path] = str(error)
            _log.error("table in trouble", table=table.uid, name=table.definition.name, reason=str(error))
