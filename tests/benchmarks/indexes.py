"""`python -m tests.benchmarks.indexes`: upserts and look-ups by index, on this engine and on Apache Hudi with the same index.

For each index a table of lineitem is written, and 0.1 %, 1 % and 10 % of its rows are upserted, rows of random keys and those
of the most recent orders. After each upsert the rows of each table must equal what plain Spark computes from the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tests.benchmarks.clustering import TIMEOUT_S, links, markdown
from tests.benchmarks.engines.indexed import INDEXES, Indexed
from tests.benchmarks.lineitem import KEY, Lineitem, changed, lineitem, rows_folder
from tests.benchmarks.link import EngineLink
from tests.benchmarks.works import DIRECT, HUDI, SPARK, TITLES

PARTITIONS = 7
SHARES = {"0.1 %": 0.001, "1 %": 0.01, "10 %": 0.1}
LOOK_UPS = 5
_SEED = 20_261_125


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows to upsert, and what plain Spark makes of the table with them and all changes before."""

    name: str
    source: Path
    expected: list[Any]


def chosen(keys: pa.ChunkedArray, share: float, *, recent: bool, seed: int) -> np.ndarray:
    """Return the numbers of the rows to change: of random ones, or of those with the greatest keys."""
    count = max(1, int(len(keys) * share))
    if recent:
        return np.asarray(pc.sort_indices(keys, sort_keys=[("", "descending")]))[:count]
    return np.random.default_rng(seed).permutation(len(keys))[:count]


def change_sets(rows: Lineitem, folder: Path, spark: EngineLink) -> list[Changes]:
    """Write the changed rows, smaller shares first."""
    base = pq.read_table(rows.base)
    found: list[Changes] = []
    for share, part in SHARES.items():
        for recent in (False, True):
            version = len(found) + 1
            source = folder / f"change-{version}.parquet"
            numbers = chosen(base.column(KEY[0]), part, recent=recent, seed=_SEED + version)
            pq.write_table(changed(base.take(pa.array(numbers)), version), source, compression="snappy")
            steps = [str(known.source) for known in found] + [str(source)]
            expected = spark.ask("expected", timeout_s=TIMEOUT_S, base=str(rows.base), changes=steps).value
            found.append(Changes(f"{share} {'recent' if recent else 'random'}", source, expected))
    return found


@dataclass(slots=True)
class Experiment:
    """The engines, and what they are asked."""

    engines: dict[str, EngineLink]
    rows: Lineitem
    changes: Sequence[Changes]
    folder: Path
    repetitions: int
    say: Callable[[str], None]
    seconds: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    """By index, work and engine."""

    def run(self, table: Indexed, repetition: int) -> None:
        """Write and change a table with this index by each engine, in turn."""
        names = [*self.engines][repetition % len(self.engines) :] + [*self.engines][: repetition % len(self.engines)]
        paths = {name: str(self.folder / f"{name}-{table.index}") for name in names}
        described = asdict(table)
        for name in names:
            self._timed(
                table.index, "bulk insert", name, "insert_indexed", table=paths[name], source=str(self.rows.base), **described
            )
        files = ", ".join(f"{TITLES[name]} {self._files(name, paths[name])}" for name in names)
        self.say(f"{table.index}: files after the bulk insert: {files}")
        for step in self.changes:
            for name in names:
                self._timed(table.index, step.name, name, "upsert_indexed", table=paths[name], source=str(step.source), **described)
                self._verify(f"{table.index}, {step.name}", name, paths[name], step.expected)
        for name in names:
            for number in range(LOOK_UPS + 1):
                work = "look-up of a key" if number else "first look-up"
                if self._timed(table.index, work, name, "look_up", table=paths[name], key=list(self.rows.sample_key)) != 1:
                    raise SystemExit(f"{TITLES[name]}, {table.index}: a look-up of a key did not find one row")
            shutil.rmtree(paths[name])

    def _timed(self, index: str, work: str, name: str, command: str, /, **arguments: Any) -> Any:
        answer = self.engines[name].ask(command, timeout_s=TIMEOUT_S, **arguments)
        self.seconds.setdefault((index, work, name), []).append(answer.seconds)
        self.say(f"{index}: {work}: {TITLES[name]} {answer.seconds:.2f} s")
        return answer.value

    def _files(self, name: str, path: str) -> int:
        return int(self.engines[name].ask("files", timeout_s=TIMEOUT_S, table=path).value[0])

    def _verify(self, what: str, name: str, path: str, expected: list[Any]) -> None:
        reader = name if name != DIRECT else SPARK
        found = self.engines[reader].ask("checksum", timeout_s=TIMEOUT_S, table=path).value
        if found != expected:
            raise SystemExit(f"{TITLES[name]}, {what}: rows and checksum {found}, expected {expected}")

    def lines(self) -> list[list[str]]:
        """Return the lines of the report: seconds of each engine, and how often the others fit into those of Apache Hudi."""
        found: list[list[str]] = []
        for index, work in dict.fromkeys((index, work) for index, work, _ in self.seconds if work != "first look-up"):
            line = [index, work]
            for name in self.engines:
                own = self.seconds[index, work, name]
                line.append(f"{statistics.median(own):.2f}")
                if name != HUDI and HUDI in self.engines:
                    peer = self.seconds[index, work, HUDI]
                    line.append(f"{statistics.median(p / o for p, o in zip(peer, own, strict=True)):.1f}x")
            found.append(line)
        return found


def main() -> None:
    """Measure, and print a Markdown table."""
    given = _arguments()
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.0f} s  {text}\n")

    rows_folder().mkdir(parents=True, exist_ok=True)
    rows = lineitem(given.scale)
    say(f"lineitem at scale {rows.scale:g}: {rows.rows:,} rows, {rows.size_bytes / 2**20:.0f} MiB")
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-indexes-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        wanted = {*given.engines, SPARK}
        engines = {name: stack.enter_context(link) for name, link in links(folder, given, wanted)}
        experiment = Experiment(engines, rows, change_sets(rows, folder, engines[SPARK]), folder, given.repetitions, say)
        file_bytes = rows.size_bytes // (PARTITIONS * given.buckets)
        for repetition in range(given.repetitions):
            for index in given.indexes:
                described = Indexed(index, given.buckets, file_bytes, rows.size_bytes // rows.rows, given.kind)
                experiment.run(described, repetition)
        titles = ["index", "work"]
        for name in engines:
            titles += [f"{TITLES[name]}, s", *(["ratio"] if name != HUDI and HUDI in engines else [])]
        sys.stdout.write(markdown(titles, experiment.lines()) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.indexes", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.2, help="of TPC-H; 1 is 6 million rows")
    parser.add_argument("--buckets", type=int, default=4, help="file groups in each of the seven partitions")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--engines", nargs="+", default=[HUDI, SPARK, DIRECT], choices=[HUDI, SPARK, DIRECT])
    parser.add_argument("--indexes", nargs="+", default=list(INDEXES), choices=INDEXES)
    parser.add_argument("--kind", default="COPY_ON_WRITE", choices=["COPY_ON_WRITE", "MERGE_ON_READ"])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g", help="heap of each of the two Spark sessions")
    parser.add_argument("--folder", default=None, help="where tables are written while it runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
