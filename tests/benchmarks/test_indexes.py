"""The rows that the comparison of indexes changes."""

from __future__ import annotations

import pyarrow as pa
from tests.benchmarks.indexes import chosen


def test_recent_rows_have_the_greatest_keys_and_random_ones_repeat() -> None:
    keys = pa.chunked_array([pa.array([5, 1, 9]), pa.array([7, 3, 8, 2, 4, 6, 0])])
    assert sorted(keys.take(pa.array(chosen(keys, 0.3, recent=True, seed=1))).to_pylist()) == [7, 8, 9]
    random = chosen(keys, 0.3, recent=False, seed=1)
    assert len({*random.tolist()}) == 3
    assert random.tolist() == chosen(keys, 0.3, recent=False, seed=1).tolist()
    assert len(chosen(keys, 0.0001, recent=True, seed=1)) == 1
