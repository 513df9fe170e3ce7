"""`python -m tests.benchmarks.clustering`: the experiment of RFC-19, on this engine and on Apache Hudi.

A table without partitions of 500 small files is clustered by two columns, in each layout. A selective query on the first and one on
the second column run before and after. Files, bytes and rows that a query has to scan follow from the statistics in the footers of
the engine's files; each query must have the same result everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet as pq
from examples.demo.source import read_flights
from tests.benchmarks.engines.layouts import LINEAR, Input
from tests.benchmarks.lineitem import lineitem, rows_folder
from tests.benchmarks.link import EngineLink
from tests.benchmarks.works import DIRECT, HUDI, SPARK, TITLES
from tests.conformance.peers.environment import prepare

TIMEOUT_S = 900.0
LAYOUTS = (LINEAR, "z-order", "hilbert")


@dataclass(frozen=True, slots=True)
class Range:
    """A query: the rows whose column lies between two values, both inclusive."""

    column: str
    low: object
    high: object

    @property
    def sent(self) -> dict[str, object]:
        """The query as an engine gets it, with dates as text."""
        low, high = (str(value) if isinstance(value, dt.date) else value for value in (self.low, self.high))
        return {"column": self.column, "low": low, "high": high}


@dataclass(frozen=True, slots=True)
class Rows:
    """A set of rows: where they lie, and the queries on the first and on the second sort column."""

    name: str
    source: Path
    key: tuple[str, ...]
    ordering: str
    total: str
    """The column that the queries add up."""
    queries: tuple[Range, Range]


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a query has to read of a table, by the statistics of its files."""

    files: int
    size_bytes: int
    rows: int


def scanned(paths: Sequence[str], query: Range) -> Scanned:
    """Return the files and row groups that can hold a row of the query."""
    files = size = rows = 0
    for path in paths:
        footer = pq.read_metadata(path)
        column = footer.schema.names.index(query.column)
        hit = [g for g in map(footer.row_group, range(footer.num_row_groups)) if _may_hold(g.column(column).statistics, query)]
        files += bool(hit)
        size += sum(group.column(c).total_compressed_size for group in hit for c in range(group.num_columns))
        rows += sum(group.num_rows for group in hit)
    return Scanned(files, size, rows)


def _may_hold(statistics_: pq.Statistics | None, query: Range) -> bool:
    if statistics_ is None or not statistics_.has_min_max:
        return statistics_ is None or statistics_.num_values > 0
    return bool(statistics_.min <= query.high and statistics_.max >= query.low)


def datasets(scale: float, folder: Path) -> list[Rows]:
    """Return lineitem at this scale and the flights from New York in 2013."""
    items = lineitem(scale)
    parts = items.rows // 30
    flights = folder / "flights.parquet"
    pq.write_table(read_flights(), flights)
    return [
        Rows(
            "lineitem",
            items.base,
            ("l_orderkey", "l_linenumber"),
            "l_version",
            "l_extendedprice",
            (
                Range("l_shipdate", dt.date(1995, 3, 1), dt.date(1995, 3, 7)),
                Range("l_partkey", parts // 2, parts // 2 + parts // 100),
            ),
        ),
        Rows(
            "flights",
            flights,
            ("flight_id",),
            "revision",
            "distance",
            (Range("dest", "LAX", "LAX"), Range("dep_time", 1200, 1214)),
        ),
    ]


@dataclass(slots=True)
class Experiment:
    """The engines, and what they are asked."""

    engines: dict[str, EngineLink]
    folder: Path
    files: int
    clustered_files: int
    repetitions: int
    layouts: Sequence[str]
    say: Callable[[str], None]

    def run(self, rows: Rows) -> list[list[str]]:
        """Return the lines of the report of one set of rows."""
        lines = []
        results: dict[str, set[str]] = {}
        for name, engine in self.engines.items():
            first = str(self.folder / f"{name}-{rows.name}")
            described = asdict(Input(rows.name, str(rows.source), list(rows.key), rows.ordering, self.files))
            seconds = engine.ask("insert_small", timeout_s=TIMEOUT_S, table=first, **described).seconds
            paths = engine.ask("data_files", timeout_s=TIMEOUT_S, table=first).value
            size = sum(Path(path).stat().st_size for path in paths)
            self.say(f"{rows.name} {name}: {len(paths)} files, {size / 2**20:.1f} MiB, in {seconds:.1f} s")
            lines.append(self._line(rows, name, "before", first, "", results))
            for layout in self.layouts:
                table = f"{first}-{layout}"
                shutil.copytree(first, table) if name == HUDI else engine.ask(
                    "insert_small", timeout_s=TIMEOUT_S, table=table, **described
                )
                columns = [query.column for query in rows.queries]
                answer = engine.ask(
                    "cluster_by",
                    timeout_s=TIMEOUT_S,
                    table=table,
                    columns=columns,
                    layout=layout,
                    target_bytes=size // self.clustered_files,
                )
                lines.append(self._line(rows, name, layout, table, f"{answer.seconds:.1f}", results))
                shutil.rmtree(table)
            shutil.rmtree(first)
        wrong = {query: sorted(found) for query, found in results.items() if len(found) > 1}
        if wrong:
            raise SystemExit(f"the engines or layouts have different results: {wrong}")
        return lines

    def _line(self, rows: Rows, name: str, layout: str, table: str, clustered_s: str, results: dict[str, set[str]]) -> list[str]:
        engine = self.engines[name]
        paths = engine.ask("data_files", timeout_s=TIMEOUT_S, table=table).value
        line = [rows.name, TITLES[name], layout, clustered_s, str(len(paths))]
        for query in rows.queries:
            answers = [
                engine.ask("ask_rows", timeout_s=TIMEOUT_S, table=table, total=rows.total, **query.sent)
                for _ in range(self.repetitions + 1)
            ]
            results.setdefault(str(query), set()).update(str(answer.value) for answer in answers)
            median = statistics.median(answer.seconds for answer in answers[1:])
            found = scanned(paths, query)
            line += [str(found.files), f"{found.size_bytes / 2**20:.1f}", f"{found.rows:,}", f"{median:.2f}"]
        self.say(" | ".join(line))
        return line


def main() -> None:
    """Measure, and print a Markdown table."""
    given = _arguments()
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.0f} s  {text}\n")

    rows_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-clustering-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        found = [rows for rows in datasets(given.scale, folder) if rows.name in given.rows]
        engines = {name: stack.enter_context(link) for name, link in links(folder, given, set(given.engines))}
        experiment = Experiment(engines, folder, given.files, given.clustered_files, given.repetitions, given.layouts, say)
        lines = [line for rows in found for line in experiment.run(rows)]
    print(markdown(_titles(), lines))


def links(folder: Path, given: argparse.Namespace, wanted: Collection[str]) -> list[tuple[str, EngineLink]]:
    """Return those of the engines that are wanted, by name, Apache Hudi first. They are not started."""
    own, zone = Path(sys.executable), {"TZ": "UTC"}
    heap: dict[str, object] = {"memory": given.memory, "cores": given.cores}
    found = [
        EngineLink(SPARK, "tideline_on_spark", own, folder / SPARK, heap, zone),
        EngineLink(DIRECT, "tideline_direct", own, folder / DIRECT, {"cores": given.cores}, zone),
    ]
    if HUDI in wanted:
        peer = prepare()
        java = {"JAVA_HOME": str(peer.java_home), "SPARK_LOCAL_IP": "127.0.0.1", **zone}
        more = {**heap, "bundle": peer.bundle}
        found.insert(0, EngineLink(HUDI, "apache_hudi", peer.python, folder / HUDI, more, java, foreign=True))
    return [(link.name, link) for link in found if link.name in wanted]


def markdown(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    table = [titles, ["---"] * len(titles), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


def _titles() -> list[str]:
    per_query = ["files", "MiB", "rows", "s"]
    titles = ["rows of", "engine", "layout", "clustering, s", "files"]
    return titles + [f"{which} column: {title}" for which in ("first", "second") for title in per_query]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.clustering", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.2, help="of TPC-H; 1 is 6 million rows")
    parser.add_argument("--rows", nargs="+", default=["lineitem", "flights"], choices=["lineitem", "flights"])
    parser.add_argument("--files", type=int, default=500, help="small files before clustering")
    parser.add_argument("--clustered-files", type=int, default=50, help="files that the target size is set for")
    parser.add_argument("--repetitions", type=int, default=3, help="of each query, after one that is not counted")
    parser.add_argument("--engines", nargs="+", default=[HUDI, SPARK], choices=[HUDI, SPARK, DIRECT])
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g", help="heap of each of the two Spark sessions")
    parser.add_argument("--folder", default=None, help="where tables are written while it runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
