"""A table on which Tideline ran every strategy of every table service, each in partitions of its own.

Partitions are days (`2005/01/02`): the year is the place of the strategy in `Strategy`, so that strategies by days, which read dates
in partition paths, and regular expressions (`2005/.*`) can be told which partitions are theirs.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import abandoned_write
from tests.conformance.matrix import Kind
from tests.conformance.service_strategies import ONLY_LOGS, Strategy
from tests.unit.table.range_worker import clustered_by_ranges

import tideline_table.action as act
from tideline_table.action import create_savepoint, restore_to_savepoint, write_rows
from tideline_table.clock import ManualClock
from tideline_table.errors import WriteConflict
from tideline_table.file_group.slice import FileSlice
from tideline_table.storage import LocalStorage
from tideline_table.table import Table, TableRequest, TableType, create_table
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
"""A time in the first hour of yesterday: DAY_ROLLING then takes the first partition, and all of it is over when Apache Hudi begins."""
PLAN = "hoodie.clustering.plan.strategy."
CLASS, FILTER = f"{PLAN}class", "hoodie.clustering.plan.partition.filter.mode"
SORT, TARGET = f"{PLAN}sort.columns", f"{PLAN}target.file.max.bytes"
LAYOUT, EXECUTION = "hoodie.layout.optimize.strategy", "hoodie.clustering.execution.strategy.class"
UPDATES = "hoodie.clustering.updates.strategy"
NOW = {"hoodie.compact.inline.max.delta.commits": 1}
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


def owner(partition_path: str) -> Strategy:
    """The strategy whose partition this is."""
    return list(Strategy)[int(partition_path[:4]) - 1970]


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


@dataclass(frozen=True)
class Clustering:
    """How a strategy of clustering is run in its partitions: `options`, and the days that its plan must take."""

    options: Mapping[str, object]
    days: int = 1
    takes: tuple[int, ...] = (1,)
    run: Callable[..., object] | None = None


def _years(strategy: Strategy) -> dict[str, object]:
    return {f"{PLAN}partition.regex.pattern": f"{part(strategy)[:4]}/.*"}


def _range(strategy: Strategy) -> dict[str, object]:
    return {f"{PLAN}cluster.begin.partition": part(strategy, 2), f"{PLAN}cluster.end.partition": part(strategy, 2)}


ONE_DAY = {f"{PLAN}daybased.lookback.partitions": 1, f"{PLAN}daybased.skipfromlatest.partitions": 1}
ONE_GROUP = {f"{PLAN}max.num.groups": 1}
ORDER = "tideline.clustering.plan.group.order"
CLUSTERINGS: dict[Strategy, Clustering] = {
    Strategy.SIZE: Clustering({CLASS: "size"}),
    Strategy.RECENT_DAYS: Clustering({CLASS: "recent-days", **ONE_DAY}, 3, (2,)),
    Strategy.SELECTED: Clustering({CLASS: "selected-partitions", **_range(Strategy.SELECTED)}, 3, (2,)),
    Strategy.KEY_RANGE: Clustering({CLASS: "key-range", SORT: "id"}),
    Strategy.OVERLAP: Clustering({CLASS: "overlap", SORT: "price"}),
    Strategy.COMMIT_TIME: Clustering({CLASS: "commit-time"}),
    Strategy.SINGLE_FILE: Clustering({CLASS: "single-file", EXECUTION: "single-file-sort", SORT: "price"}),
    Strategy.FILTER_NONE: Clustering({FILTER: "NONE"}, 2, (1, 2)),
    Strategy.FILTER_RECENT: Clustering({FILTER: "RECENT_DAYS", **ONE_DAY}, 3, (2,)),
    Strategy.FILTER_OLDEST: Clustering({FILTER: "OLDEST_DAYS", **ONE_DAY}, 3, (1,)),
    Strategy.FILTER_SELECTED: Clustering({FILTER: "SELECTED_PARTITIONS", **_range(Strategy.FILTER_SELECTED)}, 3, (2,)),
    Strategy.FILTER_ROLLING: Clustering({FILTER: "DAY_ROLLING"}, 2, (1,)),
    Strategy.FILTER_PATHS: Clustering({f"{PLAN}partition.selected": part(Strategy.FILTER_PATHS, 2)}, 2, (2,)),
    Strategy.FILTER_REGEX: Clustering({f"{PLAN}partition.regex.pattern": f"{part(Strategy.FILTER_REGEX)[:4]}/.*2"}, 2, (2,)),
    Strategy.BY_PARTITION: Clustering({ORDER: "partition", **ONE_GROUP}, 2, (1,)),
    Strategy.BY_BYTES: Clustering({ORDER: "bytes", **ONE_GROUP}, 2, (1,)),
    Strategy.BY_FILES: Clustering({ORDER: "files", **ONE_GROUP}, 2, (1,)),
    Strategy.BY_OLDEST: Clustering({ORDER: "oldest", **ONE_GROUP}, 2, (2,)),
    Strategy.LINEAR: Clustering({LAYOUT: "linear", SORT: "price,id"}),
    Strategy.Z_ORDER: Clustering({LAYOUT: "z-order", SORT: "price,id"}),
    Strategy.HILBERT: Clustering({LAYOUT: "hilbert", SORT: "price,id"}),
    Strategy.SORT_AND_SIZE: Clustering({EXECUTION: "sort-and-size", SORT: "price"}),
    Strategy.SINGLE_FILE_SORT: Clustering({EXECUTION: "single-file-sort", SORT: "price"}),
    Strategy.IN_FILES: Clustering({"tideline.clustering.memory.limit": 4 * 2**20, SORT: "price"}),
    Strategy.SPLIT: Clustering({SORT: "price"}, run=clustered_by_ranges),
    Strategy.YIELD: Clustering({UPDATES: "yield"}),
    Strategy.REJECT: Clustering({UPDATES: "reject"}),
    Strategy.CARRY_OVER: Clustering({UPDATES: "carry-over"}),
}
COMPACTIONS: dict[Strategy, Mapping[str, object]] = {
    Strategy.LOG_SIZE: {"hoodie.compaction.strategy": "log_size", "hoodie.compaction.logfile.size.threshold": 1},
    Strategy.LOG_COUNT: {"hoodie.compaction.strategy": "log_count", "hoodie.compaction.logfile.num.threshold": 1},
    Strategy.BOUNDED_IO: {"hoodie.compaction.strategy": "bounded_io", "hoodie.compaction.target.io": 1},
    Strategy.DAY_BASED: {"hoodie.compaction.strategy": "day_based", "hoodie.compaction.daybased.target.partitions": 1},
    Strategy.UNBOUNDED: {"hoodie.compaction.strategy": "unbounded"},
    Strategy.AGE: {"hoodie.compaction.strategy": "age"},
    Strategy.COMPACT_RECENT: {"hoodie.compaction.strategy": "recent_days"},
    Strategy.OLDER_DAYS: {"hoodie.compaction.strategy": "older_days"},
}
CLEANS: dict[Strategy, Mapping[str, object]] = {
    # The first one, whose hours pass on the clock of the test.
    Strategy.KEEP_HOURS: {"hoodie.clean.policy": "KEEP_LATEST_BY_HOURS", "hoodie.clean.hours.retained": 1},
    Strategy.KEEP_COMMITS: {"hoodie.clean.policy": "KEEP_LATEST_COMMITS", "hoodie.cleaner.commits.retained": 1},
    Strategy.CLEAN_INCREMENTAL: {"hoodie.clean.policy": "KEEP_LATEST_COMMITS", "hoodie.cleaner.commits.retained": 2},
    Strategy.KEEP_VERSIONS: {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": 1},
}


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


def build(path: Path, kind: Kind) -> Here:
    """Make the table and run everything."""
    with pytest.MonkeyPatch.context() as patched:
        # No power is lost here, and thousands of small files are synchronized one by one.
        patched.setattr(os, "fsync", lambda _: None)
        return _build(Here(path, kind))


def _build(here: Here) -> Here:
    path, kind = here.path, here.kind
    create_table(
        str(path), TableRequest(NAME, SCHEMA, ("id",), ("part",), "ts", TableType(kind.value)), here.clock, here.open_storage()
    )
    _clean_and_archive(here)
    _save_and_restore(here)
    _fill(here)
    if kind is Kind.MOR:
        _compact(here)
    _roll_back(here)
    _cluster(here)
    _die(here)
    return here


def build_buckets(path: Path, kind: Kind) -> Here:
    """Make a table with a bucket index, and cluster it: rows of a bucket stay in it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        here = Here(path, kind, chosen=(Strategy.BUCKETS,))
        request = TableRequest(NAME, SCHEMA, ("id",), ("part",), "ts", TableType(kind.value), buckets=2)
        create_table(str(path), request, here.clock, here.open_storage())
        for numbers in (range(12), range(4, 7)):
            here.write(rows(Strategy.BUCKETS, numbers, here.next()))
        table = here.open(**{SORT: "price"})
        here.clock.advance(1)
        instant = act.schedule_clustering(table)
        assert instant is not None
        assert act.run_clustering(table) is not None
        assert {s.base_instant for s in here.slices(Strategy.BUCKETS)} == {instant}
        _die(here)
        return here


def _die(here: Here) -> None:
    """A write into the partitions of all strategies dies before its commit."""
    here.clock.advance(1)
    before = {s: files_of(here.path, s) for s in here.strategies}
    found = pa.concat_tables([rows(s, [0, 60], 900, takes(s)) for s in here.strategies])
    here.dead = abandoned_write(here.open(), found)
    here.left = {s: files_of(here.path, s) - before[s] for s in here.strategies}


def takes(strategy: Strategy) -> int:
    """The day of a strategy that its service took."""
    return CLUSTERINGS[strategy].takes[0] if strategy in CLUSTERINGS else 1


def _clean_and_archive(here: Here) -> None:
    here.write(*(rows(s, range(8), here.next()) for s in (*CLEANS, Strategy.ARCHIVAL)), operation=Operation.BULK_INSERT)
    for strategy, options in CLEANS.items():
        for _ in range(3):
            here.write(rows(strategy, range(4), here.next()))
            if here.kind is Kind.MOR:
                compacted(here, strategy, {})
        if strategy is Strategy.KEEP_HOURS:
            here.clock.advance((BEGAN - here.clock.now()).total_seconds())
            here.write(rows(Strategy.ARCHIVAL, [1], here.next()))
        before = files_of(here.path, strategy)
        table = here.open(**options)
        assert act.schedule_clean(table) is not None, strategy
        assert act.run_clean(table)
        assert before - files_of(here.path, strategy), f"{strategy} deleted nothing"
    few = {"hoodie.cleaner.commits.retained": 1, "hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3}
    assert act.archive(here.open(**few)) is not None
    assert any((here.path / ".hoodie").rglob(".commits_.archive*"))


def _save_and_restore(here: Here) -> None:
    saved, restored = Strategy.SAVEPOINT, Strategy.RESTORE
    here.write(*(rows(s, range(4), here.next()) for s in (saved, restored)), operation=Operation.BULK_INSERT)
    here.write(*(rows(s, range(4, 8), here.next()) for s in (saved, restored)), operation=Operation.BULK_INSERT)
    at = create_savepoint(here.open()).instant
    kept = dict(here.model)
    here.write(rows(restored, range(2, 10), here.next()))
    _clustered(here, restored, Clustering({}))
    assert len(restore_to_savepoint(here.open(), at).undone) == 2
    here.model = kept


def _fill(here: Here) -> None:
    """Two files in each partition of the other strategies; then an update of each."""
    early = {*CLEANS, Strategy.ARCHIVAL, Strategy.SAVEPOINT, Strategy.RESTORE}
    late = [s for s in here.strategies if s not in early]
    days = {s: CLUSTERINGS[s].days if s in CLUSTERINGS else 1 for s in late}
    here.write(rows(Strategy.BY_OLDEST, range(20, 30), here.next(), 2), operation=Operation.BULK_INSERT)
    for numbers in (range(0, 8, 2), range(1, 8, 2)):
        chosen = [rows(s, numbers, here.next(), day) for s in late for day in range(1, days[s] + 1)]
        here.write(*chosen, operation=Operation.BULK_INSERT)
    # Of the orders of groups, the first day is to be first by each.
    first = [s for s in late if "group order" in s and s is not Strategy.BY_OLDEST]
    here.write(*(rows(s, range(20, 30), here.next()) for s in first), operation=Operation.BULK_INSERT)


def _compact(here: Here) -> None:
    for strategy, options in COMPACTIONS.items():
        if strategy is Strategy.COMPACT_RECENT:
            older = (here.clock.now().date() - dt.date.fromisoformat(part(strategy).replace("/", "-"))).days + 1
            here.write(*(rows(s, range(3), here.next()) for s in (strategy, Strategy.OLDER_DAYS)))
            compacted(here, strategy, {**options, "hoodie.compaction.daybased.target.partitions": older})
            assert any(s.log_files for s in here.slices(Strategy.OLDER_DAYS))
            continue
        here.write(rows(strategy, range(3), here.next()))
        compacted(here, strategy, {**options, "hoodie.compaction.daybased.target.partitions": 1} if "days" in strategy else options)
    for numbers in (range(3), range(2, 6)):
        here.write(rows(Strategy.LOG_COMPACTION, numbers, here.next()))
    table = here.open(**{"hoodie.log.compaction.blocks.threshold": 2})
    assert act.schedule_log_compaction(table) is not None
    here.write(rows(Strategy.LOG_COMPACTION, [2, 3], here.next()))
    assert act.run_log_compaction(table) is not None
    assert any(log.merges_earlier for s in here.slices(Strategy.LOG_COMPACTION) for log in s.log_files)


def compacted(here: Here, strategy: Strategy, options: Mapping[str, object]) -> None:
    """Compact what has log files: the partitions of the strategy."""
    here.clock.advance(1)
    assert any(s.log_files for s in here.slices(strategy)), strategy
    table = here.open(**NOW, **options)
    assert act.schedule_compaction(table) is not None, strategy
    assert act.run_compaction(table) is not None
    assert not any(s.log_files for s in here.slices(strategy)), strategy


def _roll_back(here: Here) -> None:
    """A dead writer is rolled back; and a plan is cancelled."""
    here.clock.advance(1)
    dead = abandoned_write(here.open(), rows(Strategy.ROLLBACK, range(3), 98))
    here.clock.advance(900)
    assert act.roll_back_dead(here.open()) == [dead]
    table = here.open(**{f"{PLAN}partition.selected": part(Strategy.CANCELLED)})
    instant = act.schedule_clustering(table)
    assert instant is not None
    act.cancel_plan(table, instant)


def _cluster(here: Here) -> None:
    chosen = {s: c for s, c in CLUSTERINGS.items() if s in here.strategies}
    here.write(*(rows(s, range(4, 6), here.next(), day) for s, c in chosen.items() for day in c.takes))
    for strategy, how in chosen.items():
        _clustered(here, strategy, how)


def _clustered(here: Here, strategy: Strategy, how: Clustering) -> None:
    here.clock.advance(1)
    size = sum(s.total_bytes for s in here.slices(strategy))
    small = {TARGET: max(1024, size * 7 // 10)} if strategy in (Strategy.SPLIT, Strategy.IN_FILES) else {}
    table = here.open(**{f"{PLAN}small.file.limit": 10**9, **_years(strategy), **how.options, **small})
    instant = act.schedule_clustering(table)
    assert instant is not None, strategy
    _write_beside(here, strategy)
    if strategy is Strategy.YIELD:
        with pytest.raises(WriteConflict):
            act.run_clustering(table)
        assert act.roll_back_dead(table) == []
        instant = act.schedule_clustering(table)
    done = act.run_clustering(table, **({"run": how.run} if how.run else {}))
    assert done is not None, strategy
    by = {s.base_instant for day in how.takes for s in here.slices(strategy, day)}
    assert by == {instant}, f"{strategy}: {by} instead of {instant}"
    left = [s for s in here.slices(strategy) if s.base_instant != instant]
    assert len({s.group.partition_path for s in left}) == how.days - len(how.takes), strategy
    if small:
        assert len(here.slices(strategy)) > 1, strategy


def _write_beside(here: Here, strategy: Strategy) -> None:
    if strategy in (Strategy.YIELD, Strategy.CARRY_OVER):
        here.write(rows(strategy, range(3, 5), here.next()))
    if strategy is Strategy.REJECT:
        refused = here.open(**{UPDATES: "reject", "tideline.write.conflict.retries": 0})
        with pytest.raises(WriteConflict):
            write_rows(refused, rows(strategy, [3], 97), Operation.UPSERT)


def files_of(path: Path, strategy: Strategy) -> set[str]:
    """The data files of a strategy's partitions, below the base path."""
    found = (p.relative_to(path).as_posix() for p in (path / part(strategy)[:4]).rglob("*") if p.is_file())
    return {p for p in found if (p.endswith(".parquet") or ".log." in p) and not p.endswith(".crc")}
