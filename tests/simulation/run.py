"""Many histories, on all cores: python -m tests.simulation.run --seeds 5000 --seed-start 1"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.batches import BatchOutcome, running_batches
from tests.simulation.event_faults import EVENT_FAULTS
from tests.simulation.feed import FEED_FAULTS
from tests.simulation.scheduler import stop_workers
from tests.simulation.shared_simulation import history
from tests.simulation.simulate import story
from tests.simulation.world import APPLICABLE

BATCH = 25


def main() -> int:
    """Run histories until one fails (or all of them with --keep-going); 1 if one did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed-start", type=int, default=1)
    parser.add_argument(
        "--keep-going", action="store_true", help="go on behind a history that fails, and only name what went wrong"
    )
    parser.add_argument("--trace", action="store_true", help="print every step, also of histories that hold; one after the other")
    parser.add_argument("--processes", type=int, default=0, help="0: one per core")
    chosen = parser.parse_args()
    if chosen.trace:
        return _trace(chosen.seed_start, chosen.seeds)
    started = time.perf_counter()
    done: list[BatchOutcome] = []
    with running_batches(
        chosen.seed_start, chosen.seeds, BATCH, keep_going=chosen.keep_going, processes=chosen.processes
    ) as batches:
        for batch in batches.values():
            outcome = batch.result()
            done.append(outcome)
            for told in outcome.stories:
                print(told.splitlines()[0] if chosen.keep_going else told, flush=True)
            if outcome.stories and not chosen.keep_going:
                break
        print(_report(done, time.perf_counter() - started))
    return 1 if any(outcome.stories for outcome in done) else 0


def _trace(first: int, count: int) -> int:
    outcomes = [history(seed) for seed in range(first, first + count)]
    stop_workers()
    for outcome in outcomes:
        print(story(outcome, last=len(outcome.trace)))
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def _report(done: list[BatchOutcome], duration_s: float) -> str:
    histories, failed = sum(b.histories for b in done), sum(len(b.stories) for b in done)
    faults, work = sum((b.faults for b in done), Counter()), sum((b.work for b in done), Counter())
    missing = sorted({*APPLICABLE, *EVENT_FAULTS, *FEED_FAULTS} - set(faults))
    return "\n".join(
        [
            f"{histories} histories, {failed} failed, {duration_s:.1f} s, {histories / duration_s:.1f} a second",
            f"{len(faults)} kinds of fault, {sum(faults.values())} in all: {_told(faults)}",
            f"kinds that did not occur: {', '.join(missing) or 'none'}",
            f"work: {_told(work)}",
        ]
    )


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
