"""The simulator finds each protection that is switched off, within 1,000 histories; of rare ones the search begins where START says."""

import pytest
from tests.simulation.hunt import HISTORIES, hunt
from tests.simulation.seeded_bugs import BUGS


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BUGS)
def test_found(name, record_property):
    found = hunt(name)
    assert found.history, f"{HISTORIES} histories without {name} hold"
    assert not found.fails_anyway, f"history {found.history} fails without {name} too"
    record_property("histories", found.history)
    print(f"{name}: history {found.history}: {found.problem}")
