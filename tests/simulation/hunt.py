"""Looking for a protection that is switched off: history after history until one fails."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.scheduler import stop_workers
from tests.simulation.seeded_bugs import BUGS, FOCUS, START
from tests.simulation.shared_simulation import simulate_shared
from tests.simulation.simulate import Outcome, Sabotage, no_sabotage, simulate

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
            outcome = _history(seed, focus, BUGS[name])
            if outcome.problems:
                sound = _history(seed, focus, no_sabotage)
                return Hunt(seed - first + 1, outcome.problems[0], "".join(sound.problems[:1]))
        return Hunt()
    finally:
        stop_workers()


def _history(seed: int, focus: str, bug: Sabotage) -> Outcome:
    return simulate_shared(seed, bug) if focus == "shared" else simulate(seed, bug, focus)
