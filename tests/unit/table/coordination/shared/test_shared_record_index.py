"""The partition `record_index` of a shared table's metadata table: each key once, and found where the index says."""

from __future__ import annotations

import pytest
from tests.plans import schedule_clean, schedule_clustering
from tests.simulation.metadata_reader import check_readers_miss_nothing, index_for_readers
from tests.unit.table.coordination.shared.test_shared_metadata import FIRST, WHOLE, kept_table, sound
from tests.unit.table.hudi_metadata import KEY_GROUPS
from tests.unit.table.shared import SHARING, opened, put, shared_table
from tests.unit.table.tables import cluster, contents, new_table

from tideline_locks import open_hudi_lock
from tideline_table.action import check_table, run_clean
from tideline_table.clock import ManualClock
from tideline_table.config import INDEX_TYPE, RECORD_INDEX_UPDATE_PARTITION_PATH, SHARED_METADATA
from tideline_table.errors import DuplicateKey, InvalidOption, UnsupportedTable
from tideline_table.hudi.formats import WRITTEN
from tideline_table.log.body import Published
from tideline_table.log.entry import Entry
from tideline_table.log.metadata import RECORD_INDEX
from tideline_table.metadata_table.finding import FindingKind
from tideline_table.metadata_table.layout import file_path
from tideline_table.metadata_table.partition import Records, Source
from tideline_table.metadata_table.record_index import RecordIndexPartition
from tideline_table.metadata_table.stored_partition import StoredPartition
from tideline_table.storage import Storage
from tideline_table.table import BloomIndex, Table, TableType, share_table
from tideline_table.writer import Operation

KEPT = {SHARED_METADATA.key: "files,record_index"}
PARTITIONS = "files,record_index"


def indexed_table(**options: object) -> tuple[Table, Storage, ManualClock]:
    return kept_table(columns=(), kept=KEPT, with_keys=True, **options)


def keys(storage: Storage) -> dict[str, str]:
    """Key → partition path, by the index."""
    return {key.decode(): group.partition_path for key, group in index_for_readers(storage).items()}


def test_each_action_is_followed() -> None:
    table, storage, clock = indexed_table()
    assert keys(storage) == {"a": "p", "b": "p", "c": "q"}
    put(table, [("a", "p", 2, "2"), ("d", "r", 2, "2")])
    sound(table, PARTITIONS)
    assert keys(storage) == {"a": "p", "b": "p", "c": "q", "d": "r"}
    put(table, [("b", "p", 3, "3")], Operation.DELETE)
    sound(table, PARTITIONS)
    assert "b" not in keys(storage)
    put(table, [("b", "q", 4, "4"), ("e", "p", 4, "4")], Operation.INSERT)
    sound(table, PARTITIONS)
    put(table, [("f", "q", 5, "5")], Operation.INSERT_OVERWRITE)
    sound(table, PARTITIONS)
    assert keys(storage) == {"a": "p", "d": "r", "e": "p", "f": "q"}
    clock.advance(1)
    assert schedule_clustering(table, WHOLE)
    assert cluster(table)
    sound(table, PARTITIONS)
    for ts in (6, 7, 8):
        put(table, [("a", "p", ts, str(ts))])
    clock.advance(1)
    assert schedule_clean(table, {"hoodie.cleaner.commits.retained": 1})
    assert run_clean(table)
    sound(table, PARTITIONS)
    assert contents(table) == [("a", "p", 8, "8"), ("d", "r", 2, "2"), ("e", "p", 4, "4"), ("f", "q", 5, "5")]
    assert len(StoredPartition.read(storage, WRITTEN, RECORD_INDEX, {}).groups) == KEY_GROUPS


@pytest.mark.parametrize("operation", [Operation.UPSERT, Operation.INSERT, Operation.BULK_INSERT])
def test_a_key_of_another_partition_is_written_where_it_is(operation: Operation) -> None:
    table, storage, _ = indexed_table()
    put(table, [("a", "q", 2, "2")], operation)
    assert sorted(row[0] for row in contents(table)) == ["a", "b", "c"]
    assert keys(storage)["a"] == "p"
    sound(table, PARTITIONS)


def test_a_row_that_moves() -> None:
    table, storage, _ = indexed_table(**{RECORD_INDEX_UPDATE_PARTITION_PATH.key: True})
    put(table, [("a", "q", 2, "2")])
    assert contents(table) == [("a", "q", 2, "2"), *FIRST[1:]]
    assert keys(storage)["a"] == "q"
    sound(table, PARTITIONS)


def test_an_overwrite_with_a_key_of_another_partition_is_refused() -> None:
    table, storage, _ = indexed_table()
    with pytest.raises(DuplicateKey, match="partition 'p' holds"):
        put(table, [("a", "q", 2, "2")], Operation.INSERT_OVERWRITE)
    assert contents(table) == FIRST
    put(table, [("a", "q", 2, "2")], Operation.INSERT_OVERWRITE_TABLE)
    assert keys(storage) == {"a": "q"}
    sound(table, PARTITIONS)


def test_an_index_by_partition_is_refused() -> None:
    table, *_ = indexed_table()
    with pytest.raises(InvalidOption, match="SIMPLE"):
        put(table, [("a", "q", 2, "2")], **{INDEX_TYPE.key: "SIMPLE"})


def test_a_table_that_cannot_have_one_is_refused() -> None:
    _, storage, clock = shared_table(TableType.MOR)
    with pytest.raises(UnsupportedTable, match="of another type"):
        put(opened(storage, clock, **KEPT), FIRST)
    table, *_ = new_table(index=BloomIndex())
    kept = Table.open(table.storage.root, options=KEPT, clock=table.clock, storage=table.storage)
    with pytest.raises(UnsupportedTable, match="unique by partition"):
        share_table(kept, SHARING, open_hudi_lock)


def test_hudi_writers_are_told_to_make_it() -> None:
    table, storage, clock = indexed_table()
    assert table.hudi_options()["hoodie.metadata.record.index.enable"] == "true"
    other = opened(storage, clock, **{SHARED_METADATA.key: "files"}).hudi_options()
    assert other["hoodie.metadata.record.index.enable"] == "false"


def test_a_partitioned_record_index_is_dropped() -> None:
    table, storage, _ = indexed_table()
    storage.put(file_path("record-index-p-0000-0_0-0-0_20260101000001000013.hfile", RECORD_INDEX), b"")
    put(table, [("a", "p", 2, "2")])
    sound(table, "files")


def test_the_check_finds_what_a_step_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage, clock = indexed_table()

    def changed_by(_: object, _source: Source, entry: Entry) -> Records:
        assert isinstance(entry.body, Published)
        return Records()

    monkeypatch.setattr(RecordIndexPartition, "changed_by", changed_by)
    put(table, [("z", "z", 3, "3")])
    assert [(f.kind, f.path) for f in check_table(opened(storage, clock))] == [(FindingKind.NOT_LISTED, RECORD_INDEX)]
    with pytest.raises(AssertionError, match="the record index says None"):
        check_readers_miss_nothing(storage)
