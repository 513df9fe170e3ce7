"""The simulator finds each protection that is switched off, within 1,000 histories."""

import os

import pytest
from tests.simulation.seeded_bugs import BUGS, DEEP
from tests.simulation.simulate import simulate

HISTORIES = 1000
RUN_DEEP = bool(os.environ.get("TIDELINE_SIMULATION_DEEP"))


@pytest.mark.parametrize("name", BUGS)
def test_found(name, record_property):
    if name in DEEP and not RUN_DEEP:
        pytest.skip("takes long; TIDELINE_SIMULATION_DEEP=1 runs it")
    for seed in range(1, HISTORIES + 1):
        outcome = simulate(seed, BUGS[name])
        if outcome.problems:
            assert not simulate(seed).problems, f"history {seed} fails without {name} too"
            record_property("histories", seed)
            print(f"{name}: history {seed}: {outcome.problems[0]}")
            return
    pytest.fail(f"{HISTORIES} histories without {name} hold")
