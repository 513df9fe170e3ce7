"""Apache Hudi 1.x places log files by the modification times of timeline files (format reference 11.3): what our instants and
commits do for that."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from tests.plans import schedule_compaction
from tests.unit.table.tables import compact, create, open_table, write

from tideline_table.clock import ManualClock
from tideline_table.hudi.instant import State, instant_from_time
from tideline_table.hudi.version6 import parse_timeline_file_name
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType

TO_LOGS = {"tideline.insert.to.log": True}
FILLING = {"hoodie.parquet.small.file.limit": 10**8}
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": 1}


@dataclass
class StoreClock:
    """The clock by which a store dates its objects."""

    clock: ManualClock
    ahead_s: float = 0.0
    keeps_fractions: bool = True
    passes_s: float = field(default=0.0)
    """How much time each put takes."""

    def now(self) -> datetime:
        self.clock.advance(self.passes_s)
        at = self.clock.now() + timedelta(seconds=self.ahead_s)
        return at if self.keeps_fractions else at.replace(microsecond=0)


def table_on(store: StoreClock, root: str) -> tuple[Table, MemoryStorage]:
    storage = MemoryStorage(root, store)  # type: ignore[arg-type]
    store.clock.advance(0.4)
    create(storage, store.clock, type=TableType.MOR)
    return open_table(storage, store.clock), storage


def placed_by_times(storage: MemoryStorage, table: Table) -> dict[str, str]:
    """Base instant of the slice to which Apache Hudi 1.x attaches each log file, where it is not the one in the log file's name."""
    completed = {}
    for found in storage.list_folder(".hoodie").objects:
        instant = parse_timeline_file_name(found.path.rpartition("/")[2])
        if instant is not None and instant.state is State.COMPLETED:
            completed[instant.time] = instant_from_time(found.modified)
    wrong = {}
    table.refresh()
    for slices in table.state.slices.values():
        for base, found in slices.items():
            until = completed.get(base)
            place = max((other for other in slices if until is not None and other <= until), default=base)
            wrong.update({log.name: place for log in found.log_files if place != base and until is not None})
    return wrong


ROWS = [("a", "p", 1, "x"), ("b", "p", 1, "x")]


@pytest.mark.parametrize("ends", ["a write", "a compaction"])
def test_on_stores_of_whole_seconds_a_slice_completes_in_a_later_second_than_its_instant(ends):
    """Completed in its own second it would look older than the slice that it made, and what is appended to it would go to the
    one before."""
    clock = ManualClock()
    table, storage = table_on(StoreClock(clock, keeps_fractions=False), "s3://bucket/t")
    write(table, ROWS)
    if ends == "a write":
        made = write(table, [("c", "p", 1, "x")], **FILLING).instant
    else:
        write(table, [("a", "p", 2, "y")])
        made = compact(table).instant
    assert len(table.state.slices) == 1
    assert [s.base_instant for s in table.state.every_slice()][-1] == made
    write(table, [("a", "p", 3, "z")])
    (newest,) = table.slices()
    assert (newest.base_instant, len(newest.log_files)) == (made, 1)
    assert placed_by_times(storage, table) == {}


def test_an_instant_ahead_of_the_clock_is_waited_for_too():
    """Another writer's clock is ahead by what is allowed, and instants go on from its last one."""
    clock = ManualClock()
    table, storage = table_on(StoreClock(clock, keeps_fractions=False), "s3://bucket/t")
    write(table, ROWS)
    ahead = ManualClock(clock.now())
    ahead.advance(1.5)
    write(open_table(storage, ahead, "ahead"), [("o", "q", 1, "x")])
    begun = clock.now() + timedelta(seconds=1)
    made = write(table, [("c", "p", 1, "x")], **FILLING).instant
    assert made[:14] > instant_from_time(begun)[:14]
    write(table, [("a", "p", 3, "z")])
    assert placed_by_times(storage, table) == {}


@pytest.mark.parametrize("root", ["memory:/t", "file:/t"])
def test_disks_that_keep_fractions_are_not_waited_for(root):
    clock = ManualClock()
    table, storage = table_on(StoreClock(clock), root)
    write(table, ROWS)
    before = clock.monotonic_s()
    write(table, [("c", "p", 1, "x")], **FILLING)
    assert clock.monotonic_s() == before + 1
    write(table, [("a", "p", 3, "z")])
    assert placed_by_times(storage, table) == {}


def test_an_append_waits_for_the_second_of_the_slice_that_a_plan_opened():
    clock = ManualClock()
    table, _ = table_on(StoreClock(clock, keeps_fractions=False), "s3://bucket/t")
    write(table, ROWS)
    write(table, [("a", "p", 2, "y")])
    clock.advance(1)
    plan = schedule_compaction(table, AT_ONCE)
    clock.advance(-1)  # `write` lets one pass
    done = write(table, [("a", "p", 3, "z")])
    (entry,) = [e for e in table.timeline.log.after(0) if e.instant == done.instant and e.after is State.COMPLETED]
    assert instant_from_time(datetime.fromisoformat(entry.recorded))[:14] > plan[:14]


@pytest.mark.parametrize("ahead_s", [0.0, 1.5])
def test_a_compaction_is_minted_above_the_times_of_completed_files(ahead_s):
    """A store whose clock is ahead: what the compaction merged would be merged into it once more."""
    clock = ManualClock()
    table, storage = table_on(StoreClock(clock, ahead_s, passes_s=0.002), "memory:/t")
    write(table, ROWS, **TO_LOGS)
    write(table, [("a", "p", 2, "y")])
    assert compact(table) is not None
    write(table, [("a", "p", 3, "z")])
    assert compact(table) is not None
    assert placed_by_times(storage, table) == {}


def test_a_compaction_is_minted_above_the_time_of_a_file_that_it_had_to_make():
    """Its writer slept between the log and the timeline; every put takes its time."""
    clock = ManualClock()
    store = StoreClock(clock)
    table, storage = table_on(store, "memory:/t")
    done = write(table, ROWS, **TO_LOGS)
    storage.delete(f".hoodie/{done.instant}.deltacommit")
    clock.advance(1)
    store.passes_s = 0.005
    planner = open_table(storage, clock, "planner")
    plan = schedule_compaction(planner, AT_ONCE)
    assert plan > instant_from_time(storage.stat(f".hoodie/{done.instant}.deltacommit").modified)
    assert placed_by_times(storage, planner) == {}


def test_instants_go_by_a_store_that_is_far_ahead():
    """Its time dates the files: by the clocks of the writers compactions would be minted below them, or never."""
    clock = ManualClock()
    table, storage = table_on(StoreClock(clock, 90), "memory:/t")
    write(table, ROWS, **TO_LOGS)
    made = compact(table).instant
    assert instant_from_time(clock.now() + timedelta(seconds=89)) < made < instant_from_time(clock.now() + timedelta(seconds=91))
    write(open_table(storage, clock, "other"), [("a", "p", 3, "z")])
    assert compact(table) is not None
    assert placed_by_times(storage, table) == {}
