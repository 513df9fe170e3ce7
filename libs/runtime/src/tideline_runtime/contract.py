"""The interface of a service, and the context that its life cycle gives it."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tideline_runtime.health import Health
from tideline_runtime.http import Route
from tideline_runtime.metrics import Metrics
from tideline_runtime.settings import ServiceSettings
from tideline_table.clock import Clock


class Service(Protocol):
    """A level-triggered service: each tick reads the state of the tables, acts on what is missing, and is safe to repeat.

    The main thread calls all three methods, one at a time. Events, hints and timeouts only decide when the next tick runs.
    """

    def start(self) -> None:
        """Acquire the resources that ticks need.

        Called again after an error that a retry may cure; any other error ends the process.
        """
        ...

    def tick(self) -> float | None:
        """Do the pending work; return the seconds until the next tick (0: at once), None for the poll interval.

        A `TidelineError` with recovery RETRY or REFRESH leads to a pause and another tick. Any other error makes the service
        unready, and too many of them in a row end the process; `InputRefused` ends it at once. A long tick calls
        `context.health.beat()` in between and returns early when `context.stopping` is set.
        """
        ...

    def stop(self) -> None:
        """Release everything, also what a failed `start` acquired. Called once."""
        ...


@dataclass(frozen=True)
class ServiceContext:
    """The context that the life cycle gives a service. `stopping` is set once the service should end."""

    name: str
    clock: Clock
    metrics: Metrics
    health: Health
    stopping: threading.Event = field(default_factory=threading.Event)
    wakeup: threading.Event = field(default_factory=threading.Event)
    routes: list[Route] = field(default_factory=list)
    instance: str = field(default_factory=lambda: f"{socket.gethostname()[:100]}-{uuid.uuid4().hex[:8]}")
    """Identifies this process among all, including earlier ones of the same pod."""

    def name_of_instance(self, settings: ServiceSettings) -> str:
        """Return the service's name with the shard of the settings or, if shards are leased, with the id of this process."""
        return f"{self.name}-{self.instance if settings.shard_leases.enabled else settings.shard_index}"

    def name_in_events(self, settings: ServiceSettings, name: str = "") -> str:
        """Return `name` (by default that of the instance) with the fleet before it.

        No other fleet of the event log has the result.
        """
        name = name or self.name_of_instance(settings)
        return f"{settings.fleet}.{name}" if settings.fleet else name

    def wake(self) -> None:
        """Let the next tick run now.

        May be called from any thread, any number of times; a call during a tick makes one more tick run.
        """
        self.wakeup.set()

    def request_stop(self) -> None:
        """Ask the service to end after its current tick."""
        self.stopping.set()
        self.wakeup.set()

    def add_routes(self, *routes: Route) -> None:
        """Serve these routes too. Only the service's factory may call this: the HTTP server reads the routes before `start`."""
        self.routes.extend(routes)


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)

ServiceFactory = Callable[[SettingsT, ServiceContext], Service]
"""Creates the service. It may read local files (policies, credentials), but connects to no other process. May raise
`InvalidOption`, such as `InvalidSetting` and `PolicyRefused`."""
