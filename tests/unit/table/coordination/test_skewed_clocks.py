"""Clocks of writers that differ from the store's: who is refused, what goes on, and where Apache Hudi 1.x places log files then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from tests.plans import schedule_archival, schedule_clean, schedule_compaction
from tests.unit.table.coordination.test_file_times import AT_ONCE, FILLING, ROWS, TO_LOGS, StoreClock, placed_by_times, table_on
from tests.unit.table.shared import SHARING, opened, put, shared_table
from tests.unit.table.tables import Row, compact, contents, listing, new_table, open_table, write

from tideline_locks import open_hudi_lock
from tideline_table.action import roll_back_dead, run_archival, run_clean, run_compaction
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import Clock, ManualClock
from tideline_table.coordination.heartbeat import STORE_TIME_PATH, allowed_silence
from tideline_table.coordination.replica import VALID_S
from tideline_table.errors import ClockSkew
from tideline_table.hudi.instant import State, instant_from_time, next_instant, time_from_instant
from tideline_table.storage import MemoryStorage, Storage
from tideline_table.storage.port import ObjectStat
from tideline_table.table import Table, TableType, share_table, summarise

HOUR_S = 3600.0
PATIENT = {"tideline.instant.max.skew": 2 * HOUR_S}
"""Of a writer that is let in although its clock is ahead: as one was before writers were refused."""
BRIEF = {"hoodie.client.heartbeat.interval_in_ms": 1000}


@dataclass
class Skewed(Clock):
    """A clock that differs from the store's; `ahead_s` may change: it jumps."""

    true: ManualClock
    ahead_s: float

    def now(self) -> datetime:
        return self.true.now() + timedelta(seconds=self.ahead_s)

    def monotonic_s(self) -> float:
        return self.true.monotonic_s()

    def sleep(self, duration_s: float) -> None:
        self.true.sleep(duration_s)


class CountingStorage(MemoryStorage):
    """Counts what the store is asked for its time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.asked: Counter[str] = Counter()

    def put(self, path: str, data: bytes) -> None:
        self.asked["put"] += path == STORE_TIME_PATH
        super().put(path, data)

    def stat(self, path: str) -> ObjectStat:
        self.asked["stat"] += path == STORE_TIME_PATH
        return super().stat(path)


def skewed(storage: Storage, clock: ManualClock, ahead_s: float, writer: str = "fast", **options: object) -> Table:
    return open_table(storage, Skewed(clock, ahead_s), writer, **options)  # type: ignore[arg-type]


@dataclass
class Ahead:
    """A merge-on-read table whose last instant was brought by the writer `fast`, an hour ahead."""

    storage: MemoryStorage
    clock: ManualClock
    store: StoreClock
    table: Table
    """Of a writer whose clock is right."""
    brought: str

    def write(self, *rows: Row, **options: object) -> str:
        return write(self.table, rows, **options).instant  # type: ignore[arg-type]

    def shows(self, *rows: Row) -> None:
        """Check what is read; readers open the store by its name, and there is none of the other one."""
        if self.storage.root.startswith("memory:"):
            assert contents(self.table) == list(rows)


@pytest.fixture(params=["memory:/t", "s3://bucket/t"])
def ahead(request: pytest.FixtureRequest) -> Iterator[Ahead]:
    clock = ManualClock()
    root = str(request.param)
    store = StoreClock(clock, keeps_fractions=root.startswith("memory:"))
    table, storage = table_on(store, root)
    write(table, ROWS)
    brought = write(skewed(storage, clock, HOUR_S, **PATIENT), [("f", "q", 1, "x")]).instant
    clock.advance(1)
    yield Ahead(storage, clock, store, table, brought)
    assert placed_by_times(storage, table) == {}, "as Apache Hudi 1.x places log files"


# --- who is refused ----------------------------------------------------------------------------------------------------------


def test_a_writer_that_is_ahead_is_refused_before_it_appends():
    table, storage, clock = new_table()
    write(table, ROWS)
    fast, before = skewed(storage, clock, HOUR_S), listing(storage)
    with pytest.raises(ClockSkew, match=r"clock lies 360\d\.\d s ahead of the time of the store; nothing was written"):
        write(fast, [("c", "p", 1, "x")])
    after = listing(storage)
    assert after.pop(STORE_TIME_PATH) == b""
    before.pop(STORE_TIME_PATH)
    assert after == before
    clock.advance(60)
    done = write(table, [("c", "p", 1, "x")])
    assert time_from_instant(done.instant) <= clock.now()


def test_plans_and_their_runs_are_refused_too():
    """A dead runner whose begin lies an hour ahead would look alive for an hour."""
    table, storage, clock = new_table(type=TableType.MOR)
    write(table, ROWS, **TO_LOGS)
    fast = skewed(storage, clock, HOUR_S)
    with pytest.raises(ClockSkew):
        schedule_compaction(fast, AT_ONCE)
    plan = schedule_compaction(table, AT_ONCE)
    fast.refresh()
    with pytest.raises(ClockSkew):
        run_compaction(fast, plan)
    assert compact(table).instant == plan


@pytest.mark.parametrize(("ahead_s", "refused"), [(1.5, False), (2.9, True)])
def test_clocks_may_differ_by_what_the_options_allow(ahead_s, refused):
    _, storage, clock = new_table()
    fast = skewed(storage, clock, ahead_s)
    if refused:
        with pytest.raises(ClockSkew):
            write(fast, ROWS)
    else:
        assert write(fast, ROWS).rows_inserted == 2


def test_a_store_of_whole_seconds_makes_nobody_look_ahead():
    clock = ManualClock()
    table, _ = table_on(StoreClock(clock, keeps_fractions=False), "s3://bucket/t")
    clock.advance(0.59)
    table.timeline.time.check_not_ahead()
    exact = skewed(table.storage, clock, 0, **{"tideline.instant.max.skew": 0})
    assert write(exact, ROWS).rows_inserted == 2


def test_the_store_is_asked_once_in_a_while_and_not_for_each_commit():
    clock = ManualClock()
    storage = CountingStorage(clock)
    table, _, _ = new_table(clock, storage)
    for number in range(5):
        write(table, [("a", "p", number, "x")])
    assert storage.asked == {"put": 1, "stat": 1}
    clock.advance(VALID_S)
    write(table, [("a", "p", 9, "x")])
    assert storage.asked == {"put": 2, "stat": 2}


def test_a_slow_store_makes_nobody_look_ahead():
    clock = ManualClock()
    table, _ = table_on(StoreClock(clock, passes_s=20), "memory:/t")
    assert write(table, ROWS).rows_inserted == 2


def test_a_clock_that_jumps_ahead_does_not_lose_the_write_that_runs():
    table, storage, clock = new_table()
    jumping = skewed(storage, clock, 0)
    begun = WriteTransaction.begin(jumping.timeline, jumping.lock, "UPSERT")
    jumping.clock.ahead_s = HOUR_S
    done = begun.commit([], jumping.schema_json, {}, None)
    assert table.refresh().actions[done.instant].state is State.COMPLETED
    with pytest.raises(ClockSkew):
        write(jumping, ROWS)
    jumping.clock.ahead_s = 0
    assert write(jumping, ROWS).instant < instant_from_time(clock.now() + timedelta(seconds=1))


def test_a_clock_that_jumped_ahead_leaves_its_failed_write_to_recovery():
    table, storage, clock = new_table()
    jumping = skewed(storage, clock, 0, **BRIEF)
    begun = WriteTransaction.begin(jumping.timeline, jumping.lock, "UPSERT")
    jumping.clock.ahead_s = HOUR_S
    with pytest.raises(ClockSkew):
        begun.roll_back()
    clock.advance(120)
    assert roll_back_dead(open_table(storage, clock, "recovery", **BRIEF))
    assert table.refresh().actions[begun.instant].state is State.ROLLED_BACK


@pytest.mark.parametrize("back_s", [60.0, HOUR_S, 48 * HOUR_S])
def test_a_clock_that_is_behind_mints_by_the_store(back_s):
    table, storage, clock = new_table()
    write(table, ROWS)
    clock.advance(30)
    slow = skewed(storage, clock, -back_s, "slow")
    write(slow, [("c", "p", 1, "x")])
    clock.advance(30)
    second = write(slow, [("d", "p", 1, "x")])
    assert abs(time_from_instant(second.instant) - clock.now()) < timedelta(seconds=2)
    (entry,) = [e for e in table.timeline.log.after(0) if e.instant == second.instant and e.after is State.COMPLETED]
    assert abs(datetime.fromisoformat(entry.recorded) - clock.now()) < timedelta(seconds=2), (
        "what goes by its age goes by the store"
    )
    assert [row[0] for row in contents(table)] == ["a", "b"]
    table.refresh()
    assert [row[0] for row in contents(table)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("back_s", [60.0, HOUR_S, 48 * HOUR_S])
def test_a_recovery_that_is_behind_rolls_back_the_dead_as_soon_as_any(back_s):
    table, storage, clock = new_table()
    dying = open_table(storage, clock, "dying", **BRIEF)
    begun = WriteTransaction.begin(dying.timeline, dying.lock, "UPSERT")
    begun.abandon()
    recovery = skewed(storage, clock, -back_s, "slow", **BRIEF)
    silence_s = allowed_silence(recovery.options).total_seconds()
    clock.advance(silence_s - 1)
    assert not roll_back_dead(recovery), "it may be alive, though its sign of life lies ahead"
    clock.advance(2)
    assert roll_back_dead(recovery)
    assert table.refresh().actions[begun.instant].state is State.ROLLED_BACK


def test_a_clock_that_is_a_little_behind_asks_no_store_about_the_living():
    clock = ManualClock()
    storage = CountingStorage(clock)
    table, _, _ = new_table(clock, storage)
    begun = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    asked = storage.asked["put"]
    assert not roll_back_dead(skewed(storage, clock, -1, "slow", **BRIEF))
    assert storage.asked["put"] == asked
    assert not roll_back_dead(skewed(storage, clock, -HOUR_S, "slower", **BRIEF))
    assert storage.asked["put"] > asked
    begun.roll_back()


def test_a_planner_that_is_behind_compacts():
    table, storage, clock = new_table(type=TableType.MOR)
    write(table, ROWS, **TO_LOGS)
    slow = skewed(storage, clock, -HOUR_S, "slow")
    assert compact(slow) is not None
    write(table, [("a", "p", 2, "y")])
    assert compact(slow) is not None
    assert placed_by_times(storage, table) == {}
    table.refresh()
    assert contents(table) == [("a", "p", 2, "y"), ("b", "p", 1, "x")]


# --- a last instant that lies ahead ------------------------------------------------------------------------------------------


def test_writes_go_on_above_an_instant_that_lies_ahead(ahead):
    first = ahead.write(("a", "p", 2, "y"))
    second = write(open_table(ahead.storage, ahead.clock, "other"), [("b", "p", 2, "y")]).instant
    begins = [e.instant for e in ahead.table.timeline.log.after(0) if e.before is State.NONE][-3:]
    assert begins == [ahead.brought, first, second]
    now = ahead.clock.now()
    assert (first, second) == (next_instant(now, ahead.brought), next_instant(now, first)), "the last instant + 1 ms"
    ahead.table.refresh()
    ahead.shows(("a", "p", 2, "y"), ("b", "p", 2, "y"), ("f", "q", 1, "x"))


def test_the_dead_are_rolled_back_although_the_last_instant_lies_ahead(ahead):
    dying = open_table(ahead.storage, ahead.clock, "dying", **BRIEF)
    begun = WriteTransaction.begin(dying.timeline, dying.lock, "UPSERT", dying.write_action())
    begun.abandon()
    recovery = open_table(ahead.storage, ahead.clock, "recovery", **BRIEF)
    assert not roll_back_dead(recovery)
    ahead.clock.advance(120)
    assert roll_back_dead(recovery)
    assert recovery.refresh().actions[begun.instant].state is State.ROLLED_BACK


def test_a_writer_that_died_ahead_is_not_taken_for_alive_until_its_time_has_come(ahead):
    dying = skewed(ahead.storage, ahead.clock, HOUR_S, "dying", **BRIEF, **PATIENT)
    begun = WriteTransaction.begin(dying.timeline, dying.lock, "UPSERT", dying.write_action())
    begun.abandon()
    recovery = open_table(ahead.storage, ahead.clock, "recovery", **BRIEF)
    assert not roll_back_dead(recovery)
    ahead.clock.advance(120)
    assert roll_back_dead(recovery)
    assert recovery.refresh().actions[begun.instant].state is State.ROLLED_BACK


def test_show_names_the_writer_that_was_ahead_and_by_how_much(ahead):
    ahead.write(("a", "p", 2, "y"))
    health = summarise(ahead.table).health
    (problem,) = health.problems
    assert not health.is_healthy
    assert "writer fast brought it" in problem
    assert ahead.brought in problem
    assert f"last instant {ahead.table.state.last_instant}" in problem
    assert any(f", {skew} s ahead of the time of the store" in problem for skew in (3600, 3601))
    assert "35" in problem.partition(" s ahead of this machine's clock")[0][-4:]
    ahead.clock.advance(HOUR_S)
    assert summarise(ahead.table).health.problems == ()


def test_show_says_when_it_is_its_own_clock_that_is_behind():
    table, storage, clock = new_table()
    write(table, ROWS)
    (problem,) = summarise(skewed(storage, clock, -60, "slow")).health.problems
    assert problem.endswith("ahead of this machine's clock, which lies 60 s or more behind the time of the store; set it by NTP")
    assert summarise(table).health.is_healthy


def test_compaction_waits_until_the_last_instant_has_come_while_writes_go_on(ahead):
    ahead.write(("a", "p", 2, "y"))
    sequence = ahead.table.refresh().sequence
    with pytest.raises(ClockSkew, match=r"a compaction would lie 35\d\d\.\d s ahead of the time of the store.*tideline show"):
        schedule_compaction(ahead.table, AT_ONCE)
    assert ahead.table.refresh().sequence == sequence
    ahead.write(("a", "p", 3, "z"))
    ahead.clock.advance(HOUR_S)
    assert compact(ahead.table) is not None
    ahead.write(("a", "p", 4, "after"))
    assert placed_by_times(ahead.storage, ahead.table) == {}
    assert compact(ahead.table) is not None
    ahead.write(("f", "q", 4, "after"))
    ahead.shows(("a", "p", 4, "after"), ("b", "p", 1, "x"), ("f", "q", 4, "after"))


def test_a_compaction_that_was_planned_ahead_is_not_run_before_its_time(ahead):
    ahead.write(("a", "p", 2, "y"))
    ahead.store.ahead_s = HOUR_S + 60
    plan = schedule_compaction(open_table(ahead.storage, ahead.clock, "planner"), AT_ONCE)
    ahead.store.ahead_s = 0  # the clock of the store was wrong, and is corrected
    ahead.table.refresh()
    with pytest.raises(ClockSkew, match="the slices of this compaction"):
        run_compaction(ahead.table, plan)
    assert ahead.table.refresh().actions[plan].state is State.REQUESTED
    ahead.write(("a", "p", 3, "z"))
    ahead.clock.advance(HOUR_S + 60)
    done = run_compaction(ahead.table, plan, run=lambda tasks: [compact_slice(task, ahead.storage) for task in tasks])
    assert done.instant == plan
    ahead.write(("a", "p", 4, "after"))
    ahead.shows(("a", "p", 4, "after"), ("b", "p", 1, "x"), ("f", "q", 1, "x"))


def test_inserts_open_no_slices_behind_others_while_the_last_instant_lies_ahead(ahead):
    """Such a slice would complete before its instant: its log files would go to the slice before."""
    groups = set(ahead.table.state.slices)
    made = ahead.write(("c", "p", 1, "x"), ("a", "p", 2, "y"), **FILLING)
    assert {g for g in ahead.table.state.slices if made in ahead.table.state.slices[g]}.isdisjoint(groups)
    ahead.write(("c", "p", 2, "z"), ("b", "p", 2, "z"), **FILLING)
    assert placed_by_times(ahead.storage, ahead.table) == {}
    ahead.clock.advance(HOUR_S)
    filled = ahead.write(("d", "q", 1, "x"), **FILLING)
    assert any(filled in slices and len(slices) > 1 for slices in ahead.table.state.slices.values()), (
        "small groups are filled again"
    )
    ahead.write(("d", "q", 2, "z"))
    ahead.shows(("a", "p", 2, "y"), ("b", "p", 2, "z"), ("c", "p", 2, "z"), ("d", "q", 2, "z"), ("f", "q", 1, "x"))


def test_a_slice_of_a_clock_that_is_a_little_ahead_completes_behind_its_instant():
    """A disk keeps fractions of seconds, and still dates the completion before the instant."""
    clock = ManualClock()
    table, storage = table_on(StoreClock(clock), "memory:/t")
    write(table, ROWS)
    fast = skewed(storage, clock, 1.5)
    made = write(fast, [("c", "p", 1, "x")], **FILLING).instant
    assert any(made in slices and len(slices) > 1 for slices in fast.state.slices.values())
    assert compact(fast) is None
    write(table, [("a", "p", 3, "z")])
    assert placed_by_times(storage, table) == {}


def test_cleaning_and_archival_are_sound_beside_instants_that_lie_ahead():
    few = {"hoodie.cleaner.commits.retained": 2, "hoodie.keep.min.commits": 3, "hoodie.keep.max.commits": 4}
    table, storage, clock = new_table()
    for number in range(4):
        write(table, [("a", "p", number, "before")], **FILLING)
    clock.advance(2 * HOUR_S)
    write(skewed(storage, clock, HOUR_S, **PATIENT), [("a", "p", 10, "ahead")], **FILLING)
    brought = table.refresh().last_instant
    for number in range(4):
        write(table, [("a", "p", 11 + number, "above")], **FILLING)
    keeper = open_table(storage, clock, "keeper", **few)
    assert schedule_clean(keeper) is not None
    assert run_clean(keeper) > 0
    assert schedule_archival(keeper) is not None
    assert run_archival(keeper) is not None
    left = [a.instant for a in keeper.refresh().completed_writes()]
    assert left[0] == brought, "what is ahead counts as young, whatever the numbers say"
    assert contents(keeper) == [("a", "p", 14, "above")]
    clock.advance(2 * HOUR_S)
    write(keeper, [("a", "p", 20, "after")], **FILLING)
    assert schedule_clean(keeper) is not None
    run_clean(keeper)
    assert schedule_archival(keeper) is not None
    run_archival(keeper)
    assert len(keeper.refresh().completed_writes()) == 3
    assert contents(open_table(storage, clock)) == [("a", "p", 20, "after")]


def test_the_head_of_a_writer_that_was_ahead_is_healed():
    table, storage, clock = new_table()
    jumping = skewed(storage, clock, 0)
    begun = WriteTransaction.begin(jumping.timeline, jumping.lock, "UPSERT")
    jumping.clock.ahead_s = HOUR_S
    done = begun.commit([], jumping.schema_json, {}, None)
    storage.delete(f".hoodie/{done.instant}.commit")
    assert table.timeline.heal(60)
    assert storage.stat(f".hoodie/{done.instant}.commit").size_bytes > 0


# --- shared tables -----------------------------------------------------------------------------------------------------------


def test_a_shared_table_waits_for_the_last_instant():
    """Writers of Apache Hudi go by their clocks: behind a base file whose instant lies ahead, theirs would not be read."""
    table, storage, clock = shared_table()
    put(table, ROWS)
    fast = ManualClock(clock.now() + timedelta(seconds=60))
    put(opened(storage, fast, "fast", **PATIENT), [("c", "p", 1, "x")])
    with pytest.raises(ClockSkew, match=r"of a shared table lies 6\d\.\d s ahead"):
        put(table, [("d", "p", 1, "x")])
    (problem,) = [p for p in summarise(opened(storage, clock)).health.problems if "last instant" in p]
    assert "writer fast brought it" in problem
    assert "writes wait until" in problem
    clock.advance(70)
    assert put(table, [("d", "p", 1, "x")]).rows_inserted == 1


def test_a_writer_of_a_shared_table_that_is_ahead_is_refused():
    table, storage, clock = shared_table()
    put(table, ROWS)
    before = table.refresh().sequence
    with pytest.raises(ClockSkew, match="ahead of the time of the store"):
        put(opened(storage, ManualClock(clock.now() + timedelta(seconds=60)), "fast"), [("c", "p", 1, "x")])
    assert table.refresh().sequence == before
    assert put(table, [("d", "p", 1, "x")]).rows_inserted == 1


def test_a_table_is_not_shared_while_its_last_instant_lies_ahead():
    table, storage, clock = new_table()
    write(skewed(storage, clock, HOUR_S, **PATIENT), ROWS)
    with pytest.raises(ClockSkew, match="of a shared table"):
        share_table(table, SHARING, open_hudi_lock)
    assert table.sharing is None
