"""Histories of writers that look keys up by Bloom filters hold, and with filters that lack keys they do not."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.simulation.sabotage import sabotage
from tests.simulation.simulate import simulate, story

from tideline_table.bloom import KeyBytes
from tideline_table.writer import base_file

SEEDS = range(1, 26)


@pytest.mark.timeout(900)
def test_histories_with_the_bloom_index_hold() -> None:
    work: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = simulate(seed, focus="filtered")
        assert not outcome.problems, story(outcome)
        work += outcome.work
    for kind in (
        "commit UPSERT",
        "deltacommit UPSERT",
        "compaction COMPACT",
        "replacecommit CLUSTER",
        "histories of a global index",
    ):
        assert work[kind] > 0, kind


def _only_the_ends(keys: pa.ChunkedArray) -> KeyBytes:
    """Forgets all keys but the least and the greatest, by which readers recognise a filter of other keys."""
    return KeyBytes(pa.array(sorted(pc.min_max(keys).as_py().values())))


@pytest.mark.timeout(900)
def test_filters_that_lack_keys_are_found() -> None:
    lacking = sabotage((base_file, "KeyBytes", _only_the_ends))
    found = next((o for o in (simulate(seed, lacking, "filtered") for seed in SEEDS) if o.problems), None)
    assert found is not None
