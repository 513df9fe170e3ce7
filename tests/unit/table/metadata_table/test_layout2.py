"""The metadata table of tables of versions 8 and 9, as readers of layout 2 find it: from names and files on storage alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.layout2_reader import files_for_readers, keys_for_readers
from tests.unit.table.tables import beside, cluster, compact, new_table, open_table, write

from tideline_table.action import (
    archive,
    check_table,
    create_metadata,
    create_savepoint,
    delete_partitions,
    drop_metadata,
    repair_metadata,
    restore_to_savepoint,
    run_clean,
)
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination import exclusive
from tideline_table.hudi.instant import Action, State
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import FILES, RECORD_INDEX, Delta, DeltaKind, MetadataPartition, MetadataTable
from tideline_table.metadata_table.files import files_of
from tideline_table.metadata_table.publishing import publish_metadata
from tideline_table.storage import MemoryStorage
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

VERSIONS = pytest.mark.parametrize("version", [8, 9])
TYPES = pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
SOON = {
    "hoodie.cleaner.commits.retained": 1,
    "hoodie.keep.min.commits": 2,
    "hoodie.keep.max.commits": 3,
    "hoodie.metadata.compact.max.delta.commits": 3,
    "hoodie.metadata.record.index.min.filegroup.count": 2,
    "tideline.archive.min.age": 0,
    "tideline.task.max.lifetime": 0,
    "tideline.clustering.min.input.files": 1,
}
CLUSTERED = Entry(
    6, "a", "2026-01-01T00:00:00+00:00", "w", "20260101000000010", Action.REPLACE_COMMIT, State.INFLIGHT, State.COMPLETED, "CLUSTER"
)
ALL = ("files", "column_stats", "bloom_filters", "record_index")


def indexed(version: int, kind: TableType, partitions: tuple[str, ...] = ALL, **more: Any) -> tuple[Table, MemoryStorage, Any]:
    _, storage, clock = new_table(type=kind, version=version, **more)
    table = open_table(storage, clock, **SOON)
    create_metadata(table, partitions)
    assert isinstance(storage, MemoryStorage)
    return table, storage, clock


def agree(table: Table) -> None:
    """What readers find is what the table log says, and the check of the table has no finding."""
    assert isinstance(table.storage, MemoryStorage)
    state = table.refresh()
    expected = {partition: names for partition, names in files_of(state).files.items() if names}
    assert files_for_readers(table.storage) == expected
    assert state.metadata is not None
    if state.metadata.partition(RECORD_INDEX) is not None:
        rows = table.read(["id", "_hoodie_record_key", "_hoodie_file_name"]).to_pylist()
        held = {row["_hoodie_record_key"]: row["_hoodie_file_name"][:36] for row in rows}
        assert {key: file_id[:36] for key, file_id in keys_for_readers(table.storage).items()} == held
    assert check_table(table) == []


@VERSIONS
@TYPES
def test_readers_find_what_each_action_leaves(version: int, kind: TableType) -> None:
    table, storage, clock = indexed(version, kind)
    agree(table)
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x"), ("c", "q", 1, "x")])
    agree(table)
    write(table, [("a", "p", 2, "y"), ("d", "p", 2, "y")])
    write(table, [("b", "q", 0, "")], Operation.DELETE)
    agree(table)
    clock.advance(1)
    WriteTransaction.begin(table.timeline, table.lock, "UPSERT", table.write_action()).roll_back()
    agree(table)
    if kind is TableType.MOR:
        compact(table)
        agree(table)
    schedule_clustering(table)
    assert cluster(table) is not None
    agree(table)
    saved = create_savepoint(table).instant
    for number in range(4):
        write(table, [("a", "p", 3 + number, "z"), (f"n{number}", "r", 1, "z")])
        if kind is TableType.MOR:
            compact(table)
    assert schedule_clean(table) is not None
    assert run_clean(table)
    archive(table)
    agree(table)
    restore_to_savepoint(table, saved)
    agree(table)
    write(table, [("e", "s", 1, "x")])
    delete_partitions(table, ["p"])
    agree(table)
    write(table, [("f", "q", 1, "x")], Operation.INSERT_OVERWRITE)
    agree(table)
    agree(open_table(storage, clock, **SOON))
    drop_metadata(table, ["record_index"])
    repair_metadata(table)
    agree(table)


def test_a_partition_that_a_clean_ended_comes_back_by_an_older_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers merge the write first, because it began first: the clean would take its partition away."""
    table, storage, clock = indexed(9, TableType.COW, ("files",))
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    delete_partitions(table, ["p"])
    for number in range(2):
        write(table, [("b", "q", 2 + number, "x")])
    cleaner = open_table(storage, clock, "cleaner", **SOON)

    def clean_first() -> None:
        clock.advance(1)
        assert schedule_clean(cleaner) is not None
        assert run_clean(cleaner)
        assert "p" not in files_for_readers(storage)

    beside(monkeypatch, clean_first)
    write(table, [("c", "p", 9, "x")])
    assert "p" in files_for_readers(storage)
    agree(table)


def test_a_process_that_comes_late_leaves_the_files_of_a_long_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """It completes an entry with a compaction, after a later entry of a write that began before the slices it keeps."""
    table, storage, clock = indexed(9, TableType.COW)
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    published: list[tuple[Any, ...]] = []

    def publish(*given: Any) -> None:
        published.append((*given[:4], given[4].copy(), *given[5:7]))
        publish_metadata(*given)

    def others_first() -> None:
        other = open_table(storage, clock, "other", **SOON)
        for number in range(8):
            clock.advance(1)
            write(other, [(f"n{number}", "q", 1, "x")])

    monkeypatch.setattr(exclusive, "publish_metadata", publish)
    beside(monkeypatch, others_first)
    write(table, [("c", "p", 9, "x")])
    agree(table)
    long = max(table.state.completed_writes(), key=lambda action: action.completion).instant
    compacted = [given for given in published if given[4].metadata.files.began == given[3].sequence and given[3].instant > long]
    late = compacted[-1]
    assert long < late[4].metadata.files.older_base
    publish_metadata(*late)
    agree(table)


def test_a_clustering_that_completes_after_writes_it_precedes_begins_a_slice_of_the_record_index() -> None:
    first = Delta("20260101000000020", 5, "20260101000000021")
    part = MetadataPartition(RECORD_INDEX, "1", "20260101000000001", 3, completion="20260101000000002", deltas=(first,))
    known = MetadataTable((MetadataPartition(FILES, "1", part.base, 3, completion=part.completion, deltas=(first,)), part), 10)
    assert known.partition(RECORD_INDEX) == part
    assert MetadataTable.from_json(known.to_json()) == known
    late = Delta("20260101000000010", 6, "20260101000000030", DeltaKind.REPLACE)
    begun = part.with_delta(late, 10, CLUSTERED, late.completion)
    assert (begun.base, begun.deltas, begun.older_deltas) == (late.completion, (late,), (first,))
    in_order = late._replace(instant="20260101000000025")
    assert part.with_delta(in_order, 10, CLUSTERED, late.completion).deltas == (first, in_order)
    plain = late._replace(kind=DeltaKind.PLAIN)
    assert part.with_delta(plain, 10, CLUSTERED, late.completion).deltas == (first, plain), "they are of other keys"
