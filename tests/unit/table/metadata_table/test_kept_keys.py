"""The process that wrote base files makes their records from memory; another process that reads the files makes the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.unit.table.hudi_metadata import log_name
from tests.unit.table.tables import cluster, compact, new_table, open_table, write

from tideline_table.action import check_table, create_metadata, run_clean
from tideline_table.action.write import executor
from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination import exclusive
from tideline_table.errors import CommitUnknown
from tideline_table.hudi.formats import WRITTEN
from tideline_table.log.body import Published
from tideline_table.log.metadata import BLOOM_FILTERS, COLUMN_STATS, FILES, RECORD_INDEX
from tideline_table.metadata_table import bloom_filters, delta_commit, record_index
from tideline_table.metadata_table.kinds import kind_of
from tideline_table.metadata_table.layout import file_id_of, file_path
from tideline_table.metadata_table.log_file import log_file_bytes
from tideline_table.metadata_table.partition import Source, by_group
from tideline_table.table import Table, TableType
from tideline_table.writer import Operation

OPTIONS = {
    "hoodie.metadata.record.index.min.filegroup.count": 3,
    "hoodie.cleaner.commits.retained": 1,
    "tideline.clustering.min.input.files": 1,
    "hoodie.metadata.compact.max.delta.commits": 50,
}


def new(kind: TableType, **more: Any) -> Table:
    _, storage, clock = new_table(type=kind)
    table = open_table(storage, clock, **OPTIONS, **more)
    create_metadata(table, (FILES, COLUMN_STATS, BLOOM_FILTERS, RECORD_INDEX))
    return table


def agrees(table: Table) -> int:
    """Compare the log files of the last delta commit with those that a process makes which only has the entry.

    Return their number.
    """
    state = table.refresh()
    entry, known = table.timeline.log.read(state.sequence), state.metadata
    assert entry is not None
    assert known is not None
    delta, compared = known.files.deltas[-1], 0
    assert delta.version == entry.sequence
    for part in known.partitions:
        kind = kind_of(part.name)
        made = by_group(kind.changed_by(Source(table.storage, WRITTEN, state, table.log_rule()), entry), part.file_groups)
        for group, records in enumerate(made):
            path = file_path(log_name(part.base, delta.version, file_id_of(part.name, group)), part.name)
            if records or kind.writes_every_delta:
                assert table.storage.read(path) == log_file_bytes(part.name, delta.instant, records), path
                compared += 1
            else:
                assert path not in {found.path for found in table.storage.list_folder(path.rpartition("/")[0]).objects}
    return compared


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The base files that the publication read, in whole or their footer."""
    paths: list[str] = []

    def count(module: Any, name: str) -> None:
        real = getattr(module, name)

        def counted(storage: Any, path: str, *more: Any) -> Any:
            paths.append(path)
            return real(storage, path, *more)

        monkeypatch.setattr(module, name, counted)

    count(record_index, "read_base_file")
    count(bloom_filters, "read_filter_text")
    return paths


@pytest.mark.parametrize("kind", list(TableType), ids=lambda kind: kind.value)
@pytest.mark.parametrize("options", [{}, {"hoodie.bloom.index.filter.type": "SIMPLE"}])
def test_each_action_writes_the_bytes_that_another_process_would_write(kind, options):
    table = new(kind, **options)
    moving = {"hoodie.record.index.update.partition.path": True}
    write(table, [(f"k{number}", "pqr"[number % 3], 1, "x") for number in range(20)])
    assert agrees(table) > 4
    write(table, [("k0", "p", 2, "y"), ("k1", "q", 2, "y"), ("new", "p", 2, "y")])
    agrees(table)
    write(table, [("k3", "p", 3, ""), ("k4", "q", 3, "")], Operation.DELETE)
    agrees(table)
    write(table, [("k0", "s", 4, "moved"), ("k3", "p", 4, "again")], **moving)
    agrees(table)
    write(table, [("k5", "p", 5, "known"), ("newer", "q", 5, "x")], Operation.INSERT)
    agrees(table)
    write(table, [("bulk", "q", 5, "x"), ("bulk2", "t", 5, "x")], Operation.BULK_INSERT)
    agrees(table)
    write(table, [("bare", "u", 5, "x")], **{"hoodie.parquet.bloom.filter.enabled": False})
    agrees(table)
    write(table, [("k20", "r", 6, "over")], Operation.INSERT_OVERWRITE)
    agrees(table)
    if kind is TableType.MOR:
        compact(table)
        agrees(table)
    schedule_clustering(table)
    assert cluster(table) is not None
    agrees(table)
    assert schedule_clean(table) is not None
    run_clean(table)
    agrees(table)


def test_inserts_read_no_file_again(read, monkeypatch):
    table = new(TableType.COW, **{"hoodie.parquet.small.file.limit": 0})
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")], Operation.INSERT)
    write(table, [("c", "p", 1, "x")])
    assert read == []
    monkeypatch.setattr(executor, "MOST_KEPT_KEYS", 1)
    write(table, [("d", "p", 1, "x"), ("e", "p", 1, "x")], Operation.INSERT)
    assert len(read) == 2
    agrees(table)


def test_the_keys_go_with_the_entry():
    table = new(TableType.COW)
    committed = write(table, [("a", "p", 1, "x")])
    assert all(stat.keys is None for stat in committed.stats)
    head = table.timeline.replica.head
    assert head is not None
    assert isinstance(head.body, Published)
    assert [stat.keys.inserted.to_pylist() for stat in head.body.metadata.stats if stat.keys is not None] == [["a"]]
    assert all(stat.keys is None for stat in head.body.for_the_fold.metadata.stats)
    write(table, [("a", "p", 2, "x")])
    assert table.timeline.replica.head is not head


def test_a_write_takes_the_log_files_that_it_prepared(monkeypatch):
    table = new(TableType.COW)

    def refuse(*_: Any) -> Any:
        raise AssertionError("records are made anew")

    with monkeypatch.context() as patched:
        patched.setattr(delta_commit, "changes_of", refuse)
        write(table, [(f"k{number}", "pqr"[number % 3], 1, "x") for number in range(20)])
        write(table, [("k0", "p", 2, "y"), ("new", "p", 2, "y"), ("newer", "s", 2, "y")])
        write(table, [("other", "q", 2, "y")], Operation.INSERT)
    agrees(table)
    with monkeypatch.context() as patched:
        patched.setattr(delta_commit, "changes_of", refuse)
        with pytest.raises(AssertionError, match="made anew"):
            write(table, [("k1", "q", 3, "over")], Operation.INSERT_OVERWRITE)


def test_log_files_of_other_files_are_not_taken(monkeypatch):
    table, real = new(TableType.COW), exclusive.prepared_delta

    def of_some(*given: Any) -> Any:
        return real(*given[:-1], given[-1][:1])

    monkeypatch.setattr(exclusive, "prepared_delta", of_some)
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    agrees(table)
    assert check_table(table) == []


def test_a_partition_that_is_created_during_the_commit_gets_its_log_files(monkeypatch):
    _, storage, clock = new_table(type=TableType.COW)
    table = open_table(storage, clock, **OPTIONS)
    create_metadata(table, (FILES, BLOOM_FILTERS))
    real = WriteTransaction._delete_unnamed_files

    def create_first(transaction: WriteTransaction, results: Any) -> None:
        monkeypatch.undo()
        create_metadata(open_table(storage, clock, "other", **OPTIONS), (COLUMN_STATS,))
        real(transaction, results)

    monkeypatch.setattr(WriteTransaction, "_delete_unnamed_files", create_first)
    write(table, [("a", "p", 1, "x"), ("b", "q", 1, "x")])
    assert COLUMN_STATS in table.state.metadata.names
    agrees(table)
    assert check_table(table) == []


def test_a_refused_write_leaves_nothing_in_the_metadata_table(monkeypatch):
    table = new(TableType.COW)
    before = [found.path for found in table.storage.list_objects(".hoodie/metadata")]

    def refuse(*_: Any) -> Any:
        raise CommitUnknown("no answer", remedy="read the table again")

    monkeypatch.setattr(WriteTransaction, "_append", refuse)
    with pytest.raises(CommitUnknown):
        write(table, [("b", "q", 1, "x")])
    assert [found.path for found in table.storage.list_objects(".hoodie/metadata")] == before
