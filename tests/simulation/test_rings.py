"""Histories of tables with consistent hashing hold while buckets are split, merged, clustered and overwritten, and without the
rules for rings they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from tests.simulation.sabotage import sabotage
from tests.simulation.simulate import simulate, story
from tests.simulation.world import World

from tideline_table.action.new_rings import CommitRings, NewRings
from tideline_table.action.write import ring_resize
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.write_set import Overwrite
from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.instant import CLUSTER, State
from tideline_table.index.hash_ring import HashRing
from tideline_table.index.ring_change import renewed_ring
from tideline_table.log.body import CARRIED_KEY, Published
from tideline_table.table.rings import TableRings

SEEDS = range(1, 41)


@pytest.mark.timeout(900)
def test_histories_with_hash_rings_hold() -> None:
    work: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = simulate(seed, focus="rings")
        assert not outcome.problems, story(outcome)
        work += outcome.work
        plans = {entry.instant for entry in outcome.entries if entry.after is State.REQUESTED}
        done = [e for e in outcome.entries if e.operation == CLUSTER and e.after is State.COMPLETED and e.instant in plans]
        work["clusterings"] += len(done)
        work["carried over"] += sum(isinstance(e.body, Published) and CARRIED_KEY in e.body.metadata.extra for e in done)
    kinds = ("deltacommit UPSERT", "replacecommit CLUSTER", "compaction COMPACT", "rollback ROLLBACK")
    for kind in (*kinds, "replacecommit INSERT_OVERWRITE", "replacecommit DELETE_PARTITION", "clusterings", "carried over"):
        assert work[kind] > 0, kind


@pytest.mark.timeout(900)
def test_a_resize_that_misses_writes_is_found() -> None:
    """Seeded bug: a resize does not look whether the file groups that it replaces have grown."""

    @contextmanager
    def without_the_rule(_: World) -> Iterator[None]:
        with patch("tideline_table.coordination.conflict._split_group_changed", lambda *_: None):
            yield

    found = next((o for o in (simulate(seed, without_the_rule, "rings") for seed in SEEDS) if o.problems), None)
    assert found is not None


def _clustered_whatever_counts(rings: TableRings, groups: Iterable[FileGroupId], instant: str) -> dict[str, HashRing]:
    named = list(groups)
    found = rings.of({group.partition_path for group in named})
    return {
        name: renewed_ring(ring, instant, {g.file_id for g in named if g.partition_path == name}) for name, ring in found.items()
    }


@pytest.mark.timeout(900)
def test_a_clustering_whose_ring_is_older_than_that_of_a_resize_is_found() -> None:
    """Seeded bug: a resize looks at no pending clustering, and the clustering does not look whether its ring would count."""
    blind = sabotage(
        (TableRings, "clustered", _clustered_whatever_counts),
        (
            ring_resize,
            "planned_partitions",
            lambda state: {g.partition_path: {at} for g, at in state.groups_under_compaction().items()},
        ),
    )
    found = next(
        (o for o in (simulate(seed, blind, "rings") for seed in range(61, 141)) if o.problems), None
    )  # About 8 of these 80 show it.
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
            patch("tideline_table.action.new_rings.NewRings.commit", with_rings_as_they_are),
            patch("tideline_table.table.rings.TableRings.renewed", lambda rings, names, _: rings.of(names)),
            patch("tideline_table.coordination.conflict.replaced_in_a_ring", lambda *_: None),
        ):
            yield

    found = next((o for o in (simulate(seed, without_new_rings, "rings") for seed in SEEDS) if o.problems), None)
    assert found is not None
