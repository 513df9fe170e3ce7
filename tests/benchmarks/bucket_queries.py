"""`python -m tests.benchmarks.bucket_queries`: joins and aggregations by buckets, beside the shuffled ones of the same tables.

Lineitem (hashed by its order key, seven partitions) is joined with one row for each order, and grouped by order: by
`bucket_join` and `bucket_aggregate`, by Spark over `read` of the same tables, and by Apache Hudi's reader over its own tables
with the same index. All results must be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.benchmarks.clustering import TIMEOUT_S, links, markdown
from tests.benchmarks.engines.joined import Bucketed
from tests.benchmarks.lineitem import KEY, ORDERING, PARTITION, Lineitem, lineitem, rows_folder
from tests.benchmarks.link import Answer, EngineLink
from tests.benchmarks.works import HUDI, SPARK, TITLES

BUCKETS, SHUFFLED = "by_bucket", "shuffled"
WAYS = ((SPARK, BUCKETS), (SPARK, SHUFFLED), (HUDI, SHUFFLED))
"""Engines, and what they are asked."""


@dataclass(slots=True)
class Experiment:
    """The engines with their tables, and the seconds of each query."""

    engines: dict[str, EngineLink]
    folder: Path
    say: Callable[[str], None]
    seconds: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    """By query, engine and way."""

    def make(self, rows: Lineitem, buckets: int) -> None:
        """Write the tables of each engine: orders have `buckets` and, in a second table, half of them."""
        orders = self.folder / "orders.parquet"
        self.engines[SPARK].ask("orders", timeout_s=TIMEOUT_S, source=str(rows.base), target=str(orders))
        described = [(Bucketed("lines", KEY, PARTITION, ORDERING, buckets), rows.base)]
        described += [(Bucketed(f"orders{n}", KEY[:1], "", "o_version", n), orders) for n in {buckets, buckets // 2}]
        for name, engine in self.engines.items():
            for table, source in described:
                self.say(f"{TITLES[name]} writes {table.name}")
                engine.ask(
                    "insert_bucketed",
                    timeout_s=TIMEOUT_S,
                    table=str(self.folder / f"{name}-{table.name}"),
                    source=str(source),
                    **asdict(table),
                )

    def run(self, query: str, orders: str, repetitions: int) -> None:
        """Ask each engine once uncounted, compare the results, then time `repetitions` in turn."""
        ways = [(name, way) for name, way in WAYS if name in self.engines]
        found = {way: self._ask(*way, "_checksum", orders).value for way in ways}
        if len({str(value) for value in found.values()}) != 1:
            raise SystemExit(f"{query}: row counts and checksums differ: {found}")
        for _ in range(repetitions):
            for name, way in ways:
                answer = self._ask(name, way, "", orders)
                if way == BUCKETS and answer.value:
                    raise SystemExit(f"{query}: the plan by buckets has {answer.value} exchange(s)")
                self.seconds.setdefault((query, name, way), []).append(answer.seconds)
                self.say(f"{query}: {TITLES[name]}, {way}: {answer.seconds:.2f} s, {answer.cpu_s:.2f} s of processors")

    def _ask(self, name: str, way: str, suffix: str, orders: str) -> Answer:
        paths = {
            "lines": str(self.folder / f"{name}-lines"),
            **({"orders": str(self.folder / f"{name}-{orders}")} if orders else {}),
        }
        return self.engines[name].ask(f"{way}{suffix}", timeout_s=TIMEOUT_S, **paths)

    def lines(self) -> list[list[str]]:
        """Return the lines of the report: median seconds, and how often those by buckets fit into the shuffled ones."""
        found = []
        for query in dict.fromkeys(query for query, _, _ in self.seconds):
            own = self.seconds[query, SPARK, BUCKETS]
            line = [query, f"{statistics.median(own):.2f}"]
            for name in (SPARK, HUDI):
                other = self.seconds.get((query, name, SHUFFLED))
                if other is not None:
                    ratio = statistics.median(b / a for a, b in zip(own, other, strict=True))
                    line += [f"{statistics.median(other):.2f}", f"{ratio:.1f}x"]
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
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-joins-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        engines = {name: stack.enter_context(link) for name, link in links(folder, given, {*given.engines, SPARK})}
        experiment = Experiment(engines, folder, say)
        experiment.make(rows, given.buckets)
        experiment.run("join, equal numbers of buckets", f"orders{given.buckets}", given.repetitions)
        experiment.run("join, twice the buckets", f"orders{given.buckets // 2}", given.repetitions)
        experiment.run("aggregation", "", given.repetitions)
        titles = [
            "query",
            "by buckets, s",
            "shuffled, s",
            "ratio",
            *(["Apache Hudi, shuffled, s", "ratio"] if HUDI in engines else []),
        ]
        sys.stdout.write(markdown(titles, experiment.lines()) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bucket_queries", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.2, help="of TPC-H; 1 is 6 million rows")
    parser.add_argument("--buckets", type=int, default=4, help="of lineitem, an even number")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--engines", nargs="+", default=[HUDI, SPARK], choices=[HUDI, SPARK])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g", help="heap of each of the two Spark sessions")
    parser.add_argument("--folder", default=None, help="where tables are written while it runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
