"""Histories with the update strategy carry-over hold, and with a carry-over that forgets writes or deletions they do not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.sabotage import sabotage
from tests.simulation.simulate import Sabotage, simulate, story

from tideline_table.action.clustering import carried_file
from tideline_table.action.clustering.carry_over import CarryOver
from tideline_table.log.body import Published, carried_by_path
from tideline_table.log.state import TableState

SEEDS = range(1, 41)


@pytest.mark.timeout(900)
def test_histories_hold() -> None:
    carried: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = simulate(seed, focus="carried")
        assert not outcome.problems, story(outcome)
        bodies = [entry.body for entry in outcome.entries if isinstance(entry.body, Published)]
        found = [carried_by_path(body.metadata.extra) for body in bodies]
        carried["clusterings"] += sum(map(bool, found))
        carried["writes"] += sum(len(set(files.values())) for files in found)
        carried["deletions"] += sum(
            stat.num_deletes > 0
            for body, files in zip(bodies, found, strict=True)
            for stat in body.metadata.stats
            if stat.path in files
        )
    print(carried)
    assert all(carried[kind] >= 3 for kind in ("clusterings", "writes", "deletions")), carried


_appended, _framed = CarryOver._appended, carried_file._framed


def _without_the_last_write(self: CarryOver, state: TableState) -> Any:
    found, versions = _appended(self, state)
    return [each for each in found if each.sequence < found[-1].sequence], versions


def _without_deletions(part: carried_file.CarriedEvents, *more: Any) -> Any:
    return _framed(replace(part, rows=part.rows.slice(0, 0)) if part.deletes else part, *more)


def _unchecked(*_: Any) -> None:
    return None


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "bug",
    [
        sabotage((CarryOver, "_appended", _without_the_last_write)),
        sabotage((carried_file, "_framed", _without_deletions), (carried_file, "_check", _unchecked)),
    ],
    ids=["the last write is forgotten", "deletions are dropped"],
)
def test_seeded_bugs_are_found(bug: Sabotage) -> None:
    found = next((o for o in (simulate(seed, bug, "carried") for seed in SEEDS) if o.problems), None)
    assert found is not None
    print(found.seed, found.problems[0])
