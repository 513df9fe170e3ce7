"""Random histories on a table with partial records and on one without.

`python -m tests.histories --of partial-records` tries many more.
"""

from collections import Counter

from tests.histories.partial_records import outcome_of
from tests.simulation.faults import SAMPLE_STEP

SEEDS = range(1, 1 + max(3, 24 // SAMPLE_STEP))


def test_histories():
    kinds = Counter()
    for seed in SEEDS:
        _, problem, found = outcome_of(seed)
        assert not problem, problem
        kinds += found
    assert kinds["blocks of partial records"] >= len(SEEDS), kinds
