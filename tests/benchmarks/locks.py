"""`python -m tests.benchmarks.locks`: writers of one table beside each other, with each lock and with none.

Each writer is a process of its own, which upserts rows of random partitions. All begin together. For each cell the report has
commits per second, processor seconds per commit (the waste is what they exceed those of one writer alone by), attempts per
commit, and the longest write.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.benchmarks.clustering import markdown
from tests.contract.locks.conftest import lock_service
from tests.real.object_store import running_object_store
from tests.real.redis import running_redis
from tests.real.s3_proxy import proxy_before

from tideline_locks.table_lock import LockProviders
from tideline_table.action import write_rows
from tideline_table.clock import SystemClock
from tideline_table.coordination import NoReservations
from tideline_table.coordination.lock import NoLock
from tideline_table.errors import TidelineError
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

SMALL, LARGE = 1_000, 600_000
PARTITIONS = {SMALL: 1}
"""A small table has one, so that all writers meet."""
MOST_PARTITIONS = 16
BATCH = 100
DELAY_S = 0.02
BUCKET = "locks"
LOCKS = ("none", "redis", "storage", "service")
ATTEMPTS = {"tideline.write.conflict.retries": 1000}


@dataclass(frozen=True)
class Cell:
    """What is measured: one table, some writers, one kind of lock."""

    place: str
    type: str
    rows: int
    writers: int
    lock: str
    reserves: bool


@dataclass(frozen=True)
class Written:
    """What the writers of a cell did."""

    commits: int
    seconds: float
    cpu_s: float
    attempts: int
    longest_s: float
    failed: int = 0


@dataclass(frozen=True)
class Task:
    """What one writer does."""

    path: str
    rows: int
    number: int
    commits: int
    lock: str
    url: str
    reserves: bool


def rows(keys: np.ndarray, stamp: int, parts: int) -> pa.Table:
    """Return a row for each key, in one of `parts` partitions. The partition of a key never changes."""
    return pa.table(
        {
            "id": pa.array([f"key-{key:09d}" for key in keys.tolist()]),
            "part": pa.array([f"p{key % parts:02d}" for key in keys.tolist()]),
            "ts": pa.array(np.full(len(keys), stamp, dtype=np.int64)),
            "fare": pa.array(np.random.default_rng(stamp).random(len(keys))),
        }
    )


def write(task: Task) -> dict[str, float]:
    """Commit as often as the task says, each time to one random partition."""
    table = Table.open(task.path, options=ATTEMPTS)
    if task.url:
        LockProviders(task.url, table.clock).attach(table)
    if task.lock == "none":
        table.lock = NoLock()
    if not task.reserves:
        table.reservations = NoReservations()
    random, parts = np.random.default_rng(task.number), PARTITIONS.get(task.rows, MOST_PARTITIONS)
    attempts, longest_s = 0, 0.0
    begun_cpu = time.process_time()
    for turn in range(task.commits):
        part, size = int(random.integers(parts)), task.rows // parts
        chosen = random.choice(size, min(BATCH, size), replace=False) * parts + part
        begun = time.perf_counter()
        attempts += write_rows(table, rows(np.sort(chosen), 1 + turn, parts), Operation.UPSERT).attempts
        longest_s = max(longest_s, time.perf_counter() - begun)
    return {"attempts": attempts, "longest_s": longest_s, "cpu_s": time.process_time() - begun_cpu}


def _serve(link: Connection, variables: Mapping[str, str]) -> None:
    os.environ.update(variables)
    while (task := link.recv()) is not None:
        try:
            link.send(write(task))
        except (TidelineError, OSError):
            link.send({"error": traceback.format_exc()})


class Writers:
    """Processes that stay for all cells, so that no cell pays for their start."""

    def __init__(self, count: int, variables: Mapping[str, str]) -> None:
        context = get_context("spawn")
        self._links = []
        self._processes = []
        for _ in range(count):
            near, far = context.Pipe()
            process = context.Process(target=_serve, args=(far, dict(variables)), daemon=True)
            process.start()
            self._links.append(near)
            self._processes.append(process)

    def run(self, tasks: Sequence[Task]) -> Written:
        """Let each of the first writers do one task, all at once."""
        begun = time.perf_counter()
        links = self._links[: len(tasks)]
        for link, task in zip(links, tasks, strict=True):
            link.send(task)
        found = [link.recv() for link in links]
        seconds = time.perf_counter() - begun
        for one in found:
            if "error" in one:
                sys.stderr.write(one["error"])
        good = [one for one in found if "error" not in one]
        return Written(
            sum(task.commits for task in tasks),
            seconds,
            sum(one["cpu_s"] for one in good),
            int(sum(one["attempts"] for one in good)),
            max((one["longest_s"] for one in good), default=0.0),
            len(found) - len(good),
        )

    def close(self) -> None:
        """End the processes."""
        for link in self._links:
            link.send(None)
        for process in self._processes:
            process.join()


def made(path: str, cell: Cell) -> None:
    """Create the table of a cell, with all of its rows."""
    parts = PARTITIONS.get(cell.rows, MOST_PARTITIONS)
    schema = rows(np.arange(1), 0, parts).schema
    create_table(path, TableRequest("t", schema, ("id",), ("part",), "ts", type=TableType(cell.type)), SystemClock())
    write_rows(Table.open(path), rows(np.arange(cell.rows), 0, parts), Operation.BULK_INSERT)


@contextmanager
def _places(names: Sequence[str], folder: Path) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Yield the base of table paths by name of the place, and the variables with which processes reach them."""
    with ExitStack() as stack:
        bases, variables = {"disk": str(folder)}, {}
        if "object" in names:
            server = stack.enter_context(running_object_store("seaweedfs"))
            server.make_bucket(BUCKET)
            proxy = stack.enter_context(proxy_before(server))

            def delay(_: object) -> None:
                time.sleep(DELAY_S)
                proxy.requests.clear()

            proxy.rule = delay
            bases["object"], variables = f"s3://{BUCKET}", proxy.settings
        os.environ.update(variables)
        yield bases, variables


def measured(given: argparse.Namespace, folder: Path) -> Iterator[tuple[Cell, Written]]:
    """Yield each cell with what its writers did."""
    with ExitStack() as stack:
        bases, variables = stack.enter_context(_places(given.places, folder))
        urls = {"none": "storage:", "storage": "storage:"}
        if {"redis", "service"} & set(given.locks):
            urls["redis"] = stack.enter_context(running_redis()).url
        if "service" in given.locks:
            urls["service"] = stack.enter_context(lock_service(urls["redis"], SystemClock(), folder / "service"))
        writers = Writers(max(given.writers), variables)
        stack.callback(writers.close)
        number = itertools.count()

        def done(cell: Cell, commits: int) -> Written:
            path = f"{bases[cell.place]}/t{next(number)}"
            made(path, cell)
            url = urls[cell.lock] if cell.lock != "none" or cell.reserves else ""
            tasks = [Task(path, cell.rows, n, commits, cell.lock, url, cell.reserves) for n in range(cell.writers)]
            return writers.run(tasks)

        for lock in given.locks:
            # What a process imports at its first use of a lock counts for no cell.
            done(Cell(given.places[0], given.types[0], SMALL, max(given.writers), lock, True), 1)
        for place, kind, size, count in itertools.product(given.places, given.types, given.rows, given.writers):
            cells = [Cell(place, kind, size, 1, "none", False)]
            cells += [Cell(place, kind, size, count, lock, on) for lock in given.locks for on in given.reservations]
            for cell in cells:
                yield cell, done(cell, given.commits if cell.writers > 1 else given.commits * 4)


def main() -> None:
    """Measure, and print a Markdown table and one JSON line for each cell."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.locks", description=__doc__)
    parser.add_argument("--writers", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--rows", type=int, nargs="+", default=[SMALL, LARGE])
    parser.add_argument("--types", nargs="+", default=[t.value for t in TableType], choices=[t.value for t in TableType])
    parser.add_argument("--places", nargs="+", default=["disk", "object"], choices=["disk", "object"])
    parser.add_argument("--locks", nargs="+", default=list(LOCKS), choices=LOCKS)
    parser.add_argument("--reservations", type=lambda text: text == "on", nargs="+", default=[True, False], help="on, off")
    parser.add_argument("--commits", type=int, default=4, help="of each writer")
    parser.add_argument("--folder", default=None, help="where tables are written while it runs")
    given = parser.parse_args()
    measures = ["commits/s", "cpu s/commit", "attempts", "longest s", "failed"]
    titles, lines = [field.name for field in fields(Cell)] + measures, []
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="tideline-locks-") as folder:
        for cell, done in measured(given, Path(folder)):
            sys.stderr.write(json.dumps({**asdict(cell), **asdict(done)}) + "\n")
            values = [done.commits / done.seconds, done.cpu_s / done.commits, done.attempts / done.commits, done.longest_s]
            lines.append([*map(str, asdict(cell).values()), *(f"{value:.2f}" for value in values), str(done.failed)])
    sys.stdout.write(markdown(titles, lines) + "\n")


if __name__ == "__main__":
    main()
