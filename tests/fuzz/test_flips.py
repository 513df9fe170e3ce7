"""Single flipped bits in data files and table logs give the right rows or a typed error."""

import pytest
from tests.fuzz.flips import KINDS, Kind, flipped

from tideline_table.log.checkpoint import CHECKPOINT_FOLDER


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_a_flipped_bit_gives_no_other_rows(kind: Kind) -> None:
    outcomes = flipped(kind, 60, seed=7)

    assert {name for name in outcomes if name.startswith(("untyped", "WRONG"))} == set()
    is_passed_over = kind.folder == CHECKPOINT_FOLDER  # the entries of the log say the same
    assert is_passed_over or outcomes["DamagedFile"] + outcomes["CorruptMetadata"] > 0, (
        "no flip was noticed: the test does not test"
    )
