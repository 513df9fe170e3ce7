"""Single flipped bits in data files and table logs give the right rows or a typed error."""

import pytest
from tests.fuzz.flips import KINDS, Kind, flipped


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_a_flipped_bit_gives_no_other_rows(kind: Kind) -> None:
    outcomes = flipped(kind, 60, seed=7)

    assert {name for name in outcomes if name.startswith(("untyped", "WRONG"))} == set()
    assert len(outcomes) > 1, "no flip was noticed: the test does not test"
