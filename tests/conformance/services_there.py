"""A table on which Apache Hudi ran every strategy of its table services, each in partitions of its own (see `service_table.py`).

Tideline writes the first rows, dated yesterday, so that a clean by hours has something to delete.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conformance.both_in_turn import QUICK
from tests.conformance.matrix import Cell, Kind
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed
from tests.conformance.service_strategies import Proof, Strategy, impossible, reasons
from tests.conformance.service_table import BEGAN, NAME, PLAN, SCHEMA, Here, files_of, part, rows
from tests.conformance.services_here import compacted
from tests.conformance.stories.life import EVENT_TIME, KEYS
from tests.conformance.stories.story import COMMON

from tideline_table.clock import ManualClock
from tideline_table.table import Table, TableRequest, TableType, create_table
from tideline_table.writer import Operation

CLIENT = "org.apache.hudi.client.clustering"
CLASS, EXECUTION = "hoodie.clustering.plan.strategy.class", "hoodie.clustering.execution.strategy.class"
FILTER, LAYOUT = "hoodie.clustering.plan.partition.filter.mode", "hoodie.layout.optimize.strategy"
_SCHEDULED_S = 120
"""In which Apache Hudi has planned a clustering, on a loaded machine too."""
SIZE_BASED = f"{CLIENT}.plan.strategy.SparkSizeBasedClusteringPlanStrategy"
UPDATES = "hoodie.clustering.updates.strategy"
AT_ONCE = {
    "hoodie.clustering.async.max.commits": 0,
    "hoodie.clustering.inline.max.commits": 0,
    # Otherwise a plan looks only at partitions that were written since the last clustering.
    "hoodie.table.services.incremental.enabled": "false",
}
DAYS = {
    Strategy.RECENT_DAYS: 3,
    Strategy.SELECTED: 3,
    Strategy.FILTER_NONE: 2,
    Strategy.FILTER_RECENT: 3,
    Strategy.FILTER_SELECTED: 3,
    Strategy.FILTER_PATHS: 2,
    Strategy.FILTER_REGEX: 2,
    Strategy.FILTER_ROLLING: 24,
}
"""Numbers of partitions of the strategies that have several."""
CLEANS = (Strategy.KEEP_HOURS, Strategy.KEEP_COMMITS, Strategy.CLEAN_INCREMENTAL, Strategy.KEEP_VERSIONS)
COMPACTIONS = {
    Strategy.LOG_SIZE: "LogFileSizeBasedCompactionStrategy",
    Strategy.LOG_COUNT: "LogFileNumBasedCompactionStrategy",
    Strategy.BOUNDED_IO: "BoundedIOCompactionStrategy",
    Strategy.DAY_BASED: "DayBasedCompactionStrategy",
    Strategy.OLDER_DAYS: "UnBoundedPartitionAwareCompactionStrategy",
    Strategy.UNBOUNDED: "UnBoundedCompactionStrategy",
}


def strategies(kind: Kind) -> list[Strategy]:
    """Those that Apache Hudi runs here."""
    left_out = {*reasons(), *impossible(), Cell(Strategy.BUCKETS, kind, Proof.CONTINUED)}
    return [s for s in Strategy if Cell(s, kind, Proof.CONTINUED) not in left_out]


@dataclass
class There:
    """The table, and what it must hold."""

    peer: ApacheHudi
    path: Path
    kind: Kind
    model: dict[str, int]
    ts: int = 500  # above those of the first rows

    @property
    def options(self) -> dict[str, str]:
        """Those of every write and service."""
        kind = {"hoodie.table.name": NAME, "hoodie.datasource.write.table.type": self.kind.value}
        return {**COMMON, **QUICK, **KEYS, **EVENT_TIME, **kind, "hoodie.metadata.enable": "false"}

    def write(self, chosen: Iterable[Strategy], numbers: Iterable[int], **more: str) -> None:
        """An upsert of the first days of strategies; underscores of option names stand for dots."""
        self.ts += 1
        wanted = list(numbers)
        found = pa.concat_tables([rows(s, wanted, self.ts) for s in chosen])
        named = {name.replace("_", "."): value for name, value in more.items()}
        self.peer.write(self.path, found, {**self.options, "hoodie.datasource.write.operation": "upsert", **named})
        self.model.update(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True))

    def call(self, procedure: str, **more: object) -> None:
        """Run a procedure."""
        self.peer.sql(f"call {procedure}", {**self.options, **{k: str(v) for k, v in more.items()}})

    def last(self, *actions: str) -> str:
        """The newest completed instant of one of these actions."""
        return max(i.instant for i in self.peer.timeline(self.path) if i.action in actions and i.state == "COMPLETED")


def build(peer: ApacheHudi, folder: Path, kind: Kind) -> There:
    """Make the table, and let Apache Hudi run everything."""
    there = There(peer, folder / "theirs", kind, _first_rows(folder / "first", kind))
    shutil.copytree(folder / "first", there.path)
    shutil.rmtree(there.path / ".hoodie" / ".tideline")
    _clean_and_archive(there)
    _save_and_restore(there)
    _fail(there)
    if kind is Kind.MOR:
        _compact(there)
    _cluster(there)
    return there


def _first_rows(path: Path, kind: Kind) -> dict[str, int]:
    here = Here(path, kind, ManualClock(BEGAN - dt.timedelta(hours=6)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        create_table(
            str(path), TableRequest(NAME, SCHEMA, ("id",), ("part",), "ts", TableType(kind.value)), here.clock, here.open_storage()
        )
        days = {s: DAYS.get(s, 1) for s in strategies(kind)}
        for numbers in (range(0, 8, 2), range(1, 8, 2)):
            found = [rows(s, numbers, here.next(), day) for s in days for day in range(1, days[s] + 1)]
            here.write(*found, operation=Operation.BULK_INSERT)
        for _ in range(2):
            here.write(rows(Strategy.KEEP_HOURS, range(4), here.next()))
            if kind is Kind.MOR:
                compacted(here, Strategy.KEEP_HOURS, {})
        here.write(*(rows(s, [4, 5], here.next()) for s in days if s.startswith("clustering")))
    return here.model


def _clean_and_archive(there: There) -> None:
    inline = {"hoodie_compact_inline": "true", "hoodie_compact_inline_max_delta_commits": "1"} if there.kind is Kind.MOR else {}
    chosen = [*CLEANS, Strategy.ARCHIVAL]
    cleaning = {"hoodie_clean_automatic": "true", **inline}
    commits = {"hoodie_cleaner_policy": "KEEP_LATEST_COMMITS", "hoodie_cleaner_commits_retained": "1"}
    runs = {
        Strategy.KEEP_HOURS: {"hoodie_cleaner_policy": "KEEP_LATEST_BY_HOURS", "hoodie_cleaner_hours_retained": "1"},
        Strategy.KEEP_COMMITS: {**commits, "hoodie_cleaner_incremental_mode": "false"},
        Strategy.CLEAN_INCREMENTAL: {**commits, "hoodie_cleaner_incremental_mode": "true"},
        Strategy.KEEP_VERSIONS: {
            "hoodie_cleaner_policy": "KEEP_LATEST_FILE_VERSIONS",
            "hoodie_cleaner_fileversions_retained": "1",
            "hoodie_archive_automatic": "true",
            "hoodie_keep_min_commits": "2",
            "hoodie_keep_max_commits": "3",
            # Archival asks which commits a clean by commits would keep.
            "hoodie_cleaner_commits_retained": "1",
        },
    }
    for number, (strategy, options) in enumerate(runs.items()):
        before = files_of(there.path, strategy)
        there.write(chosen, range(number, number + 4), **cleaning, **options)
        assert before - files_of(there.path, strategy), f"{strategy} deleted nothing"
    assert any((there.path / ".hoodie").rglob(".commits_.archive*")), "archived nothing"


def _save_and_restore(there: There) -> None:
    at = there.last("commit", "deltacommit")
    there.call(f"create_savepoint(path => '{there.path}', commit_time => '{at}')", **{"hoodie.write.table.version": "6"})
    kept = dict(there.model)
    there.write([Strategy.RESTORE], range(3, 10))
    there.peer.restore(there.path, NAME, at, there.options)
    there.model = kept


def _fail(there: There) -> None:
    """A write of Apache Hudi fails in a task, and its next write rolls it back."""
    spoiled = {"price": f"if(id = '{part(Strategy.ROLLBACK).replace('/', '')}-62', cast(raise_error('spoiled') as double), price)"}
    options = {**there.options, "hoodie.datasource.write.operation": "bulk_insert"}
    with pytest.raises(PeerFailed, match="spoiled"):
        there.peer.write(there.path, rows(Strategy.ROLLBACK, range(60, 63), 900), options, computed=spoiled)
    there.write([Strategy.ROLLBACK], [1])
    assert not [i for i in there.peer.timeline(there.path) if i.state != "COMPLETED"]


def _compact(there: There) -> None:
    classes = "org.apache.hudi.table.action.compact.strategy"
    now = {"hoodie.compact.inline.max.delta.commits": 1}
    inline = {"hoodie_compact_inline": "true", **{name.replace(".", "_"): str(value) for name, value in now.items()}}
    for strategy, name in COMPACTIONS.items():
        there.write([strategy], range(3), **inline, hoodie_compaction_strategy=f"{classes}.{name}")
        found = [s for s in Table.open(str(there.path)).slices() if s.group.partition_path == part(strategy)]
        assert not any(s.log_files for s in found), f"{strategy}: {found}"
    bounded = {"hoodie_compaction_strategy": f"{classes}.BoundedPartitionAwareCompactionStrategy"}
    # So many days that there is something to plan.
    bounded["hoodie_compaction_daybased_target_partitions"] = "30000"
    with pytest.raises(PeerFailed, match="BoundedPartitionAwareCompactionStrategy"):
        there.write([Strategy.UNBOUNDED], [3], **inline, **bounded)
    there.write([Strategy.UNBOUNDED], [3])  # the one before was committed, and failed behind its commit


def _cluster(there: There) -> None:
    hilbert = {LAYOUT: "HILBERT", FILTER: "SELECTED_PARTITIONS"}
    one = {f"{PLAN}daybased.lookback.partitions": 1, f"{PLAN}daybased.skipfromlatest.partitions": 1}
    single = {
        CLASS: f"{CLIENT}.plan.strategy.SparkSingleFileSortPlanStrategy",
        EXECUTION: f"{CLIENT}.run.strategy.SparkSingleFileSortExecutionStrategy",
    }
    selected = {CLASS: f"{CLIENT}.plan.strategy.SparkSelectedPartitionsClusteringPlanStrategy"}
    plain = (Strategy.SIZE, Strategy.SORT_AND_SIZE, Strategy.LINEAR, Strategy.FILTER_NONE, Strategy.CANCELLED)
    _clustered(there, {s: tuple(range(1, DAYS.get(s, 1) + 1)) for s in plain}, {LAYOUT: "LINEAR"})
    _clustered(there, {Strategy.FILTER_REGEX: (2,)}, {}, regex=f"{part(Strategy.FILTER_REGEX)[:4]}/.*2")
    paths = f"{part(Strategy.Z_ORDER)},{part(Strategy.FILTER_PATHS, 2)}"
    _clustered(there, {Strategy.Z_ORDER: (1,), Strategy.FILTER_PATHS: (2,)}, {LAYOUT: "ZORDER", f"{PLAN}partition.selected": paths})
    hilberts = {Strategy.FILTER_SELECTED: (2, 3), Strategy.HILBERT: (1,)}
    _clustered(there, hilberts, {**hilbert, **_between(Strategy.FILTER_SELECTED, 2, Strategy.HILBERT, 1)})
    _clustered(there, {Strategy.SELECTED: (2,)}, {**selected, **_between(Strategy.SELECTED, 2, Strategy.SELECTED, 2)})
    _clustered(there, {Strategy.FILTER_RECENT: (2,)}, {FILTER: "RECENT_DAYS", **one})
    _clustered(there, {Strategy.RECENT_DAYS: (2,)}, {CLASS: f"{CLIENT}.plan.strategy.SparkRecentDaysClusteringPlanStrategy", **one})
    _clustered(there, {Strategy.SINGLE_FILE: (1,), Strategy.SINGLE_FILE_SORT: (1,)}, single)
    now = dt.datetime.now(dt.UTC)
    if (left_s := 3600 - 60 * now.minute - now.second) < _SCHEDULED_S:
        time.sleep(left_s)  # Apache Hudi plans for the hour that has begun when it looks
    hour = dt.datetime.now(dt.UTC).hour
    _clustered(there, {Strategy.FILTER_ROLLING: (hour + 1,)}, {FILTER: "DAY_ROLLING"})
    _clustered(there, {Strategy.REJECT: (1,)}, {UPDATES: f"{CLIENT}.update.strategy.SparkRejectUpdateStrategy"})


def _between(first: Strategy, day: int, last: Strategy, other: int) -> dict[str, object]:
    return {f"{PLAN}cluster.begin.partition": part(first, day), f"{PLAN}cluster.end.partition": part(last, other)}


def _clustered(there: There, wanted: dict[Strategy, tuple[int, ...]], options: dict[str, object], regex: str = "") -> None:
    years = "|".join(part(s)[:4] for s in wanted)
    choice = {**AT_ONCE, CLASS: SIZE_BASED, f"{PLAN}partition.regex.pattern": regex or f"({years})/.*", **options}
    if f"{PLAN}partition.selected" in options:
        del choice[f"{PLAN}partition.regex.pattern"]
    where = f"path => '{there.path}', order => 'price,id'"
    if Strategy.REJECT in wanted:
        there.call(f"run_clustering(op => 'schedule', {where})", **choice)
        with pytest.raises(PeerFailed, match="Not allowed to update the clustering file group"):
            there.write([Strategy.REJECT], [3], **{UPDATES.replace(".", "_"): str(options[UPDATES])})
        with contextlib.suppress(KeyError):
            del choice[CLASS]
        there.call(f"run_clustering(op => 'execute', path => '{there.path}')", **choice)
    else:
        there.call(f"run_clustering(op => 'scheduleandexecute', {where})", **choice)
    instant = there.last("replacecommit")
    every = Table.open(str(there.path)).slices()
    took = {s.group.partition_path for s in every if s.base_instant == instant}
    assert took == {part(s, day) for s, days in wanted.items() for day in days}, f"{list(wanted)}: {sorted(took)}"
