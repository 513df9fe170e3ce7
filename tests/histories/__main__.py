"""Many random histories on tables of all kinds: python -m tests.histories --runs 5000 --seed 1 --of versions

Those `--of partial-records` run on two tables each, with and without partial records, and compare what readers ask.

On each table, neighbouring points and a sample of the other pairs are compared by their changes; `tests/property` compares all
pairs of fewer histories. A history that fails is printed with its seed; --seed N --runs 1 replays it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.histories import partial_records, replay
from tests.histories.replay import use_one_core

OUTCOMES = {"versions": replay.outcome_of, "partial-records": partial_records.outcome_of}


def main() -> int:
    """1 if a history failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1, help="of the first history")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--of", choices=[*OUTCOMES], default="versions")
    chosen = parser.parse_args()
    started, failed, kinds = time.perf_counter(), 0, Counter[str]()
    outcome = OUTCOMES[chosen.of]
    context = multiprocessing.get_context("spawn")
    # An executor fails if a process ends; a `Pool` would start it again for ever. Nothing here is imported by the processes.
    with ProcessPoolExecutor(chosen.jobs, context, initializer=use_one_core) as pool:
        seeds = range(chosen.seed, chosen.seed + chosen.runs)
        for number, (_, problem, found) in enumerate(pool.map(outcome, seeds, chunksize=10), 1):
            kinds += found
            if number % 100 == 0:
                print(f"{number} histories in {time.perf_counter() - started:.0f} s, {failed} differ", flush=True)
            if problem:
                failed += 1
                print(problem, flush=True)
    told = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    print(f"{chosen.runs} histories in {time.perf_counter() - started:.0f} s, {failed} differ ({told})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
