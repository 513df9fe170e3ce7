"""Timeline files follow the log; those of an instant that was rolled back do not come back, however quickly a healer was."""

from __future__ import annotations

from functools import cache
from itertools import combinations_with_replacement

import pytest
from tests.simulation.faults import FaultyStorage
from tests.simulation.starting_point import Prepared
from tests.simulation.starting_point import place as copy_with_clock
from tests.unit.table.tables import contents, new_table, open_table, write

from tideline_table.action import create_savepoint, delete_savepoint, restore_to_savepoint
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.hudi.formats import WRITTEN
from tideline_table.hudi.instant import Action
from tideline_table.log.table_log import HEAL_DEADLINE_S, LogReader, TableLog
from tideline_table.log.timeline_files import timeline_files
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table


def timeline_of(storage, instant):
    names = [o.path.rpartition("/")[2] for o in storage.list_folder(".hoodie").objects]
    return sorted(name.partition(".")[2] for name in names if name.startswith(instant))


@pytest.mark.parametrize("stall_s", [0.0, HEAL_DEADLINE_S - 1, HEAL_DEADLINE_S + 1])
@pytest.mark.parametrize("file", [".requested", ".inflight"])
def test_a_rollback_while_the_files_of_a_begin_are_created(stall_s, file):
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x")])
    transaction = WriteTransaction.begin(table.timeline, table.lock, "UPSERT")
    begun = table.timeline.log.read(table.state.sequence)
    for name in ("commit.requested", "inflight"):
        storage.delete(f".hoodie/{transaction.instant}.{name}")
    faulty = FaultyStorage(storage)

    def before(_, call, path):
        if call == "put_if_absent" and path.endswith(file):
            faulty.before = lambda number, call, path: None
            transaction.roll_back()
            clock.advance(stall_s)

    faulty.before = before
    TableLog(faulty, clock, "healer", WRITTEN).materialise(begun)
    assert timeline_of(storage, transaction.instant) == []


def test_healing_what_is_there_reads_nothing_more():
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x")])
    faulty = FaultyStorage(storage)
    log = TableLog(faulty, clock, "healer", WRITTEN)
    for sequence in (1, 2):
        entry = LogReader(storage).read(sequence)
        log.materialise(entry)
    assert {call for call, _ in faulty.calls} == {"put_if_absent"}


def restored_before_the_completed_file(stall_s, where):
    """Storage, and what a restore undid of a write whose writer slept on the way from the log to the timeline."""
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x")])
    saved = create_savepoint(table).instant
    faulty, undone = FaultyStorage(storage), []
    slow = open_table(faulty, clock, "slow")

    def sleep(_, call, path):
        if call == "put_if_absent" and path.endswith(where) and slow.state.sequence > table.state.sequence:
            faulty.before = faulty.after = lambda number, call, path: None
            undone.extend(restore_to_savepoint(open_table(storage, clock, "operator"), saved).undone)
            clock.advance(stall_s)

    table.refresh()
    if where == ".commit":
        faulty.before = sleep
    else:
        # The entry is in the log, and nothing of its timeline file has begun.
        def sleep_behind_the_log(number, call, path):
            if path.startswith(".hoodie/.tideline/log/") and b'"after":"completed"' in storage.read(path).replace(b" ", b""):
                sleep(number, call, path)

        faulty.after = sleep_behind_the_log
    write(slow, [("b", "p", 1, "x")])
    assert contents(open_table(storage, clock)) == [("a", "p", 1, "x")]
    (instant,) = undone
    return table, storage, instant


@pytest.mark.parametrize("where", [".commit", ".json"], ids=["in the put", "before the put"])
def test_a_write_that_a_restore_took_back_does_not_come_back_by_a_writer_that_slept(where):
    """Who knows the timeline alone would read a commit whose files are gone, until one of us writes again."""
    _, storage, instant = restored_before_the_completed_file(HEAL_DEADLINE_S + 1, where)
    assert timeline_of(storage, instant) == []


def test_before_the_deadline_it_goes_when_the_next_writer_looks():
    table, storage, instant = restored_before_the_completed_file(HEAL_DEADLINE_S - 1, ".commit")
    assert timeline_of(storage, instant) == ["commit"], "nothing was asked of the log"
    write(table, [("c", "p", 1, "x")])
    assert timeline_of(storage, instant) == []


def savepoint_files(storage):
    return {o.path: storage.read(o.path) for o in storage.list_folder(".hoodie").objects if "savepoint" in o.path}


def files_that_count(table):
    """What the newest entry about the savepoint says."""
    steps = (table.timeline.log.read(s) for s in range(table.state.sequence, 0, -1))
    return dict(timeline_files(next(e for e in steps if e.action is Action.SAVEPOINT), WRITTEN).create)


@cache
def with_savepoint() -> Prepared:
    """A table whose one write has a savepoint, made once."""
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x")])
    create_savepoint(table, comment="0")
    assert isinstance(storage, MemoryStorage)
    return storage, clock.monotonic_s()


@pytest.mark.parametrize("acts", [1, 2, 3])
@pytest.mark.parametrize("first", ["made", "deleted"])
def test_a_savepoint_that_others_delete_and_make_again_while_its_files_follow(first, acts, monkeypatch):
    """Whenever they do: in the end the files are what the newest entry says.

    Found by the simulator: files of an earlier one of the same write

    stayed in place of those of a later one, and who was slow to delete the former deleted the latter."""
    # They looked at the timeline before anything of it came late.
    monkeypatch.setattr(Table, "check_writable", lambda table, *, keyed=True: None)
    unfinished = []
    for moments in combinations_with_replacement(range(7), acts):
        _, storage, clock = copy_with_clock(with_savepoint())
        table = open_table(storage, clock)
        (at,) = table.state.savepoints
        files = savepoint_files(storage)
        if first == "deleted":
            delete_savepoint(table, at)
        entry = table.timeline.log.read(table.state.sequence)
        for path in files:  # its files have not followed yet
            storage.delete(path)
            if first == "deleted":
                storage.put(path, files[path])
        others, waiting = open_table(storage, clock, "others"), list(moments)
        faulty = FaultyStorage(storage)

        def before(number, call, path, *, others=others, waiting=waiting, at=at):
            while waiting and waiting[0] <= number:
                waiting.pop(0)
                if at in others.refresh().savepoints:
                    delete_savepoint(others, at)
                else:
                    create_savepoint(others, at, comment=str(others.state.sequence))

        faulty.before = before
        TableLog(faulty, clock, "healer", WRITTEN).materialise(entry)
        others.refresh()
        assert savepoint_files(storage) == files_that_count(others), f"others came before calls {moments}"
        unfinished.append(len(waiting))
    assert unfinished.count(0) > 2, "they came in time"


def test_files_of_an_earlier_savepoint_are_no_files_of_the_one_whose_maker_died():
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x")])
    at = create_savepoint(table, comment="first").instant
    stale = savepoint_files(storage)
    delete_savepoint(table, at)
    create_savepoint(table, at, comment="second")
    expected = savepoint_files(storage)
    for path, content in stale.items():
        storage.put(path, content)
    assert savepoint_files(storage) != expected
    write(open_table(storage, clock, "next"), [("b", "p", 1, "x")])
    assert savepoint_files(storage) == expected


@pytest.mark.parametrize("lacking", [".savepoint.inflight", ".savepoint"])
def test_a_savepoint_whose_files_are_gone_gets_them_from_whoever_looks(lacking):
    """Who took them for those of an earlier one that was deleted may have died before it looked behind itself."""
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x")])
    at = create_savepoint(table).instant
    write(table, [("b", "p", 1, "x")])
    expected = savepoint_files(storage)
    storage.delete(f".hoodie/{at}{lacking}")
    write(open_table(storage, clock, "next"), [("c", "p", 1, "x")])
    assert savepoint_files(storage) == expected
