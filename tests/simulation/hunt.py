"""Looking for a protection that is switched off: history after history until one fails."""

from __future__ import annotations

from dataclasses import dataclass

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
