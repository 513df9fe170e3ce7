"""Tables without a table log are listed by their metadata table, if it follows their timeline; by folders if not."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.faults import FaultyStorage
from tests.unit.table.tables import cluster, compact, new_table, open_table, set_properties, write

from tideline_table.action import archive, create_metadata, create_savepoint, delete_partitions, restore_to_savepoint, run_clean
from tideline_table.hudi.properties import METADATA_FOLDER, METADATA_PARTITIONS, read_properties
from tideline_table.hudi.version8.history_writer import archive as archive_instants
from tideline_table.log_format.framing import command_block
from tideline_table.metadata_table.log_file import log_file_bytes
from tideline_table.metadata_table.partition import Records
from tideline_table.metadata_table.records import FilesRecords, encode_records
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType

OWN = ".hoodie/.tideline/"
SOON = {
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.metadata.compact.max.delta.commits": 3,
    "tideline.task.max.lifetime": 0,
    "tideline.clustering.min.input.files": 1,
}
TYPES = pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)


def made(kind: TableType = TableType.MOR, version: int = 9) -> tuple[Table, Any]:
    _, storage, clock = new_table(type=kind, version=version)
    table = open_table(storage, clock, **SOON)
    create_metadata(table)
    write(table, [("1", "a", 1, "x"), ("2", "a", 1, "x"), ("3", "b", 1, "x")])
    write(table, [("2", "a", 2, "y"), ("4", "b/c", 1, "x")])
    return table, clock


def as_written_by_hudi(table: Table) -> MemoryStorage:
    copy = MemoryStorage(clock=table.clock)
    for found in table.storage.list_objects(""):
        if not found.path.startswith(OWN):
            copy.put(found.path, table.storage.read(found.path))
    return copy


def opened(storage: MemoryStorage, clock: Any) -> tuple[Table, list[str]]:
    """The table, and the folders of data that were listed to open it."""
    watched = FaultyStorage(storage)
    table = Table.open(storage.root, storage=watched, clock=clock)
    return table, [path for call, path in watched.calls if call == "list_folder" and not path.startswith(".hoodie")]


def slices(table: Table) -> set[tuple[Any, ...]]:
    return {(s.group, s.base_instant, s.base_file, tuple(log.name for log in s.log_files)) for s in table.slices()}


@TYPES
@pytest.mark.parametrize("version", [6, 8, 9])
def test_the_same_slices_without_listing_folders(kind: TableType, version: int) -> None:
    table, clock = made(kind, version)

    def same() -> None:
        found, listed = opened(as_written_by_hudi(table), clock)
        assert listed == []
        assert slices(found) == slices(table)
        assert sorted(found.read(["id", "v"]).to_pylist(), key=str) == sorted(table.read(["id", "v"]).to_pylist(), key=str)

    same()
    if kind is TableType.MOR:
        compact(table)
        same()
    schedule_clustering(table)
    cluster(table)
    same()
    for number in range(4):
        write(table, [("1", "a", 3 + number, "z"), (f"n{number}", "d", 1, "z")])
        same()
    schedule_clean(table)
    run_clean(table)
    same()
    clock.advance(1)
    delete_partitions(table, ["a"])
    same()


def test_folders_are_listed_after_a_commit_that_the_metadata_table_lacks(caplog: pytest.LogCaptureFixture) -> None:
    table, clock = made()
    copy = as_written_by_hudi(table)
    last = max(table.refresh().actions)
    for found in list(copy.list_folder(".hoodie/metadata/.hoodie/timeline").objects):
        if found.path.rpartition("/")[2].startswith(last):
            copy.delete(found.path)
    with caplog.at_level(logging.WARNING):
        found, listed = opened(copy, clock)
    assert "a" in listed
    assert slices(found) == slices(table)
    assert f"without the deltacommit {last}" in caplog.text


def test_folders_are_listed_after_a_restore() -> None:
    """Apache Hudi restores its metadata table at instants of their own, so nothing shows that it followed."""
    table, clock = made()
    saved = create_savepoint(table).instant
    write(table, [("9", "a", 1, "x")])
    restore_to_savepoint(table, saved)
    found, listed = opened(as_written_by_hudi(table), clock)
    assert "a" in listed
    assert slices(found) == slices(table)


@pytest.mark.parametrize("damage", ["torn", "gone", "rolled back"])
def test_folders_are_listed_if_it_is_damaged(damage: str) -> None:
    table, clock = made()
    copy = as_written_by_hudi(table)
    path = max(found.path for found in copy.list_folder(".hoodie/metadata/files").objects if ".log." in found.path)
    if damage == "gone":
        base = next(found.path for found in copy.list_folder(".hoodie/metadata/files").objects if found.path.endswith(".hfile"))
        copy.delete(base)
    elif damage == "rolled back":  # by a block that no writer of this layout makes
        copy.put(path, copy.read(path) + command_block("9" * 17, max(table.refresh().actions)))
    else:
        copy.put(path, copy.read(path)[:-20])
    found, listed = opened(copy, clock)
    assert "a" in listed
    assert slices(found) == slices(table)


def test_one_that_is_turned_off_while_it_is_read_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ceases to be named before its files are deleted: some are gone already."""
    table, clock = made()
    copy = as_written_by_hudi(table)
    real = MemoryStorage.list_folder

    def turned_off(self: MemoryStorage, path: str) -> Any:
        if path == ".hoodie/metadata/files" and self is copy:
            set_properties(copy, {**read_properties(copy), METADATA_PARTITIONS: ""})
            for found in list(real(self, path).objects):
                if ".log." in found.path:
                    copy.delete(found.path)
        return real(self, path)

    monkeypatch.setattr(MemoryStorage, "list_folder", turned_off)
    found, listed = opened(copy, clock)
    assert "a" in listed
    assert slices(found) == slices(table)


def test_files_of_pending_writes_do_not_count() -> None:
    """The metadata table has a commit before the timeline does."""
    table, clock = made()
    before = slices(table)
    write(table, [("7", "e", 1, "x")])
    copy = as_written_by_hudi(table)
    last = max(table.refresh().actions)
    completed = [
        found.path for found in copy.list_folder(".hoodie/timeline").objects if found.path.rpartition("/")[2].startswith(f"{last}_")
    ]
    assert len(completed) == 1
    copy.delete(completed[0])
    found, listed = opened(copy, clock)
    assert listed == []
    assert slices(found) == before


def layout_1() -> tuple[Table, Any]:
    table, clock = made(version=6)
    write(table, [("1", "a", 5, "z"), ("8", "a", 1, "x")])
    return table, clock


def newest_log(copy: MemoryStorage) -> str:
    return max(
        (found.path for found in copy.list_folder(".hoodie/metadata/files").objects if ".log." in found.path),
        key=lambda path: int(path.rpartition(".log.")[2].partition("_")[0]),
    )


def test_a_rolled_back_delta_commit_of_layout_1_does_not_count() -> None:
    """Its instant stays completed in the metadata table of some releases; a later block takes its records back."""
    table, clock = layout_1()
    before = slices(table)
    write(table, [("9", "new", 1, "x")])
    copy = as_written_by_hudi(table)
    last = max(table.refresh().actions)
    for found in list(copy.list_folder(".hoodie").objects):
        if found.path.rpartition("/")[2].startswith(f"{last}."):
            copy.delete(found.path)
    path = newest_log(copy)
    copy.put(path, copy.read(path) + command_block("9" * 17, last))
    found, listed = opened(copy, clock)
    assert listed == []
    assert slices(found) == before


@pytest.mark.parametrize("lack", ["commit", "rollback"])
def test_layout_1_without_a_step_of_the_table_is_listed(lack: str, caplog: pytest.LogCaptureFixture) -> None:
    """A rollback adds log blocks there, so the metadata table has each."""
    table, clock = layout_1()
    copy = as_written_by_hudi(table)
    if lack == "rollback":
        last = "9" * 17
        copy.put(f".hoodie/{last}.rollback", b"")
    else:
        last = max(table.refresh().actions)
        copy.delete(f".hoodie/metadata/.hoodie/{last}.deltacommit")
    with caplog.at_level(logging.WARNING):
        found, listed = opened(copy, clock)
    assert "a" in listed
    assert slices(found) == slices(table)
    assert f"{last}; expected all instants" in caplog.text


def test_a_file_that_is_listed_by_a_path_is_not_believed() -> None:
    """Apache Hudi 1.2.0 lists the log file of a write that failed so if the next write claims it; its own readers fail then."""
    table, clock = layout_1()
    copy = as_written_by_hudi(table)
    path = newest_log(copy)
    listed_as = FilesRecords(files={"a": {"file:a/.x_20240101000000000.log.1_0-0-0": 7}})
    last = max(table.refresh().actions)
    copy.put(path, copy.read(path) + log_file_bytes("files", last, Records.of(encode_records(listed_as))))
    found, listed = opened(copy, clock)
    assert "a" in listed
    assert slices(found) == slices(table)


def test_a_delta_commit_that_the_timeline_of_layout_1_has_no_longer_is_not_believed() -> None:
    """Nothing tells an archived one from one that failed."""
    table, clock = layout_1()
    copy = as_written_by_hudi(table)
    deltas = [f.path for f in copy.list_folder(".hoodie/metadata/.hoodie").objects if f.path.endswith(".deltacommit")]
    for path in sorted(deltas)[:2]:
        copy.delete(path)
    found, listed = opened(copy, clock)
    assert "a" in listed
    assert slices(found) == slices(table)


def test_folders_are_listed_if_delta_commits_of_its_newest_slice_are_archived(caplog: pytest.LogCaptureFixture) -> None:
    _, storage, clock = new_table(type=TableType.COW, version=9)
    table = open_table(storage, clock, **{"hoodie.metadata.compact.max.delta.commits": 1000})
    create_metadata(table)
    for n in range(6):
        write(table, [(str(n), f"p{n}", 1, "x")])
    keep = {"hoodie.cleaner.commits.retained": 1, "hoodie.keep.min.commits": 2, "hoodie.keep.max.commits": 3}
    archive(table, {**keep, "tideline.archive.min.age": 0})
    first, form = min(a.instant for a in table.refresh().completed_writes()), table.timeline.format
    copy = as_written_by_hudi(table)
    held = [found.path for found in copy.list_folder(f"{METADATA_FOLDER}/{form.timeline_folder}").objects]
    named = [(form.parse_timeline_file_name(path.rpartition("/")[2]), path) for path in held]
    gone = [(*parsed, path) for parsed, path in named if parsed is not None and parsed[0].time < first]
    archive_instants(copy, f"{METADATA_FOLDER}/{form.history_folder}", gone)
    for *_, path in gone:
        copy.delete(path)
    found, listed = opened(copy, clock)
    assert slices(found) == slices(table)
    assert "p0" in listed
    assert "of an instant before" in caplog.text
