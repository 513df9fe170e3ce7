"""Appends to log files that meet: nobody waits for them, until one of them lost so often that it locks its file groups."""

from __future__ import annotations

import itertools
import threading

import pytest
from tests.plans import schedule_clustering, schedule_compaction
from tests.unit.table.tables import compact, contents, new_table, open_table, rows_of, write

from tideline_locks.reservations import InProcessReservations
from tideline_table.action import write_rows
from tideline_table.action.write.executor import ThisProcess
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.clock import ManualClock
from tideline_table.coordination import reservations as module
from tideline_table.coordination.reservations import PostedReservation, Reservation, going_first
from tideline_table.errors import StorageError
from tideline_table.table import TableType
from tideline_table.writer import Operation

WAIT_S = 120.0


class Recorded(InProcessReservations):
    """Remembers what was claimed; what is left on it can be seen."""

    def __init__(self):
        super().__init__()
        self.claimed = []

    def claim(self, reservation):
        self.claimed.append(reservation)
        return super().claim(reservation)

    @property
    def left(self):
        return list(self._by_instant)


def merge_on_read():
    table, storage, clock = new_table(type=TableType.MOR)
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    reservations = Recorded()

    def opened(name, **options):
        other = open_table(storage, clock, name, **options)
        other.reservations = reservations
        return other

    return table, reservations, opened


def upsert(table, rows, **more):
    return write_rows(table, rows_of(rows), Operation.UPSERT, parallelism=1, **more)


def before_files(monkeypatch, writer_id, act):
    """Calls `act` between the routing of each attempt of that writer and its files."""
    write_files = ThisProcess.write

    def interrupted(self, work):
        if work.table.timeline.log.writer_id == writer_id:
            act(work.context.instant)
        return write_files(self, work)

    monkeypatch.setattr(ThisProcess, "write", interrupted)


def ids(table):
    return frozenset(s.group.file_id for s in table.slices())


def test_who_loses_its_appends_goes_first_soon_and_then_wins(monkeypatch):
    """A rival writes the same row between each routing and commit of the large write, if it may."""
    table, reservations, opened = merge_on_read()
    large, conflicts, rivals, ended = opened("large"), [], [], threading.Event()
    nap = ManualClock.sleep

    def sleep(self, duration_s):
        running = threading.current_thread()
        if running in rivals:
            running.stopped.set()
            assert ended.wait(WAIT_S)
        nap(self, duration_s)

    monkeypatch.setattr(ManualClock, "sleep", sleep)

    def rival(_instant):
        place, number = opened(f"rival {len(rivals)}"), len(rivals)

        def run():
            upsert(place, [("a", "p", number, f"rival {number}")])
            thread.stopped.set()

        thread = threading.Thread(target=run)
        thread.stopped = threading.Event()
        rivals.append(thread)
        thread.start()
        # It is through, or it waits for us.
        assert thread.stopped.wait(WAIT_S)

    before_files(monkeypatch, "large", rival)
    try:
        done = upsert(large, [("a", "p", 99, "large"), ("b", "q", 99, "large")], on_conflict=lambda e, n: conflicts.append(e))
    finally:
        ended.set()
        for thread in rivals:
            thread.join(WAIT_S)
    assert (done.attempts, len(conflicts), len(rivals)) == (4, 3, 4)
    urgent = [i for i in reservations.claimed if i.has_priority]
    assert {i.instant for i in urgent} == {done.instant}
    assert urgent[0].appends == ids(table)
    assert not urgent[0].groups
    assert reservations.left == []
    table.refresh()
    assert contents(table) == [("a", "p", 99, "large"), ("b", "q", 99, "large")]
    # The rival that waited wrote behind it.
    (slice_p,) = (s for s in table.slices() if s.group.partition_path == "p")
    assert slice_p.log_files[-1].instant > done.instant
    assert len(table.state.completed_writes()) == 6


def test_a_write_of_very_many_file_groups_locks_the_whole_table_once_it_lost_often(monkeypatch):
    monkeypatch.setattr(module, "MAX_GROUPS", 1)
    table, reservations, opened = merge_on_read()
    write(table, [("r", "r", 1, "x")])
    lost = []

    def meanwhile(instant):
        if not reservations.claimed[-1].has_priority:
            upsert(opened("rival"), [("a", "p", len(lost), "rival")])
            lost.append(instant)
            return
        # Plans leave out everything, and whichever process writes anything waits.
        beside = opened("beside", **{"tideline.write.priority.wait": "20", "hoodie.compact.inline.max.delta.commits": 1})
        started_s = beside.clock.monotonic_s()
        assert schedule_compaction(beside) is None
        upsert(beside, [("r", "r", 2, "beside")])
        assert 20 <= beside.clock.monotonic_s() - started_s < 22

    before_files(monkeypatch, "large", meanwhile)
    large = opened("large")
    assert upsert(large, [("a", "p", 99, "large"), ("b", "q", 99, "large")]).attempts == len(lost) + 1 == 4
    claimed = [i for i in reservations.claimed if i.is_whole_table]
    assert [i.has_priority for i in claimed] == [False, False, False, True]
    assert not any(i.written for i in claimed)
    table.refresh()
    assert contents(table) == [("a", "p", 99, "large"), ("b", "q", 99, "large"), ("r", "r", 2, "beside")]
    assert reservations.left == []
    large.options = large.options.merged({"hoodie.compact.inline.max.delta.commits": 1})
    assert schedule_compaction(large) is not None, "it was the reservation that kept compaction from planning"


def test_appends_without_priority_wait_for_nobody():
    table, reservations, opened = merge_on_read()
    running = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    assert reservations.claim(Reservation(running.instant, frozenset(), appends=ids(table))) == []
    other = opened("other")
    before = other.clock.now()
    assert upsert(other, [("a", "p", 2, "y")]).attempts == 1
    assert other.clock.now() == before
    assert reservations.left == [running.instant]


def test_rewrites_wait_for_appends_with_priority_too():
    """Its reservation names the file group as appended to; a write that fills the group would write it over."""
    table, reservations, opened = merge_on_read()
    running = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    assert reservations.claim(Reservation(running.instant, frozenset(), has_priority=True, appends=ids(table))) == []
    other = opened("other", **{"hoodie.parquet.small.file.limit": 1 << 20, "tideline.write.priority.wait": "20"})
    started_s = other.clock.monotonic_s()
    upsert(other, [("c", "p", 2, "y")])
    assert 20 <= other.clock.monotonic_s() - started_s < 22


def test_two_that_lost_do_not_wait_in_a_circle(monkeypatch):
    _, reservations, opened = merge_on_read()
    tables = [opened(name, **{"tideline.write.priority.after": "1"}) for name in ("one", "two")]
    rows = [("a", "p"), ("b", "q")]
    both_lost, freed, lost, done = threading.Barrier(2, timeout=WAIT_S), threading.Event(), set(), {}

    def rival(instant):
        name = threading.current_thread().name
        if name not in lost:
            lost.add(name)
            upsert(opened(f"rival of {name}"), [(key, part, 1, "rival") for key, part in rows])

    monkeypatch.setattr(ManualClock, "sleep", lambda self, duration_s: freed.wait(0.01))
    for name in ("one", "two"):
        before_files(monkeypatch, name, rival)

    def work(table, order):
        name = threading.current_thread().name
        rows = [(key, part, 5, name) for key, part in order]
        done[name] = upsert(table, rows, on_conflict=lambda error, attempt: both_lost.wait() if attempt == 1 else None)
        freed.set()

    threads = [
        threading.Thread(target=work, args=(table, rows[::step]), name=name)
        for table, step, name in zip(tables, (1, -1), ("one", "two"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    # Who begins first may claim last: then both go at once, and one of them loses once more.
    assert sorted(result.attempts for result in done.values()) in ([2, 2], [2, 3])
    assert {i.instant for i in reservations.claimed if i.has_priority} >= {result.instant for result in done.values()}
    assert reservations.left == []


class Forgetful:
    """Everything that is posted is lost at once."""

    def claim(self, reservation):
        return []

    def withdraw(self, instant):
        pass


class Silent:
    def claim(self, reservation):
        raise StorageError("no answer")

    def posted(self):
        raise StorageError("no answer")

    def withdraw(self, instant):
        raise StorageError("no answer")


@pytest.mark.parametrize("reservations", [Forgetful(), Silent()], ids=["forgets", "does not answer"])
def test_reservations_that_lost_the_priority_cost_attempts_only(monkeypatch, reservations):
    table, _, opened = merge_on_read()
    large, written = opened("large"), []
    large.reservations = reservations

    def rival(_instant):
        if len(written) < 5:
            written.append(upsert(opened("rival"), [("a", "p", 2, "rival"), ("c", "p", len(written), "rival")]))

    before_files(monkeypatch, "large", rival)
    done = upsert(large, [("a", "p", 9, "large")])
    assert (done.attempts, len(written)) == (6, 5)
    table.refresh()
    assert contents(table) == [("a", "p", 9, "large"), ("b", "q", 1, "x"), ("c", "p", 4, "rival")]


def test_waits_lead_to_smaller_ranks_whatever_is_appended():
    sets = [frozenset(), frozenset({"a"}), frozenset({"a", "b"})]
    shapes = [(g, p, a) for g, p, a in itertools.product(sets, (False, True), sets)]
    shapes += [(frozenset(), p, frozenset(), True) for p in (False, True)]
    for first, second in itertools.product(shapes, shapes):
        older, younger = Reservation("1", *first), Reservation("2", *second)
        pair = [PostedReservation(i, is_active=False) for i in (older, younger)]
        waits = [bool(going_first(i, pair)) for i in (older, younger)]
        assert sum(waits) == older.overlaps(younger) == younger.overlaps(older)
        if older.overlaps(younger):
            assert waits == [older.rank > younger.rank, older.rank < younger.rank]


@pytest.mark.parametrize("service", ["compaction", "clustering"])
def test_plans_leave_out_what_a_writer_with_priority_declared(service):
    table, reservations, opened = merge_on_read()
    other = opened("other", **{"hoodie.compact.inline.max.delta.commits": 1})
    for number in range(2):
        write(other, [("a", "p", 2 + number, "y"), ("b", "q", 2 + number, "y"), (f"new {number}", "p", 1, "z")])
    in_p = frozenset(s.group.file_id for s in other.slices() if s.group.partition_path == "p")
    table.refresh()
    running = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")

    def planned():
        plan = schedule_compaction if service == "compaction" else schedule_clustering
        at = plan(other)
        if at is None:
            return frozenset()
        under = other.state.groups_under_compaction() if service == "compaction" else other.state.groups_under_clustering()
        return frozenset(group.file_id for group in under)

    reservations.claim(Reservation(running.instant, frozenset(), has_priority=True, appends=in_p))
    first = planned()
    assert first.isdisjoint(in_p)
    assert bool(first) == (service == "compaction"), "the other partition has logs, but one small file only"
    # Its writer is gone: what it posted counts no longer.
    running.roll_back()
    other.refresh()
    if service == "compaction":
        write(other, [("a", "p", 9, "y")])
    assert planned() & in_p


def test_planning_goes_on_where_the_store_does_not_answer():
    _, _, opened = merge_on_read()
    other = opened("other", **{"hoodie.compact.inline.max.delta.commits": 1})
    write(other, [("a", "p", 2, "y")])
    other.reservations = Silent()
    assert schedule_compaction(other) is not None


def test_an_append_that_waited_while_its_slice_was_compacted_begins_again():
    """Its instant would be older than the slice that it lies in: a savepoint in between lost it, and queries as of then never
    saw it."""

    class Sleeps(ManualClock):
        act = None

        def sleep(self, seconds):
            super().sleep(seconds)
            if self.act is not None:
                act, self.act = self.act, None
                act()

    clock = Sleeps()
    table, storage, _ = new_table(clock, type=TableType.MOR)
    write(table, [("a", "p", 1, "0"), ("b", "p", 1, "0")])
    write(table, [("a", "p", 2, "1")])
    table.reservations = InProcessReservations()
    other = open_table(storage, clock, "other")
    other.refresh()
    clock.advance(1)
    first = WriteTransaction.begin(other.timeline, other.lock, "UPSERT", other.write_action())
    groups = frozenset(s.group.file_id for s in other.state.latest_slices())
    table.reservations.claim(Reservation(first.instant, frozenset(), True, groups))
    seen = []

    def act():
        first.roll_back()
        table.reservations.withdraw(first.instant)
        seen.append(write(other, [("z", "q", 1, "0")]).instant)
        clock.advance(5)
        seen.append(compact(other).instant)

    clock.act = act
    done = write(table, [("b", "p", 5, "waited")])
    assert seen[1] < done.instant
    assert done.attempts == 2
    assert ("b", "p", 5, "waited") in contents(table)
    assert ("b", "p", 5, "waited") not in contents(table, as_of=seen[1])
