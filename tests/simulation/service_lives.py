"""Production services as processes of a history: their loop and threads run on the scheduler, their storage, locks and event
log are its own."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import cast
from unittest.mock import patch

import structlog
from tests.simulation.actors import EXPECTED, Cluster
from tests.simulation.scheduler import SECOND, Process, SimulatedClock, SimulatedThreading

import tideline_ingest.ingestion
import tideline_mirror.mirroring
import tideline_runtime.loop
from tideline_locks.table_lock import LockProviders
from tideline_runtime import event_link, event_watcher, open_tables
from tideline_runtime.contract import Service, ServiceContext
from tideline_runtime.errors import TooManyFailures
from tideline_runtime.health import Health
from tideline_runtime.loop import Backoff, TickLoop
from tideline_runtime.metrics import Metrics
from tideline_runtime.registry import TableRegistry
from tideline_runtime.settings import ServiceSettings
from tideline_table.action import write_rows
from tideline_table.clock import Clock
from tideline_table.errors import TidelineError
from tideline_table.storage import Storage
from tideline_table.table import Table

_SILENT = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
_LOGGERS = (tideline_ingest.ingestion, tideline_mirror.mirroring, tideline_runtime.loop, event_watcher, open_tables)
_POLL_S = 30.0
"""How often a watcher of events asks; a new event wakes it."""


class _Tables(TableRegistry):
    """The registry of a deployment with one table, which no search has to find."""

    def __init__(self, base_path: str, clock: Clock) -> None:
        super().__init__((), clock)
        self._base_path = base_path

    def tables(self, *, rests: bool = False) -> tuple[str, ...]:
        return (self._base_path,)

    def covers(self, base_path: str) -> bool:
        return False

    def excludes(self, base_path: str) -> bool:
        return False


class _Bell:
    """An event of a service's main loop; `rings` may set it from outside."""

    def __init__(self, cluster: Cluster, rings: Callable[[], bool] = lambda: False) -> None:
        self._scheduler = cluster.world.scheduler
        self._rings = rings
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set or self._rings()

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float) -> bool:
        self._scheduler.wait_for(self.is_set, math.ceil(timeout * SECOND))
        return self.is_set()


@contextmanager
def services_in(cluster: Cluster) -> Iterator[None]:
    """What services open by name is what the process of the caller reaches of the cluster's world."""
    world = cluster.world

    def reached(_: str) -> Storage:
        return world.storage(world.scheduler.process)

    def opened(settings: ServiceSettings, context: ServiceContext, *, observes: bool) -> open_tables.OpenTables:
        providers = LockProviders(settings.locks, context.clock)
        registry = _Tables(world.disk.root, context.clock)
        writer_id = world.scheduler.process.name
        return open_tables.OpenTables(registry, context.clock, writer_id, providers, cluster.options, observes=observes)

    def attach(_: LockProviders, table: Table) -> None:
        process = world.scheduler.process
        table.lock, table.reservations = world.lock(process, table.timeline.log.writer_id), world.reservations(process)

    def report(_: open_tables.OpenTables, table: Table, error: TidelineError) -> None:
        if not isinstance(error, EXPECTED):
            cluster.oracle.report(f"a service is in trouble with the table: {type(error).__name__}: {error}")

    with ExitStack() as stack:
        for module in _LOGGERS:
            stack.enter_context(patch.object(module, "_log", _SILENT))
        stack.enter_context(
            patch.object(event_link, "open_event_log", lambda *_, **__: cluster.topics.log(world.scheduler.process))
        )
        stack.enter_context(patch.object(open_tables, "open_storage", reached))
        stack.enter_context(patch.object(tideline_mirror.mirroring, "open_tables", opened))
        stack.enter_context(patch.object(open_tables.OpenTables, "_report", report))
        stack.enter_context(patch.object(tideline_ingest.ingestion, "write_rows", partial(write_rows, parallelism=1)))
        stack.enter_context(patch.object(LockProviders, "attach", attach))
        stack.enter_context(patch.object(event_watcher, "threading", SimulatedThreading(world.scheduler)))
        stack.enter_context(patch.object(event_watcher, "_POLL_S", _POLL_S))
        yield


def context_of(cluster: Cluster, process: Process, name: str, ends: Callable[[], bool]) -> ServiceContext:
    """What a service of that name gets in `process`; it is asked to stop when the history `ends`."""
    clock = SimulatedClock(cluster.world.scheduler, process)
    stopping = cast(threading.Event, _Bell(cluster, ends))
    return ServiceContext(
        name, clock, Metrics(name), Health(clock, 300), stopping=stopping, wakeup=cast(threading.Event, _Bell(cluster))
    )


class _Judged:
    """A service whose ticks may end with the errors of its world and with `lives_with`; any other one is a finding."""

    def __init__(self, cluster: Cluster, service: Service, lives_with: tuple[type[TidelineError], ...]) -> None:
        self._cluster = cluster
        self._service = service
        self._lives_with = lives_with
        self.start = service.start
        self.stop = service.stop

    def tick(self) -> float | None:
        try:
            return self._service.tick()
        except (*EXPECTED, *self._lives_with):
            raise
        except Exception as error:
            self._cluster.oracle.report(f"a tick of {type(self._service).__name__} ended with {type(error).__name__}: {error}")
            raise


def live(
    cluster: Cluster,
    service: Service,
    context: ServiceContext,
    settings: ServiceSettings,
    choose: random.Random,
    lives_with: tuple[type[TidelineError], ...],
) -> None:
    """The life of a service as `run_service` runs it: until it is asked to stop, or gives up on errors that it has to live with."""
    loop = TickLoop(
        _Judged(cluster, service, lives_with),
        context,
        poll_interval_s=settings.poll_interval_s,
        backoff=Backoff(max_s=settings.retry_backoff_max_s),
        max_consecutive_failures=settings.max_consecutive_failures,
        live_deadline_s=settings.live_deadline_s,
        draw=choose.random,
    )
    try:
        loop.run()
    except TooManyFailures:
        pass  # its supervisor starts it again
    finally:
        service.stop()
