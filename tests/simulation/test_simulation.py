"""Histories of simulated clusters hold; a seed replays; what goes wrong is told."""

import os
import random
import subprocess
import sys
import uuid
from collections import Counter
from contextlib import contextmanager

import pytest
from tests.simulation import simulate as simulation
from tests.simulation.conftest import BATCH, SEED_START, SEEDS
from tests.simulation.event_faults import EVENT_FAULTS
from tests.simulation.feed import FEED_FAULTS
from tests.simulation.sabotage import sabotage
from tests.simulation.scheduler import Process, Scheduler, SimulatedThreading
from tests.simulation.shared_simulation import EVERY, history
from tests.simulation.shared_world import LOCK_TAKEN
from tests.simulation.simulate import simulate, story
from tests.simulation.world import APPLICABLE

from tideline_table.coordination import exclusive, heartbeat
from tideline_table.hudi.instant import next_instant, time_from_instant

ROLLED_BACK = "Apache Hudi on shared tables: rollback ROLLBACK"
"""The rarest kind of work on shared tables."""
FIRSTS = range(SEED_START, SEED_START + SEEDS, BATCH)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", FIRSTS)
def test_histories_hold(first, batches):
    outcome = batches(first)
    assert not outcome.story, outcome.story
    assert outcome.fewest_steps >= 200


@pytest.mark.timeout(900)
def test_these_histories_had_every_kind_of_fault(batches):
    expected = {*APPLICABLE, *EVENT_FAULTS, *FEED_FAULTS, LOCK_TAKEN}
    faults = sum((batches(first).faults for first in FIRSTS), Counter())
    for seed in range(SEED_START, SEED_START + SEEDS):
        if set(faults) >= expected:
            break
        # The rarest kinds strike once in so many histories: those of publications, and of events on their way.
        outcome = simulate(seed, focus="mirrored")
        assert not outcome.problems, story(outcome)
        faults += outcome.faults
    print(f"{len(faults)} kinds of fault: {', '.join(f'{kind} {count}' for kind, count in sorted(faults.items()))}")
    assert set(faults) == expected
    assert len(faults) >= 20


@pytest.mark.timeout(900)
def test_these_histories_did_every_kind_of_work(batches):
    """On both types of table: what nobody did, nobody has shown to hold."""
    work = sum((batches(first).work for first in FIRSTS), Counter())
    for seed in range(SEED_START, SEED_START + SEEDS):
        if work["events dropped"]:
            break
        # Few histories let a consumer meet an event twice; those about mirrors do it more often.
        outcome = simulate(seed, focus="mirrored")
        assert not outcome.problems, story(outcome)
        work += outcome.work
    for seed in range(SEED_START + SEEDS, SEED_START + 50 * SEEDS):
        if work[ROLLED_BACK]:
            break
        if seed % EVERY == 0:
            outcome = history(seed)
            assert not outcome.problems, story(outcome)
            work += outcome.work
    print(", ".join(f"{kind} {count}" for kind, count in sorted(work.items())))
    for kind in (
        "commit UPSERT",
        "deltacommit UPSERT",
        "compaction COMPACT",
        "replacecommit CLUSTER",
        "clean CLEAN",
        "rollback ROLLBACK",
        "archival ARCHIVE",
    ):
        assert work[kind] >= SEEDS / 50, kind
    assert work["events dropped"]
    for kind in (
        "savepoint SAVEPOINT",
        "restore RESTORE",
        "replacecommit INSERT_OVERWRITE",
        "replacecommit DELETE_PARTITION",
        "archival beside others",
        "results lost",
        "events in the topic",
        "events in the follower",
        "records taken in",
        "commits of applications",
        "histories of a global index",
    ):
        assert work[kind] >= SEEDS / 200, kind
    for kind in (
        "shared histories",
        "ours on shared tables: commit UPSERT",
        "ours on shared tables: rollback ROLLBACK",
        "Apache Hudi on shared tables: commit UPSERT",
    ):
        assert work[kind] >= SEEDS / 20, kind
    for kind in ("ours on shared tables: replacecommit CLUSTER", ROLLED_BACK):
        assert work[kind] >= SEEDS / 200, kind
    for kind in ("copy-on-write histories", "merge-on-read histories"):
        assert work[kind] >= SEEDS / 4, kind


def test_a_seed_replays_step_by_step():
    for seed, focus in ((3, ""), (17, ""), (42, ""), (5, "mirrored"), (6, "mirrored"), (7, "fed"), (8, "fed")):
        first, second = simulate(seed, focus=focus), simulate(seed, focus=focus)
        assert first.trace == second.trace
        assert first.entries == second.entries
        assert first.digest == second.digest
    assert simulate(3).digest != simulate(4).digest


def test_a_seed_replays_in_another_process():
    """Also where strings hash otherwise: no set of names decides what happens next."""
    program = (
        "from tests.simulation.simulate import simulate; "
        "print([simulate(s, focus=f).digest for f in ('', 'mirrored', 'fed') for s in range(20, 23)])"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True
    )
    assert other.stdout == f"{[simulate(s, focus=f).digest for f in ('', 'mirrored', 'fed') for s in range(20, 23)]}\n"


def test_a_failing_history_tells_its_story():
    """Step, process, call, fault and log entry of each step, and how to see it again."""

    @contextmanager
    def overwriting(world):
        world.disk.overwrites = True
        yield

    failing = (outcome for outcome in (simulate(seed, overwriting) for seed in range(1, 50)) if outcome.problems)
    outcome = next(failing)
    told = story(outcome)
    assert "overwrote entry" in told
    assert f"python -m tests.simulation.run --seeds 1 --seed-start {outcome.seed}" in told
    assert "writer0#1" in told
    assert "put_if_absent .hoodie/.tideline/log/00000000000000000001.json" in told
    assert len(told.splitlines()) > len(outcome.trace)


def test_production_code_is_as_before_after_a_history():
    simulate(5)
    assert uuid.uuid4() != uuid.uuid4()
    assert heartbeat.threading.Thread.__module__ == "threading"
    assert simulation.actors.table_write.in_transaction.__module__ == "tideline_table.action.write.attempt"


@pytest.mark.parametrize("wait_s", [1e-14, 1e-7, 1e-6, 0.5])
def test_the_shortest_wait_lets_time_pass(wait_s):
    """Two histories in twenty thousand never ended: a lease was watched for what rounding had left of it, again and again."""
    scheduler = Scheduler(random.Random(1), stickiness=0.5, step_limit=10)
    event, ended = SimulatedThreading(scheduler).Event(), []

    def watch():
        assert not event.wait(wait_s)
        ended.append(scheduler.now_us)

    scheduler.spawn("watch", Process("watcher", "watcher"), watch)
    scheduler.run()
    assert not scheduler.failures
    assert ended == [max(1, wait_s * 1e6)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("wrong", ["by the clock alone", "of the begin of the step"])
def test_a_wrong_completion_time_is_found(wrong):
    """In version 9, where a log file with an earlier one than its base file has is in a slice that no reader merges."""
    made = {
        "by the clock alone": lambda state, draft, now: next_instant(now, draft.instant),
        "of the begin of the step": lambda state, draft, now: next_instant(time_from_instant(draft.instant), draft.instant),
    }[wrong]
    bug = sabotage((exclusive, "completion_after", made))
    found = next((o for o in (simulate(seed, bug, version=9) for seed in range(1, 200)) if o.problems), None)
    assert found is not None
    print(found.problems[0])
    assert not simulate(found.seed, version=9).problems
