"""A table on which Tideline ran every strategy of every table service, each in partitions of its own."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from tests import plans
from tests.conformance.both_in_turn import abandoned_write
from tests.conformance.matrix import Kind
from tests.conformance.service_strategies import Strategy
from tests.conformance.service_table import BEGAN, NAME, PLAN, SCHEMA, Here, files_of, part, rows
from tests.unit.table.range_worker import clustered_by_ranges

import tideline_table.action as act
from tideline_table.action import create_savepoint, restore_to_savepoint, write_rows
from tideline_table.errors import WriteConflict
from tideline_table.table import BucketIndex, TableRequest, TableType, create_table
from tideline_table.writer import Operation

CLASS, FILTER = f"{PLAN}class", "hoodie.clustering.plan.partition.filter.mode"
SORT, TARGET = f"{PLAN}sort.columns", f"{PLAN}target.file.max.bytes"
LAYOUT, EXECUTION = "hoodie.layout.optimize.strategy", "hoodie.clustering.execution.strategy.class"
UPDATES = "hoodie.clustering.updates.strategy"
NOW = {"hoodie.compact.inline.max.delta.commits": 1}


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
    Strategy.BY_CHANCE: Clustering({ORDER: "random"}, 2, (1, 2)),
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
        request = TableRequest(NAME, SCHEMA, ("id",), ("part",), "ts", TableType(kind.value), index=BucketIndex(2))
        create_table(str(path), request, here.clock, here.open_storage())
        for numbers in (range(12), range(4, 7)):
            here.write(rows(Strategy.BUCKETS, numbers, here.next()))
        table = here.open(**{SORT: "price"})
        here.clock.advance(1)
        instant = plans.schedule_clustering(table)
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
        assert plans.schedule_clean(table) is not None, strategy
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
    assert plans.schedule_log_compaction(table) is not None
    here.write(rows(Strategy.LOG_COMPACTION, [2, 3], here.next()))
    assert act.run_log_compaction(table) is not None
    assert any(log.merges_earlier for s in here.slices(Strategy.LOG_COMPACTION) for log in s.log_files)


def compacted(here: Here, strategy: Strategy, options: Mapping[str, object]) -> None:
    """Compact what has log files: the partitions of the strategy."""
    here.clock.advance(1)
    assert any(s.log_files for s in here.slices(strategy)), strategy
    table = here.open(**NOW, **options)
    assert plans.schedule_compaction(table) is not None, strategy
    assert act.run_compaction(table) is not None
    assert not any(s.log_files for s in here.slices(strategy)), strategy


def _roll_back(here: Here) -> None:
    """A dead writer is rolled back; and a plan is cancelled."""
    here.clock.advance(1)
    dead = abandoned_write(here.open(), rows(Strategy.ROLLBACK, range(3), 98))
    here.clock.advance(900)
    assert act.roll_back_dead(here.open()) == [dead]
    table = here.open(**{f"{PLAN}partition.selected": part(Strategy.CANCELLED)})
    instant = plans.schedule_clustering(table)
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
    instant = plans.schedule_clustering(table)
    assert instant is not None, strategy
    _write_beside(here, strategy)
    if strategy is Strategy.YIELD:
        with pytest.raises(WriteConflict):
            act.run_clustering(table)
        assert act.roll_back_dead(table) == []
        instant = plans.schedule_clustering(table)
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
