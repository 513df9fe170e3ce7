"""Tables that nobody has seen: python -m tests.walk --release 1.2.0 --seed 1 --tables 20

Apache Hudi of the release writes tables whose options and operations are drawn by seeds. After each step, and looking back at
the end, its answers are compared with Tideline's. A seed alone replays its table: --seed N --tables 1 --show.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter
from pathlib import Path

from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.environment import HUDI_RELEASE, prepare
from tests.walk.layout import VERSIONS
from tests.walk.table_walk import Walked, walk

from tideline_spark.session import local_session, stop_session

FOLDER = Path(".cache/walk")
TABLES_PER_PROCESS = 12
"""Behind so many tables Hudi's process begins anew: it keeps what it has seen of each."""


def main() -> int:
    """1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", choices=[*VERSIONS], default="1.2.0", help="of Apache Hudi")
    parser.add_argument("--seed", type=int, default=1, help="of the first table")
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--steps", type=int, default=9, help="at most, for each table")
    parser.add_argument("--spark", action="store_true", help="read each table with tideline_spark, too")
    parser.add_argument("--show", action="store_true", help="options and steps of tables where everything held, too")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the tables; those with findings stay there")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    peer = prepare(chosen.release)
    done: list[Walked] = []
    spark = local_session("walk", 2, short_lived=True) if chosen.spark else None
    started = time.perf_counter()
    seeds = range(chosen.seed, chosen.seed + chosen.tables)
    for first in range(0, len(seeds), TABLES_PER_PROCESS):
        # The judge's process starts when it is first asked.
        with ApacheHudi(peer) as hudi, contextlib.closing(ApacheHudi()) as newest:
            judge = None if chosen.release == HUDI_RELEASE else newest
            for seed in seeds[first : first + TABLES_PER_PROCESS]:
                walked = walk(hudi, judge, chosen.release, seed, chosen.folder.resolve(), most_steps=chosen.steps, spark=spark)
                print("\n".join(walked.lines(whole=chosen.show)), flush=True)
                done.append(walked)
    if spark is not None:
        stop_session(spark)
    print(_report(chosen.release, done, time.perf_counter() - started))
    return 1 if any(walked.problem for walked in done) else 0


def _report(release: str, done: list[Walked], duration_s: float) -> str:
    held = sum((walked.held for walked in done), Counter[str]())
    made, found = [w for w in done if w.was_made], [w.seed for w in done if w.problem]
    kinds = ", ".join(f"{kind} {count}" for kind, count in held.most_common())
    return (
        f"Apache Hudi {release}: {len(made)} tables of {len(done)} seeds, {held.total()} comparisons in {duration_s:.0f} s "
        f"({kinds}); "
        f"found in {found or 'none'}"
    )


if __name__ == "__main__":
    sys.exit(main())
