"""Timeline files follow the log; those of an instant that was rolled back do not come back, however quickly a healer was."""

from __future__ import annotations

import pytest
from tests.simulation.faults import FaultyStorage
from tests.unit.table.tables import new_table, write

from tideline_table.timeline.log import HEAL_DEADLINE_S, TableLog
from tideline_table.transaction import WriteTransaction


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
    TableLog(faulty, clock, "healer").materialise(begun)
    assert timeline_of(storage, transaction.instant) == []


def test_healing_what_is_there_reads_nothing_more():
    table, storage, clock = new_table()
    write(table, [("a", "p", 1, "x")])
    faulty = FaultyStorage(storage)
    log = TableLog(faulty, clock, "healer")
    for sequence in (1, 2):
        entry = TableLog(storage, clock, "r").read(sequence)
        log.materialise(entry)
    assert {call for call, _ in faulty.calls} == {"put_if_absent"}
