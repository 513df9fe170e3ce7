"""Timeline files that begin an instant which archival forgot: a writer slept before it made them.

They freeze nothing; strangers still do.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.simulation.faults import FaultyStorage, SimulatedCrash
from tests.unit.table.archives import FEW, OLD_S, TASK_S, seen_by_others
from tests.unit.table.tables import DEATH_S, contents, new_table, open_table, write

from tideline_table.action import archive, roll_back_dead
from tideline_table.errors import TableFrozen
from tideline_table.hudi.instant import instant_from_time, time_from_instant
from tideline_table.table import TableType


@pytest.fixture(params=[TableType.COW, TableType.MOR])
def archived(request):
    """A table whose timeline does not begin with its first write any more."""
    table, storage, clock = new_table(type=request.param)
    write_some(table)
    clock.advance(OLD_S)
    assert archive(table, FEW)[0] is not None
    return table, storage, clock


def write_some(table):
    for n in range(6):
        write(table, [("a", "p", table.state.sequence + n, "x")])


def of(storage, instant):
    return sorted(o.path for o in storage.list_folder(".hoodie").objects if o.path.startswith(f".hoodie/{instant}."))


def below(table):
    """An instant that nobody has, below what was archived."""
    return instant_from_time(time_from_instant(table.state.archived_before) - timedelta(milliseconds=1))


@pytest.mark.parametrize("dies_behind", [".requested", "inflight"])
def test_a_writer_that_slept_through_its_archival_and_died_freezes_nothing(archived, dies_behind):
    """Found by review: its beginning was of no instant that anybody knew, so every writer and every recovery refused the table
    for ever."""
    other, storage, clock = archived
    faulty = FaultyStorage(storage)
    slept = []

    def before(number, call, path):
        if slept and slept[0] == "dead":
            raise SimulatedCrash
        if call == "put_if_absent" and path.endswith(".requested") and not slept:
            instant = path.removeprefix(".hoodie/").partition(".")[0]
            slept.append(instant)
            clock.advance(DEATH_S)
            assert roll_back_dead(other) == [instant]
            write_some(other)
            clock.advance(TASK_S + OLD_S)
            assert instant in archive(other, FEW)[0].instants

    def after(number, call, path):
        if slept and call == "put_if_absent" and path.endswith(dies_behind):
            slept.insert(0, "dead")
            raise SimulatedCrash

    victim = open_table(faulty, clock, "victim")
    faulty.before, faulty.after = before, after
    with pytest.raises(SimulatedCrash):
        write(victim, [("victim", "p", 1, "x")])
    assert of(storage, slept[1])
    for act in (roll_back_dead, lambda table: archive(table, FEW), lambda table: write(table, [("next", "p", 1, "x")])):
        act(open_table(storage, clock, "next"))
        assert not of(storage, slept[1])
    other.refresh()
    assert {row[0] for row in contents(other)} == {"a", "next"}
    assert seen_by_others(storage, clock) == contents(other)


@pytest.mark.parametrize("action", ["commit", "deltacommit", "replacecommit", "clean", "compaction"])
def test_what_a_stranger_completes_below_the_archived_instants_freezes(archived, action):
    """It was requested only when we looked, as if by a writer of Tideline; it goes on and completes all the same."""
    table, storage, _ = archived
    instant = below(table)
    storage.put(f".hoodie/{instant}.{action}.requested", b"")
    write(table, [("b", "p", 1, "x")])
    assert not of(storage, instant)
    completed = "commit" if action == "compaction" else action
    storage.put(f".hoodie/{instant}.{completed}", b"{}")
    for _ in range(2):
        with pytest.raises(TableFrozen, match=instant):
            write(table, [("b", "p", 2, "x")])
    assert of(storage, instant) == [f".hoodie/{instant}.{completed}"]


def test_a_beginning_beside_its_completion_stays_and_freezes(archived):
    table, storage, _ = archived
    instant = below(table)
    names = [f".hoodie/{instant}.commit", f".hoodie/{instant}.commit.requested", f".hoodie/{instant}.inflight"]
    for name in names:
        storage.put(name, b"")
    with pytest.raises(TableFrozen, match=instant):
        write(table, [("b", "p", 1, "x")])
    assert of(storage, instant) == names


def test_what_a_stranger_has_inflight_freezes(archived):
    """Those of Apache Hudi's writes say what they are going to do; ours are empty."""
    table, storage, _ = archived
    instant = below(table)
    storage.put(f".hoodie/{instant}.commit.requested", b"")
    storage.put(f".hoodie/{instant}.inflight", b'{"partitionToWriteStats": {}}')
    with pytest.raises(TableFrozen, match=instant):
        write(table, [("b", "p", 1, "x")])
    assert len(of(storage, instant)) == 2


@pytest.mark.parametrize("name", ["commit.requested", "inflight", "deltacommit.inflight"])
def test_what_a_stranger_begins_above_the_archived_instants_freezes(archived, name):
    table, storage, _ = archived
    instant = instant_from_time(time_from_instant(table.state.archived_before) + timedelta(milliseconds=1))
    assert instant not in table.state.actions
    storage.put(f".hoodie/{instant}.{name}", b"")
    with pytest.raises(TableFrozen, match=instant):
        write(table, [("b", "p", 1, "x")])
    assert of(storage, instant) == [f".hoodie/{instant}.{name}"]
