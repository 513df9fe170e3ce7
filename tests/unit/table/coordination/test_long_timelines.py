"""Before each write, a writer looks for other writers on the timeline: it reads the names that are new since its last look."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.table import tables
from tests.unit.table.counting import NotingStorage
from tests.unit.table.tables import instant, new_table, open_table

from tideline_table.action import SERVICES, TableService
from tideline_table.clock import ManualClock
from tideline_table.coordination import other_writers
from tideline_table.errors import TableFrozen, TableIncomplete
from tideline_table.hudi.instant import Action, Instant, State, instant_from_time
from tideline_table.table import Table
from tideline_table.writer import Operation


def write(table: Table) -> str:
    return tables.write(table, [("a", "p", 1, "x")]).instant


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of names that each look reads."""
    found: list[int] = []
    inner = other_writers.timeline_listing

    def counted(form, paths):
        given = list(paths)
        found.append(sum(form.parse_timeline_file_name(path.rpartition("/")[2]) is not None for path in given))
        return inner(form, given)

    monkeypatch.setattr(other_writers, "timeline_listing", counted)
    return found


def test_a_look_reads_the_names_that_are_new(listed: list[int]) -> None:
    clock = ManualClock()
    storage = NotingStorage(clock)
    table, *_ = new_table(clock, storage)
    for _ in range(12):
        write(table)
    assert max(listed) <= 3, "the three files of one commit"
    other = open_table(storage, clock)
    listed.clear()
    write(other)
    write(other)
    assert listed == [36, 3], "who has not looked yet reads all"


def test_a_strange_instant_beside_settled_ones_is_found_and_files_of_an_undone_one_go() -> None:
    clock = ManualClock()
    storage = NotingStorage(clock)
    table, *_ = new_table(clock, storage)
    first, last = [write(table) for _ in range(3)][::2]
    form = table.timeline.format
    strange = form.timeline_path(Instant(str(int(first) - 1), Action.COMMIT, State.COMPLETED))
    storage.put(strange, b"{}")
    with pytest.raises(TableFrozen, match="that no Tideline writer made"):
        write(table)
    storage.delete(strange)
    begun = table.timeline.state.actions[last]
    table.timeline.state.actions[last] = replace(begun, state=State.ROLLED_BACK, fenced_by=instant(9))
    write(table)
    left = form.timeline_path(Instant(last, Action.COMMIT, State.COMPLETED), begun.completion)
    assert left not in {found.path for found in storage.list_folder(form.timeline_folder).objects}


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> tuple[Table, NotingStorage, ManualClock]:
    """A table whose timeline counts as long, with five commits, one a minute, at all of which its writer has looked."""
    monkeypatch.setattr(other_writers, "LONG_TIMELINE", 9)
    clock = ManualClock()
    storage = NotingStorage(clock)
    table, *_ = new_table(clock, storage)
    for _ in range(5):
        write(table)
        clock.advance(120)
    write(table)
    return table, storage, clock


def names_listed(storage: NotingStorage, table: Table) -> int:
    """Return how many names of the timeline the next write lists before it begins."""
    storage.requests.clear()
    write(table)
    return max(
        size // 100 for kind, path, size in storage.requests if (kind, path) == ("list", table.timeline.format.timeline_folder)
    )


def test_a_look_lists_the_newest_names_of_a_long_timeline_and_now_and_then_all(long) -> None:
    table, storage, clock = long
    first = names_listed(storage, table)
    clock.advance(300)
    assert names_listed(storage, table) < first < 3 * 6, "names of the last minutes"
    clock.advance(other_writers.WHOLE_LOOK_S)
    assert names_listed(storage, table) > 3 * 7
    assert names_listed(storage, open_table(storage, clock)) > 3 * 8, "a new process knows none"


@pytest.mark.parametrize("behind_s", [-1, 200])
def test_another_writer_that_begins_now_is_found_at_once_on_a_long_timeline(long, behind_s: int) -> None:
    table, storage, clock = long
    begins = instant_from_time(clock.now() - timedelta(seconds=behind_s))
    storage.put(table.timeline.format.timeline_path(Instant(begins, Action.COMMIT, State.REQUESTED)), b"")
    with pytest.raises(TableFrozen, match="that no Tideline writer made"):
        write(table)


def test_an_old_plan_that_another_writer_completes_is_found_at_once_on_a_long_timeline(long) -> None:
    table, storage, clock = long
    for number in range(4):
        tables.write(table, [(f"k{number}", "p", 1, "x")], Operation.BULK_INSERT)
    planned = SERVICES[TableService.CLUSTERING].plan(table)
    assert isinstance(planned, str)
    clock.advance(2 * other_writers.WHOLE_LOOK_S)
    write(table)  # a look at all names
    write(table)
    begun = Instant(planned, Action.REPLACE_COMMIT, State.INFLIGHT)
    storage.put(table.timeline.format.timeline_path(begun), b"")
    storage.put(table.timeline.format.timeline_path(replace(begun, state=State.COMPLETED), instant_from_time(clock.now())), b"{}")
    with pytest.raises(TableIncomplete, match=planned):
        write(table)


def test_another_writer_whose_clock_is_far_behind_is_found_by_the_next_look_at_all_names(long) -> None:
    table, storage, clock = long
    begins = instant_from_time(clock.now() - timedelta(hours=3))
    storage.put(table.timeline.format.timeline_path(Instant(begins, Action.COMMIT, State.REQUESTED)), b"")
    write(table)
    with pytest.raises(TableFrozen, match="that no Tideline writer made"):
        write(open_table(storage, clock))
    clock.advance(other_writers.WHOLE_LOOK_S)
    with pytest.raises(TableFrozen, match="that no Tideline writer made"):
        write(table)


def test_a_look_lists_all_names_when_the_newest_known_ones_are_gone(long) -> None:
    """So it is while an upgrade moves the timeline: what is left then, or is new, is found."""
    table, storage, clock = long
    form = table.timeline.format
    storage.put(
        form.timeline_path(Instant(instant_from_time(clock.now() - timedelta(hours=3)), Action.COMMIT, State.REQUESTED)), b""
    )
    for path in list(table.timeline.settled):
        storage.delete(path)
    with pytest.raises(TableFrozen, match="that no Tideline writer made"):
        write(table)
