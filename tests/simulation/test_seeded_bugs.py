"""The simulator finds each protection that is switched off, within 1,000 histories from where its search begins
(`first_histories`)."""

import pytest
from tests.simulation.first_histories import START
from tests.simulation.hunt import HISTORIES, hunt
from tests.simulation.seeded_bugs import BUGS


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BUGS)
def test_found(name, record_property):
    found = hunt(name)
    assert found.seed, f"{HISTORIES} histories without {name} hold"
    assert not found.fails_anyway, f"history {found.seed} fails without {name} too"
    record_property("seed", found.seed)
    print(f"{name}: history {found.seed}: {found.problem}")


def test_searches_begin_for_bugs_that_there_are():
    assert START.keys() <= BUGS.keys()
