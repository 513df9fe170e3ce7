"""Histories with log compactions beside writers, compactions, clusterings, cleans and rollbacks hold, and do enough of each."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.simulation.simulate import simulate, story

SEEDS, NINE = range(1, 31), range(1, 13)


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


@pytest.mark.timeout(900)
def test_histories_of_version_9_hold() -> None:
    """There a write that commits behind a log compaction, and began before it, is repeated."""
    work: Counter[str] = Counter()
    for seed in NINE:
        outcome = simulate(seed, focus="merged", version=9)
        assert not outcome.problems, story(outcome)
        work += outcome.work
    assert work["logcompaction LOG_COMPACT"] >= 3
    assert work["compaction COMPACT"] >= 3
