"""Histories of tables with a bucket index hold, half of them with numbers by partition, and without the rules for new file
groups they do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
from tests.simulation.sabotage import sabotage
from tests.simulation.simulate import simulate, story
from tests.simulation.world import World

from tideline_table.action.write.run import _Attempt
from tideline_table.coordination import conflict
from tideline_table.coordination.conflict import resized_meanwhile
from tideline_table.coordination.write_set import WriteSet
from tideline_table.errors import WriteConflict
from tideline_table.log.state import TableState
from tideline_table.table import Table

SEEDS = range(1, 61)
RESIZED = range(1, 41)


def _by_old_numbers(own: WriteSet, state: TableState) -> WriteConflict | None:
    return resized_meanwhile(replace(own, resized_by=None), state)


def _split_as_begun(own: WriteSet, state: TableState) -> WriteConflict | None:
    return resized_meanwhile(replace(own, splits_in=(own.splits or {}).__contains__), state)


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

    found = next((o for o in (simulate(seed, without_the_rule, "bucketed") for seed in SEEDS[8:]) if o.problems), None)
    assert found is not None


@pytest.mark.timeout(900)
def test_histories_whose_numbers_of_buckets_change_hold() -> None:
    work: Counter[str] = Counter()
    for seed in RESIZED:
        outcome = simulate(seed, focus="resized")
        assert not outcome.problems, story(outcome)
        work += outcome.work
    for kind in ("commit UPSERT", "deltacommit UPSERT", "replacecommit CLUSTER", "compaction COMPACT", "rollback ROLLBACK"):
        assert work[kind] > 0, kind


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("rule", "seeds"), [(_split_as_begun, range(83, 183)), (_by_old_numbers, range(120, 220))])
def test_a_missing_rule_for_resizes_is_found(
    rule: Callable[[WriteSet, TableState], WriteConflict | None], seeds: Iterable[int]
) -> None:
    """Seeded bugs: a resize does not look for file groups that others opened meanwhile.

    A write routed by the old numbers commits.
    """
    blind = sabotage((conflict, "resized_meanwhile", rule))
    found = next((o for o in (simulate(seed, blind, "resized") for seed in seeds) if o.problems), None)
    assert found is not None


@pytest.mark.timeout(900)
def test_a_resize_that_died_and_is_not_completed_is_found() -> None:
    """Seeded bug: writers and recovery leave `hoodie.properties` as a resize that died left them."""
    blind = sabotage((Table, "complete_resize", lambda _: None))
    found = next((o for o in (simulate(seed, blind, "resized") for seed in RESIZED[6:]) if o.problems), None)
    assert found is not None
    assert "hoodie.properties do not say" in story(found)


@pytest.mark.timeout(900)
def test_histories_with_several_file_groups_in_a_bucket_hold() -> None:
    work: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = simulate(seed, focus="several")
        assert not outcome.problems, story(outcome)
        work += outcome.work
    for kind in ("commit UPSERT", "deltacommit UPSERT", "compaction COMPACT", "clean CLEAN", "rollback ROLLBACK"):
        assert work[kind] > 0, kind


@pytest.mark.timeout(900)
def test_one_key_in_two_file_groups_of_a_bucket_is_found() -> None:
    """Without the look-up of keys in what others added, as in buckets with one file group."""
    blind = sabotage((_Attempt, "_look_up", lambda *_: None))
    found = next((o for o in (simulate(seed, blind, "several") for seed in SEEDS[8:]) if o.problems), None)
    assert found is not None
