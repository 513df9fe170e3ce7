"""Points of incremental queries in tables of versions 8 and 9: a completion time is the point behind its write, as in Hudi 1.x.

Each table is also read as Apache Hudi reads it: a copy without the table log.
"""

from datetime import timedelta

import pytest
from tests.unit.table.tables import beside, new_table, open_table, write

from tideline_table.action import archive
from tideline_table.clock import ManualClock
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

TYPES = pytest.mark.parametrize("kind", list(TableType))


def as_hudi_reads(table):
    copy = MemoryStorage(clock=table.clock)
    for found in table.storage.list_objects(""):
        if not found.path.startswith(".hoodie/.tideline/"):
            copy.put(found.path, table.storage.read(found.path))
    return Table.open(copy.root, clock=table.clock, storage=copy)


def changed(table, since, until=""):
    return {row["id"] for row in table.incremental(since, until).read(["id"]).to_pylist()}


def insert(table, key):
    """One row in a partition of its own, so that writes beside each other do not meet."""
    return write(table, [(key, f"p{key}", 1, "x")], Operation.INSERT).instant


def times(table):
    """Instant and completion time of each write in order of completion."""
    done = sorted(table.refresh().completed_writes(), key=lambda a: a.completion)
    return [(a.instant, a.completion) for a in done]


def interleaved(monkeypatch, kind, *, lags_s=0.0):
    """Rows 1 to 4: the write of 2 begins before that of 3 and completes behind it, by a clock that lags."""
    table, storage, clock = new_table(version=9, type=kind)
    insert(table, "1")
    clock.advance(1.0004)
    late = open_table(storage, ManualClock(clock.now() - timedelta(seconds=lags_s)), "late")

    def overtake():
        clock.advance(0.5)
        insert(open_table(storage, clock, "fast"), "3")

    beside(monkeypatch, overtake)
    began = insert(late, "2")
    clock.advance(5)
    insert(table, "4")
    found = times(table)
    assert [instant for instant, _ in found] != sorted(instant for instant, _ in found) or lags_s
    assert found[2][0] == began
    return table, [completion for _, completion in found]


@TYPES
@pytest.mark.parametrize("lags_s", [0.0, 3.0, 3600.0])
def test_a_completion_time_is_the_point_behind_its_write(monkeypatch, kind, lags_s):
    """The log recorded a time of each clock: a write by one that lags was lost, one within the same millisecond came again."""
    table, ended = interleaved(monkeypatch, kind, lags_s=lags_s)
    order = ["1", "3", "2", "4"]
    for reader in (table, as_hudi_reads(table)):
        for at, point in enumerate(ended, 1):
            assert changed(reader, point) == set(order[at:]), point
            assert changed(reader, "", point) == set(order[:at]), point
        assert changed(reader, ended[0], ended[2]) == {"3", "2"}


@TYPES
def test_a_point_between_the_beginning_and_the_end_of_a_write_is_before_it(monkeypatch, kind):
    table, _ = interleaved(monkeypatch, kind)
    _, (fast, _), (began, _), _ = times(table)
    assert began < fast
    between = str(int(began) + 1)
    assert between < fast
    for reader in (table, as_hudi_reads(table)):
        assert changed(reader, between) == {"2", "3", "4"}


def test_archived_writes_that_began_before_the_point_and_completed_behind_it_are_not_left_out(monkeypatch):
    """Their rows were selected by the instants of the writes."""
    table, _ = interleaved(monkeypatch, TableType.COW)
    ended = times(table)
    for n in range(5, 10):
        insert(table, str(n))
    few = {"hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3, "hoodie.cleaner.commits.retained": 1}
    archive(table, {**few, "tideline.archive.min.age": 0})
    hudi = as_hudi_reads(table)
    assert ended[2][0] not in hudi.state.actions, "archived"
    assert changed(hudi, ended[1][1]) == {"2", "4", "5", "6", "7", "8", "9"}
