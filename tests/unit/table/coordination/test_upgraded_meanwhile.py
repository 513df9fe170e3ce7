"""A writer that has an exclusive table open while others change the table's properties or move its timeline away."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.plans import schedule_archival, schedule_clean, schedule_clustering
from tests.unit.table.shared import upgrade
from tests.unit.table.tables import contents, create, listing, new_table, open_table, set_properties, write

from tideline_table.action import roll_back_dead, run_clean, run_clustering
from tideline_table.clock import ManualClock
from tideline_table.errors import CorruptMetadata, TableFrozen, TableNotFound
from tideline_table.hudi import properties as p
from tideline_table.hudi.properties import read_properties
from tideline_table.storage import Folder, LocalStorage, MemoryStorage, Storage
from tideline_table.table import Table

ROW = ("a", "p", 1, "x")


class Counting(MemoryStorage):
    """Counts readings of `hoodie.properties` and listings of the timeline."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.readings = self.listings = 0

    def read(self, path: str) -> bytes:
        self.readings += path == p.PROPERTIES_PATH
        return super().read(path)

    def list_folder(self, path: str, after: str = "") -> Folder:
        self.listings += path in (".hoodie", ".hoodie/timeline")
        return super().list_folder(path, after)


@pytest.fixture
def place() -> tuple[Table, Counting, ManualClock]:
    clock = ManualClock()
    storage = Counting(clock)
    table, _, _ = new_table(clock, storage)
    write(table, [ROW])
    clock.advance(1)
    return table, storage, clock


def declare(storage: Storage, **changes: str) -> None:
    set_properties(storage, {**read_properties(storage), **changes})


def frozen(table: Table, words: str) -> None:
    before = listing(table.storage)
    for step in (schedule_clustering, run_clustering, schedule_clean, run_clean, schedule_archival, roll_back_dead):
        with pytest.raises(TableFrozen, match=words):
            step(table)
    for _ in range(2):
        with pytest.raises(TableFrozen, match=words) as caught:
            write(table, [ROW])
    assert "downgrade it" in caught.value.remedy
    assert listing(table.storage) == before


def test_an_upgrade_freezes_writers_that_have_the_table_open(place: tuple[Table, Counting, ManualClock]) -> None:
    table, storage, _ = place
    upgrade(storage)
    frozen(table, "version 9 with timeline layout 2")


@pytest.mark.parametrize(("key", "value", "words"), [(p.VERSION, "8", "version 8"), (p.LAYOUT, "2", "layout 2")])
def test_what_the_properties_say_is_enough(place: tuple[Table, Counting, ManualClock], key: str, value: str, words: str) -> None:
    table, storage, clock = place
    declare(storage, **{key: value})
    frozen(table, words)
    declare(storage, **{p.VERSION: "6", p.LAYOUT: "1"})
    write(table, [("b", "p", 1, "downgraded")])
    assert len(contents(open_table(storage, clock))) == 2


def test_a_timeline_that_moved_is_enough(place: tuple[Table, Counting, ManualClock]) -> None:
    """An upgrade that is under way, or died there: the properties come last."""
    table, storage, _ = place
    before = storage.read(p.PROPERTIES_PATH)
    upgrade(storage)
    storage.put(p.PROPERTIES_PATH, before)
    frozen(table, r"in \.hoodie/timeline")


def test_the_empty_folder_of_a_downgrade_is_passed_over(tmp_path: Path) -> None:
    table, _, _ = new_table(storage=LocalStorage(tmp_path / "t"))
    (tmp_path / "t/.hoodie/timeline/history").mkdir(parents=True)
    write(table, [ROW])
    assert contents(table) == [ROW]


def test_properties_of_the_creation_that_change_stop_writers(place: tuple[Table, Counting, ManualClock]) -> None:
    table, storage, _ = place
    before = storage.read(p.PROPERTIES_PATH)
    declare(storage, **{p.PRECOMBINE_FIELD: "v"})
    with pytest.raises(CorruptMetadata, match=r"precombine\.field=v; expected hoodie\.table\.precombine\.field=ts"):
        write(table, [("a", "p", 0, "by another rule")])
    storage.put(p.PROPERTIES_PATH, before)
    write(table, [("a", "p", 0, "earlier by its ordering value")])
    assert contents(table) == [ROW]


def test_looking_costs_one_listing_and_no_reading(place: tuple[Table, Counting, ManualClock]) -> None:
    table, storage, _ = place
    storage.readings = storage.listings = 0
    for number in range(3):
        write(table, [("a", "p", number, "x")])
    assert (storage.readings, storage.listings) == (0, 3)


def test_properties_that_somebody_changes_are_read_from_their_backup(place: tuple[Table, Counting, ManualClock]) -> None:
    table, storage, _ = place
    storage.put(p.BACKUP_PATH, storage.read(p.PROPERTIES_PATH))
    storage.delete(p.PROPERTIES_PATH)
    write(table, [("b", "p", 1, "x")])
    assert len(contents(table)) == 2
    storage.delete(p.BACKUP_PATH)
    with pytest.raises(TableNotFound):
        write(table, [ROW])


@pytest.mark.parametrize("has_written", [False, True])
def test_a_table_made_anew_at_its_place_is_left_alone(place: tuple[Table, Counting, ManualClock], has_written: bool) -> None:
    """Behind the log of the old one nobody could read or write the new one."""
    table, storage, clock = place
    old = table if has_written else open_table(storage, clock)
    for folder in (".hoodie", "p"):
        storage.delete_below(folder)
    clock.advance(1)
    create(storage, clock)
    with pytest.raises(TableFrozen, match="open it again"):
        write(old, [ROW])
    new = open_table(storage, clock)
    write(new, [("n", "p", 1, "x")])
    assert contents(open_table(storage, clock)) == [("n", "p", 1, "x")]
