"""A table with partitions of its own for each strategy, and the clock and files of a time when the test has not begun yet.

Partitions are days (`2005/01/02`): the year is the place of the strategy in `Strategy`, so that strategies by days, which read
dates in partition paths, and regular expressions (`2005/.*`) can be told which partitions are theirs.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from tests.conformance.matrix import Kind
from tests.conformance.service_strategies import ONLY_LOGS, Strategy

from tideline_table.action import write_rows
from tideline_table.clock import ManualClock
from tideline_table.file_group.slice import FileSlice
from tideline_table.storage import LocalStorage
from tideline_table.table import Table
from tideline_table.writer import Operation

NAME = "services"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        ("ts", pa.int64()),
        ("price", pa.float64()),
        ("note", pa.string()),
        ("part", pa.string()),
    ]
)
BEGAN = dt.datetime.combine(dt.datetime.now(dt.UTC).date() - dt.timedelta(days=1), dt.time(0, 5), dt.UTC)
"""A time in the first hour of yesterday: DAY_ROLLING then takes the first partition, and all of it is over when Apache Hudi
begins."""
PLAN = "hoodie.clustering.plan.strategy."
WIDE = 600_000
"""Characters of the notes that make a group larger than the smallest memory limit."""
OPTIONS: dict[str, object] = {
    "hoodie.parquet.small.file.limit": 0,
    "tideline.archive.min.age": 0,
    "tideline.task.max.lifetime": 0,
    "hoodie.archive.automatic": False,
}


def part(strategy: Strategy, day: int = 1) -> str:
    """The partition path of a day of a strategy."""
    return f"{1970 + list(Strategy).index(strategy)}/01/{day:02}"


def rows(strategy: Strategy, numbers: Iterable[int], ts: int, day: int = 1) -> pa.Table:
    """Rows of a day of a strategy; their prices are not in the order of their keys."""
    chosen, where = list(numbers), part(strategy, day)
    wide = {n: random.Random(n).randbytes(WIDE // 2).hex() for n in chosen} if strategy is Strategy.IN_FILES else {}
    return pa.table(
        {
            "id": [f"{where.replace('/', '')}-{n}" for n in chosen],
            "ts": [ts] * len(chosen),
            "price": [n * 7 % 10 + ts / 1000 for n in chosen],
            "note": [f"{n} {wide.get(n, '')}" for n in chosen],
            "part": [where] * len(chosen),
        },
        schema=SCHEMA,
    )


def files_of(path: Path, strategy: Strategy) -> set[str]:
    """The data files of a strategy's partitions, below the base path."""
    found = (p.relative_to(path).as_posix() for p in (path / part(strategy)[:4]).rglob("*") if p.is_file())
    return {p for p in found if (p.endswith(".parquet") or ".log." in p) and not p.endswith(".crc")}


class Dated(LocalStorage):
    """A folder whose files have the times of the test's clock, which Apache Hudi takes for the times of completions."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        super().__init__(root)
        self._clock = clock

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self._date(path)

    def put_if_absent(self, path: str, data: bytes) -> None:
        super().put_if_absent(path, data)
        self._date(path)

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        with super().open_output(path) as file:
            yield file
        self._date(path)

    def _date(self, path: str) -> None:
        at = int(self._clock.now().timestamp() * 10**6) * 1000
        os.utime(self.local_path(path), ns=(at, at))


@dataclass
class Here:
    """The table, its history so far, and what it must hold."""

    path: Path
    kind: Kind
    clock: ManualClock = field(default_factory=lambda: ManualClock(BEGAN - dt.timedelta(hours=6)))
    model: dict[str, int] = field(default_factory=dict)
    ts: int = 0
    dead: str = ""
    """The instant of the write that died at the end."""
    left: dict[Strategy, set[str]] = field(default_factory=dict)
    """The files that it left."""
    chosen: tuple[Strategy, ...] = ()
    """Strategies, if not all that a table without buckets has."""
    _reader: Table | None = None

    @property
    def strategies(self) -> list[Strategy]:
        """Those that this table has partitions of."""
        if self.chosen:
            return list(self.chosen)
        others = ONLY_LOGS if self.kind is Kind.COW else frozenset()
        return [s for s in Strategy if s is not Strategy.BUCKETS and s not in others]

    def open(self, **options: object) -> Table:
        """The table, for a new process."""
        return Table.open(str(self.path), options={**OPTIONS, **options}, clock=self.clock, storage=self.open_storage())

    def open_storage(self) -> Dated:
        """Its folder."""
        return Dated(self.path, self.clock)

    def write(self, *found: pa.Table, operation: Operation = Operation.UPSERT) -> None:
        """Write rows of one or several partitions."""
        self.clock.advance(1)
        given = pa.concat_tables(found)
        write_rows(self.open(), given, operation, parallelism=1)
        self.model.update(zip(given["id"].to_pylist(), given["ts"].to_pylist(), strict=True))

    def next(self) -> int:
        """The ordering value of the next write."""
        self.ts += 1
        return self.ts

    def slices(self, strategy: Strategy, day: int = 0) -> list[FileSlice]:
        """The latest slices of a strategy, or of a day of it."""
        wanted = part(strategy, day) if day else part(strategy)[:4]
        if self._reader is None:
            self._reader = self.open()
        return [s for s in self._reader.refresh().latest_slices() if s.group.partition_path.startswith(wanted)]
