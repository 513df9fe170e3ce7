"""One writer: python -m tests.fleet.writer NUMBER ASSIGNMENT. It appends a line to its ledger for each commit that was
acknowledged.

A writer that was killed begins after the last commit of its ledger. Its batches are upserts with fixed rows, so that one which was
committed but not acknowledged changes nothing when it is written again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from tests.fleet.tables import SCHEMA

import tideline
from tideline_locks import attach_lock
from tideline_table.action import write_rows
from tideline_table.errors import Recovery, TidelineError
from tideline_table.table import Table
from tideline_table.writer import Operation

WRITERS = 4
HEARTBEAT_MS = 3000
OPTIONS: dict[str, object] = {
    "hoodie.client.heartbeat.interval_in_ms": HEARTBEAT_MS,
    # Every insert makes new small files, so that clustering never runs out of work.
    "hoodie.parquet.small.file.limit": 0,
    "tideline.write.conflict.retries": 100,
    "tideline.lock.wait": 5,
}
OWN_ROWS, SHARED_ROWS = 6, 4
TROUBLE_TIMEOUT_S = 400.0
PAUSE_S = 0.5
BEYOND_S = 0.5
"""Between the commits of a writer that has done its rounds: more of them as fast as they go would take the processor from the
services, and leave them more to do at the end."""
MAX_ROUNDS = 4
"""How many times its rounds a writer goes on at most, until there is the file `enough`."""


@dataclass(frozen=True)
class Assignment:
    """What all writers of a run share. `folder` is that of the ledgers."""

    folder: str
    locks: str
    rounds: int
    tables: dict[str, dict[str, object]]
    """Options of writers by base path."""
    hints: str = ""
    """The event log to which writers send a hint after each commit to a table on disk; empty: none."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def enough(self) -> Path:
        """The file that ends writers which have done their rounds."""
        return Path(self.folder) / "enough"

    def ledger(self, writer: int) -> Path:
        return Path(self.folder) / f"writer-{writer}.jsonl"


@dataclass(frozen=True)
class Batch:
    """The rows of one commit."""

    base_path: str
    round: int
    writer: int


@dataclass(frozen=True)
class Line:
    """One acknowledged commit, a line of a ledger."""

    base_path: str
    round: int
    instant: str
    sequence: int
    attempts: int
    errors: int
    acknowledged_s: float


def batches(tables: Mapping[str, object], writer: int, rounds: int) -> Iterator[Batch]:
    """Yield the batches of a writer in order. In each round two of the writers write a table."""
    for number in range(rounds):
        for place, base_path in enumerate(tables):
            if (place + number + writer) % 2 == 0:
                yield Batch(base_path, number, writer)


def rows_of(batch: Batch) -> pa.Table:
    """Return rows of the writer's own, and rows that all writers of the table update."""
    own = [f"w{batch.writer}-{batch.round}-{k}" for k in range(OWN_ROWS)]
    ids = own + [f"shared-{k}" for k in range(SHARED_ROWS)]
    parts = [f"p{k % 2}" for k in (*range(OWN_ROWS), *range(SHARED_ROWS))]
    n = batch.round * WRITERS + batch.writer
    return pa.table([ids, parts, [n] * len(ids), [f"writer {batch.writer}"] * len(ids)], schema=SCHEMA)


def read_ledger(path: Path) -> list[Line]:
    """Return the acknowledged commits. The last line of a killed writer may be incomplete."""
    if not path.exists():
        return []
    *lines, _ = path.read_text().split("\n")
    return [Line(**json.loads(line)) for line in lines]


def main() -> None:
    writer, assignment = int(sys.argv[1]), Assignment(**json.loads(sys.argv[2]))
    path = assignment.ledger(writer)
    done = read_ledger(path)
    path.write_text("".join(json.dumps(asdict(line)) + "\n" for line in done))
    opened: dict[str, Table] = {}
    every = list(batches(assignment.tables, writer, assignment.rounds * MAX_ROUNDS))
    least = len(list(batches(assignment.tables, writer, assignment.rounds)))
    with ExitStack() as stack:
        ledger = stack.enter_context(path.open("a"))
        hints = stack.enter_context(tideline.events.hints(assignment.hints)) if assignment.hints else None
        for place in range(len(done), len(every)):
            if place >= least:
                if assignment.enough.exists():
                    return
                time.sleep(BEYOND_S)
            batch = every[place]
            if batch.base_path not in opened:
                own = {**OPTIONS, **assignment.tables[batch.base_path]}
                opened[batch.base_path] = Table.open(batch.base_path, writer_id=f"writer-{writer}", options=own)
                attach_lock(opened[batch.base_path], assignment.locks)
            ledger.write(json.dumps(asdict(_written(opened[batch.base_path], batch))) + "\n")
            ledger.flush()
            if hints is not None and batch.base_path.startswith("file:"):
                hints.give(tideline.Table(opened[batch.base_path]))


def _written(table: Table, batch: Batch) -> Line:
    deadline_s, errors = time.monotonic() + TROUBLE_TIMEOUT_S, 0
    while True:
        try:
            done = write_rows(table, rows_of(batch), Operation.UPSERT, parallelism=1)
        except TidelineError as error:
            if error.recovery is Recovery.STOP or time.monotonic() > deadline_s:
                raise
            errors += 1
            print(f"{batch}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            time.sleep(PAUSE_S)
        else:
            return Line(batch.base_path, batch.round, done.instant, done.sequence, done.attempts, errors, time.time())


if __name__ == "__main__":
    main()
