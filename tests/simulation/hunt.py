"""Looking for a protection that is switched off: history after history until one fails.

python -m tests.simulation.hunt prints the table of `first_histories` as the search finds it now, and what was not found.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tests.simulation.first_histories import START
from tests.simulation.scheduler import stop_workers
from tests.simulation.seeded_bugs import BUGS, FOCUS
from tests.simulation.shared_simulation import simulate_shared
from tests.simulation.simulate import Outcome, Sabotage, no_sabotage, simulate

HISTORIES = 1000


@dataclass(frozen=True, slots=True)
class Hunt:
    """The first history that fails without a protection, and how; 0 where all hold. `fails_anyway` tells how it fails with it."""

    seed: int = 0
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
                return Hunt(seed, outcome.problems[0], "".join(sound.problems[:1]))
        return Hunt()
    finally:
        stop_workers()


def _history(seed: int, focus: str, bug: Sabotage) -> Outcome:
    return simulate_shared(seed, bug) if focus == "shared" else simulate(seed, bug, focus)


def main() -> int:
    """Look for every bug; 1 if one was not found."""
    found = {name: hunt(name) for name in BUGS}
    for name, history in found.items():
        if history.seed > 1:
            print(f'    "{name}": {history.seed},')
    missed = [name for name, history in found.items() if not history.seed or history.fails_anyway]
    for name in missed:
        print(f"NOT FOUND: {name}  {found[name].fails_anyway}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
