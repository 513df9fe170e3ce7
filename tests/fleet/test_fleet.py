"""The fleet proof in its small form: one run on real servers, with two instances of each service.

`make fleet TABLES=200` is the large one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.fleet.story import Size, performed
from tests.fleet.verification import problems

pytestmark = pytest.mark.real
TABLES = int(os.environ.get("TIDELINE_FLEET_TABLES", "12"))
LIMIT_S = 1800
"""It took 127 s on two cores with a load of 7 to 12 of other work, a quarter of it to start the ten instances."""


@pytest.mark.timeout(LIMIT_S)
def test_a_fleet_is_maintained_by_its_policies_through_kills_and_outages(tmp_path: Path) -> None:
    with performed(Size(TABLES), tmp_path, print) as run:
        wrong, figures = problems(run)
    print(figures.text())
    assert not wrong, "\n".join(wrong)
    assert figures.rewrites
    assert figures.repeated, "writers never met each other"
