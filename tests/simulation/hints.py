"""Hints among the actors: who waits is woken, late, twice, in another order or never."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


class Hints:
    """Hints on their way to consumers: late, twice, in another order or never."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queued: dict[str, list[tuple[int, int]]] = {}
        self._sent: list[int] = []
        self.on_arrival: Callable[[], None] = lambda: None
        """Hears of each hint that is not lost."""

    def subscribe(self, consumer: str) -> None:
        """From now on `consumer` is told."""
        self._queued.setdefault(consumer, [])

    def publish(self, process: Process, sequence: int) -> None:
        """Tell every consumer that entry `sequence` is there."""
        world = self._world
        world.scheduler.step()
        fault = world.draw(process, "publish", str(sequence))
        world.note(process, "publish", f"entry {sequence}", fault)
        if fault == "event_lost":
            return
        self.on_arrival()
        if fault == "rebalance":
            # Consumers change places and begin again where the last ones had committed.
            back = self._sent[-world.choose.randrange(1, 8) :]
            for queue in self._queued.values():
                queue[:] = [(world.scheduler.now_us, old) for old in back]
        self._sent.append(sequence)
        at_us = world.scheduler.now_us + world.between(0.001, 120 if fault == "event_delayed" else 0.5)
        for queue in self._queued.values():
            queue += [(at_us, sequence)] * (2 if fault == "event_doubled" else 1)
            if fault == "event_reordered":
                world.choose.shuffle(queue)

    def take(self, consumer: str) -> list[int]:
        """What has arrived for `consumer`."""
        now_us = self._world.scheduler.now_us
        queue = self._queued[consumer]
        arrived = [s for at, s in queue if at <= now_us]
        self._queued[consumer] = [e for e in queue if e[0] > now_us]
        return arrived

    def wait(self, consumer: str, timeout_us: int) -> list[int]:
        """What arrives for `consumer` until the timeout."""
        # Services look at the truth at intervals too: an event only makes them look sooner.
        deadline_us = self._world.scheduler.now_us + timeout_us
        due = [at for at, _ in self._queued[consumer]]
        self._world.scheduler.sleep(max(0, min([deadline_us, *due]) - self._world.scheduler.now_us))
        return self.take(consumer)
