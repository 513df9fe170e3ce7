"""Writers that meet on file groups: they wait for each other instead of losing, and who lost often goes first."""

from __future__ import annotations

import threading

import pytest
from tests.plans import schedule_clustering
from tests.unit.table.tables import DEATH_S, contents, new_table, open_table, rows_of, write

from tideline_locks.reservations import InProcessReservations
from tideline_table.action import write_rows
from tideline_table.action.write import executor
from tideline_table.action.write.attempt import Contention
from tideline_table.action.write.executor import ThisProcess
from tideline_table.action.write.transaction import EARLY_CHECK_S, WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.config import PRIORITY_AFTER
from tideline_table.coordination.reservations import PostedReservation, Reservation, Turn, await_turn, going_first
from tideline_table.errors import StorageError, WriteConflict
from tideline_table.writer import Operation


def posted(instant, *groups, active=False, priority=False):
    return PostedReservation(Reservation(instant, frozenset(groups), priority), active)


@pytest.mark.parametrize(
    ("other", "first"),
    [
        (posted("1", "a", active=True), True),
        (posted("9", "a", active=True), True),
        (posted("1", "a"), True),
        (posted("9", "a"), False),
        (posted("9", "a", priority=True), True),
        (posted("1", "b", active=True, priority=True), False),
        (posted("5", "a", active=True), False),
    ],
)
def test_who_goes_first(other, first):
    assert going_first(Reservation("5", frozenset({"a", "c"})), [other]) == ([other.reservation] if first else [])


def test_priority_waits_for_active_ones_and_for_older_priority():
    own = Reservation("5", frozenset({"a"}), has_priority=True)
    others = [posted("1", "a"), posted("2", "a", active=True), posted("4", "a", priority=True), posted("6", "a", priority=True)]
    assert [i.instant for i in going_first(own, others)] == ["2", "4"]


def two_writers(**options):
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    table.reservations = InProcessReservations()
    other = open_table(storage, clock, "other", **options)
    other.reservations = table.reservations
    return table, other, clock


def begin(table):
    return WriteTransaction.begin(table.timeline, table.lock, "UPSERT")


def group_of(table, partition):
    return next(s.group.file_id for s in table.slices() if s.group.partition_path == partition)


def test_a_write_waits_for_one_that_is_at_it_and_then_updates_what_that_wrote(monkeypatch):
    table, other, _ = two_writers()
    started, conflicts = threading.Event(), []
    write_files = ThisProcess.write

    def slow(self, work):
        if work.table.timeline.log.writer_id == table.timeline.log.writer_id:
            started.set()
            # Goes on when the other one stands in the queue.
            assert queued.wait(20)
        return write_files(self, work)

    queued = threading.Event()
    monkeypatch.setattr(ThisProcess, "write", slow)
    nap = ManualClock.sleep

    def sleep(self, duration_s):
        queued.set()
        nap(self, 0.0)

    monkeypatch.setattr(ManualClock, "sleep", sleep)
    first = threading.Thread(target=lambda: write(table, [("a", "p", 2, "first")]))
    first.start()
    assert started.wait(20)
    done = write_rows(other, rows_of([("a", "p", 3, "second")]), Operation.UPSERT, on_conflict=lambda e, n: conflicts.append(e))
    first.join()
    assert done.attempts == 1, conflicts
    assert contents(other) == [("a", "p", 3, "second"), ("b", "q", 1, "x")]


def test_writes_of_other_file_groups_do_not_wait():
    table, other, clock = two_writers()
    running = begin(table)
    reservation = Reservation(running.instant, frozenset({group_of(table, "p")}))
    assert await_turn(table.reservations, table.timeline, reservation, table.options) is Turn.AT_ONCE
    before = clock.now()
    write_rows(other, rows_of([("b", "q", 2, "y")]), Operation.UPSERT)
    assert clock.now() == before


def test_a_writer_that_died_or_ended_without_a_word_is_not_waited_for():
    table, other, clock = two_writers()
    dead, ended = begin(table), begin(table)
    groups = frozenset({group_of(table, "p")})
    assert table.reservations.claim(Reservation(dead.instant, groups)) == []
    dead.abandon()
    ended.roll_back()
    assert table.reservations.claim(Reservation(ended.instant, groups)) != []
    clock.advance(DEATH_S)
    before = clock.now()
    write_rows(other, rows_of([("a", "p", 2, "y")]), Operation.UPSERT)
    assert clock.now() == before
    assert contents(other)[0] == ("a", "p", 2, "y")


def test_a_wait_ends_and_the_conflict_check_decides():
    table, other, clock = two_writers(**{"tideline.write.intent.wait": "5"})
    running = begin(table)
    assert table.reservations.claim(Reservation(running.instant, frozenset({group_of(table, "p")}))) == []
    started_s = clock.monotonic_s()
    write(other, [("a", "p", 2, "y")])
    assert 5 <= clock.monotonic_s() - started_s < 7


def looks_behind(ahead, monkeypatch):
    """Count how often a writer behind `ahead` others looks at the log until its wait of five seconds ends."""
    table, other, _ = two_writers(**{"tideline.write.intent.wait": "5"})
    for _ in range(ahead):
        table.reservations.claim(Reservation(begin(table).instant, frozenset({group_of(table, "p")})))
    looks, refresh = 0, other.timeline.refresh

    def counted():
        nonlocal looks
        looks += 1
        return refresh()

    with monkeypatch.context() as patch:
        patch.setattr(other.timeline, "refresh", counted)
        own = Reservation(begin(other).instant, frozenset({group_of(table, "p")}))
        assert await_turn(other.reservations, other.timeline, own, other.options) is Turn.BESIDE
    return looks


def test_the_longer_the_queue_the_fewer_looks(monkeypatch):
    # Many that wait would otherwise take the processors from the one that they wait for.
    assert looks_behind(8, monkeypatch) < looks_behind(1, monkeypatch) / 4


def test_one_with_priority_is_waited_for_longer():
    table, other, clock = two_writers(**{"tideline.write.intent.wait": "5", "tideline.write.priority.wait": "20"})
    running = begin(table)
    assert table.reservations.claim(Reservation(running.instant, frozenset({group_of(table, "p")}), has_priority=True)) == []
    started_s = clock.monotonic_s()
    write(other, [("a", "p", 2, "y")])
    assert 20 <= clock.monotonic_s() - started_s < 22


def test_a_board_that_does_not_answer_holds_nobody_up():
    table, _, _ = two_writers()

    class Silent:
        def claim(self, reservation):
            raise StorageError("no answer")

        def withdraw(self, instant):
            raise StorageError("no answer")

    table.reservations = Silent()
    write(table, [("a", "p", 2, "y")])
    assert contents(table)[0] == ("a", "p", 2, "y")


def test_who_lost_often_goes_first_and_then_wins(monkeypatch):
    """Without priority the large write would lose for ever: a small one always comes between its begin and its commit."""
    table, other, clock = two_writers(**{"tideline.write.intent.wait": "0.01", "tideline.write.priority.after": "2"})
    claimed, conflicts = [], []
    claim = table.reservations.claim
    table.reservations.claim = lambda reservation: claimed.append(reservation) or claim(reservation)
    write_files = ThisProcess.write

    def interrupted(self, work):
        if work.table.timeline.log.writer_id == "other" and len(conflicts) < 5:
            rival = open_table(table.storage, clock, "rival", **{"tideline.write.priority.wait": "0.5"})
            rival.reservations = table.reservations
            urgent = [i for i in claimed if i.instant == work.context.instant and i.has_priority]
            if not urgent:
                write(rival, [("a", "p", 1, "rival")])
        return write_files(self, work)

    monkeypatch.setattr(ThisProcess, "write", interrupted)
    done = write_rows(other, rows_of([("a", "p", 9, "large")]), Operation.UPSERT, on_conflict=lambda e, n: conflicts.append(e))
    assert done.attempts == 3
    assert len(conflicts) == 2
    assert contents(other)[0] == ("a", "p", 9, "large")


def test_priority_comes_with_losses_and_the_board_is_left_clean():
    table, _, _ = two_writers()
    contention = Contention(table, table.options)
    contention.needs(["a"], [])
    for _ in range(table.options[PRIORITY_AFTER]):
        assert not contention.has_priority
        contention.lost(WriteConflict("another was first", with_instant="1"))
    assert contention.has_priority
    running = begin(table)
    contention.take_turn(running.instant)
    assert table.reservations.claim(Reservation("9", frozenset({"a"}))) != []
    contention.end_turn()
    assert table.reservations.claim(Reservation("9", frozenset({"a"}))) == []


def test_a_conflict_is_found_while_files_are_written(monkeypatch):
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x"), ("c", "r", 1, "x")])
    other = open_table(storage, clock, "other")
    written, task = [], executor.write_file_group

    def counting(context, routed, *more):
        result = task(context, routed, *more)
        written.append(routed.partition_path)
        if len(written) == 1:
            write_rows(other, rows_of([("c", "r", 2, "other")]), Operation.UPSERT)
            written[:] = ["p"]
        clock.advance(EARLY_CHECK_S)
        return result

    monkeypatch.setattr(executor, "write_file_group", counting)
    options = {"tideline.write.conflict.retries": "0"}
    with pytest.raises(WriteConflict, match="was written by"):
        write_rows(
            table,
            rows_of([(k, g, 3, "mine") for k, g in zip("abc", "pqr", strict=True)]),
            Operation.UPSERT,
            options=options,
            parallelism=1,
        )
    assert written == ["p"], "the files that would have been lost were not written"


@pytest.mark.parametrize(("look_s", "expected"), [(0.0, 100), (0.05, 96), (2.0, 5)])
def test_early_checks_take_a_tenth_of_the_time_at_most(monkeypatch, look_s, expected):
    table, _, clock = new_table()
    running = begin(table)
    looks, look = [], table.timeline.refresh_view

    def slow_look():
        looks.append(clock.monotonic_s())
        clock.advance(look_s)
        return look()

    monkeypatch.setattr(table.timeline, "refresh_view", slow_look)
    begun_s = clock.monotonic_s()
    while clock.monotonic_s() < begun_s + 100:
        running.check_early({}, frozenset())
        clock.advance(EARLY_CHECK_S)
    running.abandon()
    assert len(looks) == expected


def test_updates_of_groups_under_clustering_can_be_rejected():
    table, _, _ = new_table()
    for n in range(3):
        write(table, [(f"k{n}", "p", 1, "x")])
    assert schedule_clustering(table) is not None
    options = {"tideline.clustering.update.strategy": "reject", "tideline.write.conflict.retries": "1"}
    with pytest.raises(WriteConflict, match="is under clustering"):
        write_rows(table, rows_of([("k0", "p", 2, "y")]), Operation.UPSERT, options=options)
    write(table, [("k0", "p", 2, "y")])
    assert ("k0", "p", 2, "y") in contents(table)
