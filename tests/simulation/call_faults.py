"""What goes wrong with the calls of a process to a service beside the table: an event log, a topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tests.simulation.faults import SimulatedCrash
from tests.simulation.scheduler import SECOND, Process

from tideline_table.errors import TidelineError

if TYPE_CHECKING:
    from tests.simulation.world import World

_CHANGES = frozenset({"publish", "take"})
"""Calls that change something are hit more often: there are few."""


class CallFaults:
    """Faults of one such service, drawn apart from all others."""

    def __init__(
        self, world: World, service: str, kinds: Mapping[str, frozenset[str]], silent: Callable[[], TidelineError]
    ) -> None:
        """`kinds` are the kinds of fault and the calls that they can hit.

        Of a service that does not answer callers get what `silent` makes.
        """
        self.choose = choose = world.chooser(f"{service} faults")
        self._world = world
        self._service = service
        self._calls = kinds
        self._silent = silent
        most = min(7, len(kinds))
        self._kinds = choose.sample(sorted(kinds), choose.randrange(1, most)) if choose.random() < 0.95 else []
        self._rate = choose.choice((0.03, 0.1, 0.3))
        self._left = choose.randrange(1, 12)

    def calm(self) -> None:
        """No more faults."""
        self._left = 0

    def before(self, process: Process, call: str, what: str = "") -> str:
        """A call begins: others may go first, and what goes wrong with it does so, as far as that is before its effect."""
        world = self._world
        world.scheduler.step()
        fault = self._draw(process, call, what)
        if fault.endswith("_killed_before"):
            self.kill(process)
        elif fault.endswith("_paused"):
            process.stalled_until_us = world.scheduler.now_us + self.between(1, 400)
            world.scheduler.sleep(0)
        elif fault.endswith("_silent"):
            raise self._silent()
        return fault

    def after(self, process: Process, fault: str) -> None:
        """The call took effect; the process may not live to see it."""
        if fault.endswith("_killed_after"):
            self.kill(process)

    def kill(self, process: Process) -> None:
        """End the process of the caller."""
        self._world.kill(process)
        raise SimulatedCrash

    def between(self, low: float, high: float) -> int:
        """A random duration in microseconds, from seconds."""
        return int(self.choose.uniform(low, high) * SECOND)

    def _draw(self, process: Process, call: str, what: str) -> str:
        fault = ""
        usable = [kind for kind in self._kinds if call in self._calls[kind]]
        rate = 3 * self._rate if call in _CHANGES else self._rate
        if self._left > 0 and usable and self.choose.random() < rate:
            self._left -= 1
            fault = self.choose.choice(usable)
            self._world.faults[fault] += 1
        self._world.note(process, f"{self._service} {call}", what, fault)
        return fault
