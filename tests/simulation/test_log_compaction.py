"""Histories with log compactions beside writers, compactions, clusterings, cleans and rollbacks hold, and do enough of each."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.simulation.simulate import simulate, story

SEEDS = range(1, 31)


@pytest.mark.timeout(900)
def test_histories_hold() -> None:
    work: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = simulate(seed, focus="merged")
        assert not outcome.problems, story(outcome)
        work += outcome.work
    print(work)
    for kind in (
        "logcompaction LOG_COMPACT",
        "compaction COMPACT",
        "replacecommit CLUSTER",
        "rollback ROLLBACK",
        "deltacommit DELETE",
    ):
        assert work[kind] >= 3, kind
    assert work["clean CLEAN"] >= 1
