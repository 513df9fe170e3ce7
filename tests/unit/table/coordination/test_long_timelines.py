"""Before each write, a writer looks for other writers on the timeline: it reads the names that are new since its last look."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.table import tables
from tests.unit.table.counting import NotingStorage
from tests.unit.table.tables import instant, new_table, open_table

from tideline_table.clock import ManualClock
from tideline_table.coordination import other_writers
from tideline_table.errors import TableFrozen
from tideline_table.hudi.instant import Action, Instant, State
from tideline_table.table import Table


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
