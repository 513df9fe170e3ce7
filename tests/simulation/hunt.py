"""Looking for a protection that is switched off: history after history until one fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulation.batches import all_cores
from tests.simulation.scheduler import stop_workers
from tests.simulation.seeded_bugs import BUGS, FOCUS, START
from tests.simulation.simulate import simulate

HISTORIES = 1000


@dataclass(frozen=True, slots=True)
class Hunt:
    """The first history that fails without a protection, from 1, and how; 0 where all hold. `fails_anyway` tells how it fails with it."""

    history: int = 0
    problem: str = ""
    fails_anyway: str = ""


def hunt(name: str) -> Hunt:
    """Run histories without the protection `name`."""
    focus, first = FOCUS.get(name, ""), START.get(name, 1)
    try:
        for seed in range(first, first + HISTORIES):
            outcome = simulate(seed, BUGS[name], focus)
            if outcome.problems:
                sound = simulate(seed, focus=focus)
                return Hunt(seed - first + 1, outcome.problems[0], "".join(sound.problems[:1]))
        return Hunt()
    finally:
        stop_workers()


@contextmanager
def running_hunts(names: Iterable[str]) -> Iterator[Mapping[str, Future[Hunt]]]:
    """Protection → the hunt for it, on its way: as many at a time as there are cores, each in a process of its own."""
    with all_cores() as pool:
        yield {name: pool.submit(hunt, name) for name in names}
