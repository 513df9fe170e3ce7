"""What a service is, and what it gets from the life cycle that runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from starlette.routing import BaseRoute

from tideline_service.health import Health
from tideline_service.metrics import Metrics
from tideline_service.settings import ServiceSettings
from tideline_table.clock import Clock


class Service(Protocol):
    """A level-triggered service: each tick reads the truth, acts on the difference, and is safe to repeat.

    All three are called in the main thread, one at a time. An event, hint or time-out only decides when the next tick comes.
    """

    def start(self) -> None:
        """Get what ticks need. Called again after it raised an error that a retry may cure; any other error ends the process."""
        ...

    def tick(self) -> float | None:
        """Do what there is to do; seconds until the next tick is wanted (0: at once), None for the poll interval.

        An error of Tideline with RETRY or REFRESH leads to a pause and another tick. Any other error makes the service unready, and
        too many of them in a row end the process. A long tick calls `context.health.beat()` in between and returns early
        when `context.stopping` is set.
        """
        ...

    def stop(self) -> None:
        """Give back everything, also what a failed `start` got. Called once."""
        ...


@dataclass(frozen=True)
class ServiceContext:
    """What the life cycle gives a service. `stopping` is set once the service should end."""

    name: str
    clock: Clock
    metrics: Metrics
    health: Health
    stopping: threading.Event = field(default_factory=threading.Event)
    wakeup: threading.Event = field(default_factory=threading.Event)
    routes: list[BaseRoute] = field(default_factory=list)

    def wake(self) -> None:
        """Let the next tick come now: from any thread, any number of times, also during a tick (then one more follows)."""
        self.wakeup.set()

    def request_stop(self) -> None:
        """Ask the service to end after its current tick."""
        self.stopping.set()
        self.wakeup.set()

    def add_routes(self, *routes: BaseRoute) -> None:
        """Serve these too. Only before `start`, that is from the factory."""
        self.routes.extend(routes)


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)

ServiceFactory = Callable[[SettingsT, ServiceContext], Service]
"""Makes the service; reaches for nothing outside the process yet. May raise `InvalidSetting`."""
