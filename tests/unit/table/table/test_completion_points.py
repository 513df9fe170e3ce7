"""Points of incremental queries in tables of versions 8 and 9: a completion time is the point behind its write, as in Hudi 1.x.

Each table is also read as Apache Hudi reads it: a copy without the table log.
"""

from datetime import timedelta

import pytest
from tests.plans import schedule_clean
from tests.simulation.faults import FaultyStorage
from tests.unit.table.tables import beside, new_table, open_table, write

from tideline_table.action import archive, run_clean
from tideline_table.clock import ManualClock
from tideline_table.errors import HistoryUnavailable
from tideline_table.hudi.formats import format_to_create
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

FEW = {
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "hoodie.cleaner.commits.retained": 1,
    "tideline.archive.min.age": 0,
}
TYPES = pytest.mark.parametrize("kind", list(TableType))


def as_hudi_reads(table):
    copy = MemoryStorage(clock=table.clock)
    for found in table.storage.list_objects(""):
        if not found.path.startswith(".hoodie/.tideline/"):
            copy.put(found.path, table.storage.read(found.path))
    return Table.open(copy.root, clock=table.clock, storage=copy)


def changed(table, since, until=""):
    return {row["id"] for row in table.incremental(since, until).read(["id"]).to_pylist()}


def net_changes(table, since, until=""):
    return [(row["op"], row["after"]["id"]) for batch in table.changes(since, until).scan() for row in batch.to_pylist()]


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
    archive(table, FEW)
    hudi = as_hudi_reads(table)
    assert ended[2][0] not in hudi.state.actions, "archived"
    assert changed(hudi, ended[1][1]) == {"2", "4", "5", "6", "7", "8", "9"}


def archived_by_hudi(copy, before):
    """Also delta commits that are not compacted, which Tideline does not archive."""
    storage, form = copy.storage, format_to_create(9)
    files = {
        o.path: form.parse_timeline_file_name(o.path.rpartition("/")[2]) for o in storage.list_folder(".hoodie/timeline").objects
    }
    gone = [(found[0], path) for path, found in files.items() if found is not None and found[0].time < before]
    form.archive(storage, 1, gone, 10)
    for _, path in gone:
        storage.delete(path)
    return Table.open(storage.root, clock=copy.clock, storage=storage)


def overlapped(monkeypatch, kind):
    """The writes of 1 and 2 archived, as Apache Hudi reads it: 2 completed behind the write of 3, the first of the timeline."""
    table, ended = interleaved(monkeypatch, kind)
    (_, _), (first, _), (archived, _), _ = times(table)
    archive(table, FEW)
    hudi = as_hudi_reads(table)
    if kind is TableType.MOR:
        hudi = archived_by_hudi(hudi, first)
    assert archived < first == min(hudi.state.actions) <= ended[1] < ended[2]
    return table, hudi, ended


@TYPES
def test_an_archived_write_that_completed_behind_writes_of_the_timeline_counts_from_its_completion(monkeypatch, kind):
    """The start was not before the timeline: the history was not read, and the write was lost."""
    _, hudi, ended = overlapped(monkeypatch, kind)
    assert changed(hudi, ended[0]) == {"2", "3", "4"}
    assert changed(hudi, ended[1]) == {"2", "4"}
    assert net_changes(hudi, ended[1]) == [("i", "2"), ("i", "4")]
    assert changed(hudi, ended[1], ended[2]) == {"2"}
    assert net_changes(hudi, ended[1], ended[2]) == [("i", "2")]
    assert changed(hudi, ended[2]) == {"4"}
    assert net_changes(hudi, ended[2]) == [("i", "4")]


@TYPES
def test_an_archived_write_that_completed_behind_the_end_is_not_in_the_range(monkeypatch, kind):
    """Its completion was compared with the start only, and all that is archived counted as complete at any end."""
    _, hudi, ended = overlapped(monkeypatch, kind)
    assert changed(hudi, ended[0], ended[1]) == {"3"}
    assert changed(hudi, "", ended[1]) == {"1", "3"}
    assert [after for _, after in net_changes(hudi, "", ended[1])] == ["1", "3"]
    assert changed(hudi, "", ended[2]) == {"1", "2", "3"}
    long_ago = "20251201000000000"
    assert changed(hudi, long_ago, ended[1]) == {"1", "3"}, "selected by its instant, which is before the end"


def test_no_state_beside_an_archived_write_is_made_up_where_files_were_cleaned(monkeypatch):
    table, _, ended = overlapped(monkeypatch, TableType.COW)
    for n in range(4):
        table.clock.advance(1)
        write(table, [("1", "p1", n, "y")])
    schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    run_clean(table)
    hudi = as_hudi_reads(table)
    assert hudi.state.last_clean_retained
    with pytest.raises(HistoryUnavailable):
        hudi.changes(ended[1])
    with pytest.raises(HistoryUnavailable):
        hudi.incremental(ended[0], ended[1])
    assert changed(hudi, ended[1]) == {"1", "2", "4"}


def test_the_history_is_read_only_where_writes_may_overlap_a_point():
    table, _, clock = new_table(version=9)
    for n in range(12):
        insert(table, f"{n:02}")
        archive(table, FEW)
        clock.advance(7 * 3600)

    def read(*points):
        """How many files of the history there are, and how many a query reads."""
        disk = FaultyStorage(as_hudi_reads(table).storage)
        hudi = Table.open(disk.root, clock=clock, storage=disk)
        every = [o.path for o in disk.list_folder(".hoodie/timeline/history").objects if o.path.endswith(".parquet")]
        disk.calls.clear()
        changed(hudi, *points)
        return len(every), len({path for _, path in disk.calls if path in every})

    newest = times(table)[-1][1]
    every, overlapping = read(newest)
    assert 1 <= overlapping <= 2 < every
    assert read(newest, newest) == (every, overlapping)
    clock.advance(2 * 86400)
    insert(table, "late")
    assert read(times(table)[-1][1]) == (every, 0), "no archived write takes that long"
