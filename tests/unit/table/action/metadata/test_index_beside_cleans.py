"""Making, comparing and repairing the metadata table beside a clean that deletes files which these steps are about to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.plans import schedule_clean
from tests.unit.table.coordination.shared.test_shared_record_index import KEPT, indexed_table
from tests.unit.table.shared import opened as shared
from tests.unit.table.shared import put
from tests.unit.table.tables import create, open_table, write

from tideline_table.action import check_table, create_metadata, repair_metadata, run_clean
from tideline_table.clock import ManualClock
from tideline_table.errors import MetadataExists, ObjectNotFound, StorageRefused, WriteConflict
from tideline_table.log.metadata import BLOOM_FILTERS, COLUMN_STATS, FILES, RECORD_INDEX
from tideline_table.metadata_table import FindingKind
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType

NO_STATISTICS = {"tideline.column.stats.enable": False}
EVERY_TYPE = (FILES, COLUMN_STATS, BLOOM_FILTERS, RECORD_INDEX)
OWN_PROPERTIES = ".hoodie/metadata/.hoodie/hoodie.properties"
SOON = {"hoodie.cleaner.commits.retained": 1, "hoodie.metadata.compact.max.delta.commits": 1000}


class Beside(MemoryStorage):
    """Calls another process when a file is deleted or opened, once for each time that it was asked to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.behind_delete: Callable[[], object] | None = None
        """What happens behind the next deletion of a data file."""
        self.before_open: Callable[[str], object] | None = None
        """What happens before a data file is opened, with its path."""

    def delete(self, path: str) -> None:
        super().delete(path)
        act = self.behind_delete
        if act is not None and path.endswith(".parquet"):
            self.behind_delete = None
            act()

    def open_input(self, path: str) -> pa.NativeFile:
        act = self.before_open
        if act is not None and path.endswith(".parquet"):
            self.before_open = None
            try:
                act(path)
            finally:
                self.before_open = self.before_open or act
        return super().open_input(path)


def filled(*types: str, **options: Any) -> tuple[Table, Beside]:
    """A table with three slices in each of two file groups, of which a clean deletes the first ones."""
    clock = ManualClock()
    storage = Beside(clock)
    create(storage, clock, type=TableType.COW)
    table = open_table(storage, clock, **SOON)
    if types:
        create_metadata(table, types)
    for ts in (1, 2, 3):
        write(table, [("a", "p", ts, "x"), ("b", "q", ts, "x")], **options)
    return table, storage


def other(table: Table) -> Table:
    return open_table(table.storage, table.clock, "other", **SOON)


def in_the_middle_of_a_clean(table: Table, act: Callable[[], object]) -> None:
    """Let `act` happen behind the first of the two deletions of a clean of another process."""
    storage, cleaner = table.storage, other(table)
    assert isinstance(storage, Beside)
    assert schedule_clean(cleaner) is not None
    storage.behind_delete = act
    assert run_clean(cleaner) == 2
    assert storage.behind_delete is None


def replaced_and_cleaned(table: Table, ts: int) -> None:
    """Another process writes the rows again, and deletes the files that held them."""
    writer = other(table)
    for _ in range(2):
        write(writer, [("a", "p", ts, "y"), ("b", "q", ts, "y")])
    assert schedule_clean(writer) is not None
    assert run_clean(writer)


def when_opened(table: Table, times: int = 1) -> list[str]:
    """Let all files of the table be replaced and cleaned just before the next one is opened; return what was opened."""
    storage, opened = table.storage, list[str]()
    assert isinstance(storage, Beside)

    def act(path: str) -> None:
        opened.append(path)
        if len(opened) <= times:
            replaced_and_cleaned(table, 3 + len(opened))

    storage.before_open = act
    return opened


@pytest.mark.parametrize("kind", EVERY_TYPE)
@pytest.mark.parametrize("options", [{}, NO_STATISTICS], ids=["statistics in the log", "statistics in footers only"])
def test_a_partition_is_made_whole_in_the_middle_of_a_clean(kind: str, options: Any, caplog: pytest.LogCaptureFixture) -> None:
    table, _ = filled(**options)
    maker = other(table)
    in_the_middle_of_a_clean(table, lambda: create_metadata(maker, [kind]))
    assert "lacks records" not in caplog.text
    assert check_table(maker) == []
    write(maker, [("a", "p", 9, "z"), ("c", "q", 9, "z")])
    assert check_table(maker) == []


def test_files_that_a_running_clean_has_deleted_are_not_gone() -> None:
    table, _ = filled(*EVERY_TYPE)
    found: list[Any] = []
    in_the_middle_of_a_clean(table, lambda: found.extend(check_table(other(table))))
    assert found == []
    assert check_table(table) == []


@pytest.mark.parametrize("kind", EVERY_TYPE)
def test_a_check_goes_on_when_the_files_that_it_reads_are_cleaned(kind: str) -> None:
    table, _ = filled(kind, **NO_STATISTICS)
    checker = other(table)
    opened = when_opened(table)
    assert check_table(checker) == []
    assert opened


def test_a_repair_beside_cleans_repairs() -> None:
    table, storage = filled(*EVERY_TYPE)
    storage.delete(OWN_PROPERTIES)
    checker = other(table)
    when_opened(table)
    assert {found.kind for found in check_table(checker)} == {FindingKind.MISSING_FILE}
    opened = when_opened(table)
    assert repair_metadata(checker) is not None
    assert opened
    assert check_table(checker) == []


def test_a_record_index_is_made_when_the_files_that_it_reads_are_cleaned() -> None:
    table, _ = filled()
    maker = other(table)
    opened = when_opened(table)
    assert create_metadata(maker, [RECORD_INDEX]).partition(RECORD_INDEX) is not None
    assert opened
    assert check_table(maker) == []


def test_an_index_that_another_process_makes_meanwhile_stays() -> None:
    table, storage = filled(FILES)
    other = open_table(storage, table.clock, "other", **SOON)

    def made(_: str) -> None:
        storage.before_open = lambda _: None
        create_metadata(other, (RECORD_INDEX,))

    storage.before_open = made
    with pytest.raises(MetadataExists):
        create_metadata(table, (RECORD_INDEX,))
    storage.before_open = None
    assert check_table(table) == []
    assert write(table, [("a", "p", 9, "x")]).rows_updated == 1


def test_a_check_without_permission_to_write_compares_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = filled(*EVERY_TYPE)

    def refused(*_: object) -> None:
        raise StorageRefused("no permission to write")

    monkeypatch.setattr(type(table.timeline), "healed", refused)
    assert check_table(table) == []


def test_writers_and_cleans_that_always_go_first_are_named() -> None:
    table, _ = filled()
    maker = other(table)
    opened = when_opened(table, times=1000)
    with pytest.raises(WriteConflict, match=r"replaced and cleaned.*fewer writers"):
        create_metadata(maker, [RECORD_INDEX])
    assert len(opened) < 100
    assert maker.refresh().metadata is None or RECORD_INDEX not in maker.state.metadata.names


def test_a_check_that_never_sees_a_table_at_rest_reports_what_it_saw_twice() -> None:
    table, storage = filled(FILES, RECORD_INDEX)
    checker = other(table)
    opened = when_opened(table, times=1000)
    assert check_table(checker) == []
    assert 4 < len(opened) < 20
    storage.delete(OWN_PROPERTIES)
    assert [found.kind for found in check_table(checker)] == [FindingKind.MISSING_FILE]


def test_a_file_that_no_clean_deleted_is_gone() -> None:
    table, storage = filled(*EVERY_TYPE)
    lost = table.state.latest_slices()[0].path
    storage.delete(lost)
    assert [(found.kind, found.path) for found in check_table(table)] == [(FindingKind.GONE, lost)]
    bare, storage = filled()
    storage.delete(bare.state.latest_slices()[0].path)
    with pytest.raises(ObjectNotFound):
        create_metadata(bare, [RECORD_INDEX])


def test_a_check_of_a_shared_table_goes_on_when_the_files_that_it_reads_are_cleaned() -> None:
    table, storage, clock = indexed_table()
    checker, real, opened = shared(storage, clock, "checker", **KEPT), storage.open_input, list[str]()

    def open_input(path: str) -> pa.NativeFile:
        if not opened and path.endswith(".parquet"):
            opened.append(path)
            for ts in (5, 6, 7):
                put(table, [("a", "p", ts, "x"), ("c", "q", ts, "x")])
            assert schedule_clean(table, SOON)
            assert run_clean(table)
            with pytest.raises(ObjectNotFound):
                storage.stat(path)
        return real(path)

    storage.open_input = open_input  # type: ignore[method-assign]
    assert check_table(checker) == []
    assert opened
    storage.delete(table.refresh().latest_slices()[0].path)
    assert {found.kind for found in check_table(checker)} == {FindingKind.GONE}
