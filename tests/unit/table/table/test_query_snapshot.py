"""Snapshot, time-travel, read-optimized and point queries on merge-on-read tables."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest
from tests.plans import schedule_compaction
from tests.unit.table.tables import contents, create, open_table, write

from tideline_table.action import run_compaction
from tideline_table.action.compaction.plan import compact_slice
from tideline_table.clock import ManualClock
from tideline_table.errors import InvalidPredicate, SchemaMismatch
from tideline_table.merge import MergeMode, Merging
from tideline_table.storage import MemoryStorage
from tideline_table.table import TableType
from tideline_table.writer import Operation


class CountingStorage(MemoryStorage):
    """Remembers the data files that are opened."""

    def __init__(self, **more):
        super().__init__(**more)
        self.opened = []

    def open_input(self, path):
        self.opened.append(path)
        return super().open_input(path)

    def read_range(self, path, start, length):
        if ".log." in path:
            self.opened.append(path)
        return super().read_range(path, start, length)


@pytest.fixture
def table():
    clock = ManualClock()
    storage = CountingStorage(clock=clock)
    create(storage, clock, type=TableType.MOR)
    return open_table(storage, clock)


def ids(rows):
    return sorted(rows.column("id").to_pylist())


def test_time_travel_between_log_files(table):
    states = {}
    for operation, rows in [
        (Operation.UPSERT, [("a", "p", 5, "1"), ("b", "p", 5, "1")]),
        (Operation.UPSERT, [("a", "p", 6, "2")]),
        (Operation.DELETE, [("b", "p", 0, "")]),
        (Operation.UPSERT, [("a", "p", 4, "older"), ("b", "p", 7, "back")]),
    ]:
        committed = write(table, rows, operation)
        states[committed.instant] = contents(table)
    assert len({str(s) for s in states.values()}) == 4
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    write(table, [("a", "p", 9, "while pending")])
    states[table.state.last_instant] = contents(table)
    run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])
    assert contents(table)[0] == ("a", "p", 9, "while pending")
    for instant, expected in states.items():
        assert contents(table, instant) == expected


def test_read_optimized_leaves_logs_out(table):
    first = write(table, [("a", "p", 1, "1"), ("b", "p", 1, "1")])
    write(table, [("a", "p", 2, "2")])
    assert table.read(["v"], read_optimized=True).column("v").to_pylist() == ["1", "1"]
    assert sorted(table.read(["v"]).column("v").to_pylist()) == ["1", "2"]
    schedule_compaction(table, {"hoodie.compact.inline.max.delta.commits": 1})
    assert table.read(["v"], read_optimized=True).column("v").to_pylist() == ["1", "1"], "nothing of a pending compaction"
    run_compaction(table, run=lambda tasks: [compact_slice(task, table.storage) for task in tasks])
    assert sorted(table.read(["v"], read_optimized=True).column("v").to_pylist()) == ["1", "2"]
    assert table.read(["v"], as_of=first.instant, read_optimized=True).column("v").to_pylist() == ["1", "1"]


def test_point_look_ups_open_what_can_hold_the_key(table):
    for letter in "abcdef":
        write(table, [(f"{letter}{n}", "p", 1, "1") for n in range(3)], Operation.BULK_INSERT)
    assert len(table.slices()) == 6
    table.look_up([f"{letter}0" for letter in "abcdef"])
    table.storage.opened.clear()
    assert table.look_up(["c1"], ["id", "v"]).to_pylist() == [{"id": "c1", "v": "1"}]
    assert len(table.storage.opened) == 1, "footers are known, one base file holds the key"
    table.storage.opened.clear()
    assert ids(table.look_up(["c1", "e0", "zzz", "c1"])) == ["c1", "e0"]
    assert len(table.storage.opened) == 2
    table.storage.opened.clear()
    assert table.look_up([]).num_rows == table.look_up(["aa"]).num_rows == 0
    assert table.storage.opened == []


def test_point_look_ups_see_the_log(table):
    for letter in "abc":
        write(table, [(f"{letter}{n}", "p", 5, "1") for n in range(3)], Operation.BULK_INSERT)
    write(table, [("b1", "p", 6, "2"), ("b2", "p", 4, "older")])
    write(table, [("c0", "p", 0, "")], Operation.DELETE)
    table.look_up(["a0", "b0", "c1"])
    table.storage.opened.clear()
    assert table.look_up(["b1"], ["v"]).to_pylist() == [{"v": "2"}]
    assert sum(".log." not in path for path in table.storage.opened) == 1, "base files of other ranges stay closed, logs do not"
    assert table.look_up(["b2"], ["v"]).to_pylist() == [{"v": "1"}]
    assert table.look_up(["c0"]).num_rows == 0
    assert ids(table.look_up(["c0", "c1", "a0"])) == ["a0", "c1"]


def test_filters_never_revive_what_a_base_row_won(table):
    write(table, [("a", "p", 5, "base"), ("b", "p", 1, "base")])
    write(table, [("a", "p", 3, "log"), ("b", "p", 3, "log")])
    assert table.read(["id"], pc.field("v") == "log").column("id").to_pylist() == ["b"]
    assert table.read(["id"], pc.field("ts") < 4).column("id").to_pylist() == ["b"]


def test_a_condition_may_be_text(table):
    write(table, [("a", "p", 5, "base"), ("b", "p", 1, "base")])
    write(table, [("b", "p", 3, "log")])
    assert table.read(["id"], where="v = 'log' AND ts < 4").column("id").to_pylist() == ["b"]
    assert table.look_up(["a", "b"], ["id"], where="v = 'base'").column("id").to_pylist() == ["a"]
    assert table.read(["id"], where=" ").num_rows == 2
    with pytest.raises(InvalidPredicate, match="nope"):
        table.read(["id"], where="nope = 1")


def test_unknown_columns_are_refused(table):
    write(table, [("a", "p", 5, "base")])
    with pytest.raises(SchemaMismatch, match="nope"):
        table.read(["nope"])
    with pytest.raises(SchemaMismatch, match="nope"):
        table.look_up(["a"], ["nope"])


def test_ordering_fields_count_where_they_decide():
    assert Merging(MergeMode.EVENT_TIME, ordering_field="a, b").ordering_fields == ("a", "b")
    assert Merging(MergeMode.COMMIT_TIME, ordering_field="a,b").ordering_fields == ()
