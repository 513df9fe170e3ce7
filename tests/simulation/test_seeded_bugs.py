"""The simulator finds each protection that is switched off, within 1,000 histories."""

import pytest
from tests.simulation.seeded_bugs import BUGS, FOCUS, START
from tests.simulation.simulate import simulate

HISTORIES = 1000


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BUGS)
def test_found(name, record_property):
    focus = FOCUS.get(name, "")
    first = START.get(name, 1)
    for seed in range(first, first + HISTORIES):
        outcome = simulate(seed, BUGS[name], focus)
        if outcome.problems:
            assert not simulate(seed, focus=focus).problems, f"history {seed} fails without {name} too"
            record_property("histories", seed - first + 1)
            print(f"{name}: history {seed}: {outcome.problems[0]}")
            return
    pytest.fail(f"{HISTORIES} histories without {name} hold")
