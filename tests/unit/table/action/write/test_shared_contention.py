"""Writers of Tideline that meet in a shared table: they wait for each other there, too, and Apache Hudi's, who know of no
reservations, go on as they please."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.plans import schedule_clustering
from tests.unit.locks.unreachable import nobody_there
from tests.unit.table.shared import SHARING, opened, peer_of, put, shared_table
from tests.unit.table.tables import contents, new_table, rows_of

from tideline_locks import open_hudi_lock
from tideline_locks.table_lock import LockProviders, attach_lock
from tideline_table.action import write_rows
from tideline_table.action.write import executor
from tideline_table.action.write.executor import RoutedWrite, ThisProcess
from tideline_table.action.write.transaction import EARLY_CHECK_S, WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.coordination.committed import Committed
from tideline_table.coordination.reservations import Reservation
from tideline_table.errors import StorageError, WriteConflict
from tideline_table.storage import Storage
from tideline_table.table import Table, share_table
from tideline_table.writer import FileGroupResult, Operation

FIRST = [("a", "p", 1, "x"), ("b", "q", 1, "x")]
RESERVATIONS = ".hoodie/.tideline/intents"
WAIT_S = 120.0
"""Only failures take that long."""

Opens = Callable[..., Table]


def shared_writers() -> tuple[Opens, Storage, ManualClock]:
    """Opens a shared table with two file groups as one more writer of Tideline, with reservations that all of them see."""
    first, storage, clock = shared_table()
    put(first, FIRST)
    space = f"memory:{uuid.uuid4()}"

    def opens(writer: str, **options: Any) -> Table:
        table = opened(storage, clock, writer, **options)
        attach_lock(table, space)
        return table

    return opens, storage, clock


def while_writing(monkeypatch: pytest.MonkeyPatch, table: Table, act: Callable[[str], object]) -> None:
    """`act(instant)` happens in each attempt of `table`, when its turn has come and before it writes."""
    write_files = ThisProcess.write

    def write(self: ThisProcess, work: RoutedWrite) -> list[FileGroupResult]:
        if work.table is table:
            act(work.context.instant)
        return write_files(self, work)

    monkeypatch.setattr(ThisProcess, "write", write)


class InBackground:
    """A write in a thread of its own."""

    def __init__(self, table: Table, row: tuple[str, str, int, str]) -> None:
        self._table, self._row = table, row
        self.done: list[Committed] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.done.append(write_rows(self._table, rows_of([self._row]), Operation.UPSERT, parallelism=1))

    def begin_and_queue(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Return when it stands in the queue; until then simulated time stands still, for no wait shall end by itself."""
        monkeypatch.setattr(ManualClock, "sleep", lambda *_: time.sleep(0.005))
        self._thread.start()
        until_s = time.monotonic() + WAIT_S
        while all(posted.is_active for posted in self._table.reservations.posted()):
            assert time.monotonic() < until_s, "it did not wait"
            assert self._thread.is_alive(), "it went on beside the other one"
            time.sleep(0.005)

    def join(self) -> Committed:
        self._thread.join(WAIT_S)
        return self.done[0]


def group_of(table: Table, partition: str) -> str:
    return next(s.group.file_id for s in table.slices() if s.group.partition_path == partition)


def urgent(table: Table, partition: str) -> tuple[WriteTransaction, str]:
    """A write with priority on the file group of a partition, begun and posted."""
    begun = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    group = group_of(table, partition)
    assert table.reservations.claim(Reservation(begun.instant, frozenset({group}), has_priority=True)) == []
    return begun, group


def test_a_write_waits_for_one_of_ours_instead_of_losing_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without reservations it would write its files beside the other one's, and learn at its commit that they are of no use."""
    opens, storage, _ = shared_writers()
    ours, other = opens("ours"), opens("other")
    waiting = InBackground(other, ("a", "p", 3, "other"))
    while_writing(monkeypatch, ours, lambda _: waiting.begin_and_queue(monkeypatch))
    first = put(ours, [("a", "p", 2, "ours")])
    second = waiting.join()
    assert (first.attempts, second.attempts) == (1, 1)
    assert first.sequence < second.sequence
    assert contents(other) == [("a", "p", 3, "other"), FIRST[1]]
    assert ours.reservations.posted() == []
    of_second = [o.path for o in storage.list_objects("p") if second.instant in o.path]
    assert len(of_second) == 1


def test_who_lost_often_goes_first_while_others_of_ours_wait_and_then_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    opens, _, _ = shared_writers()
    large, rival = opens("large", **{"tideline.write.intent.wait": "0.01"}), opens("rival")
    last = InBackground(rival, ("a", "p", 3, "last"))
    attempts: list[bool] = []

    def interrupt(instant: str) -> None:
        (own,) = [p.reservation for p in large.reservations.posted() if p.reservation.instant == instant]
        attempts.append(own.has_priority)
        if own.has_priority:
            last.begin_and_queue(monkeypatch)
        else:
            # It goes on beside the large one, which it does not wait for.
            put(rival, [("a", "p", 2, "rival")], **{"tideline.write.intent.wait": "0.01"})

    while_writing(monkeypatch, large, interrupt)
    done = put(large, [("a", "p", 9, "large"), ("b", "q", 9, "large")], **{"tideline.write.priority.after": "2"})
    assert attempts == [False, False, True]
    assert done.attempts == 3
    assert done.sequence < last.join().sequence
    assert contents(rival) == [("a", "p", 9, "large"), ("b", "q", 9, "large")]
    assert large.reservations.posted() == []


def test_a_write_that_lost_to_one_of_hudis_learns_it_while_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody adopted that write yet: the log does not know of it, the timeline does."""
    opens, storage, clock = shared_writers()
    ours, theirs = opens("ours"), peer_of(storage, clock)
    put(ours, [("c", "r", 1, "x")])
    theirs.refresh()
    written: list[tuple[str, str]] = []
    task = executor.write_file_group

    def counting(context: Any, routed: Any, *more: Any) -> FileGroupResult:
        result = task(context, routed, *more)
        written.append((context.instant, routed.partition_path))
        if len(written) == 1:
            put(theirs, [("c", "r", 2, "theirs")])
            clock.advance(EARLY_CHECK_S)
        return result

    monkeypatch.setattr(executor, "write_file_group", counting)
    rows = [(key, partition, 3, "ours") for key, partition in zip("abc", "pqr", strict=True)]
    with pytest.raises(WriteConflict, match="was written by") as lost:
        put(ours, rows, **{"tideline.write.conflict.retries": "0"})
    (own, _), (other, partition) = written
    assert lost.value.with_instant == other > own
    assert partition == "r", "the files that would have been lost were not written"


def test_who_waited_goes_on_from_what_hudis_writers_did_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    opens, storage, clock = shared_writers()
    first, ours, theirs = opens("first"), opens("ours"), peer_of(storage, clock)
    begun = WriteTransaction.begin(first.timeline, first.lock, "UPSERT")
    assert first.reservations.claim(Reservation(begun.instant, frozenset({group_of(first, "p")}))) == []
    waiting = InBackground(ours, ("a", "p", 3, "ours"))
    while_writing(monkeypatch, theirs, lambda _: waiting.begin_and_queue(monkeypatch))
    put(theirs, [("a", "p", 2, "theirs")])
    first.reservations.withdraw(begun.instant)
    assert waiting.join().attempts == 1
    assert contents(ours)[0] == ("a", "p", 3, "ours")
    begun.roll_back()


def lose_to(monkeypatch: pytest.MonkeyPatch, large: Table, rivals: Sequence[Table]) -> tuple[list[bool], Committed]:
    """`large` loses to each of these and then wins; returns whether it had priority in each of its attempts."""
    attempts: list[bool] = []

    def interrupt(instant: str) -> None:
        attempts.extend(p.reservation.has_priority for p in large.reservations.posted() if p.reservation.instant == instant)
        if len(attempts) <= len(rivals):
            rival = rivals[len(attempts) - 1]
            rival.refresh()
            put(rival, [("a", "p", 1 + len(attempts), "rival")], **{"tideline.write.intent.wait": "0"})

    while_writing(monkeypatch, large, interrupt)
    options = {"tideline.write.priority.after": "2", "tideline.write.conflict.retries": "8"}
    return attempts, put(large, [("a", "p", 99, "large")], **options)


def test_priority_lapses_beside_a_writer_of_hudis_that_keeps_winning(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees no reservations: ours would wait for one that wins no more often for that."""
    opens, storage, clock = shared_writers()
    ours, theirs = opens("rival"), peer_of(storage, clock)
    attempts, done = lose_to(monkeypatch, opens("large"), [ours, ours, theirs, theirs, theirs])
    assert attempts == [False, False, True, True, False, False]
    assert done.attempts == 6
    ours.refresh()
    assert contents(ours)[0] == ("a", "p", 99, "large")


def test_losses_to_hudis_writers_make_no_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    opens, storage, clock = shared_writers()
    ours, theirs = opens("rival"), peer_of(storage, clock)
    attempts, _ = lose_to(monkeypatch, opens("large"), [theirs, theirs, ours, theirs, ours])
    assert attempts == [False, False, False, False, False, True]


def test_one_with_priority_is_waited_for_as_long_as_the_option_says_and_no_longer() -> None:
    opens, _, clock = shared_writers()
    large, other = opens("large"), opens("other", **{"tideline.write.priority.wait": "20"})
    urgent(large, "p")
    other.refresh()
    began_s = clock.monotonic_s()
    put(other, [("a", "p", 2, "y")])
    assert 20 <= clock.monotonic_s() - began_s < 23
    assert contents(other)[0] == ("a", "p", 2, "y")


def test_plans_leave_out_what_a_writer_with_priority_needs() -> None:
    opens, _, _ = shared_writers()
    large, planner = opens("large"), opens("planner")
    for number in range(3):
        put(planner, [(f"p{number}", "p", 1, "x"), (f"q{number}", "q", 1, "x")], Operation.INSERT)
    large.refresh()
    begun, group = urgent(large, "p")
    planned = schedule_clustering(planner)
    assert planned is not None
    named = {file_id for _, file_id in planner.refresh().groups_under_clustering()}
    assert named
    assert group not in named
    begun.roll_back()


@pytest.mark.parametrize("ends", ["committed", "lost", "failed", "interrupted"])
def test_however_a_write_ends_its_reservation_is_withdrawn(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    opens, storage, clock = shared_writers()
    ours, theirs = opens("ours"), peer_of(storage, clock)
    errors = {"committed": None, "lost": WriteConflict, "failed": StorageError, "interrupted": KeyboardInterrupt}
    posted: list[str] = []

    def act(instant: str) -> None:
        posted.extend(p.reservation.instant for p in ours.reservations.posted() if p.is_active)
        assert posted == [instant]
        if ends == "lost":
            put(theirs, [("a", "p", 2, "theirs")])
        elif (error := errors[ends]) is not None:
            raise error("while files are written")

    while_writing(monkeypatch, ours, act)
    write = lambda: put(ours, [("a", "p", 3, "ours")], **{"tideline.write.conflict.retries": "0"})  # noqa: E731
    error = errors[ends]
    if error is None:
        write()
    else:
        with pytest.raises(error):
            write()
    assert len(posted) == 1
    assert ours.reservations.posted() == []


@pytest.mark.parametrize("unreachable", ["wait", "fail", "storage"])
def test_reservations_out_of_reach_cost_one_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, unreachable: str
) -> None:
    """Whatever the option says of locks: there is none to wait for.

    Later writes do not ask again at once, and all of them commit.
    """
    _, storage, clock = shared_writers()
    beside: list[int] = []
    with nobody_there() as url:
        providers = LockProviders(url, clock)
        for number in range(3):
            table = opened(storage, clock, f"w{number}", **{"tideline.lock.unreachable": unreachable, "tideline.lock.wait": 1})
            providers.attach(table)
            while_writing(monkeypatch, table, lambda _: beside.append(len(storage.list_folder(RESERVATIONS).objects)))
            assert put(table, [("a", "p", 2 + number, "y")]).attempts == 1
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1, warnings
    assert "and its reservations" in warnings[0]
    assert beside == ([1, 1, 1] if unreachable == "storage" else [0, 0, 0])
    assert storage.list_folder(RESERVATIONS).objects == ()
    assert contents(table)[0] == ("a", "p", 4, "y")


@pytest.mark.parametrize("unreachable", ["wait", "fail", "storage"])
def test_the_option_needs_no_redis_where_it_says_nothing(unreachable: str) -> None:
    _, storage, clock = shared_writers()
    table, other = (opened(storage, clock, name, **{"tideline.lock.unreachable": unreachable}) for name in ("ours", "other"))
    for writer in (table, other):
        attach_lock(writer, "storage:")
    begun, group = urgent(table, "p")
    (first,) = other.reservations.claim(Reservation("9", frozenset({group})))
    assert first.instant == begun.instant
    for instant in (begun.instant, "9"):
        other.reservations.withdraw(instant)
    begun.roll_back()


def test_a_table_that_was_made_anew_has_a_board_of_its_own() -> None:
    clock, space = ManualClock(), f"memory:{uuid.uuid4()}"
    groups = frozenset({"group"})
    for _ in range(2):
        exclusive, storage, _ = new_table(clock)
        table = share_table(exclusive, SHARING, open_hudi_lock)
        again = opened(storage, clock)
        for writer in (table, again):
            attach_lock(writer, space)
        assert table.reservations.posted() == []
        assert table.reservations.claim(Reservation("5", groups)) == []
        assert [i.instant for i in again.reservations.claim(Reservation("6", groups))] == ["5"]
