"""Histories of tables with a bucket index hold, half of them with numbers by partition, and without the rule for empty buckets they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from tests.simulation.simulate import simulate, story
from tests.simulation.world import World

SEEDS = range(1, 61)


@pytest.mark.timeout(900)
def test_histories_with_a_bucket_index_hold() -> None:
    work: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = simulate(seed, focus="bucketed")
        assert not outcome.problems, story(outcome)
        work += outcome.work
    for kind in (
        "commit UPSERT",
        "deltacommit UPSERT",
        "deltacommit INSERT",
        "compaction COMPACT",
        "clean CLEAN",
        "rollback ROLLBACK",
    ):
        assert work[kind] > 0, kind
    assert work["replacecommit CLUSTER"] == 0


@pytest.mark.timeout(900)
def test_two_groups_in_one_bucket_are_found() -> None:
    @contextmanager
    def without_the_rule(_: World) -> Iterator[None]:
        with patch("tideline_table.coordination.conflict.opened_meanwhile", lambda *_: None):
            yield

    found = next((o for o in (simulate(seed, without_the_rule, "bucketed") for seed in SEEDS) if o.problems), None)
    assert found is not None
