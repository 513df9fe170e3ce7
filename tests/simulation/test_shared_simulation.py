"""Histories of shared tables replay, and tell their story; `test_simulation` runs many of them among the others."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from tests.simulation.sabotage import sabotage
from tests.simulation.seeded_shared_bugs import SHARED_BUGS
from tests.simulation.shared_simulation import EVERY, history, simulate_shared
from tests.simulation.shared_world import RESERVATION_FAULTS, SHARED_FAULTS, SharedWorld
from tests.simulation.simulate import story
from tests.simulation.world import TAKES_TIME

from tideline_table.coordination import SharedTimeline
from tideline_table.coordination.shared.follower import LogFollower
from tideline_table.hudi.instant import State, shifted

NINE = range(1, 7)
"""Seeds of histories of a shared table of version 9."""


def test_a_seed_replays_step_by_step():
    for seed in (3, 17, 42):
        first, second = simulate_shared(seed), simulate_shared(seed)
        assert first.trace == second.trace
        assert first.digest == second.digest
    assert simulate_shared(3).digest != simulate_shared(4).digest


def test_a_seed_replays_in_another_process():
    program = "from tests.simulation.shared_simulation import simulate_shared as s; print([s(n).digest for n in range(20, 24)])"
    other = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True
    )
    assert other.stdout == f"{[simulate_shared(seed).digest for seed in range(20, 24)]}\n"


def test_one_history_in_so_many_is_of_a_shared_table():
    kinds = [history(seed).work["shared histories"] for seed in range(EVERY, 2 * EVERY)]
    assert kinds == [1, *[0] * (EVERY - 1)]


def test_the_board_of_our_writers_fails_too():
    assert set(RESERVATION_FAULTS) == {"intents_lost", "intents_unreachable"}
    world = next(w for w in map(SharedWorld, range(1, 100)) if set(RESERVATION_FAULTS) <= set(w.kinds))
    process, world._left = world.start("writer", lambda _: None), 1000
    assert set(RESERVATION_FAULTS) <= {world.draw(process, "reservations", "claim") for _ in range(1000)}
    world.scheduler.run()


def test_a_failing_history_tells_its_story():
    outcomes = (
        simulate_shared(seed, sabotage((LogFollower, "adopt", lambda follower: follower.replica.refresh())))
        for seed in range(1, 30)
    )
    told = story(next(outcome for outcome in outcomes if outcome.problems))
    assert "put_if_version .hoodie/.locks/table_lock.json" in told
    assert "hudi0#1" in told


def test_histories_of_version_9_hold():
    outcomes = [simulate_shared(seed, version=9) for seed in NINE]
    assert [(outcome.seed, outcome.problems) for outcome in outcomes if outcome.problems] == []
    work = sum((outcome.work for outcome in outcomes), Counter())
    assert min(work[f"{side} on shared tables: commit UPSERT"] for side in ("ours", "Apache Hudi")) >= len(NINE)


def _in_the_past(self, draft):
    return replace(draft, completion=shifted(draft.instant, 1)) if draft.after is State.COMPLETED else draft


@pytest.mark.parametrize(
    "bug",
    [
        SHARED_BUGS["what Hudi did is not adopted"],
        SHARED_BUGS["no conflicts with what was adopted"],
        sabotage((SharedTimeline, "_timed", _in_the_past)),
    ],
    ids=["not adopted", "no conflicts", "completion times without the lock's order"],
)
def test_a_seeded_bug_is_found_in_version_9(bug):
    assert any(simulate_shared(seed, bug, version=9).problems for seed in range(1, 30))


def test_what_no_lock_protects_from_is_left_out_and_nothing_else():
    world = SharedWorld(1)
    assert set(world.kinds) <= {*SHARED_FAULTS, *RESERVATION_FAULTS}
    process = world.start("writer", lambda _: None)
    commit, request = (".hoodie/20260101000000000.commit", ".hoodie/20260101000000000.commit.requested")
    for kind in SHARED_FAULTS:
        assert world._can_be_survived(kind, process, "put_if_absent", "p/x.parquet") or kind == "refused_without_object"
        late = kind == "late_write"
        assert world._can_be_survived(kind, process, "put_if_absent", request) != late
    world.taking_step[process.name] += 1
    left_out = {kind for kind in SHARED_FAULTS if not world._can_be_survived(kind, process, "put_if_absent", commit)}
    assert left_out == {*TAKES_TIME - {"clock_jump"}, "lease_expiry", "late_write", "lock_taken"}
    world.scheduler.run()
