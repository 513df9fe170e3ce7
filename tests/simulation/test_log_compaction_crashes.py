"""Log compactions: crashes, storage errors and other actions at every call to the storage, with recoveries behind them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from tests.plans import schedule_clustering, schedule_compaction, schedule_log_compaction
from tests.simulation.crashes import Scenario, rows_survive
from tests.simulation.faults import MUTATING, PUTS, FaultyStorage, SimulatedCrash, copy_of, crash_at, fail_at, fill_up
from tests.simulation.recovery import OPTIONS, check_sound, compact, log_compact, recover
from tests.simulation.starting_point import Prepared, Undisturbed, live_through, place, undisturbed
from tests.unit.table.tables import cluster, contents, create, open_table, write

from tideline_table.clock import ManualClock
from tideline_table.errors import TidelineError
from tideline_table.log import state as group_state
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

ROWS = [("a", "p", 1, "x"), ("b", "p", 1, "x"), ("a", "q", 1, "x"), ("c", "q", 1, "x")]
NOW = {"hoodie.log.compaction.blocks.threshold": 2}


def table_with_logs() -> tuple[Table, MemoryStorage, ManualClock]:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    table = open_table(storage, clock, **OPTIONS)
    write(table, ROWS)
    write(table, [("a", "p", 2, "y"), ("c", "q", 2, "y")])
    write(table, [("b", "p", 0, ""), ("a", "q", 0, "")], Operation.DELETE)
    write(table, [("b", "p", 3, "z"), ("c", "q", 3, "z")])
    return table, storage, clock


def unplanned() -> Prepared:
    _, storage, clock = table_with_logs()
    return storage, clock.monotonic_s()


def planned() -> Prepared:
    """With log files that writers appended behind the plan."""
    table, storage, clock = table_with_logs()
    assert schedule_log_compaction(table, NOW) is not None
    write(table, [("a", "p", 4, "late"), ("c", "q", 0, "")])
    return storage, clock.monotonic_s()


def begun() -> Prepared:
    """Of which a process died behind its first log file."""
    storage, passed_s = planned()
    clock = ManualClock()
    clock.advance(passed_s)
    faulty = FaultyStorage(storage)
    crash_at(faulty, 9, "after")
    with pytest.raises(SimulatedCrash):
        log_compact(open_table(faulty, clock, "executor", **OPTIONS))
    return storage, clock.monotonic_s()


prepared = functools.cache(lambda start: start())


def plan_and_run(table: Table) -> None:
    schedule_log_compaction(table, NOW)
    log_compact(table)


@functools.cache
def outcome(start: Callable[[], Prepared]) -> Undisturbed:
    return undisturbed(prepared(start), plan_and_run)


def of_hudi(disk: MemoryStorage, clock: ManualClock) -> list:
    """What a reader finds that knows the timeline and the listing only, as Apache Hudi does."""
    other = copy_of(disk, clock)
    other.delete_below(".hoodie/.tideline")
    return contents(open_table(other, clock, "hudi"))


def merged(start: Callable[[], Prepared], *deaths: str) -> Scenario:
    """No row changes at any moment, for no reader."""

    def at_once(disk: MemoryStorage, clock: ManualClock, when: str) -> None:
        if when != "torn":
            assert of_hudi(disk, clock) == contents(open_table(disk, clock)) == list(outcome(start).before)

    def behind(disk: MemoryStorage, clock: ManualClock, _: object) -> None:
        done = outcome(start)
        assert done.before == done.after
        recover(disk, clock)
        assert of_hudi(disk, clock) == list(done.before)
        check_sound(disk, clock, [list(done.before)])

    return Scenario(
        name=start.__name__,
        arrange=lambda: place(prepared(start)),
        act=plan_and_run,
        calls=lambda: outcome(start).mutating,
        deaths=deaths,
        at_once=at_once,
        behind=behind,
    )


@functools.cache
def outcome_of_recovery() -> Undisturbed:
    done = undisturbed(prepared(begun), lambda table: recover(table.storage, table.clock) and None)
    assert done.before == done.after
    return done


RECOVERY = rows_survive(
    "recovery of one that died",
    lambda held: recover(*held),
    lambda: prepared(begun),
    outcome_of_recovery,
    opened=lambda storage, clock: (storage, clock),
)
SCENARIOS = [merged(unplanned, "after"), merged(planned, "after", "torn"), RECOVERY]


def test_storage_error_at_every_call():
    done = outcome(planned)
    rows = {"done": list(done.after), "failed": [list(done.before)], "unknown": [list(done.before)]}
    for number, call in enumerate(done.calls):
        faults = [partial(fail_at, first=number, times=1, when="before")]
        if call in MUTATING:
            faults.append(partial(fail_at, first=number, times=1, when="after"))
        if call in PUTS:
            faults.append(partial(fill_up, first=number))
        live_through(prepared(planned), plan_and_run, faults[number % len(faults)], **rows)


def _write(table: Table) -> None:
    write(table, [("a", "p", 9, "beside"), ("b", "p", 9, "beside"), ("c", "q", 9, "beside")])


def _compact(table: Table) -> None:
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    compact(table)


def _plan_compaction(table: Table) -> None:
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    _write(table)


def _cluster(table: Table) -> None:
    schedule_clustering(table, {"tideline.clustering.min.input.files": 1})
    cluster(table)


def _overwrite(table: Table) -> None:
    write(table, [("o", "p", 1, "only")], Operation.INSERT_OVERWRITE)


@pytest.mark.parametrize("act", [_write, _compact, _plan_compaction, _cluster, _overwrite], ids=lambda a: a.__name__.strip("_"))
def test_another_action_before_every_call(act):
    """Whatever happens meanwhile is never lost, and is not refused: the log compaction gives way."""
    done = outcome(planned)
    for number in (n for n, call in enumerate(done.calls) if call in MUTATING):
        faulty, disk, clock = place(prepared(planned))
        table = open_table(faulty, clock, **OPTIONS)
        start, acted = len(faulty.calls), []

        def beside(at, _call, _path, number=number, start=start, acted=acted, disk=disk, clock=clock):
            if at - start == number and not acted:
                acted.append(True)
                act(open_table(disk, clock, "beside", **{"tideline.write.conflict.retries": 1}))

        faulty.before = beside
        with contextlib.suppress(TidelineError):
            plan_and_run(table)
        assert acted
        alone = place(prepared(planned))
        act(open_table(alone[1], alone[2], "beside"))
        expected = contents(open_table(alone[1], alone[2]))
        assert of_hudi(disk, clock) == contents(open_table(disk, clock)) == expected
        recover(disk, clock)
        check_sound(disk, clock, [expected])


def _behind_all(slices, group, instant, stat, *slice_and_names):
    """A seeded bug: the merged file hides log files that were appended since the plan."""
    _real_fold(slices, group, instant, stat, *slice_and_names)
    for at, found in slices.items():
        ours = [log for log in found.log_files if log.instant == instant]
        slices[at] = replace(found, log_files=(*(log for log in found.log_files if log.instant != instant), *ours))


_real_fold = group_state.fold_merged_log


def test_a_merged_file_that_hides_later_ones_is_found(monkeypatch):
    outcome(planned)  # without the bug
    monkeypatch.setattr(group_state, "fold_merged_log", _behind_all)
    with pytest.raises(AssertionError):
        test_another_action_before_every_call(_write)
