"""`python -m tests.benchmarks.clustering_updates`: four writers beside a clustering, by update strategy.

Each run begins with a copy of one merge-on-read table. Four processes, each with a partition of its own, upsert, by default
without pauses. After a while without other work, this process plans and runs a clustering of all partitions again and again
until one commits. A write that fails with a conflict is repeated until it commits. At the end, each row must be of the last
write of its key that was acknowledged; otherwise the run fails.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.benchmarks.clustering import markdown
from tests.plans import schedule_clustering

from tideline_table.action import run_clustering, write_rows
from tideline_table.clock import SystemClock
from tideline_table.errors import WriteConflict
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

STRATEGY = "tideline.clustering.update.strategy"
STRATEGIES: Mapping[str, Mapping[str, object]] = {
    "reject": {STRATEGY: "reject"},
    "yield": {STRATEGY: "yield"},
    "yield, priority at once": {STRATEGY: "yield", "tideline.clustering.yields": 0},
    "carry-over": {STRATEGY: "carry-over"},
}
WRITERS = 4
FILES = 6
"""Files of each partition, one of each insert."""
OPTIONS = {
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.clustering.plan.strategy.sort.columns": "n0",
    "tideline.clustering.min.input.files": 2,
}
BACK_OFF_S = 0.1


@dataclass(frozen=True, slots=True)
class Write:
    """One write until it was acknowledged: when it began and ended, in seconds of the monotonic clock, and how often it failed."""

    begun_s: float
    ended_s: float
    failures: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run measured."""

    before: float
    """Commits per second of all writers before the clustering."""
    during: float
    """The same while the clustering was due: from its first plan to its commit."""
    longest_s: float
    """The longest write that ended in that time or after it."""
    failures: int
    """How often a write failed with a conflict."""
    attempts: int
    """How many clusterings ran until one committed."""
    last_s: float
    """Plan, run and commit of the one that committed."""
    all_s: float
    """From the first plan to the commit."""
    carried: int
    """Log files that were carried over."""


def rows(ids: np.ndarray, part: str, version: int) -> pa.Table:
    """Return rows with these ids, of one partition."""
    random = np.random.default_rng(version)
    columns = {
        "id": pa.array([f"key-{each:010d}" for each in ids.tolist()]),
        "part": pa.array([part] * len(ids)),
        "ts": pa.array(np.full(len(ids), version)),
        **{f"n{at}": pa.array(random.integers(0, 1_000_000, len(ids))) for at in range(4)},
        **{f"s{at}": pa.array([f"text {each % 997} {at}" for each in ids.tolist()]) for at in range(4)},
    }
    return pa.table(columns)


def fill(path: str, count: int) -> None:
    """Create the table: `FILES` inserts of `count` rows into each partition."""
    schema = rows(np.arange(1), "p0", 0).schema
    create_table(path, TableRequest("t", schema, ("id",), ("part",), "ts", type=TableType.MOR), SystemClock())
    table = Table.open(path, options=OPTIONS)
    for number in range(FILES):
        ids = np.arange(number * count, (number + 1) * count)
        write_rows(table, pa.concat_tables([rows(ids, f"p{at}", 0) for at in range(WRITERS)]), Operation.INSERT)


def upsert(
    path: str, number: int, keys: int, size: int, pause_s: float, options: Mapping[str, object], stop: Event, done: Queue[object]
) -> None:
    """Write until `stop`, with pauses; then put the writes and the version of each key that was acknowledged last.

    Runs in a process of its own.
    """
    logging.disable(logging.WARNING)  # Slices have more log files than usual.
    table, random, part = Table.open(path, options=options), np.random.default_rng(number), f"p{number}"
    writes: list[Write] = []
    acknowledged: dict[int, int] = {}
    while not stop.is_set():
        ids, version = random.choice(keys, size, replace=False), len(writes) + 1
        begun_s, failures = time.monotonic(), 0
        while True:
            try:
                write_rows(table, rows(ids, part, version), Operation.UPSERT)
                break
            except WriteConflict:
                failures += 1
                time.sleep(BACK_OFF_S)
        writes.append(Write(begun_s, time.monotonic(), failures))
        acknowledged.update(dict.fromkeys(ids.tolist(), version))
        if len(writes) == 1:
            done.put(number)
        stop.wait(pause_s)
    done.put((number, writes, acknowledged))


def measure(path: str, keys: int, size: int, pause_s: float, alone_s: float, strategy: Mapping[str, object]) -> Figures:
    """Run the writers and the clustering on the table at `path`."""
    context = multiprocessing.get_context("spawn")
    stop, done = context.Event(), context.Queue()
    options = {**OPTIONS, **strategy}
    writers = [
        context.Process(target=upsert, args=(path, at, keys, size, pause_s, options, stop, done), daemon=True)
        for at in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    for _ in writers:
        done.get(timeout=120)
    begun_s = time.monotonic()
    time.sleep(alone_s)
    table = Table.open(path, options=options)
    first_s, attempts, committed = time.monotonic(), 0, None
    while committed is None:
        attempts, last_s = attempts + 1, time.monotonic()
        try:
            table.refresh()
            schedule_clustering(table)
            committed = run_clustering(table)
        except WriteConflict:
            continue
    ended_s = time.monotonic()
    time.sleep(1.0)
    stop.set()
    found = [done.get(timeout=300) for _ in writers]
    for writer in writers:
        writer.join()
    writes = [write for _, own, _ in found for write in own]
    check(path, {number: acknowledged for number, _, acknowledged in found}, keys)
    late = [write for write in writes if write.ended_s >= first_s and write.begun_s <= ended_s]
    return Figures(
        sum(begun_s <= write.ended_s < first_s for write in writes) / (first_s - begun_s),
        sum(first_s <= write.ended_s < ended_s for write in writes) / (ended_s - first_s),
        max((write.ended_s - write.begun_s for write in late), default=0.0),
        sum(write.failures for write in late),
        attempts,
        ended_s - last_s,
        ended_s - first_s,
        sum(stat.is_log for stat in committed.stats),
    )


def check(path: str, acknowledged: Mapping[int, Mapping[int, int]], keys: int) -> None:
    """Raise `SystemExit` unless the table has each key once, with the version that was acknowledged last."""
    found = Table.open(path).read(["id", "part", "ts"])
    held = dict(zip(zip(found["part"].to_pylist(), found["id"].to_pylist(), strict=True), found["ts"].to_pylist(), strict=True))
    wanted = {(f"p{at}", f"key-{key:010d}"): own.get(key, 0) for at, own in acknowledged.items() for key in range(keys)}
    if held != wanted or found.num_rows != len(wanted):
        wrong = [key for key in wanted if held.get(key) != wanted[key]]
        raise SystemExit(f"{found.num_rows} rows, expected {len(wanted)}; {len(wrong)} are wrong, such as {wrong[:3]}")


def summary(name: str, runs: Sequence[Figures]) -> list[str]:
    """Return a line: medians, with the smallest and the largest figure."""

    def spread(values: Sequence[float], digits: int) -> str:
        if min(values) == max(values):
            return f"{values[0]:.{digits}f}"
        return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"

    return [
        name,
        spread([run.before for run in runs], 2),
        spread([run.during for run in runs], 2),
        spread([run.longest_s for run in runs], 1),
        spread([run.failures for run in runs], 0),
        spread([run.attempts for run in runs], 0),
        spread([run.last_s for run in runs], 1),
        spread([run.all_s for run in runs], 1),
        spread([run.carried for run in runs], 0),
    ]


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.clustering_updates", description=__doc__)
    parser.add_argument("--strategies", nargs="+", choices=tuple(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=50_000, help="of each file")
    parser.add_argument("--size", type=int, default=500, help="rows of each upsert")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of a writer between two writes")
    parser.add_argument("--alone", type=float, default=5.0, help="seconds of the writers without a clustering")
    parser.add_argument("--folder", default=None, help="where tables are written while it runs")
    given = parser.parse_args()
    results: dict[str, list[Figures]] = {name: [] for name in given.strategies}
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-updates-") as folder:
        path, filled = Path(folder) / "t", Path(folder) / "filled"
        fill(str(path), given.rows)
        path.rename(filled)
        for number in range(given.rounds):
            turn, names = number % len(results), list(results)
            for name in names[turn:] + names[:turn]:
                shutil.copytree(filled, path)
                results[name].append(measure(str(path), FILES * given.rows, given.size, given.pause, given.alone, STRATEGIES[name]))
                sys.stderr.write(f"{name}: {results[name][-1]}, load {os.getloadavg()[0]:.1f}\n")
                shutil.rmtree(path)
    titles = [
        "strategy",
        "commits/s before",
        "during",
        "longest write, s",
        "failed writes",
        "clusterings",
        "the last one, s",
        "all, s",
    ]
    sys.stdout.write(markdown([*titles, "carried files"], [summary(name, runs) for name, runs in results.items()]) + "\n")


if __name__ == "__main__":
    main()
