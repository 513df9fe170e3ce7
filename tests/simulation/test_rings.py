"""Histories of tables with consistent hashing hold while buckets are split, merged and overwritten, and without the rules for rings they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from tests.simulation.simulate import simulate, story
from tests.simulation.world import World

from tideline_table.action.write.new_rings import CommitRings, NewRings
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.write_set import Overwrite
from tideline_table.table.rings import TableRings

SEEDS = range(1, 41)


@pytest.mark.timeout(900)
def test_histories_with_hash_rings_hold() -> None:
    work: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = simulate(seed, focus="rings")
        assert not outcome.problems, story(outcome)
        work += outcome.work
    kinds = ("deltacommit UPSERT", "replacecommit CLUSTER", "compaction COMPACT", "rollback ROLLBACK")
    for kind in (*kinds, "replacecommit INSERT_OVERWRITE", "replacecommit DELETE_PARTITION"):
        assert work[kind] > 0, kind


@pytest.mark.timeout(900)
def test_a_resize_that_misses_writes_is_found() -> None:
    """Seeded bug: a resize does not look whether the file groups that it replaces have grown."""

    @contextmanager
    def without_the_rule(_: World) -> Iterator[None]:
        with patch("tideline_table.coordination.bucket_conflict._split_group_changed", lambda *_: None):
            yield

    found = next((o for o in (simulate(seed, without_the_rule, "rings") for seed in SEEDS) if o.problems), None)
    assert found is not None


@pytest.mark.timeout(900)
def test_an_overwrite_that_keeps_the_rings_is_found() -> None:
    """Seeded bug: an overwrite leaves the partitions their rings, so that later rows are in replaced file groups."""

    def with_rings_as_they_are(
        _: NewRings, __: str, rings: TableRings, routed_to: Collection[str], replaced: Overwrite | None, commit: CommitRings
    ) -> Committed:
        return commit({}, replaced, rings.instants(routed_to))

    @contextmanager
    def without_new_rings(_: World) -> Iterator[None]:
        with (
            patch("tideline_table.action.write.new_rings.NewRings.commit", with_rings_as_they_are),
            patch("tideline_table.table.rings.TableRings.renewed", lambda rings, names, _: rings.of(names)),
            patch("tideline_table.coordination.conflict.replaced_in_a_ring", lambda *_: None),
        ):
            yield

    found = next((o for o in (simulate(seed, without_new_rings, "rings") for seed in SEEDS) if o.problems), None)
    assert found is not None
