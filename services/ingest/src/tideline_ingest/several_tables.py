"""One process for several tables: each has an application with its own thread, offsets and failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tideline_ingest.assignment import assigned, check_assignment, has_patterns, has_several_tables
from tideline_ingest.errors import TablesSetAside, TopicUnavailable
from tideline_ingest.ingestion import IngestService, client_options
from tideline_ingest.metrics import TABLES
from tideline_ingest.settings import IngestSettings
from tideline_runtime.contract import Service, ServiceContext
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.health import Health
from tideline_runtime.logging import get_logger
from tideline_runtime.loop import Backoff, TickLoop
from tideline_runtime.metrics import CONSECUTIVE_FAILURES, READY, Gauge, Metrics

_log = get_logger(__name__)
Factory = Callable[[IngestSettings, ServiceContext], Service]


def ingest_service(settings: IngestSettings, context: ServiceContext) -> Service:
    """Return the service that the settings ask for: of one table, or of several."""
    return SeveralTables(settings, context) if has_several_tables(settings) else IngestService(settings, context)


class _SharedMetrics(Metrics):
    """The metrics of the process for one of its applications, which does not say whether the process is ready."""

    def __init__(self, shared: Metrics) -> None:
        self.__dict__.update(shared.__dict__)

    def set(self, metric: Gauge, value: float, **labels: str) -> None:
        """See `Metrics.set`."""
        if metric not in (READY, CONSECUTIVE_FAILURES):
            super().set(metric, value, **labels)


@dataclass(eq=False)
class _Application:
    """The application of one table, in its own thread until it is stopped or fails for good."""

    settings: IngestSettings
    context: ServiceContext
    factory: Factory
    failure: Exception | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name=f"ingest {self.settings.table}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        settings = self.settings
        service: Service | None = None
        try:
            service = self.factory(settings, self.context)
            TickLoop(
                service,
                self.context,
                poll_interval_s=settings.poll_interval_s,
                backoff=Backoff(max_s=settings.retry_backoff_max_s),
                max_consecutive_failures=settings.max_consecutive_failures,
                live_deadline_s=settings.live_deadline_s,
            ).run()
        except Exception as error:  # noqa: BLE001 - the border of the application: logged, reported, and tried again later
            _log.error("table set aside", table=settings.table, exc_info=error)
            self.failure = error
        finally:
            if service is not None:
                try:
                    service.stop()
                except Exception as error:  # noqa: BLE001 - as above
                    _log.error("stop failed", table=settings.table, exc_info=error)

    def begin_stop(self) -> None:
        """Ask the thread to end."""
        self.context.request_stop()


class SeveralTables:
    """Runs the applications that `assigned` finds.

    An application that fails for good, by a poison record for instance, is set aside: the others go on, and it is started
    again after `topic_rescan_s`. Meanwhile the service is not ready.
    """

    def __init__(
        self,
        settings: IngestSettings,
        context: ServiceContext,
        *,
        topics: Callable[[], Collection[str]] | None = None,
        factory: Factory = IngestService,
    ) -> None:
        check_assignment(settings)
        self._settings = settings
        self._context = context
        self._topics = topics or self._existing
        self._factory = factory
        self._admin: AdminClient | None = None
        self._running: dict[str, _Application] = {}
        self._rescan_s = 0.0
        context.metrics.expose(TABLES)

    def start(self) -> None:
        """Find the tables and begin with them. Raises `InvalidSetting` and `TopicUnavailable`."""
        self._context.health.require("tables", self._check)
        self._follow()

    def tick(self) -> float | None:
        """Look for new topics and at applications that ended."""
        now_s = self._context.clock.monotonic_s()
        if now_s >= self._rescan_s:
            try:
                self._follow()
                self._context.health.clear("topics")
            except InvalidSetting as error:
                # A new topic does not fit the settings. The tables of the others go on.
                _log.error("topics cannot be assigned", exc_info=error)
                self._context.health.obstruct("topics", str(error))
        # An application that hangs must let the process appear dead: this loop gives no sign of life either.
        while any(not a.context.health.live().is_ok for a in self._going()) and not self._context.stopping.wait(1):
            pass
        self._count()
        return None

    def stop(self) -> None:
        """End all applications."""
        for application in self._running.values():
            application.begin_stop()
        for application in self._running.values():
            application.thread.join()

    def _follow(self) -> None:
        """Start and stop applications so that each table has one with its present settings."""
        settings = self._settings
        self._rescan_s = self._context.clock.monotonic_s() + settings.topic_rescan_s
        wanted = assigned(settings, self._topics() if has_patterns(settings) else ())
        others = [a for path, a in self._running.items() if wanted.get(path) != a.settings]
        for application in others:
            application.begin_stop()
        for application in others:
            application.thread.join()
            del self._running[application.settings.table]
        for path, own in wanted.items():
            if path not in self._running or not self._running[path].thread.is_alive():
                self._running[path] = _Application(own, self._child(own), self._factory)
        if not wanted:
            _log.warning("no topic matches", topics=settings.topics)
        self._count()

    def _child(self, settings: IngestSettings) -> ServiceContext:
        context = self._context
        health = Health(context.clock, settings.live_deadline_s)
        return ServiceContext(context.name, context.clock, _SharedMetrics(context.metrics), health)

    def _going(self) -> list[_Application]:
        return [application for application in self._running.values() if application.thread.is_alive()]

    def _count(self) -> None:
        going = len(self._going())
        self._context.metrics.set(TABLES, going, state="running")
        self._context.metrics.set(TABLES, len(self._running) - going, state="set_aside")

    def _check(self) -> None:
        """Raise `TablesSetAside` with what is wrong with each table, if anything is."""
        reasons: list[str] = []
        for path, application in list(self._running.items()):
            if application.failure is not None and not application.thread.is_alive():
                reasons.append(f"{path}: {type(application.failure).__name__}: {application.failure}")
            else:
                reasons += [f"{path}: {reason}" for reason in application.context.health.ready().reasons]
        if reasons:
            raise TablesSetAside("; ".join(reasons))

    def _existing(self) -> Collection[str]:
        if self._admin is None:
            self._admin = AdminClient({**client_options(self._settings)})
        try:
            return set(self._admin.list_topics(timeout=self._settings.kafka_timeout_s).topics)
        except KafkaException as failure:
            raise TopicUnavailable(f"topics: {failure.args[0].str()}", remedy="check the brokers and the permissions") from failure
