"""Many histories: python -m tests.simulation.run --seeds 5000 --seed-start 1"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.scheduler import stop_workers
from tests.simulation.simulate import simulate, story


def main() -> int:
    """Run histories until one fails (or all of them with --keep-going); 1 if one did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed-start", type=int, default=1)
    parser.add_argument("--keep-going", action="store_true", help="only name the seeds that fail")
    parser.add_argument("--trace", action="store_true", help="print every step, also of histories that hold")
    chosen = parser.parse_args()
    started = time.perf_counter()
    faults: Counter[str] = Counter()
    ops: Counter[str] = Counter()
    failed = steps = 0
    for seed in range(chosen.seed_start, chosen.seed_start + chosen.seeds):
        outcome = simulate(seed)
        faults += outcome.faults
        ops += outcome.ops
        steps += outcome.steps
        if chosen.trace:
            print(story(outcome))
        if outcome.problems:
            failed += 1
            print(f"seed {seed}: {outcome.problems[0]}" if chosen.keep_going else story(outcome), flush=True)
            if not chosen.keep_going:
                break
    stop_workers()
    duration_s = time.perf_counter() - started
    done = seed - chosen.seed_start + 1
    print(f"{done} histories, {steps} steps, {failed} failed, {duration_s:.1f} s, {done / duration_s:.1f} a second")
    print("faults:", ", ".join(f"{k} {n}" for k, n in sorted(faults.items())))
    print("operations:", ", ".join(f"{k} {n}" for k, n in sorted(ops.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
