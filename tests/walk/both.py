"""`python -m tests.walk.both`: random histories of tables of versions 6, 8 and 9 that Apache Hudi 1.2.0 and Tideline write in turn.

Writes, services of both, ways back of Apache Hudi, changes of the version, dead writers and archival are drawn by seeds. After each
step both read the rows of the writes that succeeded (`both_checks`). Each line names the version, so that slices of a long run can
be summed by it. A table with a finding remains in .cache/walk; a seed alone replays its table: --seed N --tables 1 --show.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.conformance.peers.environment import prepare
from tests.walk.both_form import Form
from tests.walk.both_history import History

FOLDER = Path(".cache/walk")
TABLES_PER_PROCESS = 20
"""Behind so many tables Hudi's process begins anew: it keeps what it has seen of each."""
TIMEOUT_S = 1800.0
"""A request that takes this long is a finding. On a loaded machine one may take minutes."""


@dataclass
class Walked:
    """What became of the table of a seed."""

    seed: int
    form: Form
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Steps, those that were refused with a reason that a writer must expect, and comparisons."""
    steps: list[str] = field(default_factory=list)
    duration_s: float = 0.0
    end: str = ""

    @property
    def line(self) -> str:
        return (
            f"version {self.form.version} seed {self.seed}: {'FOUND' if self.wrong else 'ok'}, {self.counts['steps']} steps "
            f"({self.counts['refused']} refused), {self.counts['comparisons']} comparisons, {self.duration_s:.0f} s: {self.form}"
            + f", ended by {self.end}"
            * bool(self.end)
        )


def walk(peer: ApacheHudi, folder: Path, seed: int, number: int, seconds: Counter[str]) -> Walked:
    """Draw a table and walk so many steps, or until something is wrong."""
    walked, began = Walked(seed, Form.drawn(seed)), time.monotonic()
    path = folder / f"both_{seed}"
    shutil.rmtree(path, ignore_errors=True)
    history = History(peer, path, seed, walked.form, walked.counts, seconds)
    walked.steps = history.steps
    for ts in range(1, number + 1):
        walked.wrong = history.step(ts)
        if walked.wrong or history.end:
            break
    walked.end = history.end
    if not walked.wrong:
        shutil.rmtree(path, ignore_errors=True)
    walked.duration_s = time.monotonic() - began
    return walked


def summary(done: list[Walked]) -> list[str]:
    """A line for each version."""
    lines = []
    for version in sorted({w.form.version for w in done}):
        these = [w for w in done if w.form.version == version]
        counts = sum((w.counts for w in these), Counter[str]())
        found = [w.seed for w in these if w.wrong]
        whole = sum(not w.wrong and not w.end for w in these)
        lines.append(
            f"version {version}: {len(these)} tables, {whole} to the end, {counts['steps']} steps ({counts['refused']} refused), "
            f"{counts['comparisons']} comparisons; found in seeds {found or 'none'}"
        )
    return lines


def main() -> int:
    """1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.walk.both", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first table")
    parser.add_argument("--tables", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20, help="of each table")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no table begins after so many")
    parser.add_argument("--show", action="store_true", help="the steps of tables where everything held, too")
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    FOLDER.mkdir(parents=True, exist_ok=True)
    environment, began = prepare(), time.monotonic()
    done, seconds = list[Walked](), Counter[str]()
    seeds = range(given.seed, given.seed + given.tables)
    for first in range(0, len(seeds), TABLES_PER_PROCESS):
        with ApacheHudi(environment, timeout_s=TIMEOUT_S) as peer:
            for seed in seeds[first : first + TABLES_PER_PROCESS]:
                if time.monotonic() - began > given.minutes * 60:
                    break
                walked = walk(peer, FOLDER.resolve(), seed, given.steps, seconds)
                shown = walked.steps if given.show or walked.wrong else []
                print("\n".join([walked.line, *(f"    {s}" for s in shown), *(f"  >> {w}" for w in walked.wrong)]), flush=True)
                done.append(walked)
    print("\n".join(summary(done)))
    print(f"{time.monotonic() - began:.0f} s; most of it: {', '.join(f'{n} {s:.0f} s' for n, s in seconds.most_common(8))}")
    return int(any(walked.wrong for walked in done))


if __name__ == "__main__":
    sys.exit(main())
